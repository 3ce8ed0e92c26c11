// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The network of examples/nccl on the host, in plain loops: what it computes in fp32, and
//! with bf16 weights, activations and messages next to fp32 sums and weights of the optimizer.

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace reference {

inline constexpr int rows = 8;
inline constexpr int features = 16;

//! The nearest number with eight bits after the leading one's place; ties go to the even one.
inline float to_bf16(float x) {
  auto const bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);
}

struct network {
  bool mixed = false;
  bool master = true; //!< false: the optimizer's own weights are rounded too
  int stages = 1;
  int microbatches = 1;

  struct stage {
    std::vector<float> w, own, dw, mean, square;
  };
  std::vector<stage> all{};
  std::vector<float> losses{};

  [[nodiscard]] float kept(float x) const { return mixed ? to_bf16(x) : x; }
  static float sample(int m, int r, int c) {
    return static_cast<float>((37 * m + 11 * r + 7 * c) % 17) / 8.0F - 1.0F;
  }

  void begin() {
    for (int s = 0; s < stages; ++s) {
      stage made;
      for (int i = 0; i < features * features; ++i) {
        made.own.push_back(static_cast<float>((i * 7 + s * 3) % 11) / 100 - 0.05F);
        made.w.push_back(kept(made.own.back()));
      }
      made.dw.resize(made.w.size());
      made.mean.resize(made.w.size());
      made.square.resize(made.w.size());
      all.push_back(made);
    }
  }

  void train(int steps) {
    begin();
    for (int step = 0; step < steps; ++step) {
      std::array<float, rows * features> sums{};
      for (int m = 0; m < microbatches; ++m)
        for (int r = 0; r < rows; ++r)
          forward(m, r, sums);
      float loss = 0;
      for (float const each : sums)
        loss += each;
      losses.push_back(loss);
      for (int m = 0; m < microbatches; ++m)
        backward(m);
      update(step);
      saved.clear();
    }
  }

  using row = std::array<float, features>;
  struct record { // of one stage and row: input, bend, and in the last stage the error
    row x, bend, error;
  };
  std::vector<record> saved{}; // [microbatches, rows, stages]

  void forward(int m, int r, std::array<float, rows * features>& sums) {
    row x;
    for (int c = 0; c < features; ++c)
      x[at(c)] = sample(m, r, c);
    for (stage const& s : all) {
      record note{};
      row y;
      for (int c = 0; c < features; ++c) {
        float z = 0;
        for (int k = 0; k < features; ++k)
          z = std::fma(x[at(k)], s.w[at(k * features + c)], z);
        float const bend = 1.0F / (1.0F + std::fabs(z));
        note.x[at(c)] = kept(x[at(c)]);
        note.bend[at(c)] = kept(bend);
        y[at(c)] = kept(std::fma(z, bend, x[at(c)]));
        if (&s == &all.back()) {
          float const error = y[at(c)] - sample(m, r, c + 1);
          note.error[at(c)] = kept(error);
          sums[at(r * features + c)] = std::fma(error, error, sums[at(r * features + c)]);
        }
      }
      saved.push_back(note);
      x = y;
    }
  }

  void backward(int m) {
    std::vector<row> incoming(rows);
    for (int s = stages; s-- > 0;) {
      stage& own = all[at(s)];
      std::vector<row> dz(rows);
      for (int r = 0; r < rows; ++r) {
        record const& note = saved[at((m * rows + r) * stages + s)];
        for (int c = 0; c < features; ++c) {
          float const in = s + 1 == stages ? 2.0F * note.error[at(c)] : incoming[at(r)][at(c)];
          dz[at(r)][at(c)] = kept(in * note.bend[at(c)] * note.bend[at(c)]);
          incoming[at(r)][at(c)] = in;
        }
        row out;
        for (int c = 0; c < features; ++c) {
          float sum = incoming[at(r)][at(c)];
          for (int k = 0; k < features; ++k)
            sum = std::fma(dz[at(r)][at(k)], own.w[at(c * features + k)], sum);
          out[at(c)] = kept(sum);
        }
        incoming[at(r)] = out;
      }
      for (int k = 0; k < features; ++k)
        for (int c = 0; c < features; ++c) {
          float sum = 0;
          for (int r = 0; r < rows; ++r)
            sum = std::fma(saved[at((m * rows + r) * stages + s)].x[at(k)], dz[at(r)][at(c)], sum);
          own.dw[at(k * features + c)] += sum;
        }
    }
  }

  void update(int step) {
    auto const share = [step](double decay) {
      return static_cast<float>(1 / (1 - std::pow(decay, step + 1)));
    };
    float const mean_share = share(0.9);
    float const square_share = share(0.98);
    for (stage& s : all)
      for (std::size_t i = 0; i < s.w.size(); ++i) {
        float const g = s.dw[i] * (1.0F / static_cast<float>(microbatches * rows));
        s.mean[i] = std::fma(0.1F, g - s.mean[i], s.mean[i]);
        s.square[i] = std::fma(0.02F, std::fma(g, g, -s.square[i]), s.square[i]);
        float const length = std::sqrt(s.square[i] * square_share) + 1e-8F;
        s.own[i] = std::fma(-2e-3F, s.mean[i] * mean_share / length, s.own[i]);
        s.w[i] = kept(s.own[i]);
        if (!master)
          s.own[i] = s.w[i];
        s.dw[i] = 0;
      }
  }

  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
};

} // namespace reference
