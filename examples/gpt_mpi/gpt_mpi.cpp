// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! @file
//! @brief Trains the model of the example gpt with one MPI process per device, in one pipeline or
//! several that share the batch.
//!
//! What to read, in this order: ../gpt (the model and its stages), rank_model.hpp (one rank's share
//! of it), copy_sum.hpp and replica_sum.hpp (what ranks with the same stages share), then this
//! file: how processes meet, train, and end or go on when one of them fails.

#include <pipe/core/shape.hpp>
#include <pipe/run/checkpoint.hpp>
#include <pipe/run/error.hpp>
#include <pipe/run/mpi_store.hpp>
#include <pipe/run/packed_state.hpp>
#include <pipe/run/rank_layout.hpp>
#include <pipe/timetable/timetable.hpp>

#include <mpi.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <optional>
#include <random>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <vector>

#include "../gpt/options.hpp"
#include "../gpt/report.hpp"
#include "../gpt/text.hpp"
#include "../gpt/weight_travel_report.hpp"
#include "../support/termination.hpp"
#include "comparison.hpp"
#include "rank_model.hpp"
#include "rank_options.hpp"
#include "travelling_rank.hpp"

namespace pp = pipelining;

namespace {

using namespace gpt;

enum exit_status { good = 0, differs = 1, misused = 2, failed = 3 };

//! To stderr at once, so that the reports of several processes do not mix; and into a file, since a
//! launcher that ends its processes may drop what they still say.
void report(std::string const& text, std::string const& file = {}) {
  std::string const line = "gpt_mpi: " + text + '\n';
  if (!file.empty()) {
    std::ofstream(file) << line;
  }
  [[maybe_unused]] auto const written = ::write(STDERR_FILENO, line.data(), line.size());
}

std::string name_of_machine() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

//! Which process a rank is, and where.
void introduce(int rank, int ranks, std::string const& pipeline) {
  std::printf("rank %d of %d is process %ld on %s, %s\n",
              rank,
              ranks,
              static_cast<long>(::getpid()),
              name_of_machine().c_str(),
              pipeline.c_str());
  std::fflush(stdout);
}

void report_step(options const& o, std::int64_t step, double loss, double tokens_per_second) {
  std::printf("step %lld/%lld   loss %.3f   %.0f tokens/s\n",
              static_cast<long long>(step + 1),
              static_cast<long long>(o.steps),
              loss,
              tokens_per_second);
  std::fflush(stdout);
}

exit_status report_check(options const& o, std::size_t values, std::size_t different) {
  std::printf("%zu gradients and weights after %lld steps, held against one process: "
              "%zu values differ\n",
              values,
              static_cast<long long>(o.steps),
              different);
  return different == 0 ? good : differs;
}

//! How far an attempt at the run has come.
struct progress {
  std::int64_t attempt = 0;
  std::int64_t step = 0;
  bool trains = false; //!< all ranks are connected, and have begun with steps
};

// [snippet exchange]
//! What this rank writes between two steps, or reads to go on: everything that the next step
//! depends on.
template <class Archive, class Model>
void exchange(Archive& with, Model& model, std::mt19937_64& random) {
  std::stringstream position; // of the data: the generator says which pieces come next
  position << random;
  std::string text = position.str();
  with(text);
  position.str(text);
  position >> random;
  model.exchange(with);
}
// [snippet exchange]

//! The communicators of this rank, made by all ranks together.
struct rank_groups {
  MPI_Comm pipeline = MPI_COMM_WORLD;
  MPI_Comm replicas = MPI_COMM_NULL;
};
rank_groups make_groups(pp::rank_layout const& layout, int rank) {
  rank_groups made;
  if (layout.replicas == 1) {
    return made;
  }
  auto const split = [rank, &layout](pp::rank_axis axis, MPI_Comm& communicator) {
    auto const group = pp::group_of(layout, axis, rank);
    MPI_Comm_split(MPI_COMM_WORLD, group.number, group.index, &communicator);
    MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN);
  };
  split(pp::rank_axis::pipeline, made.pipeline);
  split(pp::rank_axis::data, made.replicas);
  return made;
}

//! @tparam Model `rank_model`, or with its optimizer
template <class Model>
exit_status
train_and_check(rank_options const& chosen, int rank, pp::store& everyone, progress& now) {
  options o = chosen.training;
  auto const place = pp::place_of(chosen.layout, rank);
  auto const pipeline = pp::group_of(chosen.layout, pp::rank_axis::pipeline, rank);
  int const ranks = pp::ranks_of(chosen.layout);
  auto const seed = static_cast<std::uint64_t>(o.seed);
  auto const text = find_text(o.text, GPT_EXAMPLE_README);
  auto const table = timetable_of(o, name_of(o));
  o.lengths = lengths_of(o.size, table);
  auto const sizes = tables_of_sizes(o, table);
  introduce(rank, ranks, pipeline.name);

  // A pipeline has a store of its own, which knows its ranks by the numbers of their devices.
  auto const groups = make_groups(chosen.layout, rank);
  std::optional<pp::mpi_store> own;
  if (chosen.layout.replicas > 1) {
    own.emplace(groups.pipeline, chosen.deadline);
  }
  pp::store& line = own ? own->line() : everyone;
  Model model(o.size,
              table,
              o.lengths,
              seed,
              place.device,
              line,
              groups.pipeline,
              {groups.replicas, {&everyone, chosen.deadline}},
              {.deadline = chosen.deadline, .elements = "f32"},
              o.post_validation);
  std::mt19937_64 random(seed);
  std::int64_t first = 0;
  // [snippet restore]
  pp::checkpoint_place const files{
    chosen.checkpoint, "rank-" + std::to_string(rank), about(chosen, text)};
  if (!chosen.checkpoint.empty()) {
    auto const name = "attempt " + std::to_string(now.attempt);
    auto const newest =
      pp::agree_on_checkpoint(everyone, files, rank, ranks, name, chosen.deadline);
    if (newest) {
      first = *newest;
      auto const state = pp::load_checkpoint(files, first);
      pp::state_unpacker unpack(state);
      exchange(unpack, model, random);
      unpack.end();
      if (rank == 0) {
        std::printf("goes on after step %lld\n", static_cast<long long>(first));
        std::fflush(stdout);
      }
    }
  }
  // [snippet restore]
  adamw optimizer;
  optimizer.steps = o.steps;
  clipping const how{optimizer, o.clip, o.post_validation};
  model.set_clipping(how);
  now.trains = true;
  for (std::int64_t& step = now.step = first; step < o.steps; ++step) {
    if (example::asked_to_end(line)) {
      model.fail("was told to end (SIGTERM)");
    }
    auto const all =
      random_batch(text.bytes, chosen.layout.replicas * o.microbatches, o.size.sequence, random);
    auto const pieces = share_of(all, place.replica, o.microbatches);
    model.fail_in_next_step(now.attempt == 0 && place.replica == 0 && step + 1 == chosen.fail_at);
    if (sizes.size() > 1) {
      auto const& size = sizes[size_of_step(step, o.steps, sizes.size())];
      model.use(size.table, size.lengths);
    }
    auto const start = std::chrono::steady_clock::now();
    model.step(pieces);
    model.update(optimizer, step);
    std::chrono::duration<double> const took = std::chrono::steady_clock::now() - start;
    auto const loss = model.loss();
    bool const last = step + 1 == o.steps;
    if (loss && place.replica == 0 && (step == first || step % 10 == 0 || last)) {
      report_step(
        o, step, *loss, static_cast<double>(chosen.layout.replicas * tokens_of(o)) / took.count());
    }
    // [snippet save]
    if (!chosen.checkpoint.empty() && ((step + 1) % chosen.every == 0 || last)) {
      pp::state_packer pack;
      exchange(pack, model, random);
      pp::save_checkpoint(files, step + 1, pack.bytes());
      if (rank == 0) {
        std::printf("saved step %lld\n", static_cast<long long>(step + 1));
        std::fflush(stdout);
      }
    }
    // [snippet save]
  }
  model.finish();
  if (rank == 0 && sizes.size() > 1) {
    std::printf("iterations of %zu sizes: %ld plans made, %ld times one was there\n",
                sizes.size(),
                model.plans().made(),
                model.plans().reused());
  }
  if (o.adapted == examples::adapter::offload && first < o.steps) {
    auto const slots = model.slots();
    if (rank == 0) {
      report_slots(o, slots);
    }
  }
  auto const peaks = model.peak_bytes();
  if (rank == 0) {
    report_kept(o, table, peaks);
  }
  if (!chosen.check && o.clip == 0) {
    return good;
  }
  auto const trained = gather(model, table, place.device, groups.pipeline);
  if (o.clip != 0) {
    auto const half = trained.size() / 2;
    auto const found = model.clipping_done(hash_of(std::span(trained).subspan(half)));
    if (rank == 0) {
      report_clipping(o, found, static_cast<std::size_t>(o.steps));
    }
  }
  if (!chosen.check) {
    return good;
  }
  bool const copies = table.extents.where == pp::placement::bidirectional;
  auto others = copies ? gather(model, table, place.device, groups.pipeline, 1) : trained;
  if (place.device != 0) {
    return good;
  }
  // The same of both copies, on all replicas, and on one process that has trained alone.
  auto different = differences(trained, others);
  others = trained;
  if (groups.replicas != MPI_COMM_NULL) {
    MPI_Bcast(others.data(), static_cast<int>(others.size()), MPI_FLOAT, 0, groups.replicas);
    different += differences(trained, others);
    MPI_Reduce(place.replica == 0 ? MPI_IN_PLACE : &different,
               &different,
               1,
               MPI_UNSIGNED_LONG,
               MPI_SUM,
               0,
               groups.replicas);
  }
  if (place.replica != 0) {
    return good;
  }
  different += differences(trained, train_alone(o, chosen.layout.replicas, text, sizes));
  return report_check(o, trained.size(), different);
}

//! WeiPipe: one pipeline, whose ranks have groups of layers at home.
exit_status
train_travelling(rank_options const& chosen, int rank, pp::store& everyone, progress& now) {
  options o = chosen.training;
  (void)travelling_system::plan(o);
  if (chosen.layout.replicas > 1 || !chosen.checkpoint.empty() || chosen.fail_at > 0) {
    throw std::invalid_argument("where weights travel there is one pipeline, and neither "
                                "--checkpoint nor --fail-at");
  }
  auto const seed = static_cast<std::uint64_t>(o.seed);
  auto const text = find_text(o.text, GPT_EXAMPLE_README);
  o.lengths.assign(static_cast<std::size_t>(o.microbatches), o.size.sequence);
  introduce(rank, pp::ranks_of(chosen.layout), "pipeline 0");
  travelling_rank model(o.size,
                        chosen.layout.devices,
                        static_cast<int>(o.microbatches),
                        seed,
                        rank,
                        everyone,
                        MPI_COMM_WORLD,
                        {.deadline = chosen.deadline, .elements = "f32"});
  std::mt19937_64 random(seed);
  adamw optimizer;
  optimizer.steps = o.steps;
  now.trains = true;
  for (std::int64_t& step = now.step = 0; step < o.steps; ++step) {
    if (example::asked_to_end(everyone)) {
      model.fail("was told to end (SIGTERM)");
    }
    auto const pieces = random_batch(text.bytes, o.microbatches, o.size.sequence, random);
    auto const start = std::chrono::steady_clock::now();
    model.step(pieces);
    model.update(optimizer, step);
    std::chrono::duration<double> const took = std::chrono::steady_clock::now() - start;
    if (step % 10 == 0 || step + 1 == o.steps) {
      auto const loss = model.loss();
      if (rank == 0) {
        report_step(o, step, loss, static_cast<double>(tokens_of(o)) / took.count());
      }
    }
  }
  auto const bytes = model.bytes();
  if (rank == 0) {
    report_travelled(o, bytes);
  }
  if (!chosen.check) {
    return good;
  }
  auto const trained = model.gather();
  if (rank != 0) {
    return good;
  }
  auto const alone = train_alone(o, 1, text, {{model.table(), o.lengths}});
  return report_check(o, trained.size(), differences(trained, alone));
}

//! True where a stage has thrown, and all processes live: MPI is as good as before. Where one has
//! died, its launcher has to start all of them again.
bool can_go_on(std::string_view reason) {
  return reason.find(" failed in ") != std::string_view::npos &&
         reason.find("the process of rank") == std::string_view::npos;
}

exit_status run(rank_options const& chosen, int rank) {
  progress now;
  for (;; ++now.attempt) {
    now.trains = false;
    // Rank 0's store outlives its report: it tells the other ranks what has failed. Every attempt
    // has a store, a runner and communicators of its own: nothing of an earlier one gets in.
    pp::mpi_store meeting(MPI_COMM_WORLD, chosen.deadline);
    try {
      if (examples::find_schedule(chosen.training.schedule).weights_travel) {
        return train_travelling(chosen, rank, meeting.line(), now);
      }
      return chosen.training.clip == 0
               ? train_and_check<rank_model>(chosen, rank, meeting.line(), now)
               : train_and_check<clipped_rank_model>(chosen, rank, meeting.line(), now);
    } catch (std::invalid_argument const&) {
      throw;
    } catch (std::exception const& error) {
      if (chosen.layout.replicas > 1) {
        auto const group = pp::group_of(chosen.layout, pp::rank_axis::pipeline, rank);
        meeting.line().abort(group.name + ": " + error.what());
      }
      report("rank " + std::to_string(rank) + ", step " + std::to_string(now.step + 1) + ": " +
               error.what(),
             chosen.reports.empty() ? std::string()
                                    : chosen.reports + "/rank-" + std::to_string(rank) + ".txt");
      if (!now.trains || now.attempt >= chosen.restarts || !can_go_on(error.what())) {
        return failed;
      }
    }
  }
}

} // namespace

int main(int count, char** words) {
  // When a process dies, mpirun sends SIGTERM to all others at once, and a second later what nobody
  // can ignore. That second is for their reports.
  example::keep_termination_for_later();
  int provided = 0;
  MPI_Init_thread(&count, &words, MPI_THREAD_FUNNELED, &provided);
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int status = failed;
  try {
    auto const chosen = read_rank_options(count, words, ranks);
    if (chosen.training.help) {
      std::fputs(rank == 0 ? usage_of_ranks : "", stdout);
      status = good;
    } else {
      status = run(chosen, rank);
    }
  } catch (std::invalid_argument const& error) {
    if (rank == 0) {
      report(error.what());
    }
    status = misused;
  } catch (std::exception const& error) {
    report("rank " + std::to_string(rank) + ": " + error.what());
  }
  std::fflush(stdout);
  if (status == failed) {
    // When another process ends, mpirun of Open MPI 4 loses its patience with the rest at once, and
    // kills them before they have reported.
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    std::_Exit(status); // MPI_Finalize would wait for what never comes
  }
  MPI_Finalize();
  return status;
}
