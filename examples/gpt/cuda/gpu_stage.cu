// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/flow/shape.hpp>

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <stdexcept>
#include <utility>
#include <variant>

#include "../sharded_piece.hpp"
#include "../slot_sizes.hpp"
#include "../stage_shard.hpp"
#include "../vocabulary_cut.hpp"
#include "exchanged_stage.cuh"
#include "gathered_stage.cuh"
#include "gpu_stage.hpp"
#include "helix_stage.cuh"
#include "sharded_stage.cuh"
#include "stage.cuh"

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

//! Of a device, and of what runs beside its passes.
template <class Element>
using shared_work = std::array<std::shared_ptr<on_gpu::device_work<Element>>, 2>;

template <class Element>
struct stage_at_work {
  shared_work<Element> work;
  on_gpu::stage<Element> stage;
};
template <class Element>
struct helix_at_work {
  shared_work<Element> work;
  on_gpu::helix_stage<Element> stage;
};
template <class Element>
struct exchanged_at_work {
  shared_work<Element> work;
  on_gpu::exchanged_stage<Element> stage;
};
template <class Element>
struct piece_at_work {
  shared_work<Element> work;
  on_gpu::sharded_stage<Element> stage;
};
template <class Element, class Home>
struct gathered_at_work {
  shared_work<Element> work;
  on_gpu::gathered_stage<Element, Home> stage;
};
template <class Element>
using pieces_at_work = gathered_at_work<Element, on_gpu::weights_in_pieces<Element>>;
template <class Element>
using hosted_at_work = gathered_at_work<Element, on_gpu::weights_on_host<Element>>;

//! Whether layers are cut at their attention, which some microbatches have on other devices.
bool cuts_layers(std::vector<layer_range> const& stages) {
  return stages.front().part != layer_part::whole;
}

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
    if (kind.calls > pp::stage_call::scatter_gradients) {
      refuse(std::string("no pass that is called ") + kind.word.c_str());
    }
  }
}

} // namespace

struct gpu_stage::either {
  std::variant<stage_at_work<float>,
               stage_at_work<__nv_bfloat16>,
               helix_at_work<float>,
               helix_at_work<__nv_bfloat16>,
               exchanged_at_work<float>,
               exchanged_at_work<__nv_bfloat16>,
               piece_at_work<float>,
               piece_at_work<__nv_bfloat16>,
               pieces_at_work<float>,
               pieces_at_work<__nv_bfloat16>,
               hosted_at_work<float>,
               hosted_at_work<__nv_bfloat16>>
    of;

  template <class Visit>
  decltype(auto) visit(Visit go) {
    return std::visit([&](auto& each) -> decltype(auto) { return go(each.stage); }, of);
  }
};

namespace {

//! What the stages of each device share.
template <class Element>
class work_of_devices {
public:
  //! @param sizes of slots. @param cut of the step, or of the largest that may come
  template <class Sizes>
  work_of_devices(model_size const& size,
                  pp::timetable_view table,
                  step_cut const& cut,
                  Sizes const& sizes,
                  gpu_run const& how)
      : size_(size), how_(how), all_(static_cast<std::size_t>(table.over.extents.devices)) {
    for (int i = 0; i < table.size(); ++i) {
      auto what = table.passes[i];
      what.chunk = how.any_chunks ? std::uint16_t{0} : what.chunk;
      tokens_ = std::max(tokens_, cut.range({what.microbatch, what.chunk}).count());
      if (what.kind == pp::pass_kind::backward) {
        between_ = std::max(between_, sizes.bytes(pp::slot_class::weight_input, what));
      }
      beside_ = beside_ || what.overlapped;
    }
  }

  [[nodiscard]] shared_work<Element> const& of(int device) {
    auto& shared = all_[static_cast<std::size_t>(device)];
    for (auto& each : shared) {
      if (each == nullptr && (beside_ || &each == &shared.front())) {
        each = std::make_shared<on_gpu::device_work<Element>>(
          size_, tokens_, between_, how_.workspace_bytes, how_.sum);
      }
    }
    return shared;
  }

private:
  model_size size_;
  gpu_run const& how_;
  std::int64_t tokens_ = 0;
  std::int64_t between_ = 0;
  bool beside_ = false;
  std::vector<shared_work<Element>> all_;
};

template <class AtWork>
std::unique_ptr<gpu_stage> put_to_work(AtWork stage, gpu_run const& how) {
  return std::make_unique<gpu_stage>(
    std::make_unique<gpu_stage::either>(gpu_stage::either{std::move(stage)}), how);
}

template <class Element>
gpu_stages make_stages(model_size const& size,
                       pp::timetable_view table,
                       step_cut const& cut,
                       std::uint64_t seed,
                       gpu_run const& how,
                       std::optional<int> only) {
  auto const held = cut_layers(size.layers, table.over.extents.stages());
  auto const own = size_of_shard(size, how.shard);
  step_cut const whole(cut.microbatches(), cut_sequence(size.sequence, 1));
  auto const& largest = how.any_chunks ? whole : cut;
  on_gpu::slot_sizes<Element> const slots{size, own, largest, held};
  work_of_devices<Element> works(size, table, largest, slots, how);
  gpu_stages made(static_cast<std::size_t>(table.over.extents.routes()));
  device_memory<float> on_host;
  auto const make = [&](auto& host, int device, layer_range const& layers, step_cut const& seen) {
    auto const& work = works.of(device);
    std::size_t const before = layers.embeds ? 2 : 0;
    return put_to_work(
      stage_at_work<Element>{
        work,
        on_gpu::stage<Element>(
          host, size, own, layers, seen, how.replicas, *work[0], work[1].get(), before)},
      how);
  };
  auto const make_gathered =
    [&]<class AtWork>(int device, layer_range const& layers, step_cut const& seen) {
      stage<float> host(size, layers, cut, seed, on_host);
      auto const& work = works.of(device);
      std::size_t const before = layers.embeds ? 2 : 0;
      return put_to_work(
        AtWork{work, {host, size, layers, seen, how, *work[0], work[1].get(), before}}, how);
    };
  for (std::size_t way = 0; way < made.size(); ++way) {
    int const first = first_of_way(table.over.extents, way);
    auto const seen = cut.seen(first, first_of_way(table.over.extents, way + 1));
    for (auto const& layers : held) {
      int const device = pp::device_of(table, static_cast<int>(made[way].size()), first);
      if (device != only.value_or(device)) {
        made[way].push_back(nullptr);
      } else if (gathers_weights_of(table, static_cast<int>(made[way].size()))) {
        made[way].push_back(
          how.home == weights_home::host
            ? make_gathered.template operator()<hosted_at_work<Element>>(device, layers, seen)
            : make_gathered.template operator()<pieces_at_work<Element>>(device, layers, seen));
      } else if (how.shard.of > 1) {
        stage_shard host(size, layers, cut.microbatches(), seed, how.shard, on_host);
        made[way].push_back(make(host, device, layers, seen));
      } else {
        stage<float> host(size, layers, cut, seed, on_host);
        made[way].push_back(make(host, device, layers, seen));
      }
    }
  }
  return made;
}

//! Layers cut at their attention. The stages of the first way have all weights, those of others are
//! further places of attention.
template <class Element>
gpu_stages make_cut_layers(model_size const& size,
                           pp::timetable_view table,
                           step_cut const& cut,
                           std::uint64_t seed,
                           gpu_run const& how,
                           std::optional<int> only) {
  auto const held = cut_model(size, table.over.extents);
  on_gpu::helix_slot_sizes<Element> const slots{size, cut, held};
  work_of_devices<Element> works(size, table, cut, slots, how);
  gpu_stages made(static_cast<std::size_t>(table.over.extents.routes()));
  device_memory<float> on_host;
  for (std::size_t way = 0; way < made.size(); ++way) {
    for (auto const& layers : held) {
      auto const number = static_cast<int>(made[way].size());
      int const device = pp::device_of(table, number, static_cast<int>(way));
      bool const again = way > 0 && layers.part != layer_part::attention;
      if (again || device != only.value_or(device)) {
        made[way].push_back(nullptr);
        continue;
      }
      stage<float> host(size, layers, cut, seed, on_host);
      auto const& work = works.of(device);
      made[way].push_back(put_to_work(
        helix_at_work<Element>{work,
                               on_gpu::helix_stage<Element>(
                                 host, size, layers, cut, how.replicas, *work[0], work[1].get())},
        how));
    }
  }
  return made;
}

template <class Element>
[[nodiscard]] on_gpu::exchanged_slot_sizes<Element> exchanged_sizes_of(
  model_size const& size, exchange_schedule const& schedule, pp::shape const& extents) {
  return {size, schedule, extents, cut_sequence(size.sequence, schedule.inner.chunks)};
}

//! Parts of layers, where devices take over attention of each other.
template <class Element>
gpu_stages make_exchanged(model_size const& size,
                          pp::timetable_view table,
                          std::uint64_t seed,
                          gpu_run const& how,
                          std::optional<int> only) {
  auto const slots = exchanged_sizes_of<Element>(size, *how.exchange, table.over.extents);
  step_cut const cut(table.over.extents.microbatches, slots.chunks);
  step_cut const largest(cut.microbatches(), {slots.chunks.back()}); // none is longer
  work_of_devices<Element> works(size, table, largest, slots, how);
  gpu_stages made(1);
  device_memory<float> on_host;
  std::vector<std::shared_ptr<on_gpu::exchanged_layer<Element>>> layers(
    static_cast<std::size_t>(size.layers));
  for (int number = 0; number < table.over.extents.stages(); ++number) {
    int const device = pp::device_of(table, number);
    if (device != only.value_or(device)) {
      made.front().push_back(nullptr);
      continue;
    }
    auto const what = slots.stage(number);
    auto const& work = works.of(device);
    bool const wants_layer = what.part != pp::layer_part::taken_attention;
    auto& layer = layers[static_cast<std::size_t>(what.layer)];
    if (wants_layer && layer == nullptr) {
      layer_range const held{
        what.layer, what.layer + 1, what.layer == 0, what.layer + 1 == size.layers};
      stage<float> host(size, held, cut, seed, on_host);
      layer = std::make_shared<on_gpu::exchanged_layer<Element>>(
        host, size, held, cut, how.replicas, *work[0]);
    }
    made.front().push_back(put_to_work(
      exchanged_at_work<Element>{
        work,
        on_gpu::exchanged_stage<Element>(slots, number, wants_layer ? layer : nullptr, *work[0])},
      how));
  }
  return made;
}

//! With the vocabulary in shards.
template <class Element>
gpu_stages make_pieces(model_size const& size,
                       pp::timetable_view table,
                       std::uint64_t seed,
                       gpu_run const& how,
                       std::optional<int> only) {
  auto const cut = cut_around(size, table, *how.barriers);
  on_gpu::sharded_slot_sizes<Element> const slots{size, cut};
  work_of_devices<Element> works(size, table, cut.step, slots, how);
  gpu_stages made(1);
  device_memory<float> on_host;
  for (int number = 0; number < table.over.extents.stages(); ++number) {
    int const device = pp::device_of(table, number);
    if (device != only.value_or(device)) {
      made.front().push_back(nullptr);
      continue;
    }
    sharded_piece host(size, number, cut, seed, on_host);
    auto const& work = works.of(device);
    on_gpu::piece_of_model const piece(size, cut, number);
    made.front().push_back(put_to_work(
      piece_at_work<Element>{work,
                             on_gpu::sharded_stage<Element>(
                               host, size, piece, cut, how.replicas, *work[0], work[1].get())},
      how));
  }
  return made;
}

} // namespace

gpu_stages make_gpu_stages(model_size const& size,
                           pp::timetable_view table,
                           step_cut const& cut,
                           std::uint64_t seed,
                           gpu_run const& how,
                           std::optional<int> only) {
  check(size, table);
  bool const bf16 = how.numbers == operands::bf16;
  if (how.barriers) {
    return bf16 ? make_pieces<__nv_bfloat16>(size, table, seed, how, only)
                : make_pieces<float>(size, table, seed, how, only);
  }
  if (how.exchange) {
    return bf16 ? make_exchanged<__nv_bfloat16>(size, table, seed, how, only)
                : make_exchanged<float>(size, table, seed, how, only);
  }
  if (cuts_layers(cut_model(size, table.over.extents))) {
    return bf16 ? make_cut_layers<__nv_bfloat16>(size, table, cut, seed, how, only)
                : make_cut_layers<float>(size, table, cut, seed, how, only);
  }
  return bf16 ? make_stages<__nv_bfloat16>(size, table, cut, seed, how, only)
              : make_stages<float>(size, table, cut, seed, how, only);
}

gathered_slots
gathered_slots_of(model_size const& size, pp::timetable_view table, gpu_run const& how) {
  gathered_slots found;
  if (!table.over.declared->scatters) {
    return found;
  }
  auto const group = how.weights.of > 1 ? how.weights.of : weight_shard_count;
  auto const pieces = how.home == weights_home::host ? 1 : group;
  for (layer_range const& held : cut_layers(size.layers, table.over.extents.stages())) {
    on_gpu::gathered_bytes bytes;
    if (gathers_weights_of(table, static_cast<int>(found.weights.size()))) {
      bytes = how.numbers == operands::bf16
                ? on_gpu::bytes_of_gathered<__nv_bfloat16>(size, held, pieces)
                : on_gpu::bytes_of_gathered<float>(size, held, pieces);
    }
    found.weights.push_back(bytes.weights);
    found.gradients.push_back(bytes.gradients);
  }
  return found;
}

std::int64_t gpu_slot_sizes::bytes(pp::slot_class of, pp::pass const& maker, int reader) const {
  if (!exchange) {
    return bytes(of, maker);
  }
  return numbers == operands::bf16
           ? exchanged_sizes_of<__nv_bfloat16>(size, *exchange, extents).bytes(of, maker, reader)
           : exchanged_sizes_of<float>(size, *exchange, extents).bytes(of, maker, reader);
}
std::int64_t gpu_slot_sizes::bytes(pp::slot_class of, pp::pass const& maker) const {
  if (of == pp::slot_class::weights || of == pp::slot_class::full_gradients) {
    return (of == pp::slot_class::weights ? gathered.weights : gathered.gradients)[maker.stage];
  }
  auto const with = [&]<class Element>(Element) {
    if (around) {
      return on_gpu::sharded_slot_sizes<Element>{size, *around}.bytes(of, maker);
    }
    if (exchange) {
      return exchanged_sizes_of<Element>(size, *exchange, extents).bytes(of, maker);
    }
    if (cuts_layers(stages)) {
      return on_gpu::helix_slot_sizes<Element>{size, cut, stages}.bytes(of, maker);
    }
    return on_gpu::slot_sizes<Element>{size, size_of_shard(size, shard), cut, stages}.bytes(of,
                                                                                            maker);
  };
  return numbers == operands::bf16 ? with(__nv_bfloat16{}) : with(0.0F);
}

gpu_stage::gpu_stage(std::unique_ptr<either> of, gpu_run const& how)
    : of_(std::move(of)), over_replicas_(how.over_replicas) {
  if (how.clip != nullptr) {
    of_->visit([&](auto& stage) { stage.set_clipping(*how.clip, how.shard.number == 0); });
  }
}
gpu_stage::~gpu_stage() = default;

void gpu_stage::forward(pp::context const& where, pp::input in, pp::output out) {
  of_->visit([&](auto& stage) { stage.forward(where, in, out); });
}
void gpu_stage::backward(pp::context const& where, pp::input in, pp::output out) {
  of_->visit([&](auto& stage) { stage.backward(where, in, out); });
}
void gpu_stage::backward_input(pp::context const& where, pp::input in, pp::output out) {
  of_->visit([&](auto& stage) { stage.backward_input(where, in, out); });
}
void gpu_stage::backward_weight(pp::context const& where) {
  of_->visit([&](auto& stage) { stage.backward_weight(where); });
}
namespace {
//! Calls visit(stage) of one whose weights are gathered; the library asks no other.
template <class Either, class Visit>
void visit_gathered(Either& of, Visit visit) {
  of.visit([&](auto& stage) {
    if constexpr (requires { stage.all_gradients(); }) {
      visit(stage);
    }
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
bool gpu_stage::is_gathered() const {
  bool found = false;
  visit_gathered(*of_, [&](auto&) { found = true; });
  return found;
}
void gpu_stage::run_half(pp::pass_kind kind, pp::composite_half const& given, int half) {
  of_->visit([&](auto& stage) {
    switch (kind) {
    case pp::pass_kind::forward: return stage.forward(given.where, given.in, given.out, half);
    case pp::pass_kind::backward: return stage.backward(given.where, given.in, given.out, half);
    case pp::pass_kind::backward_input:
      return stage.backward_input(given.where, given.in, given.out, half);
    case pp::pass_kind::backward_weight: return stage.backward_weight(given.where, half);
    default: throw std::logic_error("a composite pass has halves that stages on GPUs lack");
    }
  });
}
void gpu_stage::set_text(batch const& pieces, cudaStream_t stream) {
  of_->visit([&](auto& stage) { stage.set_text(pieces.bytes, stream); });
}
void gpu_stage::update(adamw const& optimizer, std::int64_t step, cudaStream_t stream) {
  of_->visit([&](auto& stage) { stage.update(optimizer, step, stream); });
}
void gpu_stage::set_cut(step_cut const& cut) {
  of_->visit([&](auto& stage) { stage.set_cut(cut); });
}
void gpu_stage::contribute(pp::context const& where, pp::output row) {
  auto const stream = static_cast<cudaStream_t>(where.stream);
  if (over_replicas_) {
    for_each_gradient(
      [&](float* gradient, std::int64_t count) { over_replicas_(gradient, count, stream); });
  }
  of_->visit([&](auto& stage) { stage.contribute(row, stream); });
}
void gpu_stage::optimizer_step(pp::context const& where, pp::totals const& all) {
  of_->visit(
    [&](auto& stage) { stage.optimizer_step(all, static_cast<cudaStream_t>(where.stream)); });
}
void gpu_stage::roll_back(pp::context const& where) {
  of_->visit([&](auto& stage) { stage.roll_back(static_cast<cudaStream_t>(where.stream)); });
}
void gpu_stage::exchange(pp::state_packer& with) {
  of_->visit([&](auto& stage) { stage.exchange(with); });
}
void gpu_stage::exchange(pp::state_unpacker& with) {
  of_->visit([&](auto& stage) { stage.exchange(with); });
}
step_counts gpu_stage::counts() const {
  return of_->visit([](auto& stage) { return stage.counts(); });
}
void gpu_stage::for_each_gradient(std::function<void(float*, std::int64_t)> const& visit) const {
  of_->visit([&](auto& stage) {
    for (auto const& weight : stage.weights()) {
      visit(weight.gradient(), weight.count());
    }
  });
}
void gpu_stage::for_each_sum(std::function<void(float*, std::int64_t)> const& visit) const {
  for_each_gradient(visit);
  of_->visit([&](auto& stage) {
    if (stage.loss_count() > 0) {
      visit(stage.losses(), stage.loss_count());
    }
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

namespace {
//! @param tensor where one begins in a weight
template <class Stage, class Tensor>
std::vector<float> fetch_all(Stage const& stage, Tensor tensor) {
  std::vector<float> all;
  for (auto const& weight : stage.weights()) {
    auto const some = on_gpu::fetch(tensor(weight), weight.count());
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}
} // namespace

std::vector<float> gpu_stage::gradients() const {
  return of_->visit([](auto& stage) {
    if constexpr (requires { stage.all_gradients(); }) {
      return stage.all_gradients();
    } else {
      return fetch_all(stage, [](auto const& weight) { return weight.gradient(); });
    }
  });
}
std::vector<float> gpu_stage::values() const {
  return of_->visit([](auto& stage) {
    if constexpr (requires { stage.all_values(); }) {
      return stage.all_values();
    } else {
      return fetch_all(stage, [](auto const& weight) { return weight.value(); });
    }
  });
}

} // namespace gpt
