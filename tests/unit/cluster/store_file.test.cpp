// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/cluster/store.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <sys/stat.h>
#include <tests/support/temporary_folder.hpp>
#include <unistd.h>

namespace pp = pipelining;

TEST_CASE("a FIFO or a folder in the place of the file of a store is named, and not opened") {
  support::temporary_folder const folder("store");
  std::string const path = folder.path() + "/store";
  REQUIRE(::mkfifo(path.c_str(), S_IRUSR | S_IWUSR) == 0);
  CHECK_THROWS_WITH_AS(
    (void)pp::read_store_file(path, "job 8", std::chrono::seconds(1)),
    ("store: " + path + " is a FIFO, not the file of a store; remove it, or name another file")
      .c_str(),
    std::runtime_error);
  CHECK_THROWS_AS((void)pp::read_store_file(folder.path(), "job 8", std::chrono::seconds(1)),
                  std::runtime_error);
}

TEST_CASE("a file tells the others where the store is, and one of an earlier run does not") {
  std::string const path =
    (std::filesystem::temp_directory_path() / ("store-" + std::to_string(::getpid()))).string();
  std::string const secret = pp::make_secret();
  pp::store_server server({.job = "job 8", .secret = secret, .ranks = 1});
  pp::write_store_file(path, {"10.0.0.1", 4711, "job 7"});
  CHECK_THROWS_WITH_AS((void)pp::read_store_file(path, "job 8", std::chrono::milliseconds(1)),
                       ("store: rank 0 of job 'job 8' has not written " + path +
                        " before the deadline; do all ranks see that folder?")
                         .c_str(),
                       std::runtime_error);
  pp::write_store_file(path, {.port = 65536, .job = "job 8"});
  CHECK_THROWS_AS((void)pp::read_store_file(path, "job 8", std::chrono::milliseconds(1)),
                  std::runtime_error);
  pp::write_store_file(path, {.port = server.port(), .job = "job 8", .secret = secret, .ranks = 1});
  using std::filesystem::perms;
  CHECK(std::filesystem::status(path).permissions() == (perms::owner_read | perms::owner_write));
  auto const found = pp::read_store_file(path, "job 8", std::chrono::seconds(20));
  CHECK(found.host == "127.0.0.1");
  CHECK(found.port == server.port());
  CHECK(found.secret == secret);
  CHECK(found.ranks == 1);
  pp::store line(found, 0, std::chrono::seconds(20));
  line.set("key", "value");
  CHECK(line.get("key", std::chrono::seconds(20)) == "value");
  std::remove(path.c_str());
  CHECK_THROWS_AS(pp::write_store_file("/nowhere/at all", found), std::runtime_error);
}
