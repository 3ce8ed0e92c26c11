// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/cluster/safetensors.hpp>
#include <pipe/flow/json_cursor.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pp = pipelining::detail;

namespace {

//! A file of this JSON text: its length before it, and so many bytes after it.
std::string file_of(std::string const& json, std::size_t data_bytes) {
  std::string file;
  for (std::size_t i = 0, rest = json.size(); i < 8; ++i, rest >>= 8)
    file += static_cast<char>(rest & 0xff);
  return file + json + std::string(data_bytes, 'x');
}

pp::safetensors_header header_of(std::string const& file) {
  return pp::read_safetensors_head("f", file, static_cast<std::int64_t>(file.size()));
}

//! What is wrong with a file; an empty text where nothing is.
std::string refusal(std::string const& file) {
  try {
    (void)header_of(file);
    return {};
  } catch (std::runtime_error const& error) {
    return error.what();
  }
}

std::string refusal(std::string const& json, std::size_t data_bytes) {
  return refusal(file_of(json, data_bytes));
}

//! A tensor of the header.
std::string entry(std::string const& name,
                  std::string const& dtype,
                  std::string const& shape,
                  std::string const& offsets) {
  return '"' + name + R"(":{"dtype":")" + dtype + R"(","shape":[)" + shape +
         R"(],"data_offsets":[)" + offsets + "]}";
}

} // namespace

TEST_CASE("what is written is read") {
  std::vector<pp::safetensor> tensors = {
    {.name = "b", .dtype = "U8", .shape = {3}},
    {.name = "a", .dtype = "U8", .shape = {}},
    {.name = "w", .dtype = "F32", .shape = {2, 5}},
    {.name = "none", .dtype = "F32", .shape = {0, 4}},
    {.name = "\"\\\n\x01 \xc3\xa9", .dtype = "F64", .shape = {2}}};
  pp::lay_out(tensors);
  // Wide ones first, then by name: every number is aligned.
  std::vector<std::string> names;
  for (auto const& each : tensors) {
    names.push_back(each.name);
    CHECK(each.begin % pp::bytes_of_dtype(each.dtype) == 0);
  }
  CHECK(names == std::vector<std::string>{"\"\\\n\x01 \xc3\xa9", "none", "w", "a", "b"});
  CHECK(tensors.back().end == 16 + 40 + 1 + 3);
  for (std::map<std::string, std::string> const& metadata :
       {std::map<std::string, std::string>{}, {{"step", "20"}, {"about", "a=1\nb=\"2\"\n"}}}) {
    std::string const head = pp::safetensors_head(tensors, metadata);
    CHECK(head.size() % 8 == 0);
    pp::safetensors_header const expected{
      tensors, metadata, static_cast<std::int64_t>(head.size())};
    CHECK(header_of(head + std::string(60, 'x')) == expected);
    // Byte by byte shorter or longer, it is none.
    for (std::size_t bytes = 0; bytes < head.size() + 60; ++bytes)
      CHECK(!refusal((head + std::string(60, 'x')).substr(0, bytes)).empty());
    CHECK(refusal(head + std::string(61, 'x')) ==
          "f: its tensors have 60 bytes, but the file has 61 for them");
  }
}

TEST_CASE("what cannot be laid out is refused") {
  auto const lay = [](std::vector<pp::safetensor> tensors) { pp::lay_out(tensors); };
  CHECK_THROWS_WITH(lay({{.name = "a", .dtype = "F31"}}),
                    R"(safetensors: tensor "a" has the unknown dtype "F31")");
  CHECK_THROWS_WITH(lay({{.name = "a", .dtype = "F32"}, {.name = "a", .dtype = "F32"}}),
                    R"(safetensors: tensor "a" has a name that is taken)");
  CHECK_THROWS_AS(lay({{.name = "\xff", .dtype = "F32"}}), std::invalid_argument);
  CHECK_THROWS_WITH(lay({{.name = "__metadata__", .dtype = "F32"}}),
                    R"(safetensors: tensor "__metadata__" has a name that is taken)");
  CHECK_THROWS_WITH(lay({{.name = "a", .dtype = "F32", .shape = {2, -1}}}),
                    R"(safetensors: tensor "a" has a negative extent)");
  CHECK_THROWS_WITH(lay({{.name = "a", .dtype = "F32", .shape = {1LL << 31, 1LL << 31}}}),
                    R"(safetensors: tensor "a" has more bytes than a file can have)");
}

TEST_CASE("a file that is not as the format asks is refused in a sentence") {
  std::string const good = entry("a", "F32", "2,3", "0,24");
  CHECK(refusal("{" + good + "}", 24).empty());
  CHECK(refusal(" {}", 0) == "f: the header does not begin with '{'");
  CHECK(refusal("{" + good + "}  ", 24).empty());
  CHECK(refusal("{" + good + "}x", 24) == "f: the header is not as the format asks: there is text "
                                          "after the object, at line 1, character 58");
  CHECK(
    refusal("{" + good + "," + good + "}", 24) ==
    R"(f: the header is not as the format asks: the name 'a' stands twice, at line 1, character 61)");
  CHECK(
    refusal(R"({"a":{"dtype":"F32","size":[1]}})", 4) ==
    R"(f: the header is not as the format asks: tensor "a" has an unknown member "size", at line 1, character 28)");
  CHECK(refusal("{" + entry("a", "F31", "2,3", "0,24") + "}", 24) ==
        R"(f: tensor "a" has the unknown dtype "F31")");
  CHECK(refusal("{" + entry("a", "F32", "2,3", "0,20") + "}", 20) ==
        R"(f: tensor "a" has 20 bytes, but its shape [2,3] of F32 has 24)");
  CHECK(refusal("{" + entry("a", "F32", "2,3", "24,0") + "}", 24) ==
        R"(f: tensor "a" ends before it begins)");
  CHECK(
    refusal("{" + entry("a", "F64", "4611686018427387904,4", "0,24") + "}", 24) ==
    R"(f: tensor "a" has 24 bytes, but its shape [4611686018427387904,4] of F64 has more than a file can have)");
  CHECK(refusal("{" + good + "," + entry("b", "U8", "4", "20,24") + "}", 24) ==
        R"(f: tensor "b" begins at byte 20, but the one before it overlaps it and ends at 24)");
  CHECK(refusal("{" + good + "," + entry("b", "U8", "4", "28,32") + "}", 32) ==
        R"(f: tensor "b" begins at byte 28, but the one before it leaves a gap and ends at 24)");
  CHECK(refusal("{" + good + "}", 25) ==
        "f: its tensors have 24 bytes, but the file has 25 for them");
  CHECK(refusal("{" + good + "}", 23) ==
        "f: its tensors have 24 bytes, but the file has 23 for them");
  for (char const* json :
       {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":1}})",
        R"({"a":{"dtype":"U8","shape":[1]}})",
        R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})",
        R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})",
        R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})",
        R"({"a":{"dtype":"U8","shape":[01],"data_offsets":[0,1]}})",
        R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]}})",
        R"({"a":{"dtype":"U8","shape":[1,],"data_offsets":[0,1]}})",
        R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},})",
        R"({"a":{"dtype":U8,"shape":[1],"data_offsets":[0,1]}})",
        R"({"__metadata__":{"a":1}})",
        R"({"__metadata__":{"a":"\q"}})",
        R"({"__metadata__":{"a":"\ud800"}})",
        "{\"__metadata__\":{\"a\":\"\\u00\x10"
        "a\"}}",
        R"({"__metadata__":{"a":"\udc00"}})",
        "{\"__metadata__\":{\"a\":\"\n\"}}",
        R"({"__metadata__":{"a)",
        R"([])",
        R"({)"}) {
    CAPTURE(json);
    CHECK(!refusal(json, 1).empty());
    CHECK(!refusal(json, 0).empty());
  }
  CHECK(refusal(std::string(7, '\0')) == "f: the file is too short to have the length of a header");
  CHECK(refusal(std::string("\x01\xe1\xf5\x05\0\0\0\0", 8) + std::string(100, ' ')) ==
        "f: a header of 100000001 bytes is over the limit of the format, 100000000");
  CHECK(refusal(std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8)).find("over the limit") !=
        std::string::npos);
  CHECK(refusal(std::string("\x03\0\0\0\0\0\0\0{}", 10)) ==
        "f: the header has 3 bytes, but the file ends after 2");
}

TEST_CASE("texts come back through quotes, and escapes are those of JSON") {
  std::string all;
  for (int code = 0; code < 128; ++code)
    all += static_cast<char>(code);
  all += "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80";
  CHECK(pp::json_cursor<std::runtime_error>(pp::json_text(all)).text() == all);
  CHECK(pp::json_cursor<std::runtime_error>(R"("\u0041\u00e9\u20AC\ud83d\ude00\/\b\f\n\r\t\"\\")")
          .text() == "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80/\b\f\n\r\t\"\\");
  // What is no UTF-8: RFC 3629, section 4.
  for (char const* text : {"\x80",
                           "\xc3",
                           "\xc0\xaf",
                           "\xc1\xbf",
                           "\xe2\x82",
                           "\xe0\x9f\x80",
                           "\xed\xa0\x80",
                           "\xf0\x8f\x80\x80",
                           "\xf4\x90\x80\x80",
                           "\xf5\x80\x80\x80",
                           "\xf0\x9f\x98z",
                           "\xff"}) {
    CHECK_THROWS_AS((void)pp::json_cursor<std::runtime_error>('"' + std::string(text) + '"').text(),
                    std::runtime_error);
    CHECK(!pp::is_utf8(text));
  }
  for (char const* text : {"",
                           "a",
                           "\xc2\x80",
                           "\xdf\xbf",
                           "\xe0\xa0\x80",
                           "\xed\x9f\xbf",
                           "\xee\x80\x80",
                           "\xf4\x8f\xbf\xbf"})
    CHECK(pp::is_utf8(text));
}
