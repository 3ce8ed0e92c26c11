// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <stdexcept>
#include <utility>
#include <variant>

#include "../papers/exchanged_stage.hpp"
#include "gathered_stage.cuh"
#include "vocabulary.cuh"

namespace gpt {

std::string missing_gpu() {
  int devices = 0;
  cudaError_t const code = cudaGetDeviceCount(&devices);
  return code == cudaSuccess && devices > 0
           ? ""
           : std::string("there is no GPU here: ") +
               (code == cudaSuccess ? "CUDA finds none" : cudaGetErrorString(code));
}

namespace {

//! Of a device, and of what runs next to its passes.
template <class Element>
using shared_work = std::array<std::shared_ptr<on_gpu::device_work<Element>>, 2>;

//! A stage, of the types below, with what it works with.
template <class Element, class Stage>
struct at_work {
  shared_work<Element> work;
  Stage stage;
};
template <class Element>
using whole_stage = stage<on_gpu::machine<Element>>;
template <class Element>
using stage_of_exchange = exchanged_stage<on_gpu::machine<Element>>;
template <class Element>
using layer_of_exchange = exchanged_layer<on_gpu::machine<Element>>;
template <class Element>
using stage_of_shards = sharded_stage<on_gpu::machine<Element>>;
template <class Element>
using pieces_of_weights = on_gpu::gathered_stage<Element, on_gpu::weights_in_pieces<Element>>;
template <class Element>
using weights_at_host = on_gpu::gathered_stage<Element, on_gpu::weights_on_host<Element>>;

template <template <class> class... Stages>
using any_stage =
  std::variant<at_work<float, Stages<float>>..., at_work<__nv_bfloat16, Stages<__nv_bfloat16>>...>;

void check(model_size const& size, pp::timetable_view table) {
  on_gpu::with_head_dim(size.head_dim(), [](auto) {});
  auto const refuse = [](std::string const& what) {
    throw std::invalid_argument(
      "the example on GPUs has " + what +
      "; choose a schedule of whole layers, whose passes are forward and backward, with "
      "recomputation, offload and gathered weights");
  };
  for (int i = 0; i < table.size(); ++i) {
    auto const& kind = (*table.over.declared)[table.passes[i].kind];
    if (kind.calls > pp::stage_call::scatter_gradients)
      refuse(std::string("no pass that is called ") + kind.word.c_str());
  }
}

//! What holds the weights of a stage: itself, or the layer that it stands for; null: another stage.
template <class Stage>
Stage* holder_of(Stage& stage) {
  return &stage;
}
template <class Machine>
exchanged_layer<Machine>* holder_of(exchanged_stage<Machine>& stage) {
  return stage.leading();
}

} // namespace

struct gpu_stage::either {
  any_stage<whole_stage, stage_of_exchange, stage_of_shards, pieces_of_weights, weights_at_host> of;
  std::optional<on_gpu::clipped_optimizer> clipped{};
  //! Whether the norm has a weight from here, by its number: what is whole on all shards, it has
  //! from the first one.
  std::vector<bool> counts{};

  template <class Visit>
  decltype(auto) visit(Visit go) {
    return std::visit([&](auto& each) -> decltype(auto) { return go(each.stage); }, of);
  }
  //! The same with what holds the weights. Returns whether it is here.
  template <class Visit>
  bool visit_weights(Visit go) {
    return visit([&](auto& stage) {
      auto* const holder = holder_of(stage);
      if (holder != nullptr)
        go(*holder);
      return holder != nullptr;
    });
  }
};

namespace {

//! What stages are made of, as make_gpu_stages is told.
struct making {
  model_size const& size;
  pp::timetable_view table;
  step_cut const& cut;
  std::uint64_t seed;
  gpu_run const& how;
  std::optional<int> only;
};

template <class Element>
class work_of_devices {
public:
  //! @param sizes of slots: sizes(class, pass). @param cut of the step, or of the largest that may
  //! come
  template <class Sizes>
  work_of_devices(making const& with, step_cut const& cut, Sizes const& sizes)
      : with_(with), all_(static_cast<std::size_t>(with.table.over.extents.devices)) {
    for (int i = 0; i < with.table.size(); ++i) {
      auto what = with.table.passes[i];
      what.chunk = with.how.any_chunks ? std::uint16_t{0} : what.chunk;
      tokens_ = std::max(tokens_, cut.range({what.microbatch, what.chunk}).count());
      if (what.kind == pp::pass_kind::backward)
        between_ = std::max(between_, sizes(pp::slot_class::weight_input, what));
      beside_ = beside_ || what.overlapped;
    }
  }

  [[nodiscard]] shared_work<Element> const& of(int device) {
    auto& shared = all_[static_cast<std::size_t>(device)];
    for (auto& each : shared)
      if (each == nullptr && (beside_ || &each == &shared.front()))
        each = std::make_shared<on_gpu::device_work<Element>>(
          with_.size, tokens_, between_, with_.how.workspace_bytes, with_.how.sum);
    return shared;
  }

  //! A whole stage, or a shard of it, on a device.
  [[nodiscard]] stage_start<on_gpu::machine<Element>>
  start(int device, layer_range const& held, step_cut const& cut) {
    auto const& work = of(device);
    return {with_.size,
            held,
            cut,
            work[0].get(),
            size_of_shard(with_.size, with_.how.shard),
            with_.how.replicas,
            work[1].get()};
  }
  //! @param more what the stage is made of as well
  template <class Stage, class... More>
  [[nodiscard]] std::unique_ptr<gpu_stage> put(int device, More&&... more) {
    return std::make_unique<gpu_stage>(
      std::make_unique<gpu_stage::either>(
        gpu_stage::either{at_work<Element, Stage>{of(device), Stage(std::forward<More>(more)...)}}),
      with_.how);
  }

private:
  making with_;
  std::int64_t tokens_ = 0;
  std::int64_t between_ = 0;
  bool beside_ = false;
  std::vector<shared_work<Element>> all_;
};

//! Stages of whole layers, or of layers cut at their attention. Of these, the stages of the first
//! way have all weights, those of others are further places of attention.
template <class Element>
gpu_stages make_stages(making const& with) {
  auto const& size = with.size;
  auto const held = cut_model(size, with.table.over.extents);
  step_cut const whole(with.cut.microbatches(), cut_sequence(size.sequence, 1));
  auto const& largest = with.how.any_chunks ? whole : with.cut;
  auto const own = size_of_shard(size, with.how.shard);
  work_of_devices<Element> works(with, largest, [&](pp::slot_class of, pp::pass const& what) {
    return stage_bytes<on_gpu::machine<Element>>(
      size, own, held[what.stage], largest, of, {what.microbatch, what.chunk});
  });
  auto const make = [&](int number, int device, layer_range const& layers, step_cut const& seen) {
    auto const start = works.start(device, layers, seen);
    auto parts = parts_of(size, layers, with.how.shard);
    if (!gathers_weights_of(with.table, number))
      return works.template put<whole_stage<Element>>(device, std::move(parts), with.seed, start);
    return with.how.home == weights_home::host ? works.template put<weights_at_host<Element>>(
                                                   device, parts, with.seed, start, with.how)
                                               : works.template put<pieces_of_weights<Element>>(
                                                   device, parts, with.seed, start, with.how);
  };
  return make_layers_by_way<gpu_stage>(size, with.table, with.cut, with.only, make);
}

auto bytes_in(auto const& slots) {
  return [&slots](pp::slot_class of, pp::pass const& what) { return slots.bytes(of, what); };
}

//! Parts of layers, where devices take over attention of each other.
template <class Element>
gpu_stages make_exchanged(making const& with) {
  auto const& extents = with.table.over.extents;
  exchanged_slot_sizes<on_gpu::machine<Element>> const slots(
    with.size, *with.how.exchange, extents);
  auto const last = slots.cut.chunks(0) - 1; // none is longer
  step_cut const largest(extents.microbatches, {slots.cut.range({0, last})});
  work_of_devices<Element> works(with, largest, bytes_in(slots));
  std::vector<std::shared_ptr<layer_of_exchange<Element>>> at_home(
    static_cast<std::size_t>(with.size.layers));
  return make_by_way<gpu_stage>(with.table, with.only, [&](std::size_t, int number, int device) {
    auto const what = slots.stage(number);
    std::shared_ptr<layer_of_exchange<Element>> taken;
    auto& layer = is_taken(what) ? taken : at_home[static_cast<std::size_t>(what.layer)];
    if (!layer)
      layer = std::make_shared<layer_of_exchange<Element>>(
        with.seed, works.start(device, slots.held(what), slots.cut));
    return works.template put<stage_of_exchange<Element>>(device, what, layer);
  });
}

template <class Element>
gpu_stages make_pieces(making const& with) {
  auto const cut = cut_around(with.size, with.table, *with.how.barriers);
  sharded_slot_sizes<on_gpu::machine<Element>> const slots{with.size, cut};
  work_of_devices<Element> works(with, cut.step, bytes_in(slots));
  return make_by_way<gpu_stage>(with.table, with.only, [&](std::size_t, int number, int device) {
    piece_of_model const piece(with.size, cut, number);
    return works.template put<stage_of_shards<Element>>(
      device, piece, with.seed, works.start(device, piece.held, cut.step), cut.barriers == 1);
  });
}

template <class Element>
gpu_stages make_any(making const& with) {
  return with.how.barriers   ? make_pieces<Element>(with)
         : with.how.exchange ? make_exchanged<Element>(with)
                             : make_stages<Element>(with);
}

} // namespace

gpu_stages make_gpu_stages(model_size const& size,
                           pp::timetable_view table,
                           step_cut const& cut,
                           std::uint64_t seed,
                           gpu_run const& how,
                           std::optional<int> only) {
  check(size, table);
  making const with{size, table, cut, seed, how, only};
  return how.numbers == operands::bf16 ? make_any<__nv_bfloat16>(with) : make_any<float>(with);
}

namespace {
template <class Element>
plan_sizes sizes_of(model_size const& size,
                    gpu_run const& how,
                    std::int64_t totals_bytes,
                    pp::timetable_view table,
                    std::vector<std::int64_t> const& lengths) {
  using machine = on_gpu::machine<Element>;
  if (how.barriers)
    return plan_sizes(
      sharded_slot_sizes<machine>{size, cut_around(size, table, *how.barriers)}, {}, totals_bytes);
  if (how.exchange)
    return plan_sizes(
      exchanged_slot_sizes<machine>(size, *how.exchange, table.over.extents), {}, totals_bytes);
  stage_slot_sizes<machine> sizes{size,
                                  cut_for(table, lengths),
                                  cut_model(size, table.over.extents),
                                  size_of_shard(size, how.shard)};
  auto const group = how.weights.of > 1 ? how.weights.of : weight_shard_count;
  auto const pieces = how.home == weights_home::host ? 1 : group;
  sizes.gathered = gathered_by_stage(size, table, [&](layer_range const& held) {
    return on_gpu::bytes_of_gathered<Element>(size, held, pieces);
  });
  return plan_sizes(sizes, sizes.shown(), totals_bytes);
}
} // namespace
sizes_of_plan gpu_slots(model_size const& size, gpu_run const& how, std::int64_t totals_bytes) {
  auto const sizes = how.numbers == operands::bf16 ? sizes_of<__nv_bfloat16> : sizes_of<float>;
  return [=](pp::timetable_view table, std::vector<std::int64_t> const& lengths) {
    return sizes(size, how, totals_bytes, table, lengths);
  };
}

gpu_stage::gpu_stage(std::unique_ptr<either> of, gpu_run const& how)
    : of_(std::move(of)), over_replicas_(how.over_replicas) {
  if (how.clip == nullptr)
    return;
  bool const early = how.clip->early;
  bool const first = how.shard.number == 0;
  of_->visit_weights([&](auto& stage) {
    of_->clipped.emplace(*how.clip);
    std::size_t number = 0;
    for (auto& weight : stage.weights()) {
      if (early)
        weight.make_room_for_copy();
      of_->counts.push_back(first || stage.is_cut(number++));
    }
  });
}
gpu_stage::~gpu_stage() = default;

namespace {
//! Calls visit(stage) of one whose weights are gathered; the library asks no other.
template <class Either, class Visit>
void visit_gathered(Either& of, Visit visit) {
  of.visit([&](auto& stage) {
    if constexpr (requires { stage.whole_numbers(true); })
      visit(stage);
  });
}
} // namespace
void gpu_stage::gather_weights(pp::context const& where, pp::output out) {
  visit_gathered(*of_, [&](auto& stage) { stage.gather_weights(where, out); });
}
void gpu_stage::use_weights(pp::context const& where, pp::input in) {
  visit_gathered(*of_, [&](auto& stage) { stage.use_weights(where, in); });
}
void gpu_stage::collect_gradients(pp::context const& where, pp::output out) {
  visit_gathered(*of_, [&](auto& stage) { stage.collect_gradients(where, out); });
}
void gpu_stage::scatter_gradients(pp::context const& where, pp::input in) {
  visit_gathered(*of_, [&](auto& stage) { stage.scatter_gradients(where, in); });
}
void gpu_stage::join_replicas(cudaStream_t stream) {
  bool scattered = false;
  visit_gathered(*of_, [&](auto&) { scattered = true; });
  if (over_replicas_ && !scattered)
    for_each_gradient(
      [&](float* gradient, std::int64_t count) { over_replicas_(gradient, count, stream); });
}
void gpu_stage::run_half(pp::pass_kind kind, pp::composite_half const& given, int half) {
  of_->visit([&](auto& stage) { gpt::run_half(stage, kind, given, half); });
}
void gpu_stage::set_text(batch const& pieces, cudaStream_t stream) {
  of_->visit_weights([&](auto& stage) { stage.set_text(pieces.bytes, stream); });
}
void gpu_stage::update(adamw const& optimizer, std::int64_t step, cudaStream_t stream) {
  of_->visit_weights([&](auto& stage) {
    if constexpr (requires { stage.update(optimizer, step, stream); })
      stage.update(optimizer, step, stream); // at their home
    else
      for (auto& weight : stage.weights())
        weight.update(optimizer, step, stream);
  });
}
std::vector<tensor_part> gpu_stage::parts() const {
  std::vector<tensor_part> found;
  of_->visit_weights([&](auto& stage) { found = stage.parts(); });
  return found;
}
void gpu_stage::set_cut(step_cut const& cut) {
  of_->visit_weights([&](auto& stage) { stage.set_cut(cut); });
}
void gpu_stage::contribute(pp::context const& where, pp::output row) {
  auto const stream = static_cast<cudaStream_t>(where.stream);
  bool const here = of_->visit_weights([&](auto& stage) {
    of_->clipped->contribute(
      stage.weights(), [&](std::size_t i) { return of_->counts[i]; }, row.data, stream);
  });
  if (!here)
    on_gpu::clear_bytes(row.data, row.bytes, stream);
}
void gpu_stage::optimizer_step(pp::context const& where, pp::totals const& all) {
  of_->visit_weights([&](auto& stage) {
    of_->clipped->step(stage.weights(), all, static_cast<cudaStream_t>(where.stream));
  });
}
void gpu_stage::roll_back(pp::context const& where) {
  ++rolled_back_;
  of_->visit_weights([&](auto& stage) {
    of_->clipped->roll_back(stage.weights(), static_cast<cudaStream_t>(where.stream));
  });
}
void gpu_stage::exchange(std::function<void(std::span<std::byte>)> const& visit) {
  of_->visit_weights([&](auto& stage) {
    if constexpr (requires { stage.exchange(visit); })
      stage.exchange(visit);
    else
      for (auto& weight : stage.weights())
        weight.exchange(visit);
  });
}
void gpu_stage::set_counts(step_counts const& counts) {
  if (of_->clipped)
    of_->clipped->set_counts(counts);
}
step_counts gpu_stage::counts() const {
  return of_->clipped ? of_->clipped->counts() : step_counts();
}
void gpu_stage::for_each_gradient(std::function<void(float*, std::int64_t)> const& visit) const {
  of_->visit_weights([&](auto& stage) {
    for (auto const& weight : stage.weights())
      visit(weight.gradients(), weight.count());
  });
}
void gpu_stage::for_each_sum(std::function<void(float*, std::int64_t)> const& visit) const {
  for_each_gradient(visit);
  of_->visit_weights([&](auto& stage) {
    if (stage.loss_count() > 0)
      visit(stage.losses(), stage.loss_count());
  });
}
double gpu_stage::loss_sum() const {
  return of_->visit([](auto& stage) { return stage.loss_sum(); });
}

void add_copies(gpu_stage& one, gpu_stage& other, cudaStream_t stream) {
  std::vector<float*> sums;
  one.for_each_sum([&](float* numbers, std::int64_t) { sums.push_back(numbers); });
  std::size_t next = 0;
  other.for_each_sum([&](float* numbers, std::int64_t count) {
    float* const sum = sums[next++];
    on_gpu::add(sum, numbers, count, stream);
    on_gpu::copy(numbers, sum, count, stream);
  });
}

std::vector<float> gpu_stage::numbers(bool values) const {
  std::vector<float> all;
  of_->visit_weights([&](auto& stage) {
    if constexpr (requires { stage.whole_numbers(values); }) {
      all = stage.whole_numbers(values);
    } else {
      for (auto const& weight : stage.weights()) {
        auto const some =
          on_gpu::fetch(values ? weight.values() : weight.gradients(), weight.count());
        all.insert(all.end(), some.begin(), some.end());
      }
    }
  });
  return all;
}

} // namespace gpt
