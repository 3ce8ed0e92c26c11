// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The GPT with its vocabulary in shards: every device has a part of the embedding and of
//! the output layer. The same pieces run in a pipeline, or on one device one after the other.

#include <pipe/planner/registry/named_schedules.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "../host/vocabulary.hpp"
#include "../system.hpp"

namespace gpt {

//! A piece on the host.
class sharded_piece : public trained_on_host<sharded_stage<host_machine<float>>> {
public:
  sharded_piece(model_size const& size,
                std::int64_t which,
                sharded_cut const& cut,
                std::uint64_t seed,
                host::device_work<float>& work)
      : trained_on_host<sharded_stage<host_machine<float>>>(
          piece_of_model(size, cut, which), seed, {size, {}, cut.step, &work}, cut.barriers == 1) {}
};

using piece_sizes = sharded_slot_sizes<host_machine<float>>;

//! What the slots of such pieces take.
struct piece_slots {
  model_size size;
  int barriers;

  [[nodiscard]] piece_sizes operator()(pp::timetable_view table,
                                       std::vector<std::int64_t> const&) const {
    return {size, cut_around(size, table, barriers)};
  }
};

//! All pieces, or those of a device.
//! @param work by device, or that of the only one
[[nodiscard]] inline stages_by_way<sharded_piece>
make_pieces(piece_slots const& slots,
            pp::timetable_view table,
            std::uint64_t seed,
            std::vector<host::device_work<float>>& work,
            std::optional<int> only = {}) {
  auto const cut = cut_around(slots.size, table, slots.barriers);
  return make_by_way<sharded_piece>(table, only, [&](std::size_t, int number, int device) {
    auto& space = work[only ? 0 : static_cast<std::size_t>(device)];
    return std::make_unique<sharded_piece>(slots.size, number, cut, seed, space);
  });
}

//! Such a model on the threads of this process.
struct sharded_pipeline : model_on_threads<copies_of<sharded_piece>, plan_maker<piece_slots>> {
  //! @param table of a with_vocabulary schedule
  sharded_pipeline(piece_slots const& slots, pp::timetable_view table, std::uint64_t seed)
      : model_on_threads(table, whole_lengths(slots.size, table), {slots}, [&](auto& shared) {
          return make_pieces(slots, table, seed, shared);
        }) {}
};

//! The same pieces on one device, one unit after the other.
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
    auto where = slots_[at].at(sizes_.cut.step, u, [&](pp::slot_class of) {
      return sizes_.bytes(of,
                          pp::row_writer::make(pp::pass_kind::forward,
                                               static_cast<int>(piece),
                                               static_cast<int>(u.microbatch),
                                               static_cast<int>(u.chunk)));
    });
    where.inputs = inputs;
    where.outputs = to;
    pass(pieces_[at], where, to.empty() ? pp::output{} : to.front());
  }
  void forward(unit u) {
    auto const shards = sizes_.cut.shards;
    auto const barriers = sizes_.cut.barriers;
    std::int64_t const behind = shards + sizes_.cut.stages;
    auto const go = [](auto& piece, pp::context const& where, pp::output out) {
      piece.forward(where, {}, out);
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
        run([](auto& piece, auto const& where, auto) { piece.backward_weight(where); },
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
    piece.backward(where, {}, out);
  }

  piece_sizes sizes_;
  host::device_work<float> work_;
  std::vector<own_slots> slots_; // by piece
  std::vector<sharded_piece> pieces_;
  all_numbers made_;
  all_numbers given_; // gradients of their inputs
};

//! Of the chosen adapter, as with_vocabulary has them.
[[nodiscard]] inline int barriers_of(options const& o) {
  return o.own.adapted == registry::adapter::vocabulary_1   ? 1
         : o.own.adapted == registry::adapter::vocabulary_2 ? 2
                                                            : pp::interlaced;
}

//! The vocabulary in shards; see system.hpp.
struct vocabulary_system {
  static constexpr char const* one_device_has = " that has all shards";
  static constexpr char const* in_slots =
    "Activations of layers and logits of the output layer's shards in slots";

  //! @throws std::invalid_argument where there are none, or an option does not go with these
  static pp::dynamic_timetable plan(options const& o) {
    check_system(o, "the vocabulary in shards (--with vocabulary-...)");
    auto table = registry::make_named_timetable(choice_of(o, name_of(o)), unit_costs);
    if (table.view().over.first_units != nullptr || adds_from_last(table)) {
      throw std::invalid_argument("the vocabulary in shards wants sequences of equal length, whose "
                                  "gradients add up from the first microbatch on, as those of " +
                                  o.schedule + " do not");
    }
    check_order(table, name_of(o));
    (void)cut_around(o.size, table, barriers_of(o)); // refuses more chunks than tokens
    return table;
  }
  static sharded_pipeline pipeline(options const& o, pp::timetable_view table) {
    return {{o.size, barriers_of(o)}, table, seed_of(o)};
  }
  static sharded_device one_device(options const& o, pp::timetable_view table) {
    return {o.size, cut_around(o.size, table, barriers_of(o)), seed_of(o)};
  }
};

} // namespace gpt
