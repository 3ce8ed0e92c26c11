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

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

constexpr int devices = 2; // of a pipeline, with two stages each
constexpr int shards = 2;  // of a stage
constexpr int microbatches = 4;
constexpr int steps = 30;
constexpr std::size_t width = 24; // of a sample

using numbers = std::vector<float>;

//! Some of a stage's weights: y = x + the sum over shards of w x, number by number.
struct shard {
  numbers weights = numbers(width);
  numbers gradient = numbers(width);

  shard(int stage, int number) {
    for (std::size_t i = 0; i < width; ++i)
      weights[i] =
        static_cast<float>((101 * stage + 57 * number + 13 * static_cast<int>(i)) % 97) / 800;
  }
  [[nodiscard]] numbers forward(float const* x) const {
    numbers part(width);
    for (std::size_t i = 0; i < width; ++i)
      part[i] = weights[i] * x[i];
    return part;
  }
  [[nodiscard]] numbers backward(float const* x, float const* dy) {
    for (std::size_t i = 0; i < width; ++i)
      gradient[i] += dy[i] * x[i];
    return forward(dy);
  }
  void update(numbers const& sum) {
    for (std::size_t i = 0; i < width; ++i)
      weights[i] -= 0.02F * sum[i];
    gradient.assign(width, 0);
  }
};

//! What `mine` is on all ranks of a group, behind each other in the order of the group.
numbers gather(numbers const& mine, MPI_Comm group) {
  int size = 0;
  MPI_Comm_size(group, &size);
  numbers all(mine.size() * static_cast<std::size_t>(size));
  auto const count = static_cast<int>(mine.size());
  MPI_Allgather(mine.data(), count, MPI_FLOAT, all.data(), count, MPI_FLOAT, group);
  return all;
}

//! The rows of so many numbers each, added up from the first.
numbers add_rows(numbers const& all, std::size_t row) {
  numbers sum(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(row));
  for (std::size_t i = row; i < all.size(); ++i)
    sum[i % row] += all[i];
  return sum;
}

struct stage {
  std::vector<shard> own{};          // one of them, or all where one process has the stage
  MPI_Comm partners = MPI_COMM_NULL; // the ranks with its other shards
  int replica = 0;                   // whose microbatches it has
  float loss = 0;                    // of the last stage, in this step

  // Shards of a stage run the same passes in the same order, so a pass may wait for its partners.
  [[nodiscard]] numbers add_up(std::vector<numbers> const& parts) const {
    if (partners != MPI_COMM_NULL)
      return add_rows(gather(parts.front(), partners), width);
    numbers all;
    for (numbers const& part : parts)
      all.insert(all.end(), part.begin(), part.end());
    return add_rows(all, width);
  }
  void forward(pp::context const& at, pp::input x, pp::output y) {
    numbers const in = x.data != nullptr ? numbers(x.as<float>().begin(), x.as<float>().end())
                                         : sample(at.microbatch);
    std::vector<numbers> parts;
    for (shard const& each : own)
      parts.push_back(each.forward(in.data()));
    numbers const sum = add_up(parts);
    for (std::size_t i = 0; i < width; ++i) {
      float const out = in[i] + sum[i];
      at.activation.as<float>()[i] = in[i];
      at.activation.as<float>()[width + i] = out - 0.5F * sample(at.microbatch)[i]; // for the loss
      if (y.data != nullptr)
        y.as<float>()[i] = out; // all of it on each shard
    }
  }
  void backward(pp::context const& at, pp::input dy, pp::output dx) {
    float const* const in = at.activation.as<float>().data();
    float const* const error = dy.data != nullptr ? dy.as<float>().data() : in + width;
    if (dy.data == nullptr)
      for (std::size_t i = 0; i < width; ++i)
        loss += error[i] * error[i];
    std::vector<numbers> parts;
    for (shard& each : own)
      parts.push_back(each.backward(in, error));
    numbers const sum = add_up(parts);
    if (dx.data != nullptr)
      for (std::size_t i = 0; i < width; ++i)
        dx.as<float>()[i] = error[i] + sum[i];
  }
  [[nodiscard]] numbers sample(int microbatch) const {
    auto const number = static_cast<std::size_t>(replica * microbatches + microbatch);
    numbers values(width);
    for (std::size_t i = 0; i < width; ++i)
      values[i] = 0.25F + static_cast<float>((37 * number + 11 * i) % 101) / 101;
    return values;
  }
};

pp::plan make_plan() {
  return pp::lower(pp::make_timetable<pp::Interleaved<2>>({devices, microbatches}),
                   pp::uniform_sizes{.message = 4 * width, .activation = 8 * width});
}

//! One pipeline of threads has all shards, and runs the microbatches of each replica in turn.
std::vector<stage> train_alone(pp::plan const& plan, int replicas) {
  std::vector<stage> model(static_cast<std::size_t>(plan.over.extents.stages()));
  for (std::size_t s = 0; s < model.size(); ++s)
    for (int t = 0; t < shards; ++t)
      model[s].own.emplace_back(static_cast<int>(s), t);
  pp::thread_runner runner(plan, model);
  for (int step = 0; step < steps; ++step) {
    std::vector<numbers> all(model.size() * shards);
    for (int replica = 0; replica < replicas; ++replica) {
      for (stage& each : model)
        each.replica = replica;
      runner.step();
      for (std::size_t k = 0; k < all.size(); ++k) {
        numbers& gradient = model[k / shards].own[k % shards].gradient;
        all[k].insert(all[k].end(), gradient.begin(), gradient.end());
        gradient.assign(gradient.size(), 0);
      }
    }
    for (std::size_t k = 0; k < all.size(); ++k)
      model[k / shards].own[k % shards].update(add_rows(all[k], width));
  }
  return model;
}

//! How many weights of this rank's stages differ from those that one process has trained.
int count_differences(std::vector<stage> const& model,
                      std::vector<stage> const& alone,
                      std::vector<std::size_t> const& own,
                      int number_of_shard) {
  int differ = 0;
  for (std::size_t const s : own) {
    shard const& wanted = alone[s].own[static_cast<std::size_t>(number_of_shard)];
    for (std::size_t i = 0; i < width; ++i)
      differ += model[s].own.front().weights[i] != wanted.weights[i] ? 1 : 0;
  }
  return differ;
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
  pp::plan const plan = make_plan();
  std::vector<stage> model(static_cast<std::size_t>(plan.over.extents.stages()));
  std::vector<std::size_t> own; // stages of this rank
  for (std::size_t s = 0; s < model.size(); ++s)
    if (pp::device_of(plan.over.extents, static_cast<int>(s)) == here.device) {
      model[s].own.emplace_back(static_cast<int>(s), here.shard);
      model[s].partners = partners;
      model[s].replica = here.replica;
      own.push_back(s);
    }
  pp::mpi_store meeting(pipeline);
  pp::mpi_runner runner(plan, model, meeting.line(), pipeline);
  float losses[2]{}; // of the first step and the last one
  for (int step = 0; step < steps; ++step) {
    for (stage& each : model)
      each.loss = 0;
    runner.step();
    for (std::size_t const s : own) {
      numbers const all = gather(model[s].own.front().gradient, replicas);
      model[s].own.front().update(add_rows(all, width));
    }
    losses[step == 0 ? 0 : 1] = model.back().loss;
  }
  int differ = count_differences(model, train_alone(plan, layout.replicas), own, here.shard);
  MPI_Allreduce(MPI_IN_PLACE, &differ, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, losses, 2, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
  if (rank == 0)
    std::printf("%d pipelines of %d devices with %d shards each: %d weights differ from one "
                "process; loss %.3f, then %.3f\n",
                layout.replicas,
                devices,
                shards,
                differ,
                static_cast<double>(losses[0]),
                static_cast<double>(losses[1]));
  return differ == 0 && losses[1] < losses[0] / 2;
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
