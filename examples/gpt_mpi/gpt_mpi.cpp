// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! @file
//! @brief Trains the model of the example gpt with one MPI process per device.
//!
//! What to read, in this order: ../gpt (the model and its stages), rank_model.hpp (one rank's share
//! of it), then this file: how processes meet, train, and end when one of them fails.

#include <pipe/core/shape.hpp>
#include <pipe/run/error.hpp>
#include <pipe/run/mpi_store.hpp>
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
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <vector>

#include "../gpt/options.hpp"
#include "../gpt/report.hpp"
#include "../gpt/text.hpp"
#include "../support/split_words.hpp"
#include "../support/termination.hpp"
#include "comparison.hpp"
#include "rank_model.hpp"

namespace pp = pipelining;

namespace {

using namespace gpt;

constexpr char const* usage_of_ranks =
  "usage: mpirun -n P gpt_mpi [OPTION VALUE]... [--check]\n"
  "Trains a byte-level GPT in a pipeline of P processes. Options are those of gpt, without "
  "--output, and\n\n"
  "  --deadline S       seconds that a rank waits for a message before the run fails (60)\n"
  "  --reports FOLDER   when the run fails, every rank also writes its report there\n"
  "  --check            train once more in one process, and compare all gradients and weights\n";

enum exit_status { good = 0, differs = 1, misused = 2, failed = 3 };

struct rank_options {
  options training;
  bool check = false;
  std::chrono::seconds deadline{60};
  std::string reports;
};

rank_options read_rank_options(int count, char** words, int ranks) {
  rank_options chosen;
  std::string const devices = std::to_string(ranks);
  std::vector<std::string_view> rest{"--devices", devices};
  auto const given = examples::split_words(count, words);
  for (std::size_t i = 0; i < given.size(); ++i) {
    std::string_view const word = given[i];
    if (word == "--check") {
      chosen.check = true;
    } else if (word == "--deadline" && i + 1 < given.size()) {
      chosen.deadline =
        std::chrono::seconds(gpt::detail::whole_number(word, given[++i], 1, 1000000));
    } else if (word == "--reports" && i + 1 < given.size()) {
      chosen.reports = given[++i];
    } else if (word == "--devices" || word == "--output") {
      throw std::invalid_argument(std::string(word) +
                                  " is not for gpt_mpi: mpirun -n says how many devices there are, "
                                  "and no files are written");
    } else {
      rest.push_back(word);
    }
  }
  chosen.training = read_options(rest);
  return chosen;
}

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

exit_status
train_and_check(rank_options const& chosen, int rank, pp::store& line, std::int64_t& step) {
  options const& o = chosen.training;
  auto const seed = static_cast<std::uint64_t>(o.seed);
  auto const text = find_text(o.text, GPT_EXAMPLE_README);
  auto const table = timetable_of(o, o.schedule);
  rank_model model(
    o.size, table, seed, rank, line, {.deadline = chosen.deadline, .elements = "f32"});
  std::printf("rank %d of %lld is process %ld on %s\n",
              rank,
              static_cast<long long>(o.devices),
              static_cast<long>(::getpid()),
              name_of_machine().c_str());
  std::fflush(stdout);
  adamw optimizer;
  optimizer.steps = o.steps;
  std::mt19937_64 random(seed);
  for (step = 0; step < o.steps; ++step) {
    if (example::asked_to_end(line)) {
      model.fail("was told to end (SIGTERM)");
    }
    auto const pieces = random_batch(text.bytes, o.microbatches, o.size.sequence, random);
    auto const start = std::chrono::steady_clock::now();
    model.step(pieces);
    model.update(optimizer, step);
    std::chrono::duration<double> const took = std::chrono::steady_clock::now() - start;
    auto const loss = model.loss();
    if (loss && (step % 10 == 0 || step + 1 == o.steps)) {
      std::printf("step %lld/%lld   loss %.3f   %.0f tokens/s\n",
                  static_cast<long long>(step + 1),
                  static_cast<long long>(o.steps),
                  *loss,
                  static_cast<double>(o.microbatches * o.size.sequence) / took.count());
      std::fflush(stdout);
    }
  }
  if (!chosen.check) {
    return good;
  }
  auto const trained = gather(model, table.extents, rank);
  if (rank != 0) {
    return good;
  }
  auto const different = differences(trained, train_alone(o, text));
  std::printf("%zu gradients and weights after %lld steps, held against one process: "
              "%zu values differ\n",
              trained.size(),
              static_cast<long long>(o.steps),
              different);
  return different == 0 ? good : differs;
}

exit_status run(rank_options const& chosen, int rank) {
  std::int64_t step = 0;
  // Rank 0's store outlives its report: it tells the other ranks what has failed.
  pp::mpi_store meeting(MPI_COMM_WORLD, chosen.deadline);
  try {
    return train_and_check(chosen, rank, meeting.line(), step);
  } catch (std::invalid_argument const&) {
    throw;
  } catch (std::exception const& error) {
    report("rank " + std::to_string(rank) + ", step " + std::to_string(step + 1) + ": " +
             error.what(),
           chosen.reports.empty() ? std::string()
                                  : chosen.reports + "/rank-" + std::to_string(rank) + ".txt");
    return failed;
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
