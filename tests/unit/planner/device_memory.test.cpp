// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The memory that `timetable choose` predicts, against the bytes that stages are handed in runs.
#include <pipe/plan/lower.hpp>
#include <pipe/planner/model/peak_bytes.hpp>
#include <pipe/planner/model/predict.hpp>
#include <pipe/planner/model/transformer.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace pp = pipelining;

namespace {

constexpr pp::transformer small_model{
  .layers = 8, .hidden = 64, .heads = 4, .kv_heads = 4, .ffn = 256, .vocabulary = 256};
constexpr pp::training_setup short_sequence{.sequence = 64};
constexpr pp::uniform_cost copies{.copy_out = 0.25, .copy_in = 0.25};

//! The bytes of a model in stages and chunks, as they are predicted, for a plan.
struct predicted_sizes {
  std::vector<pp::stage_bytes> stages;
  std::vector<int> chunk_lengths;

  predicted_sizes(std::vector<int> const& layers, std::vector<int> lengths)
      : chunk_lengths(std::move(lengths)) {
    for (pp::stage_content const& held : pp::stage_content::of_layers(layers))
      stages.push_back(pp::prediction{small_model, short_sequence}.bytes(held, chunk_lengths));
  }
  //! Of a chunk: its share of the tokens, which is whole here.
  [[nodiscard]] std::int64_t of_chunk(std::int64_t bytes, int chunk) const {
    return bytes * chunk_lengths[static_cast<std::size_t>(chunk)] / short_sequence.sequence;
  }
  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& what) const {
    pp::stage_bytes const& stage = stages[what.stage];
    bool const message = of == pp::slot_class::output || of == pp::slot_class::input_gradient;
    return message                            ? of_chunk(stage.message, what.chunk)
           : of == pp::slot_class::activation ? of_chunk(stage.activation, what.chunk)
                                              : 0;
  }
};

//! Every range of memory that a device was handed.
class handed_out {
public:
  void note(std::byte const* data, std::int64_t bytes) {
    if (data != nullptr)
      lengths_[data] = std::max(lengths_[data], bytes);
  }
  //! Bytes in at least one of them.
  [[nodiscard]] std::int64_t bytes() const {
    std::int64_t sum = 0;
    std::byte const* behind = nullptr;
    for (auto const& [data, length] : lengths_) {
      std::byte const* const begin = std::max(data, behind);
      std::byte const* const end = data + length;
      sum += end > begin ? end - begin : 0;
      behind = std::max(behind, end);
    }
    return sum;
  }

private:
  std::map<std::byte const*, std::int64_t> lengths_;
};

//! What a device is handed, and what it holds: its stages run on its thread alone.
struct device_record {
  handed_out activations;
  handed_out inputs; //!< of forward passes
  handed_out all;
  std::int64_t held = 0;
  std::int64_t peak = 0;
};

//! Has no `recompute`, so that the output of a repeated forward pass is seen, too.
struct recording_stage {
  static constexpr bool takes_chunks = true;
  predicted_sizes const* sizes = nullptr;
  std::vector<device_record>* devices = nullptr;

  void forward(pp::context const& at, pp::input x, pp::output y) {
    note(at, x, y);
    here(at).inputs.note(x.data, x.bytes);
    here(at).held += kept(at);
    here(at).peak = std::max(here(at).peak, here(at).held);
  }
  void backward(pp::context const& at, pp::input dy, pp::output dx) {
    note(at, dy, dx);
    here(at).held -= kept(at);
  }
  void backward_input(pp::context const& at, pp::input dy, pp::output dx) { note(at, dy, dx); }
  void backward_weight(pp::context const& at) {
    note(at, {}, {});
    here(at).held -= kept(at);
  }

private:
  [[nodiscard]] device_record& here(pp::context const& at) const {
    return (*devices)[static_cast<std::size_t>(at.device)];
  }
  [[nodiscard]] std::int64_t kept(pp::context const& at) const {
    return sizes->bytes(
      pp::slot_class::activation,
      pp::row_writer::make(pp::pass_kind::forward, at.stage, at.microbatch, at.chunk));
  }
  void note(pp::context const& at, pp::input in, pp::output out) const {
    here(at).activations.note(at.activation.data, at.activation.bytes);
    here(at).all.note(at.activation.data, at.activation.bytes);
    here(at).all.note(in.data, in.bytes);
    here(at).all.note(out.data, out.bytes);
  }
};

std::vector<device_record> run(pp::plan const& work, predicted_sizes const& sizes) {
  std::vector<device_record> devices(static_cast<std::size_t>(work.over.extents.devices));
  std::vector<recording_stage> stages(static_cast<std::size_t>(work.over.extents.stages()),
                                      recording_stage{&sizes, &devices});
  pp::thread_runner runner(work, stages);
  runner.step();
  runner.step();
  return devices;
}

//! Stages of as many layers, chunks of as many tokens, so that slots have no room to spare.
template <class Schedule>
void check_arena(Schedule const& schedule, pp::pipeline_size const& size) {
  pp::dynamic_timetable const table = pp::make_timetable(schedule, size, copies);
  pp::timetable_view const view = table;
  auto const stages = static_cast<std::size_t>(table.over.extents.stages());
  auto const chunks = static_cast<std::size_t>(table.over.extents.chunks);
  predicted_sizes const sizes(
    std::vector<int>(stages, small_model.layers / static_cast<int>(stages)),
    std::vector<int>(chunks,
                     static_cast<int>(short_sequence.sequence) / table.over.extents.chunks));
  pp::plan const work = pp::lower(view, sizes);
  std::vector<device_record> const devices = run(work, sizes);
  for (int device = 0; device < size.devices; ++device) {
    CAPTURE(device);
    device_record const& had = devices[static_cast<std::size_t>(device)];
    double const predicted =
      pp::peak_slot_bytes(view, device, pp::slot_class::activation, [&](pp::pass const& what) {
        return static_cast<double>(sizes.bytes(pp::slot_class::activation, what));
      });
    CHECK(had.activations.bytes() == static_cast<std::int64_t>(predicted));
    CHECK(had.all.bytes() == work.arena_bytes_of(device));
    double const kept = pp::peak_kept_input_bytes(view, device, [&](pp::pass const& what) {
      return what.stage == 0 ? 0 : static_cast<double>(sizes.stages[what.stage].message);
    });
    if (kept > 0 && table.over.extents.stages_per_device == 1) {
      // And at most the one that is on its way while those are kept.
      CHECK(had.inputs.bytes() >= static_cast<std::int64_t>(kept));
      CHECK(had.inputs.bytes() <= static_cast<std::int64_t>(kept) + sizes.stages[1].message);
    }
  }
}

} // namespace

TEST_CASE(
  "activations fill as many bytes of a run's arenas as predicted, and nothing is left over") {
  for (pp::pipeline_size const size : {pp::pipeline_size{1, 3}, {2, 5}, {4, 6}, {4, 2}}) {
    CAPTURE(size.devices);
    CAPTURE(size.microbatches);
    check_arena(pp::GPipe{}, size);
    check_arena(pp::OneFOneB{}, size);
    check_arena(pp::ZeroBubbleH1{}, size);
    check_arena(pp::ZeroBubbleH2{}, size);
    check_arena(pp::detail::SweptVHalf{}, size);
    check_arena(pp::Seq1F1B<2>{}, size);
    check_arena(pp::with_recompute<pp::OneFOneB>{}, size);
    check_arena(pp::with_recompute<pp::detail::SweptVHalf>{}, size);
    check_arena(pp::with_offload<pp::GPipe>{}, size);
    if (size.microbatches % size.devices == 0)
      check_arena(pp::Interleaved<2>{}, size);
  }
}

TEST_CASE("unequal stages and chunks hold as many bytes at once as predicted") {
  auto const check = [](auto const& schedule,
                        pp::pipeline_size const& size,
                        std::vector<int> const& layers,
                        std::vector<int> const& lengths) {
    pp::dynamic_timetable const table = pp::make_timetable(schedule, size, copies);
    pp::timetable_view const view = table;
    predicted_sizes const sizes(layers, lengths);
    std::vector<device_record> const devices = run(pp::lower(view, sizes), sizes);
    for (int device = 0; device < size.devices; ++device) {
      double const predicted =
        pp::peak_slot_bytes(view, device, pp::slot_class::activation, [&](pp::pass const& what) {
          return static_cast<double>(sizes.bytes(pp::slot_class::activation, what));
        });
      CHECK(devices[static_cast<std::size_t>(device)].peak == static_cast<std::int64_t>(predicted));
      CHECK(devices[static_cast<std::size_t>(device)].held == 0);
    }
  };
  check(pp::OneFOneB{}, {3, 5}, {4, 3, 1}, {64});
  check(pp::Seq1F1B<3>{}, {2, 4}, {5, 3}, {32, 17, 15});
  check(pp::Seq1F1BZeroBubbleH2<2>{}, {3, 4}, {1, 5, 2}, {40, 24});
  check(pp::detail::SweptVHalf{}, {2, 5}, {1, 2, 4, 1}, {64});
  check(pp::ZeroBubbleInterleaved<2>{}, {2, 4}, {3, 1, 1, 3}, {64});
}
