// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Times that were published with the artifact of arXiv:2411.05288 (vocabulary parallelism),
//! measured on A100s with 32 layers of width 3072: of the passes of every device, and of whole
//! iterations.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/adapt/with_vocabulary.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstddef>
#include <vector>

namespace examples {

inline constexpr int in_one_piece = -1; //!< In place of a number of barriers.

//! What runs differ in.
struct published_setting {
  int barriers;       //!< those of with_vocabulary, or in_one_piece
  char const* layers; //!< "even", or "redistributed" so that all devices take about as long
  int vocabulary;
  double milliseconds; //!< of an iteration
};

//! One run. Times of passes are in microseconds, by device.
struct published_run {
  static constexpr int sequence = 2048;
  static constexpr pipelining::pipeline_size size{8, 128};

  published_setting of;
  std::vector<double> forward;
  std::vector<double> backward;
  std::vector<double> shard{}; //!< both passes of logits together, interlaced: with exchanges
  std::vector<double> embed{};
  std::vector<double> embed_gradient{};
  double reduce = 0;
};

//! The passes of a run as a cost model, for stages with shards around them where there are any.
struct published_cost {
  published_run const& run;

  [[nodiscard]] double duration(pipelining::pass const& what) const {
    auto const at = static_cast<std::size_t>(what.stage % run.size.devices);
    switch (what.kind) {
    case pipelining::pass_kind::forward: return run.forward[at];
    case pipelining::pass_kind::backward: return run.backward[at];
    case pipelining::pass_kind::logits:
    case pipelining::pass_kind::logits_gradient: return run.shard[at] / 2;
    case pipelining::pass_kind::embed: return run.embed[at];
    case pipelining::pass_kind::embed_gradient: return run.embed_gradient[at];
    default: return 0;
    }
  }
  [[nodiscard]] static double latency() { return 0; }
  [[nodiscard]] pipelining::detail::group_times groups() const {
    return {0, run.of.barriers == pipelining::interlaced ? 0 : run.reduce};
  }
};

//! The timetable of a run.
[[nodiscard]] inline pipelining::dynamic_timetable timetable_of(published_run const& run) {
  using namespace pipelining;
  auto const of = [&run](auto const& schedule) {
    return make_timetable(schedule, run.size, published_cost{run});
  };
  switch (run.of.barriers) {
  case in_one_piece: return of(OneFOneB{});
  case interlaced: return of(with_vocabulary<OneFOneB, interlaced>{});
  case 1: return of(with_vocabulary<OneFOneB, 1>{});
  default: return of(with_vocabulary<OneFOneB, 2>{});
  }
}

//! The runs.
inline std::vector<published_run> const published_runs{
  {{in_one_piece, "even", 256000, 11722.2},
   {10572, 10591, 10475, 10725, 10360, 10444, 10381, 36818},
   {25185, 21108, 20737, 21143, 20805, 21030, 20827, 52363}},
  {{in_one_piece, "redistributed", 256000, 7599.2},
   {10627, 10656, 10606, 13501, 13327, 13257, 13200, 26019},
   {25401, 21220, 20851, 26906, 26392, 26589, 26431, 30535}},
  {{1, "even", 256000, 5951.1},
   {10936, 11477, 11316, 11010, 11362, 11428, 11847, 11108},
   {22897, 22352, 22288, 23214, 21963, 22527, 22633, 22210},
   {8376, 8387, 8339, 8527, 8301, 8418, 8366, 8135},
   {569, 408, 425, 419, 498, 572, 525, 532},
   {710, 786, 792, 803, 789, 798, 794, 864},
   352},
  {{2, "even", 256000, 5900.3},
   {10944, 11488, 11338, 11030, 11279, 11379, 11854, 11096},
   {22835, 22310, 22200, 23100, 21956, 22516, 22678, 22276},
   {7947, 7964, 7920, 8103, 7879, 8011, 7960, 7717},
   {519, 408, 426, 414, 437, 455, 491, 529},
   {709, 786, 791, 803, 789, 797, 794, 865},
   346},
  {{pipelining::interlaced, "even", 256000, 5807.6},
   {10911, 10784, 10674, 10942, 10678, 10777, 10760, 10787},
   {22100, 21963, 21626, 22266, 21641, 21922, 21800, 22028},
   {8341, 8193, 8073, 7919, 7743, 7691, 7605, 8467},
   {545, 565, 601, 605, 508, 518, 530, 569},
   {767, 843, 844, 861, 842, 848, 851, 932},
   360},
  {{in_one_piece, "even", 128000, 8202.6},
   {10599, 10616, 10637, 10612, 10352, 10540, 10470, 24152},
   {23338, 20978, 20968, 21162, 20785, 21242, 21067, 37615}},
  {{in_one_piece, "redistributed", 128000, 6140.6},
   {10696, 10629, 10572, 10612, 10444, 13674, 13660, 18708},
   {23417, 21081, 20955, 21362, 20975, 27415, 27328, 26685}},
  {{1, "even", 128000, 5450.4},
   {10840, 11594, 11286, 10806, 11229, 11464, 11898, 11172},
   {22714, 21964, 21955, 22765, 21703, 22689, 22786, 22252},
   {4560, 4562, 4523, 4599, 4508, 4654, 4615, 4388},
   {392, 372, 409, 375, 428, 465, 477, 533},
   {462, 537, 537, 547, 540, 555, 552, 626},
   369},
  {{2, "even", 128000, 5438.3},
   {10858, 11599, 11263, 10827, 11205, 11381, 11906, 11143},
   {22678, 22018, 21900, 22710, 21708, 22615, 22743, 22289},
   {4314, 4318, 4289, 4357, 4255, 4386, 4358, 4128},
   {512, 379, 470, 439, 480, 468, 474, 498},
   {466, 538, 543, 549, 539, 555, 553, 626},
   334},
  {{pipelining::interlaced, "even", 128000, 5327.3},
   {10878, 10704, 10554, 10793, 10577, 10863, 10802, 10832},
   {22027, 21747, 21405, 21936, 21434, 22150, 21908, 22084},
   {4729, 4619, 4500, 4452, 4328, 4259, 4173, 4852},
   {544, 542, 609, 603, 587, 566, 548, 587},
   {529, 602, 605, 613, 599, 614, 611, 704},
   333},
  {{in_one_piece, "even", 64000, 6409.5},
   {10727, 10694, 10656, 10618, 10527, 10637, 10450, 17748},
   {22614, 21304, 21212, 21117, 21227, 21450, 21016, 29803}},
  {{in_one_piece, "redistributed", 64000, 5595.5},
   {10881, 10880, 10913, 10679, 10641, 10789, 13773, 14876},
   {22845, 21465, 21517, 21361, 21373, 21717, 27570, 24031}},
  {{1, "even", 64000, 5170.3},
   {11146, 11515, 11427, 10859, 11422, 11546, 11764, 11118},
   {23350, 22293, 22520, 22886, 22074, 22887, 22547, 21925},
   {2723, 2666, 2681, 2688, 2643, 2698, 2634, 2400},
   {431, 399, 424, 422, 440, 481, 532, 515},
   {355, 423, 429, 431, 426, 435, 427, 499},
   345},
  {{2, "even", 64000, 5160.6},
   {11108, 11478, 11429, 10823, 11236, 11488, 11742, 11006},
   {23151, 22241, 22360, 22707, 21971, 22908, 22424, 21933},
   {2500, 2466, 2461, 2476, 2452, 2509, 2450, 2222},
   {447, 400, 407, 400, 430, 465, 464, 521},
   {349, 419, 423, 425, 424, 433, 426, 498},
   360},
  {{pipelining::interlaced, "even", 64000, 5093.8},
   {11083, 10766, 10747, 10753, 10772, 10921, 10655, 10658},
   {22383, 21885, 21802, 21861, 21844, 22246, 21604, 21693},
   {2971, 2847, 2759, 2670, 2586, 2462, 2358, 3668},
   {547, 537, 540, 533, 549, 546, 563, 595},
   {412, 476, 481, 485, 492, 496, 488, 575},
   341},
  {{in_one_piece, "even", 32000, 5489.9},
   {10761, 10887, 10681, 10573, 10554, 10674, 10612, 14603},
   {21993, 21497, 21130, 21279, 21267, 21412, 21364, 25997}},
  {{in_one_piece, "redistributed", 32000, 5508.7},
   {10733, 10881, 10701, 10581, 10586, 10688, 10612, 14668},
   {22002, 21472, 21194, 21311, 21249, 21508, 21289, 26045}},
  {{1, "even", 32000, 5045},
   {10857, 11696, 11396, 10634, 11295, 11370, 11828, 11121},
   {22753, 22269, 22123, 22459, 21856, 22445, 22711, 22104},
   {1573, 1580, 1556, 1547, 1547, 1573, 1591, 1357},
   {511, 374, 449, 372, 499, 503, 761, 761},
   {287, 361, 362, 358, 361, 369, 374, 448},
   345},
  {{2, "even", 32000, 5026.5},
   {10854, 11666, 11372, 10642, 11200, 11301, 11826, 11053},
   {22643, 22230, 22051, 22387, 21849, 22425, 22697, 22110},
   {1418, 1423, 1409, 1418, 1411, 1430, 1457, 1215},
   {393, 376, 414, 386, 465, 476, 742, 773},
   {283, 359, 360, 360, 361, 368, 374, 445},
   334},
  {{pipelining::interlaced, "even", 32000, 4951.9},
   {10890, 10784, 10667, 10623, 10631, 10754, 10764, 10730},
   {21975, 21934, 21602, 21611, 21589, 21878, 21827, 21861},
   {1992, 1851, 1750, 1659, 1573, 1487, 1418, 2130},
   {535, 538, 583, 589, 528, 536, 895, 917},
   {345, 419, 424, 428, 428, 434, 436, 524},
   617}};

} // namespace examples
