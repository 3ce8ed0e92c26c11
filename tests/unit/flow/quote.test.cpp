// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/flow/quote.hpp>

#include <doctest/doctest.h>

#include <string>

namespace pp = pipelining;

TEST_CASE("what a terminal would obey or could not show is a question mark") {
  CHECK(pp::detail::printable("") == "");
  CHECK(pp::detail::printable("stage 3, \xc3\xa9 and \xe2\x82\xac") ==
        "stage 3, \xc3\xa9 and \xe2\x82\xac");
  CHECK(pp::detail::printable("\x1b[31mred\x1b[0m\r\n\t") == "?[31mred?[0m???");
  CHECK(pp::detail::printable(std::string("a\0b\x7f", 4)) == "a?b?");
  CHECK(pp::detail::printable("\xc2\x9b\x32J \xc2\xa0") == "?2J \xc2\xa0"); // a terminal's C1
  CHECK(pp::detail::printable("\xff\xc3") == "??");
  CHECK(pp::detail::printable("\xe2\x82x") == "??x");
}

TEST_CASE("a quoted text is short, and is not cut inside of a character") {
  CHECK(pp::detail::quote("") == "''");
  CHECK(pp::detail::quote("a\nb") == "'a?b'");
  std::string const sixty(60, 'x');
  CHECK(pp::detail::quote(sixty) == "'" + sixty + "'");
  CHECK(pp::detail::quote(sixty + "y") == "'" + sixty + "...'");
  std::string const before(59, 'x');
  CHECK(pp::detail::quote(before + "\xc3\xa9z") == "'" + before + "...'");
  CHECK(pp::detail::quote(before + "\xc3\xa9") == "'" + before + "...'");
  std::string const broken(70, '\x80'); // goes on for ever, and never began
  CHECK(pp::detail::quote(broken) == "'...'");
}
