// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The trainer of unit.run.foreign_trainer with a process for each device.
#include <pipe/mpi/mpi.hpp>
#include <pipe/mpi/store.hpp>

#include <mpi.h>

#include <doctest/doctest.h>

#include <chrono>
#include <optional>
#include <string>
#include <tests/support/foreign_trainer.hpp>
#include <tests/support/temporary_folder.hpp>
#include <utility>
#include <vector>

namespace pp = pipelining;
namespace foreign = support::foreign;

namespace {

//! One folder for all ranks, which goes with the first.
struct common_folder {
  std::optional<support::temporary_folder> own{};
  std::string path = std::string(256, '\0');

  explicit common_folder(int rank) {
    if (rank == 0)
      path.replace(0, own.emplace("trainer").path().size(), own->path());
    MPI_Bcast(path.data(), static_cast<int>(path.size()), MPI_CHAR, 0, MPI_COMM_WORLD);
    path = path.c_str();
  }
};

} // namespace

TEST_CASE("a trainer in C has its own bits on processes") {
  constexpr auto patience = std::chrono::seconds(60);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  int runs = 0;
  int index = 0;
  long corrected = 0;
  for (auto const& choice : foreign::schedules())
    for (bool const early : {false, true}) {
      common_folder const folder(rank);
      foreign::program const what{choice, ++index / 2 % 2 == 0 ? 1e6F : 0.1F, early, folder.path};
      CAPTURE(choice.name);
      CAPTURE(early);
      CAPTURE(what.clip);
      auto const found = foreign::train(
        what,
        [&](pp::plan work, std::vector<foreign::stage*>& model, auto run) {
          pp::mpi_runner runner(std::move(work),
                                model,
                                meeting.line(),
                                MPI_COMM_WORLD,
                                {.deadline = patience, .name = std::to_string(++runs)});
          run(runner, rank);
        },
        [] { MPI_Barrier(MPI_COMM_WORLD); });
      int const stages = what.table(8).over.extents.stages();
      auto const expected = foreign::train_alone(
        [&](int microbatches) { return what.table(microbatches).over; }, stages, what.clip, early);
      CHECK(found.losses == expected.losses);
      CHECK(found.evaluations == expected.evaluations);
      CHECK(!found.state.empty());
      corrected += found.corrected;
      for (auto const& [stage, state] : found.state)
        CHECK(state == expected.state.at(stage));
    }
  CHECK(runs >= 2 * 2 * 18);
  CHECK(corrected > 0);
}
