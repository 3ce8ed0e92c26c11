// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Attention on other devices than the weights of its layer. Header for
//! pipelining::HelixPipe.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/schedule/schedule.hpp>

#include <stdexcept>

namespace pipelining::inline v0_3 {

//! @brief HelixPipe: attention has no weights, so the attention of a layer runs on another device
//! for every microbatch of a loop, and its time leaves the bubble.
//!
//! A model of L layers is a chain of 2L + 1 stages. Stage 2l, N_l, is what follows the attention of
//! layer l - 1 (projection, MLP) and comes before that of layer l (norm, query, keys, values); N_0
//! begins with the embedding, N_L ends with head and loss. Stage 2l + 1, A_l, is the attention of
//! layer l. N_l is on device l mod P. A loop has P offsets and as many microbatches of each as
//! there are folds; microbatch m has offset (m / folds) mod P, and its A_l is on device (l + 1 +
//! offset) mod P: those of one layer lie on all devices. Backward passes come in the exact reverse
//! of the forward passes of all microbatches, so every N adds up gradients from the last microbatch
//! to the first.
//!
//! N_0 takes t_pre, N_L t_post, and those between both; backward passes take b times as long as
//! forward passes. With M a multiple of P and no latency, one fold has the bubble
//! (P - 1)(1 + b)(t_pre + t_post) on every device, whatever attention takes and whatever L and M
//! are. A message time c that is short next to the passes adds 4c(M L / P - 1), for P = 2 M L c. Of
//! F folds, M a multiple of PF and attention at least t_pre + t_post, the bubble is F(P - 3) + 2 to
//! F(P - 2) + 1 times (1 + b)(t_pre + t_post), but messages add no more than 10c. Other M leave out
//! the microbatches that the last loop lacks: valid, with a larger bubble.
//!
//! Nothing is freed before the last forward pass: M L/P activations of A on every device, M L/P of
//! N, and M more on device 0. `recompute_around_attention` under with_recompute keeps the inputs of
//! N alone. From N to A go query, keys, values and the residual, 4 widths of every token; from A to
//! N the attention's output and the residual, 2 widths; back the gradients of the same.
//!
//! @tparam LayersPerDevice L/P, or `dynamic`. @tparam Folds microbatches of one offset that follow
//! each other, or `dynamic`.
//! @throws std::invalid_argument from `arrange` when either is smaller than 1.
//! @complexity O(1) per pass.
//! @source Zhang et al., "HelixPipe: Efficient Distributed Training of Long Sequence Transformers
//! with Attention Parallel Pipeline Parallelism", 2025 (arXiv:2507.00394), and its repository,
//! code-tunnel/Megatron-LM. Latency and the bounds of several folds are what our tests find at P
//! <= 8.
template <int LayersPerDevice = dynamic, int Folds = dynamic>
struct HelixPipe {
  static_assert(LayersPerDevice == dynamic || LayersPerDevice >= 1,
                "HelixPipe: a device holds at least one layer");
  static_assert(Folds == dynamic || Folds >= 1, "HelixPipe: there is at least one fold");

  detail::parameter<LayersPerDevice, 1> layers_per_device{}; //!< L/P
  detail::parameter<Folds, 1> folds{}; //!< microbatches of one offset that follow each other

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    if (layers_per_device < 1 || layers_per_device > 32767 || folds < 1 || folds > 65535 / devices)
      throw std::invalid_argument("HelixPipe: a device holds 1 to 32767 layers, and there are 1 to "
                                  "65535 / P folds");
    return {.devices = devices,
            .microbatches = microbatches,
            .stages_per_device = 2 * layers_per_device,
            .where = placement::custom,
            .custom_routes = devices * folds,
            .extra_stages = 1};
  }
  //! N of layer l on device l mod P; A on one further on, and as many more as the offset says.
  [[nodiscard]] constexpr int device_of(shape const& extents, int stage, int route) const {
    int const attends = stage % 2 == 0 ? 0 : 1 + route / folds;
    return (stage / 2 + attends) % extents.devices;
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    int const count = extents.devices;
    int const layers = count * layers_per_device;
    int const rounds = (extents.microbatches - 1) / (count * folds) + 1;
    // Layers are counted on from loop to loop: those of the next one follow at once.
    auto const forward = [&](int stage, int round, int offset, int fold) {
      int const microbatch = (round * count + offset) * folds + fold;
      if (microbatch < extents.microbatches)
        out.forward(stage, microbatch);
    };
    auto const attend = [&](int layer, int offset, int fold) {
      if (layer >= 0 && layer < rounds * layers)
        forward(2 * (layer % layers) + 1, layer / layers, offset, fold);
    };
    auto const around = [&](int layer, int offset, int fold) {
      if (layer > 0 && layer % layers == 0)
        forward(2 * layers, layer / layers - 1, offset, fold);
      if (layer < rounds * layers)
        forward(2 * (layer % layers), layer / layers, offset, fold);
    };
    for (int layer = device; layer <= rounds * layers + device; layer += count) {
      for (int offset = count - 2; offset > 0; --offset)
        for (int fold = 0; fold < folds; ++fold)
          attend(layer - offset - 1, offset, fold);
      for (int offset = 0; offset < count; ++offset)
        for (int fold = 0; fold < folds; ++fold) {
          if (offset == 0 && count > 1)
            attend(layer - 1, offset, fold);
          around(layer, offset, fold);
          if (offset == count - 1)
            attend(layer, offset, fold);
        }
    }
    for (int i = out.count; i-- > 0;)
      out.backward(out.passes[i].stage, out.passes[i].microbatch);
  }
};

//! @brief For with_recompute: every stage of HelixPipe but attention keeps only its input.
struct recompute_around_attention {
  [[nodiscard]] constexpr bool operator()(shape const&, pass const& forward) const noexcept {
    return forward.stage % 2 == 0;
  }
};

} // namespace pipelining::inline v0_3
