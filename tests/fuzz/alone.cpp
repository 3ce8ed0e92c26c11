// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// For compilers without libFuzzer: runs the corpus, and damages of it by chance, with the options
// of libFuzzer that fuzz_test.py gives. Nothing guides it.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* bytes, std::size_t size, std::size_t most);
extern "C" int LLVMFuzzerInitialize(int* count, char*** words);
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* bytes, std::size_t size);
extern "C" std::size_t
LLVMFuzzerCustomMutator(std::uint8_t* bytes, std::size_t size, std::size_t most, unsigned seed);

namespace {

constexpr std::size_t most_bytes = 4096;
using input = std::vector<std::uint8_t>;

//! The number of an option such as "-runs=5"; else another one.
long number_of(std::string_view word, std::string_view name, long otherwise) {
  return word.starts_with(name) ? std::stol(std::string(word.substr(name.size()))) : otherwise;
}

std::string kept = "crash"; // where the input goes that ends the process
input running;

void keep_input(int) {
  int const file = ::open(kept.c_str(), O_WRONLY | O_CREAT | O_TRUNC, S_IRUSR | S_IWUSR);
  (void)!::write(file, running.data(), running.size());
  std::_Exit(1);
}

void run(input one) {
  running = std::move(one);
  LLVMFuzzerTestOneInput(running.data(), running.size());
}

void append_inputs(std::vector<input>& to, std::filesystem::path const& place) {
  if (std::filesystem::is_directory(place)) {
    std::vector<std::filesystem::path> paths(std::filesystem::directory_iterator(place), {});
    std::sort(paths.begin(), paths.end());
    for (std::filesystem::path const& each : paths)
      append_inputs(to, each);
    return;
  }
  std::ifstream file(place, std::ios::binary);
  to.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

} // namespace

//! A byte changes, comes or goes.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* bytes, std::size_t size, std::size_t most) {
  static std::minstd_rand chance(1);
  if (size == 0 || most == 0)
    return 0;
  std::size_t const at = chance() % size;
  auto const byte = static_cast<std::uint8_t>(chance() >> 8U);
  if (chance() % 4 == 0 && size < most) {
    std::copy_backward(bytes + at, bytes + size, bytes + size + 1);
    ++size;
  } else if (chance() % 4 == 0) {
    std::copy(bytes + at + 1, bytes + size, bytes + at);
    return size - 1;
  }
  bytes[at] = byte;
  return size;
}

int main(int count, char** words) {
  LLVMFuzzerInitialize(&count, &words);
  long runs = 0;
  long seconds = 0;
  long seed = 1;
  std::vector<input> inputs;
  for (int i = 1; i < count; ++i) {
    std::string_view const word = words[i];
    runs = number_of(word, "-runs=", runs);
    seconds = number_of(word, "-max_total_time=", seconds);
    seed = number_of(word, "-seed=", seed);
    if (word.starts_with("-artifact_prefix="))
      kept = std::string(word.substr(word.find('=') + 1)) + "crash";
    if (!word.starts_with('-'))
      append_inputs(inputs, word);
  }
  for (int const signal : {SIGABRT, SIGSEGV, SIGFPE})
    (void)std::signal(signal, &keep_input);
  for (input const& each : inputs)
    run(each);
  std::mt19937 chance(static_cast<unsigned>(seed));
  auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  long done = 0;
  for (; done < runs || (runs <= 0 && std::chrono::steady_clock::now() < end); ++done) {
    if (seconds > 0 && std::chrono::steady_clock::now() > end)
      break;
    input one(most_bytes);
    input const& of = inputs[chance() % inputs.size()];
    std::size_t size = std::min(of.size(), most_bytes);
    std::copy(of.begin(), of.begin() + static_cast<std::ptrdiff_t>(size), one.begin());
    for (std::size_t turns = 1 + chance() % 3; turns > 0; --turns)
      size = LLVMFuzzerCustomMutator(one.data(), size, most_bytes, static_cast<unsigned>(chance()));
    one.resize(size);
    run(std::move(one));
  }
  std::cerr << "Done " << done << " runs and " << inputs.size() << " inputs of the corpus\n";
}
