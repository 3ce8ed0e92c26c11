// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
//! @file
//! @brief Loads the PTX of a test's kernels and gives them memory.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "simulators/ptx/launch.hpp"

namespace fixture {

//! @brief Text of build/.../NAME.ARCHITECTURE.ptx.
inline std::string ptx_text(std::string const& name) {
  std::ifstream file(std::string(PIPELINING_PTX_DIRECTORY) + "/" + name + ".ptx");
  REQUIRE_MESSAGE(file.good(), "missing PTX file ", name);
  return {std::istreambuf_iterator<char>(file), {}};
}

//! @brief 0, 1, …, n - 1.
inline std::vector<int> whole(int n) {
  std::vector<int> v(static_cast<std::size_t>(n));
  std::iota(v.begin(), v.end(), 0);
  return v;
}

//! @brief Whole numbers of at most 8, whose products every element type holds exactly.
using matrix = std::vector<std::vector<int>>;
inline matrix small_matrix(unsigned seed, std::size_t rows, std::size_t columns) {
  std::mt19937 random(seed);
  matrix m(rows, std::vector<int>(columns));
  for (auto& row : m) {
    for (auto& v : row) {
      v = static_cast<int>(random() % 17) - 8;
    }
  }
  return m;
}

//! @brief Memory and one module in it.
struct machine {
  explicit machine(std::string const& name) : code(ptx_text(name), where) {}
  ptx::memory where;
  ptx::module code;

  template <class... Arguments>
  ptx::result run(char const* kernel, ptx::extent grid, ptx::extent block, Arguments... a) {
    return ptx::launch_with(code, kernel, grid, block, dynamic_shared, how, a...);
  }
  std::size_t dynamic_shared = 0;
  ptx::options how;
};

//! @brief A registered array, 256-byte aligned.
template <class T>
class array {
public:
  //! Uninitialised.
  array(machine& m, std::size_t n) : where_(m.where), size_(n) {
    std::size_t const bytes = (std::max<std::size_t>(n, 1) * sizeof(T) + 255) / 256 * 256;
    data_ = static_cast<T*>(std::aligned_alloc(256, bytes));
    std::fill_n(reinterpret_cast<unsigned char*>(data_), bytes, static_cast<unsigned char>(0xff));
    where_.add(data_, n * sizeof(T));
  }
  array(machine& m, std::vector<T> const& values) : array(m, values.size()) {
    std::copy(values.begin(), values.end(), data_);
    where_.mark(data_, values.size() * sizeof(T), true);
  }
  array(array const&) = delete;
  array& operator=(array const&) = delete;
  ~array() {
    where_.remove(data_);
    std::free(data_);
  }
  T* data() const { return data_; }
  T& operator[](std::size_t i) const { return data_[i]; }
  std::span<T> values() const { return {data_, size_}; }

private:
  ptx::memory& where_;
  T* data_ = nullptr;
  std::size_t size_;
};

//! @brief True if there is a report of this kind whose sentence has all the words.
inline bool reported(ptx::result const& r, ptx::fault kind, std::vector<std::string> const& words) {
  bool const found = std::any_of(r.reports.begin(), r.reports.end(), [&](ptx::report const& one) {
    return one.kind == kind && std::all_of(words.begin(), words.end(), [&](std::string const& w) {
             return one.text.find(w) != std::string::npos;
           });
  });
  if (!found) {
    MESSAGE("reports were: ", r.text());
  }
  return found;
}

} // namespace fixture
