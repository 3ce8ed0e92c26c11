// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What you learn: stages that are cut into shards, in pipelines that have replicas, too. Each shard
// is a rank with a pipeline of its own; shards of one stage add their parts up inside of each pass,
// and the result has the bits of one process that has all shards of all stages. How to run:
// mpirun -n 8 build/release/bin/10_tensor_parallel
// Expected output: 2 pipelines of 2 devices with 2 shards each: 0 weights differ ...
#include <pipe/cluster.hpp>
#include <pipe/mpi.hpp>
#include <pipe/pipe.hpp>

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <utility>
#include <valarray>
#include <vector>

namespace pp = pipelining;

namespace {

constexpr int devices = 2; // of a pipeline, with two stages each
constexpr int shards = 2;  // of a stage
constexpr int microbatches = 4;
constexpr int steps = 30;
constexpr int width = 24; // of a sample

using numbers = std::valarray<float>; // of a sample

//! Some of a stage's weights: y = x + the sum over shards of w x, number by number.
struct shard {
  numbers weights;
  numbers gradient;

  shard(int stage, int number) : weights(width), gradient(width) {
    for (int i = 0; i < width; ++i)
      weights[i] = static_cast<float>((101 * stage + 57 * number + 13 * i) % 97) / 800;
  }
  [[nodiscard]] numbers backward(numbers const& x, numbers const& dy) {
    gradient += dy * x;
    return weights * dy;
  }
  numbers take_gradient() { return std::exchange(gradient, numbers(width)); }
  void update(numbers const& sum) { weights -= 0.02F * sum; }
};

//! What `mine` is on all ranks of a group, in their order.
std::vector<numbers> gather(numbers const& mine, MPI_Comm group) {
  int size = 0;
  MPI_Comm_size(group, &size);
  std::vector<float> got(mine.size() * static_cast<std::size_t>(size));
  MPI_Allgather(&mine[0], width, MPI_FLOAT, got.data(), width, MPI_FLOAT, group);
  std::vector<numbers> all;
  for (int rank = 0; rank < size; ++rank)
    all.emplace_back(got.data() + rank * width, width);
  return all;
}

//! From the first on, so that the bits are the same wherever it is made.
numbers sum_of(std::vector<numbers> const& all) {
  return std::accumulate(all.begin() + 1, all.end(), all.front());
}

struct stage {
  std::vector<shard> own{};          // one of them, or all where one process has the stage
  MPI_Comm partners = MPI_COMM_NULL; // the ranks with its other shards
  int replica = 0;                   // whose microbatches it has

  //! The sum over all shards of what each gives. They run the same passes in the same order, so a
  //! pass may wait for its partners.
  template <class Part>
  numbers add_up(Part part) {
    std::vector<numbers> all;
    for (shard& one : own)
      all.push_back(part(one));
    return sum_of(partners == MPI_COMM_NULL ? all : gather(all.front(), partners));
  }
  void forward(pp::context const& at, pp::input x, pp::output y) {
    numbers const in = x.data != nullptr ? read(x) : sample(at.microbatch);
    numbers const out = in + add_up([&](shard& one) -> numbers { return one.weights * in; });
    numbers const error = out - 0.5F * sample(at.microbatch); // the gradient of the loss
    std::copy(begin(in), end(in), at.activation.as<float>().begin());
    std::copy(begin(error), end(error), at.activation.as<float>().begin() + width);
    if (y.data != nullptr)
      std::copy(begin(out), end(out), y.as<float>().begin()); // all of it on each shard
  }
  void backward(pp::context const& at, pp::input dy, pp::output dx) {
    float const* const kept = at.activation.as<float>().data();
    numbers const in(kept, width);
    numbers const error = dy.data != nullptr ? read(dy) : numbers(kept + width, width);
    numbers const back = error + add_up([&](shard& one) { return one.backward(in, error); });
    if (dx.data != nullptr)
      std::copy(begin(back), end(back), dx.as<float>().begin());
  }
  static numbers read(pp::input message) { return {message.as<float>().data(), width}; }
  [[nodiscard]] numbers sample(int microbatch) const {
    numbers values(width);
    for (int i = 0; i < width; ++i)
      values[i] =
        0.25F +
        static_cast<float>((37 * (replica * microbatches + microbatch) + 11 * i) % 101) / 101;
    return values;
  }
};

//! One pipeline of threads has all shards, and runs the microbatches of each replica in turn.
std::vector<stage> train_alone(pp::plan const& plan, int replicas) {
  std::vector<stage> model;
  for (int s = 0; s < plan.over.extents.stages(); ++s)
    model.push_back({{shard(s, 0), shard(s, 1)}});
  pp::thread_runner runner(plan, model);
  for (int step = 0; step < steps; ++step) {
    std::vector<std::vector<numbers>> gradients(model.size() * shards); // of every replica
    for (int replica = 0; replica < replicas; ++replica) {
      for (stage& each : model)
        each.replica = replica;
      runner.step();
      for (std::size_t k = 0; k < gradients.size(); ++k)
        gradients[k].push_back(model[k / shards].own[k % shards].take_gradient());
    }
    for (std::size_t k = 0; k < gradients.size(); ++k)
      model[k / shards].own[k % shards].update(sum_of(gradients[k]));
  }
  return model;
}

bool train() {
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  // [snippet layout]
  pp::rank_layout const layout = pp::layout_of(ranks, devices, shards); // as many replicas as fit
  pp::rank_place const here = pp::place_of(layout, rank);
  auto const split = [&](pp::rank_axis axis) {
    pp::rank_group const group = pp::group_of(layout, axis, rank);
    MPI_Comm made = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, group.number, group.index, &made);
    return made;
  };
  MPI_Comm const pipeline = split(pp::rank_axis::pipeline); // of this shard of this replica
  MPI_Comm const replicas = split(pp::rank_axis::data);     // of this shard of these stages
  MPI_Comm const partners = split(pp::rank_axis::tensor);   // the other shards of these stages
  // [snippet layout]
  pp::plan const plan = pp::lower(pp::make_timetable<pp::Interleaved<2>>({devices, microbatches}),
                                  pp::uniform_sizes{.message = 4 * width, .activation = 8 * width});
  std::vector<stage> model(static_cast<std::size_t>(plan.over.extents.stages()));
  for (int s = 0; s < plan.over.extents.stages(); ++s)
    if (pp::device_of(plan.over.extents, s) == here.device)
      model[static_cast<std::size_t>(s)] = {{shard(s, here.shard)}, partners, here.replica};
  pp::mpi_store meeting(pipeline);
  pp::mpi_runner runner(plan, model, meeting.line(), pipeline);
  for (int step = 0; step < steps; ++step) {
    runner.step();
    for (stage& each : model)
      for (shard& one : each.own)
        one.update(sum_of(gather(one.take_gradient(), replicas)));
  }
  std::vector<stage> const alone = train_alone(plan, layout.replicas);
  int differ = 0; // weights of this rank from those that one process has trained
  for (std::size_t s = 0; s < model.size(); ++s)
    for (shard const& one : model[s].own) {
      auto const& expected = alone[s].own[static_cast<std::size_t>(here.shard)].weights;
      for (std::size_t i = 0; i < width; ++i)
        differ += one.weights[i] != expected[i] ? 1 : 0;
    }
  MPI_Allreduce(MPI_IN_PLACE, &differ, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0)
    std::printf(
      "%d pipelines of %d devices with %d shards each: %d weights differ from one process\n",
      layout.replicas,
      devices,
      shards,
      differ);
  bool const learnt = alone[0].own[0].weights[0] != shard(0, 0).weights[0];
  return differ == 0 && learnt;
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
