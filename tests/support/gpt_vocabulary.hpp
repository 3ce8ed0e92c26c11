// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The GPT with its vocabulary in shards on one device, one unit after the other, without
//! plan or runner: what pipelines of these shards are held against.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <examples/gpt/papers/vocabulary.hpp>
#include <vector>

namespace gpt {

//! The pieces of the model in the order of one device.
class sharded_device {
public:
  sharded_device(model_size const& size, sharded_cut const& cut, std::uint64_t seed)
      : sizes_{size, cut}, slots_(static_cast<std::size_t>(2 * cut.shards + cut.stages)) {
    auto const most = static_cast<std::size_t>(size.sequence * 2 * (size.width + 2));
    for (std::int64_t number = 0; number < 2 * cut.shards + cut.stages; ++number) {
      pieces_.emplace_back(size, number, cut, seed, work_);
      made_.emplace_back(most);
      given_.emplace_back(most);
    }
  }

  double step(batch const& pieces) {
    for (auto& each : pieces_)
      each.set_batch(pieces);
    for (std::int64_t m = 0; m < sizes_.cut.step.microbatches(); ++m) {
      auto const chunks = sizes_.cut.step.chunks(m);
      std::vector<std::vector<std::vector<float>>> gradients(static_cast<std::size_t>(chunks));
      for (std::int64_t c = 0; c < chunks; ++c) {
        forward({m, c});
        gradients[static_cast<std::size_t>(c)] = given_; // of the shards of the output layer
      }
      for (std::int64_t c = chunks; c-- > 0;) {
        given_ = gradients[static_cast<std::size_t>(c)];
        backward({m, c});
      }
    }
    return pieces_.back().loss();
  }
  void update(adamw const& optimizer, std::int64_t step) {
    for (auto& each : pieces_)
      each.update(optimizer, step);
  }
  [[nodiscard]] std::vector<sharded_piece>& stages() { return pieces_; }
  template <class Visit>
  void for_each_parameter(Visit visit) {
    for (auto& each : pieces_)
      each.for_each_parameter(visit);
  }

private:
  using all_numbers = std::vector<std::vector<float>>; // by piece

  //! What the slots of a piece are of.
  struct bytes_of_piece {
    piece_sizes const& sizes;
    int piece;

    [[nodiscard]] step_cut const& cut() const { return sizes.cut.step; }
    [[nodiscard]] std::int64_t bytes(pp::slot_class of, unit u) const {
      return sizes.bytes(of,
                         pp::row_writer::make(pp::pass_kind::forward,
                                              piece,
                                              static_cast<int>(u.microbatch),
                                              static_cast<int>(u.chunk)));
    }
  };
  //! Calls a pass of a piece, which reads so many of these.
  template <class Pass>
  void run(Pass pass,
           std::int64_t piece,
           unit u,
           all_numbers& from,
           std::int64_t first,
           std::int64_t count,
           std::vector<pp::output> const& to) {
    auto const at = static_cast<std::size_t>(piece);
    std::vector<pp::input> inputs;
    for (auto i = first; i < first + count; ++i)
      inputs.push_back(read(message_in(from[static_cast<std::size_t>(i)])));
    auto where = slots_[at].at(bytes_of_piece{sizes_, static_cast<int>(piece)}, u);
    where.inputs = inputs;
    where.outputs = to;
    pass(pieces_[at], where, to.empty() ? pp::output{} : to.front());
  }
  void forward(unit u) {
    auto const shards = sizes_.cut.shards;
    auto const barriers = sizes_.cut.barriers;
    std::int64_t const behind = shards + sizes_.cut.stages;
    auto const go = [](auto& piece, pp::context const& where, pp::output out) {
      piece.run_half(pp::pass_kind::forward, {where, {}, out});
    };
    for (std::int64_t i = 0; i < behind + shards; ++i) {
      auto const at = static_cast<std::size_t>(i);
      std::vector<pp::output> to{message_in(made_[at])};
      if (i >= behind && barriers == 1)
        to.push_back(message_in(given_[at]));
      if (i <= shards)
        run(go, i, u, made_, 0, i < shards ? 0 : shards, to);
      else
        run(go, i, u, made_, std::min(i, behind) - 1, 1, to);
    }
    for (std::int64_t i = behind; i < behind + shards; ++i) {
      if (barriers == 1)
        run(
          [](auto& piece, auto const& where, auto) {
            piece.run_half(pp::pass_kind::backward_weight, {where, {}, {}});
          },
          i,
          u,
          made_,
          behind,
          shards,
          {});
      else
        run(back, i, u, made_, behind, shards, {message_in(given_[static_cast<std::size_t>(i)])});
    }
  }
  void backward(unit u) {
    auto const shards = sizes_.cut.shards;
    std::int64_t const behind = shards + sizes_.cut.stages;
    for (std::int64_t i = behind; i-- > 0;) {
      std::int64_t const first = i + 1 == behind ? behind : i < shards ? shards : i + 1;
      run(back,
          i,
          u,
          given_,
          first,
          i + 1 == behind ? shards : 1,
          {message_in(given_[static_cast<std::size_t>(i)])});
    }
  }
  static void back(sharded_piece& piece, pp::context const& where, pp::output out) {
    piece.run_half(pp::pass_kind::backward, {where, {}, out});
  }

  piece_sizes sizes_;
  host::device_work<float> work_;
  std::vector<own_slots> slots_; // by piece
  std::vector<sharded_piece> pieces_;
  all_numbers made_;
  all_numbers given_; // gradients of their inputs
};

} // namespace gpt
