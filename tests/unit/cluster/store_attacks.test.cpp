// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What strangers and broken processes do to the store of a run. All of it stays on this machine and
// is bounded. Each attack meets a run of two ranks, which must go on as if nothing had happened.
#include <pipe/cluster/store.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <tests/support/raw_store.hpp>
#include <thread>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

using support::patience;

//! A run of two ranks, who prove that they are undisturbed.
struct small_run {
  pp::store_server server{{.job = "job 7", .secret = "known to two", .ranks = 2}};
  pp::store zero{address(), 0, patience};
  pp::store one{address(), 1, patience};
  int round = 0;

  [[nodiscard]] pp::store_address address() const {
    return {.port = server.port(), .job = "job 7", .secret = "known to two", .ranks = 2};
  }

  void check_unharmed() {
    std::string const key = "key " + std::to_string(++round);
    std::thread other([&] { one.barrier("meet", 2, patience); });
    zero.barrier("meet", 2, patience);
    other.join();
    zero.set(key, "value");
    CHECK(one.get(key, patience) == "value");
    CHECK_FALSE(zero.failure());
    CHECK_FALSE(one.failure());
  }
};

//! Sends bytes as they are, as far as the kernel takes them.
void send_raw(pp::detail::connection const& line, std::string const& bytes) {
  (void)::send(line.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

std::string hello(std::string const& job, std::string const& rank, std::string const& secret) {
  std::string text = pp::detail::frame('H', pp::detail::store_magic, job);
  for (std::string const& field : {rank, secret})
    (text += '\0') += field;
  return text;
}

//! Says hello, and returns what the store says to it after its own first word; nothing when it just
//! closes.
std::optional<std::string> answer_to(int port, std::string const& word) {
  pp::detail::connection line = support::knock(port);
  REQUIRE(support::hear(line) == pp::detail::frame('W', pp::detail::store_magic));
  line.write(word);
  auto const answer = support::hear(line);
  return answer ? std::optional(pp::detail::fields(*answer).first) : std::nullopt;
}

//! The failure of the run, which must come.
std::string failure_of(pp::store& line) {
  auto const end = std::chrono::steady_clock::now() + patience;
  while (!line.failure() && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  return line.failure().value_or("none");
}

} // namespace

TEST_CASE("garbage before the hello closes the line and nothing else") {
  small_run run;
  std::mt19937 random(3);
  for (std::size_t bytes : {1, 3, 4, 5, 64, 4096, 100000}) {
    std::string noise(bytes, '\0');
    for (char& each : noise)
      each = static_cast<char>(random());
    pp::detail::connection line = support::knock(run.server.port());
    send_raw(line, noise);
    run.check_unharmed();
  }
  {
    // A browser that has lost its way: "GET " is a frame of a gigabyte.
    pp::detail::connection line = support::knock(run.server.port());
    send_raw(line, "GET / HTTP/1.1\r\n\r\n");
    (void)support::hear(line);
    CHECK_FALSE(support::hear(line));
  }
  run.check_unharmed();
}

TEST_CASE("what only ranks may say closes a stranger's line") {
  small_run run;
  for (char letter : {'S', 'G', 'J', 'Q', 'P', 'A', 'B', 'x', '\0'})
    CHECK_FALSE(answer_to(run.server.port(), pp::detail::frame(letter, "key", "2")));
  CHECK_FALSE(answer_to(run.server.port(), ""));
  run.check_unharmed();
}

TEST_CASE("a hello that is wrong is told why, and numbers are read without exceptions") {
  small_run run;
  int const port = run.server.port();
  std::string const secret = "known to two";
  CHECK(answer_to(port, hello("job 8", "1", secret)) == "this store serves another job");
  for (char const* wrong : {"", "known to tw0", "known to two ", "known"})
    CHECK(answer_to(port, hello("job 7", "1", wrong)) == "this store serves another job");
  for (std::string const rank : {"", "x", "-1", "2", "1x", " 1", "99999999999999999999", "1.5"})
    CHECK(answer_to(port, hello("job 7", rank, secret)) ==
          "the run has no rank " + rank + ": it has 2 ranks");
  CHECK(answer_to(port, pp::detail::frame('H', "another library", "job 7")) ==
        "this store is of another version of the library");
  CHECK(answer_to(port, "H") == "this store is of another version of the library");
  CHECK_FALSE(answer_to(port, hello("job 7", "1", std::string(5000, 's'))));
  run.check_unharmed();
}

TEST_CASE("a stolen rank number is refused while its owner is there") {
  small_run run;
  int const port = run.server.port();
  CHECK(answer_to(port, hello("job 7", "1", "known to two")) ==
        "rank 1 is here already; has each process a rank of its own?");
  CHECK_THROWS_WITH_AS(pp::store(run.address(), 0, patience),
                       ("store: rank 0 was turned away at 127.0.0.1, port " + std::to_string(port) +
                        ": rank 0 is here already; has each process a rank of its own?")
                         .c_str(),
                       std::runtime_error);
  run.check_unharmed();
}

TEST_CASE("lines that are half open are closed, and do not keep the ranks out") {
  pp::store_server server({.job = "job 7", .secret = "known to two", .ranks = 2});
  std::vector<pp::detail::connection> silent;
  for (int i = 0; i < 400; ++i) {
    silent.push_back(support::knock(server.port()));
    if (i % 2 == 0)
      send_raw(silent.back(), std::string("\0\0", 2)); // half a length
  }
  // Those who have waited longest make room.
  (void)support::hear(silent.front());
  CHECK_FALSE(support::hear(silent.front()));
  pp::store_address const address{
    .port = server.port(), .job = "job 7", .secret = "known to two", .ranks = 2};
  pp::store zero(address, 0, patience);
  pp::store one(address, 1, patience);
  zero.set("key", "value");
  CHECK(one.get("key", patience) == "value");
  // Nobody may wait for ever: a rank would have said hello at once.
  (void)support::hear(silent.back());
  auto const start = std::chrono::steady_clock::now();
  CHECK_FALSE(support::hear(silent.back()));
  CHECK(std::chrono::steady_clock::now() - start < patience);
  CHECK_FALSE(zero.failure());
}

TEST_CASE("a flood of connections and bytes does not end the run") {
  small_run run;
  std::atomic<bool> over = false;
  auto const connect_for_ever = [&] {
    while (!over) {
      std::string problem;
      pp::detail::countdown<pp::detail::polling_clock> end(patience);
      (void)pp::detail::reach("127.0.0.1", run.server.port(), end, problem);
    }
  };
  auto const shout_for_ever = [&](std::string const& words) {
    while (!over) {
      std::string problem; // such as no local port left: the others have taken them all
      pp::detail::countdown<pp::detail::polling_clock> end(patience);
      auto line = pp::detail::reach("127.0.0.1", run.server.port(), end, problem);
      for (int i = 0; i < 1000 && line && line->open() && !over; ++i) {
        send_raw(*line, words);
        (void)line->read();
      }
    }
  };
  std::string const small_frames = [] {
    std::string text;
    for (int i = 0; i < 1000; ++i)
      text += std::string("\0\0\0\1x", 5);
    return text;
  }();
  std::vector<std::thread> attackers;
  attackers.emplace_back(connect_for_ever);
  attackers.emplace_back(shout_for_ever, small_frames);
  attackers.emplace_back(shout_for_ever, std::string(100000, '\0'));
  for (int round = 0; round < 40; ++round)
    run.check_unharmed();
  over = true;
  for (std::thread& attacker : attackers)
    attacker.join();
  run.check_unharmed();
}

TEST_CASE(
  "a rank that does not read costs no more than its share, and ends the run with its name") {
  small_run run;
  {
    pp::store_server server({});
    pp::store reads({.port = server.port()}, 0, patience);
    pp::detail::connection deaf = support::knock(server.port());
    deaf.write(pp::detail::hello({}, 1));
    (void)support::hear(deaf);
    // It asks for the same four megabytes again and again, and takes none of them.
    reads.set("much", std::string(std::size_t(1) << 22U, 'x'));
    (void)reads.get("much", patience);
    for (int i = 0; i < 40; ++i)
      deaf.write(pp::detail::frame('G', "much"));
    CHECK(failure_of(reads) == "the process of rank 1 does not read what the store tells it");
  }
  run.check_unharmed();
}

TEST_CASE("a rank that says what no rank says ends the run with its name") {
  pp::store_server server({});
  pp::store zero({.port = server.port()}, 0, patience);
  pp::detail::connection odd = support::knock(server.port());
  odd.write(pp::detail::hello({}, 1));
  odd.write(pp::detail::frame('?', "what"));
  CHECK(failure_of(zero) ==
        "rank 1 has told the store what no rank says; are all ranks of one version?");
}

TEST_CASE("the lines of those who have left are closed") {
  small_run run;
  for (int round = 0; round < 300; ++round) {
    pp::store_server server({});
    pp::store visitor({.port = server.port()}, 5, patience);
    if (round < 299)
      continue;
    pp::detail::connection leaves = support::knock(server.port());
    leaves.write(pp::detail::hello({}, 6));
    (void)support::hear(leaves);
    (void)support::hear(leaves);
    leaves.write(pp::detail::frame('B', ""));
    CHECK_FALSE(support::hear(leaves));
    CHECK_FALSE(visitor.failure());
  }
  run.check_unharmed();
}

TEST_CASE("a value that is too long is refused where it is set") {
  small_run run;
  CHECK_THROWS_AS(run.zero.set("key", std::string(pp::detail::connection::most_bytes, 'x')),
                  std::length_error);
  run.check_unharmed();
}
