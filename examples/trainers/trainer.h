/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* A trainer in C that knows of no pipelines: dense layers with tanh, a squared error, plain steps.
 */
#ifndef EXAMPLES_TRAINERS_TRAINER_H
#define EXAMPLES_TRAINERS_TRAINER_H

#ifdef __cplusplus
extern "C" {
#endif

/* y = tanh(x w + b), for rows of `width` numbers. */
struct dense {
  int width;
  float* weight;   /* [width][width], then the biases [width] */
  float* gradient; /* the same */
};

/* Weights that follow from a seed, gradients of 0. Returns 0, or -1 where memory lacks. */
int dense_make(struct dense* layer, int width, unsigned seed);
void dense_free(struct dense* layer);

void dense_forward(struct dense const* layer, int rows, float const* x, float* y);
/* dz: gradients before tanh, wanted by the third; dx may be null. */
void dense_backward_input(
  struct dense const* layer, int rows, float const* y, float const* dy, float* dz, float* dx);
void dense_backward_weight(struct dense* layer, int rows, float const* x, float const* dz);
void dense_step(struct dense* layer, float rate);

/* Half the squared error, times `scale`; dy: its gradient. */
float squared_error(int count, float const* y, float const* target, float scale, float* dy);

/* A step of the trainer's own: every microbatch forward and back through all layers, then all
   weights. Returns the loss; a negative number where memory lacks. */
float train_step(struct dense* layers,
                 int count,
                 int rows,
                 int microbatches,
                 float const* inputs,
                 float const* targets,
                 float rate);

#ifdef __cplusplus
}
#endif

#endif
