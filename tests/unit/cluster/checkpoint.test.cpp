// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/cluster/checkpoint.hpp>
#include <pipe/cluster/packed_state.hpp>
#include <pipe/cluster/store.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
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

struct program {
  std::int64_t step = 0;
  std::vector<float> weights = std::vector<float>(3);
  std::vector<double> none;
  std::string position;
  template <class Archive>
  void exchange(Archive& with) {
    with(step);
    with(weights);
    with(none);
    with(position);
  }
};

} // namespace

TEST_CASE("one function packs and unpacks") {
  program written{7, {1.5F, -0.0F, 3e-45F}, {}, std::string("a\0b", 3)};
  pp::state_packer pack;
  written.exchange(pack);
  program read;
  pp::state_unpacker unpack(pack.bytes());
  read.exchange(unpack);
  unpack.end();
  CHECK(read.step == 7);
  CHECK(std::memcmp(read.weights.data(), written.weights.data(), 12) == 0);
  CHECK(read.none.empty());
  CHECK(read.position == written.position);
}

TEST_CASE("what was packed otherwise is refused") {
  pp::state_packer pack;
  pack(std::vector<float>(3));
  std::vector<float> four(4);
  CHECK_THROWS_WITH_AS(pp::state_unpacker{pack.bytes()}(four),
                       "state: 3 numbers were packed where this program has 4; is it of another "
                       "model?",
                       std::runtime_error);
  std::vector<double> wide(3);
  CHECK_THROWS_WITH_AS(pp::state_unpacker{pack.bytes()}(wide),
                       "state: elements of 4 bytes were packed where this program has 8",
                       std::runtime_error);
  float one = 0;
  CHECK_THROWS_WITH_AS(pp::state_unpacker{pack.bytes()}(one),
                       "state: 3 numbers were packed where this program has one",
                       std::runtime_error);
  CHECK_THROWS_WITH_AS(pp::state_unpacker(pack.bytes()).end(),
                       "state: 28 bytes were packed that this program does not know",
                       std::runtime_error);
  // However it is cut, no byte beyond is read.
  for (std::size_t size = 0; size < pack.bytes().size(); ++size) {
    std::string const cut = pack.bytes().substr(0, size);
    std::vector<float> three(3);
    CHECK_THROWS_AS(pp::state_unpacker{cut}(three), std::runtime_error);
  }
}

TEST_CASE("a rank reads what it has written, and keeps the newest two") {
  support::temporary_folder const folder("checkpoint");
  pp::checkpoint_place const place{folder.path() + "/made/here", "rank-1", "a model"};
  CHECK(pp::checkpoints_of(place).empty());
  for (std::int64_t step : {5, 10, 100, 15})
    pp::save_checkpoint(place, step, std::string(1000, 'x') + std::to_string(step) + '\0');
  CHECK(pp::checkpoints_of(place) == steps{15, 100});
  CHECK(pp::load_checkpoint(place, 100) == std::string(1000, 'x') + "100" + '\0');
  pp::save_checkpoint(place, 200, "");
  CHECK(pp::checkpoints_of(place) == steps{100, 200});
  CHECK(pp::load_checkpoint(place, 200).empty());
  CHECK_THROWS_WITH_AS(
    (void)pp::load_checkpoint(place, 5),
    ("checkpoint: " + place.folder + "/rank-1.step-5 is missing or not whole").c_str(),
    std::runtime_error);
  // Ranks whose names begin alike do not see each other's.
  pp::checkpoint_place const other{place.folder, "rank-10", "a model"};
  CHECK(pp::checkpoints_of(other).empty());
  CHECK(pp::checkpoints_of({place.folder, "rank-", "a model"}).empty());
  CHECK_THROWS_AS(pp::save_checkpoint({place.folder, "rank\n1", "a model"}, 1, ""),
                  std::invalid_argument);
  CHECK_THROWS_AS(pp::save_checkpoint({place.folder, "../rank-1", "a model"}, 1, ""),
                  std::invalid_argument);
}

TEST_CASE("a file that is torn anywhere, or has any other bit, is none") {
  support::temporary_folder const folder("checkpoint");
  pp::checkpoint_place const place{folder.path(), "rank-0", "a model"};
  pp::save_checkpoint(place, 1, "the first state");
  pp::save_checkpoint(place, 2, "the second state");
  std::string const path = folder.path() + "/rank-0.step-2";
  std::string whole;
  std::getline(std::ifstream(path, std::ios::binary), whole, '\xff');
  auto const write = [&](std::string const& content) {
    std::ofstream(path, std::ios::binary) << content;
  };
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write(whole.substr(0, size));
    REQUIRE(pp::checkpoints_of(place) == steps{1});
  }
  write(whole + 'x');
  CHECK(pp::checkpoints_of(place) == steps{1});
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string changed = whole;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    write(changed);
    std::optional<steps> found;
    try {
      found = pp::checkpoints_of(place);
    } catch (std::runtime_error const&) { // another run's name
    }
    CAPTURE(bit);
    REQUIRE((!found || *found == steps{1}));
  }
  write(whole);
  CHECK(pp::checkpoints_of(place) == steps{1, 2});
}

TEST_CASE("a disk that is full leaves the earlier checkpoints as they were") {
  support::temporary_folder const folder("checkpoint");
  pp::checkpoint_place const place{folder.path(), "rank-0", "a model"};
  pp::save_checkpoint(place, 1, std::string(500, 'a'));
  pp::save_checkpoint(place, 2, std::string(500, 'b'));
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
        pp::save_checkpoint(place, most % 2 == 0 ? 3 : 2, std::string(1000, 'c'));
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
    CHECK(pp::checkpoints_of(place) == steps{1, 2});
    CHECK(pp::load_checkpoint(place, 2) == std::string(500, 'b'));
  }
  pp::checkpoint_place const nowhere{"/proc/none", "rank-0", ""};
  CHECK_THROWS_AS(pp::save_checkpoint(nowhere, 1, ""), std::runtime_error);
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
  std::string const path = folder.path() + "/rank-0.step-25";
  std::string const draft = folder.path() + "/rank-0.draft";
  std::string const rest = ", not a file; remove it, or name another folder";
  auto const said_of = [&](std::string const& where, std::string const& what) {
    return "checkpoint: " + where + " is " + what + rest;
  };
  auto const check = [&](std::string const& what) {
    CHECK(refusal([&] { (void)pp::checkpoints_of(place); }) == said_of(path, what));
    CHECK(refusal([&] { (void)pp::load_checkpoint(place, 25); }) == said_of(path, what));
    CHECK(refusal([&] { pp::save_checkpoint(place, 25, "state"); }) == said_of(path, what));
    CHECK(refusal([&] { pp::save_checkpoint(place, 30, "state"); }) == said_of(path, what));
    CHECK(folder.files() == std::set<std::string>{"rank-0.step-25"});
    std::filesystem::remove(path);
  };
  REQUIRE(::mkfifo(path.c_str(), S_IRWXU) == 0);
  check("a FIFO");
  std::filesystem::create_directory(path);
  check("a folder");
  std::filesystem::create_symlink("/dev/full", path);
  check("a device");
  REQUIRE(::mkfifo(draft.c_str(), S_IRWXU) == 0);
  CHECK(refusal([&] { pp::save_checkpoint(place, 25, "state"); }) == said_of(draft, "a FIFO"));
  std::filesystem::remove(draft);
  std::filesystem::create_symlink("/dev/full", draft);
  CHECK(refusal([&] { pp::save_checkpoint(place, 25, "state"); }) == said_of(draft, "a device"));
  CHECK(folder.files() == std::set<std::string>{"rank-0.draft"});
}

TEST_CASE("files of two ranks that were exchanged are refused with both names") {
  support::temporary_folder const folder("checkpoint");
  pp::checkpoint_place const zero{folder.path(), "rank-0", "a model"};
  pp::checkpoint_place const one{folder.path(), "rank-1", "a model"};
  pp::save_checkpoint(zero, 5, "the state");
  pp::save_checkpoint(one, 5, "its state");
  auto const path = [&](char const* name) { return folder.path() + '/' + name; };
  std::filesystem::rename(path("rank-0.step-5"), path("kept"));
  std::filesystem::rename(path("rank-1.step-5"), path("rank-0.step-5"));
  std::filesystem::rename(path("kept"), path("rank-1.step-5"));
  std::string const said = "checkpoint: " + path("rank-0.step-5") +
                           " belongs elsewhere: the file has owner=rank-1, this run has "
                           "owner=rank-0" +
                           resume_advice;
  CHECK(refusal([&] { (void)pp::load_checkpoint(zero, 5); }) == said);
  CHECK(refusal([&] { (void)pp::checkpoints_of(zero); }) == said);
  CHECK(refusal([&] { pp::save_checkpoint(zero, 5, "new"); }) == said);
  std::filesystem::remove(path("rank-0.step-5"));
  std::filesystem::rename(path("rank-1.step-5"), path("rank-0.step-7"));
  CHECK(refusal([&] { (void)pp::checkpoints_of(zero); }) ==
        "checkpoint: " + path("rank-0.step-7") +
          " belongs elsewhere: the file has step=5, this run has step=7" + resume_advice);
}

TEST_CASE("files of another run are refused before any is written over or removed") {
  support::temporary_folder const folder("checkpoint");
  pp::checkpoint_place const place{folder.path(), "rank-0", "layers=8\nseed=1\n", {.devices = 4}};
  pp::save_checkpoint(place, 5, "the state");
  pp::save_checkpoint(place, 10, "the state");
  CHECK(pp::load_checkpoint(place, 10) == "the state");
  auto const refuses = [&](pp::checkpoint_place const& other, std::string const& difference) {
    std::string const said = "checkpoint: " + folder.path() +
                             "/rank-0.step-5 belongs elsewhere: " + difference + resume_advice;
    CHECK(refusal([&] { (void)pp::checkpoints_of(other); }) == said);
    CHECK(refusal([&] { (void)pp::load_checkpoint(other, 5); }) == said);
    for (std::int64_t const step : {5, 7, 20})
      CHECK(refusal([&] { pp::save_checkpoint(other, step, "new"); }) == said);
    CHECK(folder.files() == std::set<std::string>{"rank-0.step-10", "rank-0.step-5"});
    CHECK(pp::checkpoints_of(place) == steps{5, 10});
  };
  auto other = place;
  other.about = "layers=8\nseed=2\n";
  refuses(other, "the file has seed=1, this run has seed=2");
  other.about = "layers=8\nseed=1\nclip=1\n";
  refuses(other, "the file has no clip, this run has clip=1");
  other = place;
  other.layout = {.devices = 2, .replicas = 2};
  refuses(other, "the file has devices=4, this run has devices=2");
}

TEST_CASE("a file of another format is named, and stays") {
  support::temporary_folder const folder("checkpoint");
  pp::checkpoint_place const place{folder.path(), "rank-0", "a model"};
  std::ofstream(folder.path() + "/rank-0.step-5") << "pipelining checkpoint 1\na model\n5\n0\n0\n";
  std::string const said = "checkpoint: " + folder.path() +
                           "/rank-0.step-5 has another format, 'pipelining checkpoint 1'; go on "
                           "with the version of the library that wrote it, or name another folder";
  CHECK(refusal([&] { (void)pp::checkpoints_of(place); }) == said);
  CHECK(refusal([&] { pp::save_checkpoint(place, 5, "new"); }) == said);
  CHECK(folder.files() == std::set<std::string>{"rank-0.step-5"});
}

TEST_CASE("a process that is killed while it writes leaves a whole checkpoint behind") {
  support::temporary_folder const folder("checkpoint");
  pp::checkpoint_place const place{folder.path(), "rank-0", "a model"};
  std::uint64_t dice = 4;
  for (int round = 0; round < 20; ++round) {
    std::int64_t const before = round == 0 ? 0 : pp::checkpoints_of(place).back();
    int ready[2] = {};
    REQUIRE(::pipe(ready) == 0);
    pid_t const child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      for (std::int64_t step = before + 1;; ++step) {
        pp::save_checkpoint(place, step, std::string(300000, static_cast<char>(step)));
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
    steps const left = pp::checkpoints_of(place);
    REQUIRE(!left.empty());
    CHECK(left.back() > before);
    CHECK(left.size() <= 3);
    CHECK(pp::load_checkpoint(place, left.back()) ==
          std::string(300000, static_cast<char>(left.back())));
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
        auto const step =
          pp::agree_on_checkpoint(line, places[at], rank, size, "attempt 2", patience);
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
  for (auto const& place : places)
    for (std::int64_t const step : {10, 20})
      pp::save_checkpoint(place, step, "state");
  pp::save_checkpoint(places[1], 30, "state");
  CHECK(agree(places) == std::vector<std::string>(3, "20"));
  CHECK(
    folder.files() ==
    std::set<std::string>{
      "rank-0.step-10", "rank-0.step-20", "rank-1.step-20", "rank-2.step-10", "rank-2.step-20"});
  // A rank whose disk is new has none.
  std::filesystem::remove(folder.path() + "/rank-2.step-10");
  std::filesystem::remove(folder.path() + "/rank-2.step-20");
  CHECK(agree(places) == std::vector<std::string>(3, "none"));
  CHECK(folder.files().empty());
}

TEST_CASE("one rank with the checkpoints of another run stops all, and removes nothing") {
  support::temporary_folder const folder("checkpoint");
  std::vector<pp::checkpoint_place> places;
  for (int rank = 0; rank < 3; ++rank) {
    places.push_back({folder.path(), "rank-" + std::to_string(rank), "8 layers"});
    pp::save_checkpoint(places.back(), 10, "state");
  }
  places[1].about = "9 layers";
  auto const before = folder.files();
  auto const said = agree(places);
  CHECK(said[1] == "checkpoint: " + folder.path() +
                     "/rank-1.step-10 belongs elsewhere: the file has 8 layers, this run has 9 "
                     "layers" +
                     resume_advice);
  for (std::size_t rank : {std::size_t{0}, std::size_t{2}})
    CHECK(said[rank].find("rank 1 cannot go on from a checkpoint: checkpoint: ") !=
          std::string::npos);
  CHECK(folder.files() == before);
}
