// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/version.hpp>

#include <doctest/doctest.h>

#include <fstream>
#include <string>

TEST_CASE("the changelog's newest entry is the version of the header or unreleased") {
  std::string const version = std::to_string(PIPELINING_VERSION_MAJOR) + '.' +
                              std::to_string(PIPELINING_VERSION_MINOR) + '.' +
                              std::to_string(PIPELINING_VERSION_PATCH);
  std::ifstream changelog{"../CHANGELOG.md"};
  REQUIRE(changelog.is_open());
  std::string line;
  while (std::getline(changelog, line) && line.rfind("## [", 0) != 0) {
  }
  CHECK((line == "## [Unreleased]" || line.rfind("## [" + version + "]", 0) == 0));
}
