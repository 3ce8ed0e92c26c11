// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tools/timetable/markdown_table.hpp"
#include "tools/timetable/verbs.hpp"

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
  return static_cast<double>(pp::peak_activations(table).numerator);
}

//! HelixPipe's parts of a layer: what is before the attention takes 1, what is after it 3, the
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
    cells_of("| schedule | published | P, M | by the form | ours | difference |")};

  //! Adds rows of one schedule: `add(form, published, ours, digits)`.
  [[nodiscard]] auto of(char const* schedule, pp::pipeline_size const& size) {
    return [=, this](char const* form, double published, double ours, int digits = 0) {
      table_line row{schedule, form, text_of(size.devices, ", ", size.microbatches)};
      compare(row, published, ours, digits);
      rows.push_back(row);
    };
  }
};

//! Those whose forward, backward_input and backward_weight take 10, 12 and 8.
void add_zero_bubble(form_table& out, int p) {
  pp::uniform_cost const times{10, 12, 8};
  pp::pipeline_size const size{p, 4 * p};
  int const m = size.microbatches;
  auto const idle_in_span = [](pp::timetable_view table) {
    return pp::span_of(table) - pp::busy(table, 0);
  };
  auto const add_h1 = out.of("ZB-H1", size);
  pp::dynamic_timetable const h1 = pp::make_timetable<pp::ZeroBubbleH1>(size, times);
  add_h1("idle (P - 1)(F + I - W) of the span", (p - 1) * 14, idle_in_span(h1));
  add_h1("peak P", p, peak(h1));
  auto const add_h2 = out.of("ZB-H2", size);
  pp::dynamic_timetable const h2 = pp::make_timetable<pp::ZeroBubbleH2>(size, times);
  add_h2("idle (P - 1)(F + I - 2W) of the span", (p - 1) * 6, idle_in_span(h2));
  add_h2("peak 2P - 1", 2 * p - 1, peak(h2));
  double const of_h1 = share_idle(pp::make_timetable<pp::ZeroBubbleH1>(size));
  add_h1("share idle (P - 1)/(3(M + P - 1)), equal times", (p - 1.0) / (3 * (m + p - 1)), of_h1, 4);
  double const of_v = share_idle(pp::make_timetable<pp::ZeroBubbleV>(size));
  out.of("ZB-V", size)(
    "share idle (P - 1)/(6M + P - 1), equal times", (p - 1.0) / (6 * m + p - 1), of_v, 4);
}

void add_stages(form_table& out, int p) {
  pp::pipeline_size const size{p, 4 * p};
  int const m = size.microbatches;
  double const of_1f1b = share_idle(pp::make_timetable<pp::OneFOneB>(size));
  out.of("1F1B", size)("share idle (P - 1)/(M + P - 1)", (p - 1.0) / (m + p - 1), of_1f1b, 4);
  double const of_two = share_idle(pp::make_timetable<pp::Interleaved<2>>(size));
  out.of("interleaved, V = 2",
         size)("share idle (P - 1)/(VM + P - 1)", (p - 1.0) / (2 * m + p - 1), of_two, 4);
  double const idle_of_1f1b =
    idle(pp::make_timetable<pp::OneFOneB>(size, pp::uniform_cost{1, .5, .5}), 0);
  // One of its stages is a quarter of one of 1F1B's.
  pp::uniform_cost const quarter{0.25, 0.125, 0.125};
  double const of_waves = idle(pp::make_timetable<pp::Hanayo<2>>(size, quarter), 0);
  out.of("Hanayo, two waves",
         size)("idle 1/(2 waves) of 1F1B's, F = B", idle_of_1f1b / 4, of_waves, 2);
  double const of_chronos = peak(pp::make_timetable<pp::ChronosPipe>(size)) / 2;
  out.of("ChronosPipe", size)("peak 3/4 of 1F1B's", 0.75 * p, of_chronos, 1);
}

void add_both_ways(form_table& out, int p) {
  pp::pipeline_size const size{p, p};
  pp::dynamic_timetable const chimera =
    pp::make_timetable<pp::Chimera>(size, pp::uniform_cost{1, .5, .5});
  auto const add_chimera = out.of("Chimera", size);
  add_chimera("P - 2 slots idle, F = B", p - 2, idle(chimera, 0));
  add_chimera("peak P", p, peak(chimera));
  double const whole = idle(pp::make_timetable<pp::Chimera>(size, pp::uniform_cost{2, 2, 2}), 0);
  double const halves = idle(pp::make_timetable<pp::BitPipe>(size, pp::uniform_cost{1, 1, 1}), 0);
  out.of("BitPipe", size)("idle half as long as Chimera's", whole / 2, halves);
}

void add_chunks(form_table& out, int p) {
  constexpr int chunks = 4;
  pp::pipeline_size const size{p, 2 * p};
  auto const add_seq1f1b = out.of("Seq1F1B, C = 4", size);
  pp::dynamic_timetable const table = pp::make_timetable<pp::Seq1F1B<chunks>>(size);
  add_seq1f1b("idle (P - 1)(F + B)", (p - 1) * 3, idle(table, 0));
  double const least = (chunks + p - 1.0) / chunks;
  add_seq1f1b("peak (C + P - 1)/C microbatches", least, peak(table) / chunks, 2);
  constexpr int held = 2;
  auto const add_svpp = out.of("SVPP, V = 2, C = 4", size);
  pp::dynamic_timetable const svpp = pp::make_timetable<pp::SVPP<held, chunks, 0>>(size);
  int const units = held * std::max(p, chunks) + std::min(p, chunks) - 1;
  add_svpp("peak V max(P, C) + min(P, C) - 1", units, peak(svpp));
  double const share = (p - 1.0) / (3 * size.microbatches * chunks * held + p - 1);
  add_svpp("share idle (P - 1)/(3MCV + P - 1), equal times", share, share_idle(svpp), 4);
}

void add_tensor_parallel(form_table& out, int p) {
  pp::pipeline_size const size{p, 4 * p};
  pp::uniform_cost exposed;
  exposed.all_reduce = 1.0 / 64;
  pp::dynamic_timetable const table = pp::make_timetable<pp::STP<>>(size);
  pp::dynamic_timetable const with = pp::make_timetable<pp::STP<>>(size, exposed);
  auto const add = out.of("STP", size);
  add("idle (P - 1)(F + I - W), equal times", p - 1, idle(table, 0));
  double const in_the_open = (pp::busy(with, 0) - pp::busy(table, 0)) * 64;
  add("all-reduces of a device in the open, 2P + 1 at most", 2 * p + 1, in_the_open);
  int least = pp::peak_activation_chunks(table, 0);
  for (int device = 0; device < p; ++device)
    least = std::min(least, pp::peak_activation_chunks(table, device));
  add("peak 3P, of the device that holds least", 3 * p, least);
}

void add_shards(form_table& out, int p) {
  pp::pipeline_size const size{p, 4 * p};
  pp::uniform_cost times{2, 2, 2};
  times.embed = times.logits = times.logits_gradient = times.embed_gradient = 0;
  // The peak counts forward passes of layers: those of shards keep no activation.
  auto const peak_of = [&](auto const& schedule) {
    return peak(pp::make_timetable(schedule, size, times));
  };
  out.of("1F1B with vocabulary-1",
         size)("peak P + 1", p + 1, peak_of(pp::with_vocabulary<pp::OneFOneB, 1>{}));
  out.of("1F1B with vocabulary-2",
         size)("peak P + 2", p + 2, peak_of(pp::with_vocabulary<pp::OneFOneB, 2>{}));
  out.of("1F1B with vocabulary-interlaced", size)(
    "peak 3P/2", p * 3 / 2, peak_of(pp::with_vocabulary<pp::OneFOneB, pp::interlaced>{}));
}

void add_attention(form_table& out, int p) {
  pp::pipeline_size const size{p, p};
  pp::HelixPipe<> const schedule{2, 1};
  double const ours = idle(pp::make_timetable(schedule, size, layer_times{4 * p + 1}), 1);
  out.of("HelixPipe, two layers a device",
         size)("idle (P - 1)(1 + B/F)(before + after attention)", (p - 1) * 3 * 4, ours);
}

} // namespace

noted_table closed_forms() {
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
  return {out.rows};
}

} // namespace examples
