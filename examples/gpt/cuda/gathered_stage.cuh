// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A stage whose weights are elsewhere: gathered into a slot for its passes, on a stream
//! beside theirs, and its gradients scattered.

#include <pipe/run/context.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "../stage.hpp"
#include "gathered_weights.cuh"
#include "stage.cuh"

namespace gpt::on_gpu {

//! Bytes of the slots with whole weights and gradients of a stage.
struct gathered_bytes {
  std::int64_t weights = 0;
  std::int64_t gradients = 0;
};

//! @param pieces of every weight
template <class Element>
[[nodiscard]] gathered_bytes
bytes_of_gathered(model_size const& size, layer_range const& held, std::int64_t pieces) {
  device_memory<float> memory;
  gpt::stage<float> host(size, held, {1, cut_sequence(size.sequence, 1)}, 1, memory);
  placing weights;
  placing gradients;
  host.for_each_parameter([&](parameter<float> const& p) {
    gathered_shape<Element> const shape{
      static_cast<std::int64_t>(p.value.size()), pieces, p.decays};
    (void)shape.take_weight(weights);
    (void)shape.take_gradient(gradients);
  });
  return {weights.bytes(), gradients.bytes()};
}

//! @tparam Home weights_in_pieces or weights_on_host
template <class Element, class Home>
class gathered_stage : public stage<Element> {
public:
  //! @param host the same stage on the host, whose weights this one begins with
  //! @param before weights that stand before those of the layers
  gathered_stage(gpt::stage<float>& host,
                 model_size const& size,
                 layer_range const& held,
                 step_cut const& cut,
                 gpu_run const& how,
                 device_work<Element>& work,
                 device_work<Element>* beside,
                 std::size_t before)
      : stage<Element>(host, size, size, held, cut, how.replicas, work, beside, before),
        home_(how, largest_of(this->weights_)) {
    this->weights_.clear();
    host.for_each_parameter([this](parameter<float>& p) {
      home_.take(p);
      shapes_.push_back(home_.shape_of(p));
      this->weights_.emplace_back(shapes_.back().count, p.decays);
    });
  }

  void gather_weights(pp::context const& where, pp::output out) {
    placing in(out.data);
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      home_.gather(i, shapes_[i].take_weight(in), stream_of(where));
    }
  }
  void use_weights(pp::context const&, pp::input given) {
    placing in(const_cast<std::byte*>(given.data)); // which are read alone
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      auto* const at = shapes_[i].take_weight(in);
      auto const* const operand = reinterpret_cast<Element const*>(at);
      this->weights_[i].read_at(shapes_[i].rounds() ? nullptr : reinterpret_cast<float*>(at),
                                shapes_[i].is_matrix ? operand : nullptr);
    }
  }
  void collect_gradients(pp::context const& where, pp::output out) {
    cuda::check(cudaMemsetAsync(out.data, 0, static_cast<std::size_t>(out.bytes), stream_of(where)),
                "cudaMemsetAsync");
    placing in(out.data);
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      this->weights_[i].add_at(shapes_[i].take_gradient(in));
    }
  }
  void scatter_gradients(pp::context const& where, pp::input given) {
    placing in(const_cast<std::byte*>(given.data)); // which is nobody else's any more
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      home_.scatter(i, shapes_[i].take_gradient(in), stream_of(where));
    }
  }

  // What the optimizer does, it does at home.
  void update(adamw const& optimizer, std::int64_t step, cudaStream_t stream) {
    home_.update(optimizer, step, stream);
  }
  template <class Archive>
  void exchange(Archive& with) {
    home_.exchange(with);
    if (this->clipped_) {
      this->clipped_->exchange(with);
    }
  }
  void set_clipping(clipping const& how, bool) {
    this->clipped_.emplace(how);
    for (auto& piece : home_.on_device()) {
      if (how.early) {
        piece.make_room_for_copy();
      }
    }
  }
  void contribute(pp::output row, cudaStream_t stream) {
    auto const all = [](std::size_t) { return true; };
    this->clipped_->contribute(home_.on_device(), all, row.data, stream);
  }
  void optimizer_step(pp::totals const& all, cudaStream_t stream) {
    this->clipped_->step(home_.on_device(), all, stream);
  }
  void roll_back(cudaStream_t stream) { this->clipped_->roll_back(home_.on_device(), stream); }

  //! What lies on this GPU between steps.
  [[nodiscard]] std::vector<trained<Element>>& weights() { return home_.on_device(); }
  [[nodiscard]] std::vector<float> all_gradients() const {
    return joined([this](std::size_t weight) { return home_.gradient(weight); });
  }
  [[nodiscard]] std::vector<float> all_values() const {
    return joined([this](std::size_t weight) { return home_.value(weight); });
  }

private:
  static cudaStream_t stream_of(pp::context const& where) {
    return static_cast<cudaStream_t>(where.stream);
  }
  static std::int64_t largest_of(std::vector<trained<Element>> const& weights) {
    std::int64_t most = 0;
    for (auto const& each : weights) {
      most = std::max(most, each.count());
    }
    return most;
  }
  template <class Read>
  [[nodiscard]] std::vector<float> joined(Read read) const {
    std::vector<float> all;
    for (std::size_t weight = 0; weight < shapes_.size(); ++weight) {
      auto const some = read(weight);
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }

  Home home_;
  std::vector<gathered_shape<Element>> shapes_; // of every weight
};

} // namespace gpt::on_gpu
