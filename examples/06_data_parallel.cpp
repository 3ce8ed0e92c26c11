// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What you learn: pipelines side by side that share a batch. Each stage adds its gradients up with
// its replicas while other stages still run, and the result has the bits of one pipeline that does
// the work of all. How to run: mpirun -n 4 build/release/bin/06_data_parallel
// Expected output: 2 pipelines of 2 devices: ... 0 weights differ from one pipeline
#include <pipe/cluster.hpp>
#include <pipe/mpi.hpp>
#include <pipe/pipe.hpp>

#include <mpi.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

namespace pp = pipelining;

namespace {

constexpr int devices = 2; // of a pipeline, with two stages each
constexpr int microbatches = 4;
constexpr int steps = 20;
constexpr std::size_t width = 1000; // numbers of a sample and of a weight

//! y = w * x, number by number; the last stage compares y with what it should be.
struct stage {
  std::vector<float> weight = std::vector<float>(width, 1.0F);
  std::vector<float> gradient = std::vector<float>(width);
  std::vector<float> all{};                  // [replicas, width] the gradients of all replicas
  int replica = 0;                           // whose microbatches this stage has
  MPI_Comm replicas = MPI_COMM_NULL;         // the ranks that have this stage
  MPI_Request on_its_way = MPI_REQUEST_NULL; // to all replicas
  static inline int begun = 0;               // reductions of this rank in this step
  static inline int beside = 0;              // its passes that ran while one was on its way

  void forward(pp::context const& at, pp::input x, pp::output y) {
    for (std::size_t i = 0; i < width; ++i) {
      float const in = x.data != nullptr ? x.as<float>()[i] : sample(at.microbatch, i);
      at.activation.as<float>()[i] = in;
      if (y.data != nullptr)
        y.as<float>()[i] = weight[i] * in;
    }
  }
  void backward(pp::context const& at, pp::input dy, pp::output dx) {
    beside += begun > 0 ? 1 : 0;
    for (std::size_t i = 0; i < width; ++i) {
      float const in = at.activation.as<float>()[i];
      float const error =
        dy.data != nullptr ? dy.as<float>()[i] : weight[i] * in - 0.25F * sample(at.microbatch, i);
      gradient[i] += error * in;
      if (dx.data != nullptr)
        dx.as<float>()[i] = error * weight[i];
    }
  }

  // [snippet reduce]
  // The plan calls this right after the last pass that adds to the gradients of this stage. MPI
  // moves data whenever it is called, so the runner's waits for other stages carry it along. All
  // replicas run one plan, so they begin their reductions in one order, as MPI demands.
  void gradients_ready(pp::context const&) {
    if (replicas == MPI_COMM_NULL)
      return;
    MPI_Iallgather(
      gradient.data(), width, MPI_FLOAT, all.data(), width, MPI_FLOAT, replicas, &on_its_way);
    ++begun;
  }
  // After the step of the runner. Replicas are added up in their order, whatever MPI does.
  void update() {
    MPI_Wait(&on_its_way, MPI_STATUS_IGNORE);
    begun = 0;
    for (std::size_t i = 0; i < width; ++i) {
      float sum = all[i];
      for (std::size_t from = width + i; from < all.size(); from += width)
        sum += all[from];
      weight[i] -= 0.02F * sum;
      gradient[i] = 0;
    }
  }
  // [snippet reduce]

  [[nodiscard]] float sample(int microbatch, std::size_t i) const {
    auto const number = static_cast<std::size_t>(replica * microbatches + microbatch);
    return 0.5F + static_cast<float>((37 * number + 11 * i) % 101) / 101;
  }
};

pp::plan make_plan() {
  return pp::lower(pp::make_timetable<pp::Interleaved<2>>({devices, microbatches}),
                   pp::uniform_sizes{.message = 4 * width, .activation = 4 * width});
}

//! One pipeline of threads runs the microbatches of each replica in turn.
void train_alone(std::vector<stage>& model, int replicas) {
  pp::thread_runner runner(make_plan(), model);
  for (int step = 0; step < steps; ++step) {
    for (stage& each : model)
      each.all.clear();
    for (int replica = 0; replica < replicas; ++replica) {
      for (stage& each : model)
        each.replica = replica;
      runner.step();
      for (stage& each : model) {
        each.all.insert(each.all.end(), each.gradient.begin(), each.gradient.end());
        each.gradient.assign(width, 0);
      }
    }
    for (stage& each : model)
      each.update();
  }
}

bool train() {
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  pp::rank_layout const layout = pp::layout_of(ranks, devices);
  auto const split = [&](pp::rank_axis axis) {
    pp::rank_group const group = pp::group_of(layout, axis, rank);
    MPI_Comm made = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, group.number, group.index, &made);
    return made;
  };
  MPI_Comm const pipeline = split(pp::rank_axis::pipeline); // its ranks are devices of the plan
  MPI_Comm const replicas = split(pp::rank_axis::data);     // of this device's stages
  pp::plan const plan = make_plan();
  std::vector<stage> model(static_cast<std::size_t>(plan.over.extents.stages()));
  std::vector<std::size_t> own; // stages of this rank
  pp::rank_place const here = pp::place_of(layout, rank);
  for (std::size_t s = 0; s < model.size(); ++s) {
    model[s].replica = here.replica;
    model[s].replicas = replicas;
    model[s].all.resize(width * static_cast<std::size_t>(layout.replicas));
    if (pp::device_of(plan.over.extents, static_cast<int>(s)) == here.device)
      own.push_back(s);
  }
  pp::mpi_store meeting(pipeline);
  pp::mpi_runner runner(plan, model, meeting.line(), pipeline);
  for (int step = 0; step < steps; ++step) {
    runner.step();
    for (std::size_t const s : own)
      model[s].update();
  }
  int sum[] = {0, stage::beside};
  std::vector<stage> alone(model.size());
  train_alone(alone, layout.replicas);
  for (std::size_t const s : own)
    for (std::size_t i = 0; i < width; ++i)
      sum[0] += model[s].weight[i] != alone[s].weight[i] ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, sum, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0)
    std::printf("%d pipelines of %d devices: %d passes ran while gradients were on their way, "
                "%d weights differ from one pipeline\n",
                layout.replicas,
                devices,
                sum[1],
                sum[0]);
  return sum[0] == 0 && sum[1] > 0 && alone[0].weight[0] < 0.95F;
}

} // namespace

int main(int count, char** words) {
  int provided = 0;
  MPI_Init_thread(&count, &words, MPI_THREAD_FUNNELED, &provided);
  try {
    bool const good = train();
    MPI_Finalize();
    return good ? 0 : 1;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::_Exit(1);
  }
}
