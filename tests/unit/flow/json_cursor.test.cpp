// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/flow/json_cursor.hpp>

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace {

using cursor = pipelining::detail::json_cursor<std::invalid_argument>;

//! What a read of a text throws; "" where it throws nothing.
template <class Read>
std::string refusal(std::string_view text, Read read) {
  cursor at(text, "file: ");
  try {
    read(at);
  } catch (std::invalid_argument const& refused) {
    return refused.what();
  }
  return "";
}
std::string refused_text(std::string_view text) {
  return refusal(text, [](cursor& at) { (void)at.text(); });
}
std::string refused_number(std::string_view text) {
  return refusal(text, [](cursor& at) { (void)at.number(); });
}
std::string refused_value(std::string_view text) {
  return refusal(text, [](cursor& at) { (void)at.raw(); });
}

} // namespace

TEST_CASE("texts of JSON resolve their escapes, or are refused where they stand") {
  CHECK(cursor(R"( "a\n\u00e9\u20ac\ud83d\ude00")").text() == "a\n\u00e9\u20ac\U0001F600");
  CHECK(refused_text(R"("open)") == "file: a text does not end, at line 1, character 6");
  CHECK(refused_text("\n \"\xff\"") == "file: a text is not UTF-8, at line 2, character 5");
  CHECK(refused_text("\"a\tb\"") == "file: a text has a control character, at line 1, character 4");
  CHECK(refused_text(R"("\q")") == "file: a text has an unknown escape, at line 1, character 4");
  CHECK(refused_text(R"("\u00g0")") ==
        "file: four hexadecimal digits are wanted, at line 1, character 7");
  CHECK(refused_text(R"("\ud83dx")") ==
        "file: the second half of a surrogate pair is wanted, at line 1, character 9");
  CHECK(refused_text(R"("\ude00")") ==
        "file: the first half of a surrogate pair is wanted, at line 1, character 8");
  CHECK(refused_text("1") == "file: a text in quotes is wanted, at line 1, character 1");
}

TEST_CASE("whole numbers of JSON are below 2^63 and have no zeros before them") {
  CHECK(cursor("9223372036854775807").number() == 9223372036854775807);
  char const* const refused = "file: a whole number below 2^63, without zeros before it, is wanted";
  CHECK(refused_number("9223372036854775808").starts_with(refused));
  CHECK(refused_number("00").starts_with(refused));
  CHECK(refused_number("-1") == "file: a whole number is wanted, at line 1, character 1");
}

TEST_CASE("objects and lists of JSON end where they say, however deep") {
  CHECK(cursor(R"({"a": [1, {"b": "]"}]} )").raw() == R"({"a": [1, {"b": "]"}]})");
  CHECK(refused_value(R"([[1, 2])") ==
        "file: a list or an object does not end, at line 1, character 8");
  CHECK(refused_value(R"([1}])") == "file: ']' is wanted, at line 1, character 3");
  auto const object = [](cursor& at) { at.object([&](std::string const&) { (void)at.number(); }); };
  CHECK(refusal(R"({"a": 1})", object).empty());
  CHECK(refusal(R"({"a" 1})", object) ==
        "file: ':' is wanted after a name, at line 1, character 6");
  CHECK(refusal(R"({"a": 1 "b": 2})", object) ==
        "file: ',' or '}' is wanted, at line 1, character 9");
  CHECK(refusal(R"({"a": 1, "a": 2})", object) ==
        "file: the name 'a' stands twice, at line 1, character 13");
}
