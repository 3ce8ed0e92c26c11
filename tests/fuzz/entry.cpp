// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Where libFuzzer enters: the first word of the command line names the reader.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <span>
#include <string>
#include <string_view>

#include "mutate.hpp"
#include "reader.hpp"

// The names are libFuzzer's.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* bytes, std::size_t size, std::size_t most);
extern "C" int LLVMFuzzerInitialize(int* count, char*** words);
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* bytes, std::size_t size);
extern "C" std::size_t
LLVMFuzzerCustomMutator(std::uint8_t* bytes, std::size_t size, std::size_t most, unsigned seed);

namespace {

fuzz::reader const* chosen = nullptr;

} // namespace

extern "C" int LLVMFuzzerInitialize(int* count, char*** words) {
  std::string_view const name = *count > 1 ? (*words)[1] : "";
  for (fuzz::reader const& each : fuzz::readers())
    if (each.name == name)
      chosen = &each;
  if (chosen == nullptr) {
    std::cerr << "usage: PROGRAM READER [options of libFuzzer] [folder or file]...\nreaders:";
    for (fuzz::reader const& each : fuzz::readers())
      std::cerr << ' ' << each.name;
    std::cerr << '\n';
    std::exit(2);
  }
  std::copy(*words + 2, *words + *count, *words + 1);
  --*count;
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* bytes, std::size_t size) {
  chosen->read({reinterpret_cast<char const*>(bytes), size});
  return 0;
}

extern "C" std::size_t
LLVMFuzzerCustomMutator(std::uint8_t* bytes, std::size_t size, std::size_t most, unsigned seed) {
  if (seed % 4 == 0)
    return LLVMFuzzerMutate(bytes, size, most);
  std::string text = fuzz::mutate({reinterpret_cast<char const*>(bytes), size}, seed / 4);
  text.resize(std::min(text.size(), most));
  std::copy(text.begin(), text.end(), bytes);
  return text.size();
}
