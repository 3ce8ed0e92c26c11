/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
#include "trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int count_of(struct dense const* layer) {
  return layer->width * (layer->width + 1);
}

int dense_make(struct dense* layer, int width, unsigned seed) {
  layer->width = width;
  layer->weight = malloc(sizeof(float) * (size_t)count_of(layer));
  layer->gradient = calloc((size_t)count_of(layer), sizeof(float));
  if (layer->weight == NULL || layer->gradient == NULL) {
    dense_free(layer);
    return -1;
  }
  for (int i = 0; i < count_of(layer); ++i) {
    seed = seed * 1664525u + 1013904223u; /* Numerical Recipes, 1992, section 7.1 */
    layer->weight[i] = ((float)(seed >> 8) / 16777216.0f - 0.5f) / (float)width;
  }
  return 0;
}

void dense_free(struct dense* layer) {
  free(layer->weight);
  free(layer->gradient);
  layer->weight = layer->gradient = NULL;
}

void dense_forward(struct dense const* layer, int rows, float const* x, float* y) {
  int const n = layer->width;
  for (int r = 0; r < rows; ++r)
    for (int to = 0; to < n; ++to) {
      float sum = layer->weight[n * n + to];
      for (int from = 0; from < n; ++from)
        sum += x[r * n + from] * layer->weight[from * n + to];
      y[r * n + to] = tanhf(sum);
    }
}

void dense_backward_input(
  struct dense const* layer, int rows, float const* y, float const* dy, float* dz, float* dx) {
  int const n = layer->width;
  for (int i = 0; i < rows * n; ++i)
    dz[i] = dy[i] * (1 - y[i] * y[i]);
  for (int r = 0; dx != NULL && r < rows; ++r)
    for (int from = 0; from < n; ++from) {
      float sum = 0;
      for (int to = 0; to < n; ++to)
        sum += dz[r * n + to] * layer->weight[from * n + to];
      dx[r * n + from] = sum;
    }
}

void dense_backward_weight(struct dense* layer, int rows, float const* x, float const* dz) {
  int const n = layer->width;
  for (int r = 0; r < rows; ++r)
    for (int to = 0; to < n; ++to) {
      for (int from = 0; from < n; ++from)
        layer->gradient[from * n + to] += x[r * n + from] * dz[r * n + to];
      layer->gradient[n * n + to] += dz[r * n + to];
    }
}

void dense_step(struct dense* layer, float rate) {
  for (int i = 0; i < count_of(layer); ++i)
    layer->weight[i] -= rate * layer->gradient[i];
  memset(layer->gradient, 0, sizeof(float) * (size_t)count_of(layer));
}

float squared_error(int count, float const* y, float const* target, float scale, float* dy) {
  float sum = 0;
  for (int i = 0; i < count; ++i) {
    dy[i] = scale * (y[i] - target[i]);
    sum += (y[i] - target[i]) * dy[i] / 2;
  }
  return sum;
}

float train_step(struct dense* layers,
                 int count,
                 int rows,
                 int microbatches,
                 float const* inputs,
                 float const* targets,
                 float rate) {
  int const numbers = rows * layers[0].width;
  float* const values = malloc(sizeof(float) * (size_t)(numbers * (count + 3)));
  if (values == NULL)
    return -1;
  float* const dy = values + numbers * (count + 1);
  float* const dz = dy + numbers;
  float loss = 0;
  for (int m = 0; m < microbatches; ++m) {
    memcpy(values, inputs + m * numbers, sizeof(float) * (size_t)numbers);
    for (int i = 0; i < count; ++i)
      dense_forward(&layers[i], rows, values + i * numbers, values + (i + 1) * numbers);
    loss += squared_error(
      numbers, values + count * numbers, targets + m * numbers, 1.0f / (float)microbatches, dy);
    for (int i = count; i-- > 0;) {
      dense_backward_input(&layers[i], rows, values + (i + 1) * numbers, dy, dz, dy);
      dense_backward_weight(&layers[i], rows, values + i * numbers, dz);
    }
  }
  for (int i = 0; i < count; ++i)
    dense_step(&layers[i], rate);
  free(values);
  return loss;
}
