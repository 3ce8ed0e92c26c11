// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The canonical text of a timetable: order and times. With canonical_plan.hpp, five layers
//! of text that depend on meaning only.
//!
//! Kinds, data, pools and engines stand there by their words, never by number or letter, and what
//! has no order of its own is sorted. So a change of data structures, of numbering or of headers
//! keeps the texts. One walk serves two sinks: one writes the text, one hashes it and builds no
//! string.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace support {

//! @brief FNV-1a of a word, in 64 bits.
[[nodiscard]] constexpr std::uint64_t hash_of(std::string_view word) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (char const c : word)
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

//! @brief A word of the text, hashed once.
struct label {
  std::string_view text;
  std::uint64_t hash = 0;

  constexpr label() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a literal is a word
  consteval label(char const* word) : text(word), hash(hash_of(word)) {}
  //! That of a word that the program finds. @pre the word stays where it is
  [[nodiscard]] static constexpr label of(std::string_view word) noexcept {
    label result;
    result.text = word;
    result.hash = hash_of(word);
    return result;
  }
};

//! @brief Hashes a text: FNV-1a over tokens in place of bytes, with the high bits folded in.
class hash_sink {
public:
  void word(label const& one) noexcept { add(one.hash); }
  void number(std::int64_t one) noexcept { add(static_cast<std::uint64_t>(one)); }
  //! A time, in millionths. Those of the frozen sizes are multiples of 1/8.
  void time(double one) noexcept { number(std::llround(one * 1e6)); }
  void end_line() noexcept { add(0x0au); }
  [[nodiscard]] std::uint64_t value() const noexcept { return hash_ ^ hash_ >> 29; }

private:
  void add(std::uint64_t token) noexcept {
    hash_ = (hash_ ^ token) * 0x100000001b3u;
    hash_ ^= hash_ >> 32;
  }
  std::uint64_t hash_ = 0xcbf29ce484222325u;
};

//! @brief Writes a text, tokens with blanks between them.
class text_sink {
public:
  void word(label const& one) { token(std::string(one.text)); }
  void number(std::int64_t one) { token(std::to_string(one)); }
  //! As `hash_sink` has it.
  void time(double one) {
    std::string text = std::to_string(static_cast<double>(std::llround(one * 1e6)) / 1e6);
    text.erase(text.find_last_not_of('0') + 1);
    token(text.back() == '.' ? text.substr(0, text.size() - 1) : text);
  }
  void end_line() {
    text_ += '\n';
    starts_ = true;
  }
  [[nodiscard]] std::string const& text() const noexcept { return text_; }

private:
  void token(std::string const& one) {
    text_ += (starts_ ? "" : " ") + one;
    starts_ = false;
  }
  std::string text_;
  bool starts_ = true;
};

//! @brief The words of a flow and of all pools.
struct flow_labels {
  std::array<label, pipelining::flow::most_kinds> kinds{};     //!< by index_of
  std::array<label, pipelining::flow::most_data> data{};       //!< by number
  std::array<label, pipelining::detail::slot_classes> pools{}; //!< by class
  std::array<int, pipelining::detail::slot_classes> sorted{};  //!< the pools by their words

  explicit flow_labels(pipelining::flow const& declared) {
    for (std::size_t kind = 0; kind < kinds.size(); ++kind)
      kinds[kind] = label::of(declared.kinds[kind].word.c_str());
    for (int of = 0; of < declared.data_count; ++of)
      data[static_cast<std::size_t>(of)] = label::of(declared.data[of].word.c_str());
    for (std::size_t pool = 0; pool < pools.size(); ++pool) {
      pools[pool] = label::of(pipelining::detail::word(static_cast<pipelining::slot_class>(pool)));
      sorted[pool] = static_cast<int>(pool);
    }
    std::sort(sorted.begin(), sorted.end(), [this](int one, int other) {
      return of_pool(one).text < of_pool(other).text;
    });
  }
  [[nodiscard]] label const& of(pipelining::pass_kind kind) const noexcept {
    return kinds[static_cast<std::size_t>(pipelining::detail::index_of(kind))];
  }
  [[nodiscard]] label const& of_pool(int pool) const noexcept {
    return pools[static_cast<std::size_t>(pool)];
  }
};

//! @brief Kind, stage, microbatch and chunk of a pass.
template <class Sink>
void write_pass(Sink& sink, flow_labels const& labels, pipelining::pass const& what) {
  sink.word(labels.of(what.kind));
  sink.number(what.stage);
  sink.number(what.microbatch);
  sink.number(what.chunk);
}

namespace detail {

//! Calls `use(entry)` for every entry of a timetable, device after device, after a line that names
//! the device and the engine of its row.
template <class Sink, class Use>
void write_rows(Sink& sink, pipelining::timetable_view const& table, Use use) {
  struct named_engine {
    pipelining::engine on;
    label name;
  };
  constexpr named_engine engines[pipelining::flow::engine_count]{
    {pipelining::engine::compute, "compute"},
    {pipelining::engine::copy_out, "copy_out"},
    {pipelining::engine::copy_in, "copy_in"},
    {pipelining::engine::network, "network"}};
  for (int device = 0; device < table.over.extents.devices; ++device)
    for (auto const& [on, name] : engines) {
      int const engine_row = table.over.declared->engine_row[static_cast<int>(on)];
      int const row = engine_row * table.over.extents.devices + device;
      if (engine_row < 0 || table.row_size(row) == 0)
        continue;
      sink.word("device");
      sink.number(device);
      sink.word(name);
      sink.end_line();
      for (int entry = table.offsets[row]; entry < table.offsets[row + 1]; ++entry) {
        use(entry);
        sink.end_line();
      }
    }
}

} // namespace detail

//! @brief The layer *order*: the passes of every device and engine.
template <class Sink>
void write_order(Sink& sink, flow_labels const& labels, pipelining::timetable_view const& table) {
  detail::write_rows(sink, table, [&](int entry) {
    write_pass(sink, labels, table.passes[entry]);
    if (table.passes[entry].overlapped)
      sink.word("overlapped");
  });
}

//! @brief The layer *times*: start and end of the same passes, without their names.
template <class Sink>
void write_times(Sink& sink, pipelining::timetable_view const& table) {
  detail::write_rows(sink, table, [&](int entry) {
    sink.time(table.starts[entry]);
    sink.time(table.ends[entry]);
  });
}

//! @brief The part of the layer *memory* that a timetable has: the peak of every pool on every
//! device, in chunks.
template <class Sink>
void write_peaks(Sink& sink, flow_labels const& labels, pipelining::timetable_view const& table) {
  for (int const pool : labels.sorted) {
    auto const of = static_cast<pipelining::slot_class>(pool);
    pipelining::detail::pool_effect const effect(*table.over.declared, of);
    auto const none = [](int const(&counts)[pipelining::flow::most_kinds]) {
      return std::all_of(std::begin(counts), std::end(counts), [](int n) { return n == 0; });
    };
    if (none(effect.taken) || none(effect.freed))
      continue;
    sink.word("peaks");
    sink.word(labels.of_pool(pool));
    for (int device = 0; device < table.over.extents.devices; ++device)
      sink.number(pipelining::detail::peak_chunks(table, device, of));
    sink.end_line();
  }
}

} // namespace support
