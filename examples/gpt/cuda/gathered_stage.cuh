// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A stage whose weights are elsewhere, in pieces on GPUs or on the host: gathered into a
//! slot for its passes, on a stream next to theirs, and its gradients scattered. See
//! trained_on_host.

#include <pipe/cuda/handles.cuh>

#include <cuda_runtime.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "../stage.hpp"
#include "machine.cuh"

namespace gpt::on_gpu {

//! How a weight lies in slots: in as many pieces of one length as it has, the last one with zeros
//! after it. Products of bf16 read matrices in bf16; what else passes read is in float.
template <class Element>
struct gathered_shape {
  std::int64_t count; //!< numbers of the weight
  bool is_matrix;
  std::int64_t pieces;

  [[nodiscard]] std::int64_t piece() const { return (count + pieces - 1) / pieces; }
  [[nodiscard]] bool rounds() const { return is_matrix && !std::is_same_v<Element, float>; }
  [[nodiscard]] std::int64_t piece_bytes() const {
    return piece() * static_cast<std::int64_t>(rounds() ? sizeof(Element) : sizeof(float));
  }
  [[nodiscard]] std::byte* take_weight(placing& in) const {
    return in.take<std::byte>(pieces * piece_bytes());
  }
  [[nodiscard]] float* take_gradient(placing& in) const { return in.take<float>(pieces * piece()); }
};

//! Pieces of every weight: of a group the one of this GPU, else all.
template <class Element>
class weights_in_pieces {
public:
  weights_in_pieces(gpu_run const& how, std::int64_t largest)
      : group_(how.weights),
        incoming_((largest + pieces() - 1) / pieces() * static_cast<std::int64_t>(sizeof(float))) {}

  [[nodiscard]] std::int64_t pieces() const {
    return group_.of > 1 ? group_.of : weight_shard_count;
  }

  void take(parameter<float> const& whole) {
    gathered_shape<Element> const shape{whole.numbers, whole.decays, pieces()};
    shapes_.push_back(shape);
    for (auto number = first(); number < first() + here(); ++number) {
      parameter<float> one(shape.piece(), 0.0F, whole.decays);
      auto const mine = piece_of(shape.count, number, shape.pieces);
      std::copy_n(whole.value.begin() + mine.begin, mine.count(), one.value.begin());
      pieces_.emplace_back(one);
    }
  }

  void gather(std::size_t weight, std::byte* to, cudaStream_t stream) const {
    auto const shape = shapes_[weight];
    each_piece(weight, [&](trained<Element> const& piece, std::int64_t number) {
      void const* const from = shape.rounds() ? static_cast<void const*>(piece.operand())
                                              : static_cast<void const*>(piece.values());
      if (group_.of > 1) {
        group_.gather(from, to, shape.piece_bytes(), stream);
      } else {
        auto const bytes = shape.piece_bytes();
        copy_bytes(to + number * bytes, from, bytes, stream);
      }
    });
  }
  //! Adds a whole gradient, [pieces, piece].
  void scatter(std::size_t weight, float const* from, cudaStream_t stream) const {
    auto const count = shapes_[weight].piece();
    each_piece(weight, [&](trained<Element> const& piece, std::int64_t number) {
      if (group_.of > 1) {
        auto* const mine = reinterpret_cast<float*>(incoming_.data());
        group_.scatter(from, mine, count, stream);
        add(piece.gradients(), mine, count, stream);
      } else {
        add(piece.gradients(), from + number * count, count, stream);
      }
    });
  }
  //! A whole value, or gradient, on the host. Of a group collective. @pre nobody writes them
  [[nodiscard]] std::vector<float> whole(std::size_t weight, bool value) const {
    auto const shape = shapes_[weight];
    std::vector<float> numbers;
    each_piece(weight, [&](trained<Element> const& piece, std::int64_t) {
      float const* const tensor = value ? piece.values() : piece.gradients();
      if (group_.of > 1) {
        auto const bytes = shape.piece() * static_cast<std::int64_t>(sizeof(float));
        cuda::device_memory const all(shape.pieces * bytes);
        group_.gather(tensor, all.data(), bytes, nullptr);
        cuda::check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
        numbers = fetch(reinterpret_cast<float const*>(all.data()), shape.count);
      } else {
        auto const some = fetch(tensor, piece.count());
        numbers.insert(numbers.end(), some.begin(), some.end());
      }
    });
    numbers.resize(static_cast<std::size_t>(shape.count));
    return numbers;
  }

  void update(adamw const& optimizer, std::int64_t step, cudaStream_t stream) {
    for (auto& piece : pieces_)
      piece.update(optimizer, step, stream);
  }
  template <class Visit>
  void exchange(Visit const& with) {
    for (auto& piece : pieces_)
      piece.exchange(with);
  }
  //! What lies here of these weights.
  [[nodiscard]] std::vector<tensor_part> held(std::vector<tensor_part> const& whole) const {
    return pieces_of(whole, pieces(), {first(), first() + here()});
  }
  //! Of all weights, one after the other, what lies on this GPU.
  [[nodiscard]] std::vector<trained<Element>>& on_device() { return pieces_; }

private:
  [[nodiscard]] std::int64_t first() const { return group_.of > 1 ? group_.number : 0; }
  [[nodiscard]] std::int64_t here() const { return group_.of > 1 ? 1 : pieces(); }
  template <class Visit>
  void each_piece(std::size_t weight, Visit visit) const {
    for (std::int64_t i = 0; i < here(); ++i) {
      visit(pieces_[weight * static_cast<std::size_t>(here()) + static_cast<std::size_t>(i)],
            first() + i);
    }
  }

  weight_group group_;
  std::vector<gathered_shape<Element>> shapes_; // of every weight
  std::vector<trained<Element>> pieces_;        // [weights, pieces that are here]
  cuda::device_memory incoming_;                // the piece of a sum over the group
};

//! Weights on the host, where AdamW steps on them, too. Devices copy from there and to there.
template <class Element>
class weights_on_host {
public:
  weights_on_host(gpu_run const& how, std::int64_t) : sum_(how.weights.sum) {}

  [[nodiscard]] static std::int64_t pieces() { return 1; }

  void take(parameter<float> const& whole) {
    gathered_shape<Element> const shape{whole.numbers, whole.decays, pieces()};
    at_home_.push_back({whole,
                        shape,
                        cuda::pinned_memory(shape.piece_bytes()),
                        cuda::pinned_memory(bytes(shape.count))});
    refresh(at_home_.back());
  }

  void gather(std::size_t weight, std::byte* to, cudaStream_t stream) const {
    auto const& home = at_home_[weight];
    copy_bytes(to, home.read.data(), home.shape.piece_bytes(), stream, cudaMemcpyHostToDevice);
  }
  //! Puts a whole gradient there. @pre once in a step
  void scatter(std::size_t weight, float* from, cudaStream_t stream) const {
    auto const& home = at_home_[weight];
    if (sum_)
      sum_(from, home.shape.count, stream);
    copy_bytes(home.gradient.data(), from, bytes(home.shape.count), stream, cudaMemcpyDeviceToHost);
  }
  [[nodiscard]] std::vector<float> whole(std::size_t weight, bool value) const {
    auto const& home = at_home_[weight];
    auto const* const from = reinterpret_cast<float const*>(home.gradient.data());
    return value ? home.trained.value : std::vector<float>(from, from + home.shape.count);
  }

  //! Once what came before on the stream is done.
  void update(adamw const& optimizer, std::int64_t step, cudaStream_t stream) {
    cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    for (auto& home : at_home_) {
      auto const* const from = reinterpret_cast<float const*>(home.gradient.data());
      std::copy_n(from, home.shape.count, home.trained.gradient.begin());
      optimizer.update(home.trained, step);
      refresh(home);
    }
  }
  template <class Visit>
  void exchange(Visit const& with) {
    for (auto& home : at_home_) {
      for (auto* const tensor : {&home.trained.value, &home.trained.mean, &home.trained.square})
        with(std::as_writable_bytes(std::span(*tensor)));
      refresh(home);
    }
  }
  [[nodiscard]] static std::vector<tensor_part> const& held(std::vector<tensor_part> const& whole) {
    return whole;
  }
  [[nodiscard]] std::vector<trained<Element>>& on_device() { return none_; }

private:
  struct at_home {
    parameter<float> trained;
    gathered_shape<Element> shape;
    cuda::pinned_memory read;     // what passes read, as it lies in slots
    cuda::pinned_memory gradient; // of the last step
  };
  [[nodiscard]] static std::int64_t bytes(std::int64_t numbers) {
    return numbers * static_cast<std::int64_t>(sizeof(float));
  }
  static void refresh(at_home& home) {
    auto const& values = home.trained.value;
    if (home.shape.rounds()) {
      auto* const to = reinterpret_cast<Element*>(home.read.data());
      std::transform(
        values.begin(), values.end(), to, [](float x) { return static_cast<Element>(x); });
    } else {
      std::copy(values.begin(), values.end(), reinterpret_cast<float*>(home.read.data()));
    }
  }

  sum_over_gpus sum_; // over replicas
  std::vector<at_home> at_home_;
  std::vector<trained<Element>> none_;
};

//! @param pieces of every weight
template <class Element>
[[nodiscard]] gathered_bytes
bytes_of_gathered(model_size const& size, layer_range const& held, std::int64_t pieces) {
  auto weights = slot_of<machine<Element>>();
  auto gradients = slot_of<machine<Element>>();
  for (tensor_part const& part : parts_of(size, held)) {
    gathered_shape<Element> const shape{part.count(), part.start.decays, pieces};
    (void)shape.take_weight(weights);
    (void)shape.take_gradient(gradients);
  }
  return {weights.bytes(), gradients.bytes()};
}

//! @tparam Home weights_in_pieces or weights_on_host
template <class Element, class Home>
class gathered_stage : public stage<machine<Element>> {
public:
  using stream = on_gpu::stream;

  gathered_stage(std::vector<tensor_part> const& parts,
                 std::uint64_t seed,
                 stage_start<machine<Element>> const& with,
                 gpu_run const& how)
      : stage<machine<Element>>({}, seed, with), home_(how, largest_of(parts)) {
    this->parts_ = home_.held(parts);
    for (tensor_part const& part : parts) {
      home_.take(start_of<float>(part, seed));
      shapes_.push_back({part.count(), part.start.decays, home_.pieces()});
      this->weights_.emplace_back(part.count(), part.start.decays);
    }
  }

  void gather_weights(pp::context const& where, pp::output out) {
    auto in = slot_of<machine<Element>>(out.data);
    for (std::size_t i = 0; i < shapes_.size(); ++i)
      home_.gather(i, shapes_[i].take_weight(in), machine<Element>::stream_of(where));
  }
  void use_weights(pp::context const&, pp::input given) {
    auto in = slot_of<machine<Element>>(only_read(given));
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      auto* const at = shapes_[i].take_weight(in);
      auto const* const operand = reinterpret_cast<Element const*>(at);
      this->weights_[i].read_at(shapes_[i].rounds() ? nullptr : reinterpret_cast<float*>(at),
                                shapes_[i].is_matrix ? operand : nullptr);
    }
  }
  void collect_gradients(pp::context const& where, pp::output out) {
    clear_bytes(out.data, out.bytes, machine<Element>::stream_of(where));
    auto in = slot_of<machine<Element>>(out.data);
    for (std::size_t i = 0; i < shapes_.size(); ++i)
      this->weights_[i].add_at(shapes_[i].take_gradient(in));
  }
  void scatter_gradients(pp::context const& where, pp::input given) {
    auto in = slot_of<machine<Element>>(only_read(given)); // which is nobody else's any more
    for (std::size_t i = 0; i < shapes_.size(); ++i)
      home_.scatter(i, shapes_[i].take_gradient(in), machine<Element>::stream_of(where));
  }

  // What the optimizer does, it does at home.
  void update(adamw const& optimizer, std::int64_t step, cudaStream_t stream) {
    home_.update(optimizer, step, stream);
  }
  template <class Visit>
  void exchange(Visit const& with) {
    home_.exchange(with);
  }

  //! What lies on this GPU between steps.
  [[nodiscard]] std::vector<trained<Element>>& weights() { return home_.on_device(); }
  //! All values, or all gradients.
  [[nodiscard]] std::vector<float> whole_numbers(bool values) const {
    std::vector<float> all;
    for (std::size_t weight = 0; weight < shapes_.size(); ++weight) {
      auto const some = home_.whole(weight, values);
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }

private:
  static std::int64_t largest_of(std::vector<tensor_part> const& parts) {
    std::int64_t most = 0;
    for (tensor_part const& part : parts)
      most = std::max(most, part.count());
    return most;
  }
  Home home_;
  std::vector<gathered_shape<Element>> shapes_; // of every weight
};

} // namespace gpt::on_gpu
