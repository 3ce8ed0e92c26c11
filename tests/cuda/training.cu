// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/nccl.cuh>
#include <pipe/cuda/streams.cuh>
#include <pipe/flow/shape.hpp>
#include <pipe/run/between_steps.hpp>
#include <pipe/run/post_validated.hpp>

#include <cuda_runtime.h>
#include <nccl.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <simulators/cuda/standin.hpp>
#include <tests/cuda/memory_store.hpp>
#include <tests/cuda/training.hpp>
#include <tests/cuda/training_stage.cuh>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

using training_model = std::vector<training_kernel_stage>;

//! The numbers of the stages of some device, in its memory.
struct training_memory {
  std::vector<pp::cuda::device_memory> memories{};
  training_model model{};

  //! Adds a stage; without numbers where `own` is false.
  void add(support::trained const& numbers, int last_stage, bool own, training_case const& what) {
    training_kernel_stage stage{.last_stage = last_stage, .plants = what.early};
    if (own) {
      memories.emplace_back(static_cast<std::int64_t>(3 * sizeof numbers + sizeof(float)));
      stage.numbers = reinterpret_cast<support::trained*>(memories.back().data());
      stage.before = stage.numbers + 1;
      stage.told = what.zeroed ? stage.numbers + 2 : nullptr;
      stage.announced = reinterpret_cast<float*>(stage.numbers + 3);
      pp::cuda::check(cudaMemcpy(stage.numbers, &numbers, sizeof numbers, cudaMemcpyHostToDevice),
                      "cudaMemcpy");
    }
    model.push_back(stage);
  }
  //! The last stage's other copy.
  void add_copy(support::trained const& numbers, int device) {
    memories.emplace_back(static_cast<std::int64_t>(2 * sizeof numbers + sizeof(float)));
    training_kernel_stage& stage = model.back();
    stage.copy_of_numbers = reinterpret_cast<support::trained*>(memories.back().data());
    stage.device_of_copy = device;
    stage.announced_by_copy = reinterpret_cast<float*>(stage.copy_of_numbers + 2);
    pp::cuda::check(
      cudaMemcpy(stage.copy_of_numbers, &numbers, sizeof numbers, cudaMemcpyHostToDevice),
      "cudaMemcpy");
  }
  //! What a program does between two steps.
  void zero() const {
    for (training_kernel_stage const& stage : model) {
      if (stage.numbers == nullptr)
        continue;
      support::trained now;
      pp::cuda::check(cudaMemcpy(&now, stage.numbers, sizeof now, cudaMemcpyDeviceToHost),
                      "cudaMemcpy");
      support::zero(now);
      pp::cuda::check(cudaMemcpy(stage.numbers, &now, sizeof now, cudaMemcpyHostToDevice),
                      "cudaMemcpy");
    }
  }
  void read_into(training_result& result, int first) const {
    for (std::size_t s = 0; s < model.size(); ++s) {
      if (model[s].numbers == nullptr)
        continue;
      auto const at = static_cast<std::size_t>(first) + s;
      auto const read = [](void* to, void const* from, std::size_t bytes) {
        pp::cuda::check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
      };
      if (model[s].is_second_copy) {
        read(&result.copies[at], model[s].numbers, sizeof(support::trained));
        continue;
      }
      read(&result.stages[at], model[s].numbers, sizeof(support::trained));
      if (auto const* const copy = model[s].copy_of_numbers; copy != nullptr)
        read(&result.copies[at], copy, sizeof(support::trained));
      read(&result.announced[at], model[s].announced, sizeof(float));
      result.announcements[at] = model[s].announcements;
      result.pairs += model[s].pairs;
      result.rolled_back += model[s].rolled_back;
      result.made_up += model[s].made_up;
      result.moves += model[s].moves;
    }
  }
};

std::vector<support::trained> untrained(training_case const& what) {
  int const stages = what.work.over.extents.stages();
  return what.early ? support::untrained(stages, 64) : support::untrained(stages);
}

void make_room(training_result& result, int stages) {
  auto const count = static_cast<std::size_t>(stages);
  result.stages.resize(count);
  result.copies.resize(count);
  result.announced.resize(count);
  result.announcements.resize(count);
}

//! Gives a runner the plans that come before a step, and says which one the step is to run.
template <class Runner>
pp::plan_number plan_for(training_case const& what, int step, Runner& runner) {
  if (what.reserved && step == 0)
    for (given_plan const& each : what.given)
      runner.reserve(each.work);
  for (given_plan const& each : what.given) {
    if (each.before_step != step)
      continue;
    if (each.instead_of < 0)
      (void)runner.add(each.work);
    else
      (void)runner.replace({each.instead_of}, each.work);
  }
  return {what.turns.empty() ? 0 : what.turns[static_cast<std::size_t>(step)]};
}

//! Steps early, and validates; at once now and then.
template <class Runner>
long train_early(training_case const& what, training_memory const& memory, Runner& runner) {
  pp::plan_number::post_validated const numbers{{0}, {1}, {2}};
  pp::post_validated_steps early(runner);
  (void)plan_for(what, 0, runner);
  for (int step = 0; step < what.steps; ++step) {
    if (what.zeroed)
      memory.zero();
    early.step(numbers);
    if (step % 5 == 3 || step + 1 == what.steps)
      early.finish();
  }
  if (what.zeroed)
    memory.zero();
  return early.repeated();
}

std::vector<support::training_row> rows_of(pp::totals const& all) {
  std::vector<support::training_row> rows;
  for (int stage = 0; stage < all.rows; ++stage)
    rows.push_back(all.row<support::training_row>(stage)[0]);
  return rows;
}

//! The line of a rank to its replica, made and ended together with it.
class made_line {
public:
  made_line(ncclUniqueId const& id, int replica) {
    (void)ncclCommInitRank(&line_.with, 2, id, replica);
    pp::cuda::check(cudaStreamCreateWithFlags(&line_.on, cudaStreamNonBlocking),
                    "cudaStreamCreateWithFlags");
    for (cudaEvent_t* each : {&line_.ready, &line_.reduced})
      pp::cuda::check(cudaEventCreateWithFlags(each, cudaEventDisableTiming),
                      "cudaEventCreateWithFlags");
  }
  made_line(made_line const&) = delete;
  made_line& operator=(made_line const&) = delete;
  ~made_line() {
    (void)ncclCommDestroy(line_.with);
    (void)cudaEventDestroy(line_.ready);
    (void)cudaEventDestroy(line_.reduced);
    (void)cudaStreamDestroy(line_.on);
  }
  [[nodiscard]] replica_line& line() noexcept { return line_; }

private:
  replica_line line_{};
};

void train_rank(training_case const& what,
                int rank,
                memory_board& board,
                ncclUniqueId const* ids,
                training_result& result) {
  pp::shape const extents = what.work.over.extents;
  int const stages = extents.stages();
  int const replica = rank / extents.devices;
  int const device = rank % extents.devices;
  pp::cuda::current_device const scope(rank);
  std::optional<made_line> line;
  if (what.replicas > 1)
    line.emplace(ids[device], replica);
  training_memory memory;
  auto const numbers = untrained(what);
  for (int s = 0; s < stages; ++s) {
    bool const here = pp::detail::microbatch_on(what.work.over, s, device) >= 0;
    memory.add(numbers[static_cast<std::size_t>(s)], stages - 1, here, what);
    memory.model.back().is_second_copy = device != pp::device_of(what.work.over, s);
    memory.model.back().first_microbatch = replica * extents.microbatches;
    memory.model.back().replicas = line ? &line->line() : nullptr;
  }
  memory_store store{board, device};
  {
    pp::cuda::nccl_runner<training_model, memory_store, standin::clock> runner(
      what.work,
      memory.model,
      store,
      device,
      {.gpu = rank,
       .graph = what.graph,
       .warm_up = 1,
       .deadline = std::chrono::seconds(1),
       .one_message_stream = what.one_message_stream,
       .ranges = what.ranges,
       .checked = what.checked});
    if (what.early)
      result.repeated = train_early(what, memory, runner);
    for (int step = 0; step < what.steps && !what.early; ++step) {
      if (step == what.freeze_after) {
        store.barrier("freeze", extents.devices, std::chrono::seconds(1));
        standin::freeze();
      }
      runner.step(plan_for(what, step, runner));
      if (!what.turns.empty() && rank == 0)
        result.rows.push_back(rows_of(runner.totals()));
    }
    store.barrier("ended", extents.devices, std::chrono::seconds(1));
    result.findings = standin::summary();
    store.barrier("seen", extents.devices, std::chrono::seconds(1));
  }
  memory.read_into(result, replica * stages);
  result.passes_after_reduction += line ? line->line().passes_after : 0;
}

} // namespace

training_result train_on_streams(training_case const& what) {
  pp::shape const extents = what.work.over.extents;
  int const stages = extents.stages();
  training_result result;
  make_room(result, stages);
  training_memory memory;
  auto const numbers = untrained(what);
  for (int s = 0; s < stages; ++s) {
    int const device = pp::device_of(what.work.over, s);
    pp::cuda::current_device const scope(
      what.gpus.empty() ? 0 : what.gpus[static_cast<std::size_t>(device)]);
    memory.add(numbers[static_cast<std::size_t>(s)], stages - 1, true, what);
    pp::detail::for_each_copy(what.work.over, s, [&](int at, int) {
      if (at == device)
        return;
      pp::cuda::current_device const there(
        what.gpus.empty() ? 0 : what.gpus[static_cast<std::size_t>(at)]);
      memory.add_copy(numbers[static_cast<std::size_t>(s)], at);
    });
  }
  pp::cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  pp::cuda::stream_runner<training_model, standin::clock> runner(
    what.work,
    memory.model,
    {.gpus = what.gpus, .graph = what.graph, .warm_up = 1, .ranges = what.ranges});
  try {
    if (what.early)
      result.repeated = train_early(what, memory, runner);
    for (int step = 0; step < what.steps && !what.early; ++step) {
      if (step == what.freeze_after)
        standin::freeze();
      runner.step(plan_for(what, step, runner));
      if (!what.turns.empty())
        result.rows.push_back(rows_of(runner.totals()));
    }
  } catch (std::exception const& failure) {
    result.failure = failure.what();
  }
  result.findings = standin::summary();
  memory.read_into(result, 0);
  return result;
}

training_result train_on_ranks(training_case const& what) {
  pp::shape const extents = what.work.over.extents;
  training_result result;
  make_room(result, what.replicas * extents.stages());
  memory_board boards[2];
  ncclUniqueId ids[8]{}; // of the machine's devices
  for (ncclUniqueId& id : ids)
    if (what.replicas > 1)
      (void)ncclGetUniqueId(&id);
  auto const outcomes = standin::run_ranks(what.replicas * extents.devices, [&](int rank) {
    try {
      train_rank(what, rank, boards[rank / extents.devices], ids, result);
    } catch (std::exception const& failure) {
      if (result.failure.empty())
        result.failure = failure.what();
    }
  });
  for (standin::outcome const& each : outcomes)
    if (each.threw && result.failure.empty())
      result.failure = each.what;
  return result;
}
