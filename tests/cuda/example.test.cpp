// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The example for NCCL on the stand-in, with a store over TCP.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <simulators/cuda/standin.hpp>
#include <stdlib.h>
#include <string>
#include <tests/cuda/example.hpp>
#include <tests/cuda/example_reference.hpp>
#include <tests/support/temporary_folder.hpp>
#include <vector>

namespace {

bool has(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("the example trains, and eagerly, as a graph and in every order to the same bits") {
  std::vector<float> first;
  for (bool const graph : {false, true})
    for (auto const execution :
         {standin::order::lazy, standin::order::eager, standin::order::random}) {
      CAPTURE(graph);
      CAPTURE(static_cast<int>(execution));
      standin::configure({.execution = execution, .seed = 3});
      auto const result = run_example({.ranks = 3, .graph = graph});
      for (std::string const& failure : result.failures)
        CHECK(failure == "");
      CHECK(standin::summary() == "");
      REQUIRE(result.losses.size() == 4);
      CHECK(result.losses[3] < result.losses[0]);
      if (first.empty())
        first = result.losses;
      CHECK(result.losses == first);
    }
}

namespace {

reference::network trained_on_the_host(bool mixed, bool master = true) {
  reference::network host{.mixed = mixed, .master = master, .stages = 3, .microbatches = 4};
  host.train(6);
  return host;
}

} // namespace

TEST_CASE("fp32, and bf16 with fp32 weights of the optimizer, have the bits of plain loops") {
  for (bool const mixed : {false, true}) {
    reference::network const host = trained_on_the_host(mixed);
    for (bool const graph : {false, true})
      for (auto const execution :
           {standin::order::lazy, standin::order::eager, standin::order::random}) {
        CAPTURE(mixed);
        CAPTURE(graph);
        CAPTURE(static_cast<int>(execution));
        standin::configure({.execution = execution, .seed = 4});
        auto const result = run_example({.ranks = 3, .steps = 6, .graph = graph, .mixed = mixed});
        for (std::string const& failure : result.failures)
          CHECK(failure == "");
        CHECK(standin::summary() == "");
        CHECK(result.losses == host.losses);
        for (std::size_t rank = 0; rank < 3; ++rank)
          CHECK(result.weights[rank] == host.all[rank].own);
      }
  }
}

TEST_CASE("what the bits of mixed precision depend on: its rounding, and the weights in fp32") {
  auto const mixed = trained_on_the_host(true);
  CHECK(mixed.losses != trained_on_the_host(false).losses);
  auto const rounded = trained_on_the_host(true, false);
  CHECK(mixed.losses != rounded.losses);
  CHECK(mixed.losses.back() < rounded.losses.back()); // small steps are lost without them
}

TEST_CASE("a stage of the example that throws is told by all ranks, through the store") {
  for (bool const graph : {false, true}) {
    standin::configure({});
    // With a graph, step 2 is the one that is captured.
    auto const result = run_example({.ranks = 3, .graph = graph, .failing_step = graph ? 2 : 1});
    for (std::size_t rank = 0; rank < 3; ++rank) {
      std::string const& text = result.failures[rank];
      CAPTURE(text);
      CHECK(has(text, "nccl: rank 2 failed: loss is not a number\n  rank 2 was to enqueue item "));
      CHECK(has(text, ": run the forward of stage 2, microbatch 1"));
      CHECK(has(text, "\n  rank " + std::to_string(rank) + ' '));
    }
    CHECK(!standin::found(standin::finding::deadlock));
  }
}

TEST_CASE("a rank whose process ends is seen through the store, and named by the others") {
  struct place {
    char const* function;
    std::uint64_t call;
  };
  // While communicators are made and connected, and in each of the steps.
  for (place const& where : {place{"ncclCommInitRankConfig", 1},
                             place{"ncclGroupEnd", 1},
                             place{"cudaLaunchKernel", 1},
                             place{"cudaLaunchKernel", 10},
                             place{"cudaLaunchKernel", 20},
                             place{"cudaLaunchKernel", 35}})
    for (int const gone : {0, 1, 2}) {
      CAPTURE(std::string(where.function));
      CAPTURE(where.call);
      CAPTURE(gone);
      standin::configure({.faults = {{.function = where.function,
                                      .call = where.call,
                                      .rank = gone,
                                      .action = standin::fault_action::death}}});
      auto const result = run_example({.ranks = 3, .steps = 3, .ending_rank = gone});
      CHECK(standin::has_died(gone));
      CHECK(!standin::found(standin::finding::deadlock));
      for (int rank = 0; rank < 3; ++rank) {
        std::string const& text = result.failures[static_cast<std::size_t>(rank)];
        CAPTURE(rank);
        CAPTURE(text);
        if (rank == gone)
          continue;
        CHECK(has(text, "the process of rank " + std::to_string(gone) + " has ended"));
        CHECK(has(text, "\n  rank " + std::to_string(rank) + ' '));
      }
    }
}

namespace {

//! A call at which a rank dies.
struct place {
  char const* function;
  std::uint64_t call;
};

//! The last step of which every rank has a file; 0 for none.
int newest(support::temporary_folder const& files, int ranks) {
  for (int step = 6; step > 0; --step) {
    int found = 0;
    for (int rank = 0; rank < ranks; ++rank)
      found += std::filesystem::exists(files.path() + "/rank-" + std::to_string(rank) + ".step-" +
                                       std::to_string(step) + ".index.json")
                 ? 1
                 : 0;
    if (found == ranks)
      return step;
  }
  return 0;
}
//! One start of a run of six steps, in which a rank may die.
example_result start(example_case what, int restarts, int gone = -1, place where = {"", 0}) {
  what.ranks = 3;
  what.steps = 6;
  what.restarts = restarts;
  what.ending_rank = gone;
  standin::configuration how;
  if (gone >= 0)
    how.faults = {{.function = where.function,
                   .call = where.call,
                   .rank = gone,
                   .action = standin::fault_action::death}};
  standin::configure(how);
  auto const result = run_example(what);
  CHECK(!standin::found(standin::finding::deadlock));
  return result;
}

} // namespace

TEST_CASE("a run whose rank dies goes on when its launcher starts it again, and ends with the bits "
          "of one that nobody has disturbed") {
  for (bool const graph : {false, true}) {
    example_case what{.graph = graph, .mixed = graph};
    auto const whole = start(what, 0);
    REQUIRE(whole.losses.size() == 6);
    int went_on = 0; // of 18
    for (char const* const launcher : {"torchrun", "Slurm"})
      // In a pass, in a message, and while a state is read between two steps.
      for (place const& where :
           {graph ? place{"cudaGraphLaunch", 2} : place{"cudaLaunchKernel", 52},
            graph ? place{"cudaGraphLaunch", 4} : place{"ncclSend", 22},
            place{"cudaMemcpyAsync", 2}})
        for (int const gone : {0, 1, 2}) {
          CAPTURE(graph);
          CAPTURE(std::string(launcher));
          CAPTURE(std::string(where.function));
          CAPTURE(where.call);
          CAPTURE(gone);
          support::temporary_folder const files("example");
          what.launcher = launcher;
          what.checkpoint = files.path();
          auto const first = start(what, 0, gone, where);
          CHECK(standin::has_died(gone));
          for (int rank = 0; rank < 3; ++rank)
            if (rank != gone)
              CHECK(has(first.failures[static_cast<std::size_t>(rank)],
                        "the process of rank " + std::to_string(gone) + " has ended"));
          // The next start ends too, when it connects; the one after it runs to the end.
          (void)start(what, 1, gone, {"ncclCommInitRankConfig", 1});
          CHECK(standin::has_died(gone));
          // Which step that is depends on how soon the others have heard of the death.
          int const saved = newest(files, 3);
          went_on += saved > 0 ? 1 : 0;
          auto const last = start(what, 2);
          for (std::string const& failure : last.failures)
            CHECK(failure == "");
          for (int const began : last.began)
            CHECK(began == saved);
          CHECK(last.losses == whole.losses);
          CHECK(last.weights == whole.weights);
          // A run that has ended has nothing left to do.
          auto const again = start(what, 3);
          CHECK(again.began == std::vector{6, 6, 6});
          CHECK(again.losses == whole.losses);
          CHECK(again.weights == whole.weights);
        }
    CHECK(went_on >= 4);
  }
}

TEST_CASE("a run does not go on from the checkpoints of another one") {
  support::temporary_folder const files("example");
  example_case what{.checkpoint = files.path(), .launcher = "torchrun"};
  CHECK(start(what, 0).failures == std::vector<std::string>(3));
  what.mixed = true;
  for (std::string const& failure : start(what, 1).failures) {
    CAPTURE(failure);
    CHECK(has(failure, " belongs elsewhere: the file has nccl_pipeline, "));
  }
}

TEST_CASE("SIGTERM ends the example on all ranks before the next step, with a report") {
  for (bool const graph : {false, true}) {
    CAPTURE(graph);
    standin::configure({});
    auto const result = run_example({.ranks = 3, .graph = graph, .sigterm_at = 30});
    // All have had the signal; the first that looks ends the run, and all ranks say so.
    std::string const begin = result.failures[0].substr(0, result.failures[0].find('\n'));
    CAPTURE(result.failures[0]);
    bool known = false;
    for (int rank = 0; rank < 3; ++rank)
      known = known || begin == "nccl: rank " + std::to_string(rank) + " was told to end (SIGTERM)";
    CHECK(known);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      std::string const& text = result.failures[rank];
      CAPTURE(rank);
      CAPTURE(text);
      CHECK(text.find(begin + "\n  rank ") == 0);
      CHECK(has(text, "\n  rank " + std::to_string(rank) + ' '));
      CHECK(has(text, " was between two steps"));
      CHECK(!has(text, "still busy"));
    }
    CHECK(standin::summary() == "");
  }
}
