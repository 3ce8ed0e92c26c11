// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/cluster/checkpoint.hpp>
#include <pipe/cluster/store.hpp>
#include <pipe/cluster/tensor_checkpoint.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <sched.h>
#include <set>
#include <stdexcept>
#include <string>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tests/support/raw_store.hpp>
#include <tests/support/temporary_folder.hpp>
#include <thread>
#include <unistd.h>
#include <vector>

namespace pp = pipelining;

namespace {

using support::patience;

using steps = std::vector<std::int64_t>;

} // namespace

namespace {

//! The state of a rank, as bytes. Each rank has its own.
pp::state_tensor tensor_of(pp::checkpoint_place const& place, std::vector<std::uint8_t>& state) {
  return pp::tensor_of(place.owner + ".state", state);
}

void save(pp::checkpoint_place const& place, std::int64_t step, std::string const& text) {
  std::vector<std::uint8_t> state(text.begin(), text.end());
  pp::state_tensor const tensor = tensor_of(place, state);
  pp::save_tensors(place, step, {&tensor, 1});
}

//! @param size of the state that is wanted
std::string load(pp::checkpoint_place const& place, std::int64_t step, std::size_t size) {
  std::vector<std::uint8_t> state(size);
  pp::state_tensor const tensor = tensor_of(place, state);
  (void)pp::load_tensors(place, step, {&tensor, 1});
  return {state.begin(), state.end()};
}

steps steps_of(pp::checkpoint_place const& place, std::size_t size) {
  std::vector<std::uint8_t> state(size);
  pp::state_tensor const tensor = tensor_of(place, state);
  return pp::checkpoints_of(place, {&tensor, 1});
}

//! The two files of each of these names.
std::set<std::string> files_of(std::set<std::string> const& names) {
  std::set<std::string> files;
  for (std::string const& name : names)
    for (char const* const ending : {".safetensors", ".index.json"})
      files.insert(name + ending);
  return files;
}

} // namespace

TEST_CASE("a rank reads what it has written, and keeps the newest two") {
  support::temporary_folder const folder("checkpoint");
  pp::checkpoint_place const place{folder.path() + "/made/here", "rank-1", "a model"};
  CHECK(steps_of(place, 5).empty());
  for (std::int64_t step : {5, 10, 100, 15})
    save(place, step, std::string("x\0y", 3) + std::to_string(step % 90 + 10));
  CHECK(steps_of(place, 5) == steps{15, 100});
  CHECK(load(place, 100, 5) == std::string("x\0y20", 5));
  save({place.folder, "rank-2", "a model"}, 200, "");
  CHECK(load({place.folder, "rank-2", "a model"}, 200, 0).empty());
  CHECK_THROWS_WITH_AS(
    (void)load(place, 5, 5),
    ("checkpoint: " + place.folder +
     " after step 5 has 0 of 5 numbers of tensor \"rank-1.state\"; a rank's file "
     "is missing or not whole")
      .c_str(),
    std::runtime_error);
  // Ranks whose names begin alike do not see each other's.
  CHECK(steps_of({place.folder, "rank-10", "a model"}, 5).empty());
  CHECK(steps_of({place.folder, "rank-", "a model"}, 5).empty());
  CHECK_THROWS_AS(save({place.folder, "rank\n1", "a model"}, 1, ""), std::invalid_argument);
  CHECK_THROWS_AS(save({place.folder, "../rank-1", "a model"}, 1, ""), std::invalid_argument);
}

TEST_CASE("a disk that is full leaves the earlier checkpoints as they were") {
  support::temporary_folder const folder("checkpoint");
  pp::checkpoint_place const place{folder.path(), "rank-0", "a model"};
  save(place, 1, std::string(500, 'a'));
  save(place, 2, std::string(500, 'b'));
  auto const before = folder.files();
  // In a process of its own, in which no file may grow beyond some size.
  for (rlim_t const most : {0U, 10U, 41U, 300U, 999U}) {
    pid_t const child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      rlimit const limit{most, most};
      (void)::setrlimit(RLIMIT_FSIZE, &limit);
      (void)std::signal(SIGXFSZ, SIG_IGN);
      int status = 1;
      try {
        save(place, most % 2 == 0 ? 3 : 2, std::string(1000, 'c'));
      } catch (std::runtime_error const& error) {
        status =
          std::string(error.what()).find("the earlier ones are as they were") == std::string::npos
            ? 2
            : 0;
      }
      std::_Exit(status);
    }
    int status = -1;
    CHECK(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(folder.files() == before);
    CHECK(steps_of(place, 500) == steps{1, 2});
    CHECK(load(place, 2, 500) == std::string(500, 'b'));
  }
  CHECK_THROWS_AS(save({"/proc/none", "rank-0", ""}, 1, ""), std::runtime_error);
}

namespace {

std::string const resume_advice =
  "; name another folder, give files their own names back, or go on with the options of that run";

//! What a call that is refused says; a call that waits is ended after some seconds, and says so.
template <class Call>
std::string refusal(Call call) {
  int answer[2] = {};
  REQUIRE(::pipe(answer) == 0);
  pid_t const child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::string said = "nothing";
    (void)::alarm(5);
    try {
      call();
    } catch (std::exception const& error) {
      said = error.what();
    }
    (void)!::write(answer[1], said.data(), said.size());
    std::_Exit(0);
  }
  ::close(answer[1]);
  std::string said;
  char part[512];
  for (ssize_t size = 0; (size = ::read(answer[0], part, sizeof part)) > 0;)
    said.append(part, static_cast<std::size_t>(size));
  ::close(answer[0]);
  (void)::waitpid(child, nullptr, 0);
  return said.empty() ? "it waits" : said;
}

} // namespace

TEST_CASE("what is no file in the place of one is named, and nobody waits for it") {
  support::temporary_folder const folder("checkpoint");
  pp::checkpoint_place const place{folder.path(), "rank-0", "a model"};
  std::string const path = folder.path() + "/rank-0.step-25.index.json";
  std::string const draft = folder.path() + "/rank-0.draft";
  std::string const rest = ", not a file; remove it, or name another folder";
  auto const said_of = [&](std::string const& where, std::string const& what) {
    return "checkpoint: " + where + " is " + what + rest;
  };
  auto const check = [&](std::string const& what) {
    CHECK(refusal([&] { (void)steps_of(place, 5); }) == said_of(path, what));
    CHECK(refusal([&] { (void)load(place, 25, 5); }) == said_of(path, what));
    CHECK(refusal([&] { save(place, 25, "state"); }) == said_of(path, what));
    CHECK(refusal([&] { save(place, 30, "state"); }) == said_of(path, what));
    CHECK(folder.files() == std::set<std::string>{"rank-0.step-25.index.json"});
    std::filesystem::remove(path);
  };
  REQUIRE(::mkfifo(path.c_str(), S_IRWXU) == 0);
  check("a FIFO");
  std::filesystem::create_directory(path);
  check("a folder");
  std::filesystem::create_symlink("/dev/full", path);
  check("a device");
  REQUIRE(::mkfifo(draft.c_str(), S_IRWXU) == 0);
  CHECK(refusal([&] { save(place, 25, "state"); }) == said_of(draft, "a FIFO"));
  std::filesystem::remove(draft);
  std::filesystem::create_symlink("/dev/full", draft);
  CHECK(refusal([&] { save(place, 25, "state"); }) == said_of(draft, "a device"));
  CHECK(folder.files() == std::set<std::string>{"rank-0.draft"});
}

TEST_CASE("files of another run are refused before any is written over or removed") {
  support::temporary_folder const folder("checkpoint");
  pp::checkpoint_place const place{folder.path(), "rank-0", "layers=8\nseed=1\n"};
  save(place, 5, "the state");
  save(place, 10, "the state");
  CHECK(load(place, 10, 9) == "the state");
  auto const refuses = [&](std::string const& about, std::string const& difference) {
    pp::checkpoint_place other = place;
    other.about = about;
    std::string const said = "checkpoint: " + folder.path() +
                             "/rank-0.step-5.safetensors belongs elsewhere: " + difference +
                             resume_advice;
    CHECK(refusal([&] { (void)steps_of(other, 9); }) == said);
    CHECK(refusal([&] { (void)load(other, 5, 9); }) == said);
    for (std::int64_t const step : {5, 7, 20})
      CHECK(refusal([&] { save(other, step, "new"); }) == said);
    CHECK(folder.files() == files_of({"rank-0.step-5", "rank-0.step-10"}));
    CHECK(steps_of(place, 9) == steps{5, 10});
  };
  refuses("layers=8\nseed=2\n", "the file has seed=1, this run has seed=2");
  refuses("layers=8\nseed=1\nclip=1\n", "the file has no clip, this run has clip=1");
}

TEST_CASE("a process that is killed while it writes leaves a whole checkpoint behind") {
  support::temporary_folder const folder("checkpoint");
  pp::checkpoint_place const place{folder.path(), "rank-0", "a model"};
  std::uint64_t dice = 4;
  for (int round = 0; round < 20; ++round) {
    std::int64_t const before = round == 0 ? 0 : steps_of(place, 300000).back();
    int ready[2] = {};
    REQUIRE(::pipe(ready) == 0);
    pid_t const child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      for (std::int64_t step = before + 1;; ++step) {
        save(place, step, std::string(300000, static_cast<char>(step)));
        (void)!::write(ready[1], "x", 1);
      }
    }
    char word = 0;
    CHECK(::read(ready[0], &word, 1) == 1); // one is whole
    dice = dice * 6364136223846793005U + 1442695040888963407U;
    for (std::uint64_t wait = dice >> 52; wait > 0; --wait)
      (void)::sched_yield();
    (void)::kill(child, SIGKILL);
    (void)::waitpid(child, nullptr, 0);
    ::close(ready[0]);
    ::close(ready[1]);
    steps const left = steps_of(place, 300000);
    REQUIRE(!left.empty());
    CHECK(left.back() > before);
    CHECK(left.size() <= 3);
    CHECK(load(place, left.back(), 300000) == std::string(300000, static_cast<char>(left.back())));
  }
}

TEST_CASE("the newest checkpoint in common") {
  using lists = std::vector<steps>;
  CHECK(pp::detail::newest_in_common(lists{}) == std::nullopt);
  CHECK(pp::detail::newest_in_common(lists{{5, 10}}) == 10);
  CHECK(pp::detail::newest_in_common(lists{{5, 10}, {5}}) == 5);
  CHECK(pp::detail::newest_in_common(lists{{5, 10}, {10, 15}, {5, 10, 15}}) == 10);
  CHECK(pp::detail::newest_in_common(lists{{5, 10}, {15, 20}}) == std::nullopt);
  CHECK(pp::detail::newest_in_common(lists{{5}, {}}) == std::nullopt);
}

namespace {

//! What each of the ranks has chosen, or the sentence of its failure.
std::vector<std::string> agree(std::vector<pp::checkpoint_place> const& places) {
  auto const size = static_cast<int>(places.size());
  pp::store_server server({.job = "job", .ranks = size});
  std::vector<std::string> chosen(places.size());
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank] {
      auto const at = static_cast<std::size_t>(rank);
      try {
        pp::store line({.port = server.port(), .job = "job"}, rank, patience);
        std::vector<std::uint8_t> state(5);
        pp::state_tensor const wanted = tensor_of(places[at], state);
        auto const step = pp::agree_on_checkpoint(
          line, places[at], {&wanted, 1}, rank, size, "attempt 2", patience);
        chosen[at] = step ? std::to_string(*step) : "none";
      } catch (std::exception const& error) {
        chosen[at] = error.what();
      }
    });
  for (std::thread& each : ranks)
    each.join();
  return chosen;
}

} // namespace

TEST_CASE("ranks agree, and forget what only some of them have") {
  support::temporary_folder const folder("checkpoint");
  std::vector<pp::checkpoint_place> places;
  for (int rank = 0; rank < 3; ++rank)
    places.push_back({folder.path(), "rank-" + std::to_string(rank), "a model"});
  CHECK(agree(places) == std::vector<std::string>(3, "none"));
  for (std::int64_t const step : {10, 20})
    for (auto const& place : places)
      save(place, step, "state");
  save(places[1], 30, "state");
  CHECK(agree(places) == std::vector<std::string>(3, "20"));
  CHECK(folder.files() == files_of({"rank-0.step-20", "rank-1.step-20", "rank-2.step-20"}));
  // A rank whose disk is new has none.
  for (std::string const& name : files_of({"rank-2.step-20"}))
    std::filesystem::remove(folder.path() + '/' + name);
  CHECK(agree(places) == std::vector<std::string>(3, "none"));
  CHECK(folder.files().empty());
}

TEST_CASE("one rank with the checkpoints of another run stops all, and removes nothing") {
  support::temporary_folder const folder("checkpoint");
  std::vector<pp::checkpoint_place> places;
  for (int rank = 0; rank < 3; ++rank) {
    places.push_back({folder.path(), "rank-" + std::to_string(rank), "8 layers"});
    save(places.back(), 10, "state");
  }
  places[1].about = "9 layers";
  auto const before = folder.files();
  auto const said = agree(places);
  CHECK(said[1].find("belongs elsewhere: the file has 8 layers, this run has 9 layers" +
                     resume_advice) != std::string::npos);
  for (std::size_t rank : {std::size_t{0}, std::size_t{2}})
    CHECK(said[rank].find("rank 1 cannot go on from a checkpoint: checkpoint: ") !=
          std::string::npos);
  CHECK(folder.files() == before);
}
