// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/schedule/chimera.hpp>
#include <pipe/schedule/chronos_pipe.hpp>
#include <pipe/schedule/hanayo.hpp>
#include <pipe/schedule/helix_pipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/stp.hpp>
#include <pipe/schedule/svpp.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_vocabulary.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <algorithm>
#include <vector>

#include "markdown_table.hpp"
#include "verbs.hpp"

namespace pp = pipelining;

namespace examples {
namespace {

//! Idle time of a device until the last one ends.
double idle(pp::timetable_view table, int device) {
  return pp::makespan(table) - pp::busy(table, device);
}
double share_idle(pp::timetable_view table) {
  return idle(table, 0) / pp::makespan(table);
}
//! In units on a stage, of the device that holds the most.
double peak(pp::timetable_view table) {
  int most = 0;
  for (int device = 0; device < table.over.extents.devices; ++device)
    most = std::max(most, pp::peak_activation_chunks(table, device));
  return most;
}

//! HelixPipe's parts of a layer: what is before the attention takes 1, what is behind it 3, the
//! attention 4, backward passes twice that.
struct layer_times {
  int stages;

  [[nodiscard]] double duration(pp::pass const& what) const {
    bool const attends = what.stage % 2 == 1;
    double const before = what.stage + 1 < stages ? 1 : 0;
    double const behind = what.stage > 0 ? 3 : 0;
    return (attends ? 4 : before + behind) * (what.kind == pp::pass_kind::backward ? 2 : 1);
  }
  [[nodiscard]] static double latency() { return 0; }
};

struct form_table {
  std::vector<table_line> rows{
    {"schedule", "published", "P, M", "by the form", "ours", "difference"}};

  void add(char const* schedule,
           char const* form,
           pp::pipeline_size const& size,
           double published,
           double ours,
           int digits = 0) {
    table_line row{
      schedule, form, std::to_string(size.devices) + ", " + std::to_string(size.microbatches)};
    compare(row, published, ours, digits);
    rows.push_back(row);
  }
};

//! Those whose forward, backward_input and backward_weight take 10, 12 and 8.
void add_zero_bubble(form_table& out, int p) {
  pp::uniform_cost const times{10, 12, 8};
  pp::pipeline_size const size{p, 4 * p};
  auto const idle_in_span = [](pp::timetable_view table) {
    return pp::span_of(table) - pp::busy(table, 0);
  };
  pp::dynamic_timetable const h1 = pp::make_timetable<pp::ZeroBubbleH1>(size, times);
  out.add("ZB-H1", "idle (P - 1)(F + I - W) of the span", size, (p - 1) * 14, idle_in_span(h1));
  out.add("ZB-H1", "peak P", size, p, peak(h1));
  pp::dynamic_timetable const h2 = pp::make_timetable<pp::ZeroBubbleH2>(size, times);
  out.add("ZB-H2", "idle (P - 1)(F + I - 2W) of the span", size, (p - 1) * 6, idle_in_span(h2));
  out.add("ZB-H2", "peak 2P - 1", size, 2 * p - 1, peak(h2));
  double const of_h1 = share_idle(pp::make_timetable<pp::ZeroBubbleH1>(size));
  out.add("ZB-H1",
          "share idle (P - 1)/(3(M + P - 1)), equal times",
          size,
          (p - 1.0) / (3 * (size.microbatches + p - 1)),
          of_h1,
          4);
  out.add("ZB-V",
          "share idle (P - 1)/(6M + P - 1), equal times",
          size,
          (p - 1.0) / (6 * size.microbatches + p - 1),
          share_idle(pp::make_timetable<pp::ZeroBubbleV>(size)),
          4);
}

void add_stages(form_table& out, int p) {
  pp::pipeline_size const size{p, 4 * p};
  out.add("1F1B",
          "share idle (P - 1)/(M + P - 1)",
          size,
          (p - 1.0) / (size.microbatches + p - 1),
          share_idle(pp::make_timetable<pp::OneFOneB>(size)),
          4);
  out.add("interleaved, V = 2",
          "share idle (P - 1)/(VM + P - 1)",
          size,
          (p - 1.0) / (2 * size.microbatches + p - 1),
          share_idle(pp::make_timetable<pp::Interleaved<2>>(size)),
          4);
  double const of_1f1b =
    idle(pp::make_timetable<pp::OneFOneB>(size, pp::uniform_cost{1, .5, .5}), 0);
  // One of its stages is a quarter of one of 1F1B's.
  pp::uniform_cost const quarter{0.25, 0.125, 0.125};
  out.add("Hanayo, two waves",
          "idle 1/(2 waves) of 1F1B's, F = B",
          size,
          of_1f1b / 4,
          idle(pp::make_timetable<pp::Hanayo<2>>(size, quarter), 0),
          2);
  out.add("ChronosPipe",
          "peak 3/4 of 1F1B's",
          size,
          0.75 * p,
          peak(pp::make_timetable<pp::ChronosPipe>(size)) / 2,
          1);
}

void add_both_ways(form_table& out, int p) {
  pp::pipeline_size const size{p, p};
  pp::dynamic_timetable const chimera =
    pp::make_timetable<pp::Chimera>(size, pp::uniform_cost{1, .5, .5});
  out.add("Chimera", "P - 2 slots idle, F = B", size, p - 2, idle(chimera, 0));
  out.add("Chimera", "peak P", size, p, peak(chimera));
  pp::uniform_cost const times{2, 2, 2};
  out.add("BitPipe",
          "idle half as long as Chimera's",
          size,
          idle(pp::make_timetable<pp::Chimera>(size, times), 0) / 2,
          idle(pp::make_timetable<pp::BitPipe>(size, pp::uniform_cost{1, 1, 1}), 0));
}

void add_chunks(form_table& out, int p) {
  constexpr int chunks = 4;
  pp::pipeline_size const size{p, 2 * p};
  pp::dynamic_timetable const table = pp::make_timetable<pp::Seq1F1B<chunks>>(size);
  out.add("Seq1F1B, C = 4", "idle (P - 1)(F + B)", size, (p - 1) * 3, idle(table, 0));
  out.add("Seq1F1B, C = 4",
          "peak (C + P - 1)/C microbatches",
          size,
          (chunks + p - 1.0) / chunks,
          peak(table) / chunks,
          2);
  constexpr int held = 2;
  pp::dynamic_timetable const svpp = pp::make_timetable(pp::SVPP<>{held, chunks}, size);
  out.add("SVPP, V = 2, C = 4",
          "peak V max(P, C) + min(P, C) - 1",
          size,
          held * std::max(p, chunks) + std::min(p, chunks) - 1,
          peak(svpp));
  out.add("SVPP, V = 2, C = 4",
          "share idle (P - 1)/(3MCV + P - 1), equal times",
          size,
          (p - 1.0) / (3 * size.microbatches * chunks * held + p - 1),
          share_idle(svpp),
          4);
}

void add_tensor_parallel(form_table& out, int p) {
  pp::pipeline_size const size{p, 4 * p};
  pp::uniform_cost exposed;
  exposed.all_reduce = 1.0 / 64;
  pp::dynamic_timetable const table = pp::make_timetable<pp::STP<>>(size);
  pp::dynamic_timetable const with = pp::make_timetable<pp::STP<>>(size, exposed);
  out.add("STP", "idle (P - 1)(F + I - W), equal times", size, p - 1, idle(table, 0));
  out.add("STP",
          "all-reduces of a device in the open, 2P + 1 at most",
          size,
          2 * p + 1,
          (pp::busy(with, 0) - pp::busy(table, 0)) * 64);
  int least = pp::peak_activation_chunks(table, 0);
  for (int device = 0; device < p; ++device)
    least = std::min(least, pp::peak_activation_chunks(table, device));
  out.add("STP", "peak 3P, of the device that holds least", size, 3 * p, least);
}

void add_shards(form_table& out, int p) {
  pp::pipeline_size const size{p, 4 * p};
  pp::uniform_cost times{2, 2, 2};
  times.embed = times.logits = times.logits_gradient = times.embed_gradient = 0;
  // The peak counts forward passes of layers: those of shards keep no activation.
  out.add("1F1B with vocabulary-1",
          "peak P + 1",
          size,
          p + 1,
          peak(pp::make_timetable<pp::with_vocabulary<pp::OneFOneB, 1>>(size, times)));
  out.add("1F1B with vocabulary-2",
          "peak P + 2",
          size,
          p + 2,
          peak(pp::make_timetable<pp::with_vocabulary<pp::OneFOneB, 2>>(size, times)));
  out.add("1F1B with vocabulary-interlaced",
          "peak 3P/2",
          size,
          p * 3 / 2,
          peak(pp::make_timetable<pp::with_vocabulary<pp::OneFOneB, pp::interlaced>>(size, times)));
}

void add_attention(form_table& out, int p) {
  pp::pipeline_size const size{p, p};
  pp::HelixPipe<> const schedule{2, 1};
  out.add("HelixPipe, two layers a device",
          "idle (P - 1)(1 + B/F)(before + behind attention)",
          size,
          (p - 1) * 3 * 4,
          idle(pp::make_timetable(schedule, size, layer_times{4 * p + 1}), 1));
}

} // namespace

std::string closed_forms() {
  form_table out;
  for (int const p : {4, 8}) {
    add_stages(out, p);
    add_zero_bubble(out, p);
    add_chunks(out, p);
    add_both_ways(out, p);
    add_tensor_parallel(out, p);
    add_shards(out, p);
    add_attention(out, p);
  }
  return table_of(out.rows);
}

} // namespace examples
