// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The GPT with its vocabulary in shards, on the host: every device has a part of the
//! embedding and of the output layer.

#include <pipe/planner/registry/named_schedules.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "../system.hpp"
#include "vocabulary_stage.hpp"

namespace gpt {

namespace host {

template <class T, class Value>
void tabulate(T* to, std::int64_t count, stream, Value value) {
  for (std::int64_t i = 0; i < count; ++i)
    to[i] = value(i);
}
template <class Work>
void for_each_part(token_rows rows, Work work) {
  for (std::int64_t token = 0; token < rows.tokens; ++token)
    work(token, 0, 1);
}

//! Statistics [tokens, 3].
inline void make_statistics(float* statistics, logits_of_shard<stream> const& of) {
  for (std::int64_t t = 0; t < of.tokens; ++t) {
    std::span<float const> const row(of.logits + t * of.bytes.count(),
                                     static_cast<std::size_t>(of.bytes.count()));
    std::uint8_t const next = of.next_bytes[t];
    token_statistics one{*std::max_element(row.begin(), row.end()), 0, 0};
    for (float const logit : row)
      one.sum += std::exp(logit - one.largest);
    one.next = of.bytes.holds(next) ? row[static_cast<std::size_t>(next - of.bytes.begin)] : 0;
    std::copy_n(&one.largest, statistics_width, statistics + statistics_width * t);
  }
}

//! The losses of tokens, and the gradient of a shard's logits for `share` times their sum.
inline void cross_entropy_of_shards(float* losses,
                                    float* gradient,
                                    logits_of_shard<stream> const& of,
                                    told_by_shards const& statistics,
                                    float share) {
  auto const count = of.bytes.count();
  for (std::int64_t t = 0; t < of.tokens; ++t) {
    auto const all = join(statistics, t);
    std::uint8_t const next = of.next_bytes[t];
    float* const row = gradient + t * count;
    for (std::int64_t v = 0; v < count; ++v)
      row[v] = share * std::exp(of.logits[t * count + v] - all.largest) / all.sum;
    if (of.bytes.holds(next))
      row[next - of.bytes.begin] -= share;
    losses[t] = std::log(all.sum) + all.largest - all.next;
  }
}

} // namespace host

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
[[nodiscard]] inline sizes_of_plan piece_slots(model_size const& size, int barriers) {
  return [=](pp::timetable_view table, auto const&) {
    static constexpr named_pool shown[] = {{"activations", pp::slot_class::activation},
                                           {"logits", pp::slot_class::logits}};
    return plan_sizes(piece_sizes{size, cut_around(size, table, barriers)}, shown);
  };
}

//! All pieces, or those of a device. @param work by device
[[nodiscard]] inline stages_by_way<sharded_piece>
make_pieces(model_size const& size,
            int barriers,
            pp::timetable_view table,
            std::uint64_t seed,
            std::vector<host::device_work<float>>& work,
            std::optional<int> only = {}) {
  auto const cut = cut_around(size, table, barriers);
  return make_by_way<sharded_piece>(table, only, [&](std::size_t, int number, int device) {
    return std::make_unique<sharded_piece>(
      size, number, cut, seed, work[static_cast<std::size_t>(device)]);
  });
}

//! Such a model on the threads of this process.
struct sharded_pipeline : model_on_threads<copies_of<sharded_piece>> {
  //! @param table of a with_vocabulary schedule
  sharded_pipeline(model_size const& size,
                   int barriers,
                   pp::timetable_view table,
                   std::uint64_t seed)
      : model_on_threads(
          table, whole_lengths(size, table), {piece_slots(size, barriers)}, [&](auto& shared) {
            return make_pieces(size, barriers, table, seed, shared);
          }) {}
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
    return {o.size, barriers_of(o), table, seed_of(o)};
  }
  static sharded_pipeline one_device(options const& o, pp::timetable_view table) {
    return pipeline(o, on_one_device(table));
  }
};

} // namespace gpt
