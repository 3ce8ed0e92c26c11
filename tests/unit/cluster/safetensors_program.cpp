// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Writes a safetensors file, or says of files whether they are some: for safetensors_test.py.
#include <pipe/cluster/safetensors.hpp>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace pp = pipelining::detail;

namespace {

//! Byte i of the numbers is i modulo 251.
void write(std::string const& file) {
  std::vector<pp::safetensor> tensors = {
    {.name = "layers.0.weight", .dtype = "F32", .shape = {3, 5}},
    {.name = "layers.0.gain", .dtype = "F32", .shape = {5}},
    {.name = "half", .dtype = "BF16", .shape = {7}},
    {.name = "position \"\\\n\xc3\xa9", .dtype = "U8", .shape = {13}},
    {.name = "step", .dtype = "I64", .shape = {}},
    {.name = "none", .dtype = "F64", .shape = {0, 3}}};
  pp::lay_out(tensors);
  std::string bytes = pp::safetensors_head(tensors, {{"about", "a=1\nb=\"2\"\n"}});
  for (std::int64_t i = 0; i < tensors.back().end; ++i)
    bytes += static_cast<char>(i % 251);
  std::ofstream(file, std::ios::binary) << bytes;
}

//! Tells one line of a file: what is wrong, or "good" and its tensors.
void judge(std::string const& file) {
  std::ifstream in(file, std::ios::binary);
  std::string const bytes{std::istreambuf_iterator<char>(in), {}};
  try {
    auto const found =
      pp::read_safetensors_head(file, bytes, static_cast<std::int64_t>(bytes.size()));
    std::printf("good:");
    for (auto const& each : found.tensors)
      std::printf(" %s %s %lld-%lld;",
                  each.name.c_str(),
                  each.dtype.c_str(),
                  static_cast<long long>(each.begin),
                  static_cast<long long>(each.end));
    std::printf("\n");
  } catch (std::exception const& error) {
    std::printf("bad: %s\n", error.what());
  }
}

} // namespace

int main(int count, char** words) {
  if (count == 3 && std::string_view(words[1]) == "write") {
    write(words[2]);
    return 0;
  }
  for (int i = 1; i < count; ++i)
    judge(words[i]);
}
