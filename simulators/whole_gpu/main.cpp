// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief Simulates whole attention kernels: whole_gpu CONSTANTS < CALLS.
//!
//! A call is a line: name, forward or kept or free, head dim, sequences, heads, key heads, queries,
//! keys, full or causal or window or documents, extent, multiprocessors held, how many the call
//! says are held, GPU (h100, h200), and whose kernel: 0 the library's, 1 FlashAttention-3's, 2 the
//! library's when the reports were made, whose forward waited for results to leave. Each gives a
//! line of JSON. `portable` gives the blocks of the portable kernels. Exit status: 0; 2 on a line
//! or constant that is not understood, with a sentence.
#include <algorithm>
#include <array>
#include <exception>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>

#include "simulate.hpp"
#include "work.hpp"

namespace {

using namespace whole_gpu;

struct question {
  call of;
  std::string gpu;
  int who = 0;
  [[nodiscard]] bool is_peer() const { return who == 1; }
};

std::string word_of(way of) {
  return std::array{"forward", "kept", "free"}.at(static_cast<std::size_t>(of));
}
std::string word_of(mask_kind of) {
  return std::array{"full", "causal", "window", "documents"}.at(static_cast<std::size_t>(of));
}

//! The value of an enum of `count` values that has a word.
template <class Value>
Value value_of(std::string const& word, int count) {
  for (int n = 0; n < count; ++n) {
    if (word == word_of(static_cast<Value>(n))) {
      return static_cast<Value>(n);
    }
  }
  throw std::runtime_error("nothing is known of " + word);
}

question read_question(std::string const& line) {
  std::istringstream words(line);
  question q;
  auto& c = q.of;
  std::string which;
  std::string mask;
  words >> c.name >> which >> c.dim >> c.batch >> c.heads >> c.key_heads >> c.queries >> c.keys >>
    mask >> c.extent >> c.held >> c.said >> q.gpu >> q.who;
  if (!words) {
    throw std::runtime_error("the line has too few words: " + line);
  }
  c.which = value_of<way>(which, 3);
  c.mask = value_of<mask_kind>(mask, 4);
  return q;
}

//! Queries see so many pairs, of all heads.
double pairs_of(call const& c) {
  double sum = 0;
  for (auto i = c.keys - c.queries; i < c.keys; ++i) {
    switch (c.mask) {
    case mask_kind::full: sum += static_cast<double>(c.keys); break;
    case mask_kind::causal: sum += static_cast<double>(i + 1); break;
    case mask_kind::window: sum += static_cast<double>(std::min(i + 1, c.extent)); break;
    case mask_kind::documents: sum += static_cast<double>(i % c.extent + 1); break;
    }
  }
  return sum * static_cast<double>(c.batch * c.heads);
}

speeds speeds_of(constants const& k, question const& q, work const& w) {
  auto const clock = k.at(q.gpu + ".kilohertz");
  auto const time = [&](std::int64_t cycles) { return cycles * 1'000'000'000 / clock; };
  auto const direction = std::string(q.of.which == way::forward ? "forward" : "backward");
  auto const dim = std::to_string(q.of.dim);
  auto const who = std::string(q.is_peer() ? "peer." : "own.");
  auto const shape = q.is_peer() ? (q.of.mask == mask_kind::full ? ".full" : ".causal") : "";
  auto const loop = (q.who == 2 ? "measured." : who) + "loop.";
  auto const cycles =
    k.at(loop + (q.is_peer() ? direction : word_of(q.of.which)) + shape + "." + dim);
  auto const visit = cycles * 1000 / k.at(who + "share." + direction);
  auto const of = [&](char const* what) { return time(k.at(who + direction + "." + what)); };
  speeds s;
  s.visit = time(visit);
  auto const mask = word_of(q.of.mask);
  s.masked = time(visit * k.at("masked." + direction + "." + mask) / 1000);
  auto const search = time(k.at("search." + mask));
  s.start = of("start") + search;
  auto const late = of("between");
  // Asked for early, the next piece begins as FlashAttention-3's; its first products are half of a
  // pass.
  s.between =
    search +
    (q.of.which == way::forward
       ? between_pieces(w.next_asked, late, time(k.at("peer.forward.between")), s.visit / 2)
       : late);
  s.end = of("end");
  s.hand_on = time(k.at("hand_on"));
  s.memory_rate = k.at(q.gpu + ".memory_rate");
  s.cache_rate = k.at("cache_rate");
  s.cache_bytes = k.at("cache_kept");
  return s;
}

//! Kernels before and after: of sums of dQ, or the merge of parts of keys; and launches.
std::int64_t around(constants const& k, question const& q, work const& w) {
  auto const& c = q.of;
  auto const elements = c.batch * c.heads * c.queries * c.value_dim();
  auto const rate = k.at(q.gpu + ".memory_rate");
  auto const other = k.at("other_kernel");
  auto out = k.at("launch");
  if (c.which != way::forward) {
    // Without an order sums start at 0 before anyone adds; they are rounded after.
    auto const before = w.starts_at_0 ? 8 : 4;
    auto const after = w.is_rounded ? 0 : 6;
    out += (w.is_rounded ? 1 : 2) * other + elements * (before + after) * 1'000'000 / rate;
  } else if (w.key_parts > 1) {
    out += other + elements * (4 * w.key_parts + 2) * 1'000'000 / rate;
  }
  return out;
}

//! The library's work when the reports were made.
void undo_changes(work& w) {
  w.next_asked = handover::late;
  if (w.brings_early) { // each piece had a block
    w.brings_early = false;
    w.blocks = static_cast<int>(w.pieces.size());
    w.next = [count = w.blocks](int block, int last) { return last < 0 ? block : count; };
  }
  w.starts_at_0 = true;
  w.is_rounded = false;
  for (auto& v : w.visits) {
    v.clears = false;
  }
  for (auto& p : w.pieces) {
    p.rounded = 0;
  }
}

void answer(constants const& k, question const& q) {
  gpu const on{k.at("multiprocessors"), k.at(q.gpu + ".cache_bytes")};
  auto w = q.is_peer() ? peer_work_of(q.of, on) : work_of(q.of, on);
  if (q.who == 2) {
    undo_changes(w);
  }
  auto const slots = static_cast<std::int64_t>(w.resident) * (on.multiprocessors - q.of.held);
  if (slots < 1) {
    throw std::runtime_error("no block of " + q.of.name + " fits on a multiprocessor");
  }
  auto const o = simulate(w, static_cast<int>(slots), speeds_of(k, q, w));
  auto const time = o.picoseconds + around(k, q, w);
  auto const pieces = static_cast<std::int64_t>(w.pieces.size());
  auto const visits = static_cast<std::int64_t>(w.visits.size());
  auto const products =
    q.of.which == way::forward ? q.of.dim + q.of.value_dim() : 3 * q.of.dim + 2 * q.of.value_dim();
  auto const flops = 2 * pairs_of(q.of) * products;
  std::cout << R"({"name": ")" << q.of.name << R"(", "key_parts": )" << w.key_parts
            << R"(, "group_parts": )" << w.group_parts << R"(, "step_cut": )" << w.step_cut
            << R"(, "heads_together": )" << w.heads_together << R"(, "blocks": )" << w.blocks
            << R"(, "starts_at_0": )" << w.starts_at_0 << R"(, "is_rounded": )" << w.is_rounded
            << R"(, "next_asked": )" << static_cast<int>(w.next_asked) << R"(, "resident": )"
            << w.resident << R"(, "shared_bytes": )" << w.shared_bytes << R"(, "pieces": )"
            << pieces << R"(, "tiles": )" << visits << R"(, "asked": )" << w.asked
            << R"(, "rounds": )" << (pieces + slots - 1) / slots << R"(, "busiest": )" << o.busiest
            << R"(, "fullness": )" << (o.busiest == 0 ? 0 : visits * 1000 / (slots * o.busiest))
            << R"(, "memory_kib": )" << o.memory_bytes / 1024 << R"(, "nanoseconds": )"
            << time / 1000 << R"(, "tflops": )" << flops / static_cast<double>(time) << "}\n";
}

void answer_portable() {
  for (auto const& b : portable_blocks()) {
    std::cout << R"({"name": "portable_)" << b.name << R"(", "shared_bytes": )" << b.shared_bytes
              << R"(, "threads": )" << b.threads << R"(, "resident": )" << b.resident << "}\n";
  }
}

} // namespace

int main(int count, char** words) {
  try {
    if (count != 2) {
      throw std::runtime_error("usage: whole_gpu CONSTANTS < CALLS");
    }
    constants const k(words[1]);
    for (std::string line; std::getline(std::cin, line);) {
      if (line == "portable") {
        answer_portable();
      } else {
        answer(k, read_question(line));
      }
    }
    return 0;
  } catch (std::exception const& e) {
    std::cerr << "whole_gpu: " << e.what() << '\n';
    return 2;
  }
}
