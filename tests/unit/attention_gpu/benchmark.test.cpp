// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The benchmark of the attention kernels, run on a tiny problem: it has to work at first sight of a
// GPU. Its times are those of the stand-in's clock and mean nothing.
#include <doctest/doctest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "simulators/cuda/standin.hpp"

int benchmark_main(int count, char** words);

namespace {

//! Runs the program; its exit status, and the lines of JSON it wrote.
struct benchmark_run {
  explicit benchmark_run(std::vector<std::string> words) {
    auto const file = std::filesystem::temp_directory_path() /
                      ("attention-" + std::to_string(standin::total_calls()) + ".json");
    words.insert(words.begin(), "attention");
    words.insert(words.end(), {"--json", file.string()});
    std::vector<char*> pointers;
    for (auto& word : words) {
      pointers.push_back(word.data());
    }
    status = benchmark_main(static_cast<int>(pointers.size()), pointers.data());
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
      lines.push_back(line);
    }
    std::filesystem::remove(file);
  }

  //! How many lines have all these words.
  int count(std::vector<std::string> const& words) const {
    int found = 0;
    for (auto const& line : lines) {
      bool all = true;
      for (auto const& word : words) {
        all = all && line.find(word) != std::string::npos;
      }
      found += all ? 1 : 0;
    }
    return found;
  }

  int status = 0;
  std::vector<std::string> lines;
};

} // namespace

TEST_CASE("benchmark: a tiny problem is right and timed, for every kernel of a Hopper") {
  standin::configure({});
  benchmark_run const run({"--smoke"});
  CHECK(run.status == 0);
  CHECK(standin::summary() == "");
  CHECK(run.count({R"("kind": "machine")", "hopper: compute capability 9.0"}) == 1);
  CHECK(run.count({R"("right": true)"}) == static_cast<int>(run.lines.size()) - 1);
  for (char const* kernel : {R"("kernel": "portable")", R"("kernel": "hopper")"}) {
    CAPTURE(kernel);
    CHECK(run.count({kernel, R"("forward")", R"("causal")"}) == 2); // one chunk, two
    CHECK(run.count({kernel, R"("forward")", R"("full")"}) == 1);
    CHECK(run.count({kernel, R"("backward")"}) == 3);
  }
}

TEST_CASE("benchmark: other GPUs get the portable kernels, none gets the skip code of CTest") {
  standin::configuration machine;
  machine.compute_major = 8;
  standin::configure(machine);
  benchmark_run const run({"--smoke", "33"});
  CHECK(run.status == 0);
  CHECK(standin::summary() == "");
  CHECK(run.count({R"("kernel": "portable")", R"("tokens": 33)"}) == 6);
  CHECK(run.count({R"("kernel": "hopper")"}) == 0);

  machine.compute_major = 7;
  standin::configure(machine);
  CHECK(benchmark_run({"--smoke"}).status == 1);

  machine.devices = 0;
  standin::configure(machine);
  CHECK(benchmark_run({"--smoke"}).status == 77);
}
