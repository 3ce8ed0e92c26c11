// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Checks that look for planted bugs, in the order in which one is likely to be found
//! soonest.

#include <algorithm>
#include <ctime>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

template <class Mutant>
class killers {
public:
  //! @param check says what it finds wrong; nothing where nothing is.
  void add(std::string name, std::function<std::string(Mutant const&)> check) {
    checks_.push_back({std::move(name), std::move(check), 0});
  }

  //! The first check that finds something, and what; empty when none does.
  [[nodiscard]] std::string find(Mutant const& in) {
    std::string by;
    for (auto each = checks_.begin(); each != checks_.end() && by.empty(); ++each) {
      std::clock_t const begin = std::clock();
      std::string const found = finding(*each, in);
      // Bugs that are alike stand together: what has found one is tried first on the next.
      each->in_vain = found.empty() ? std::clock() - begin : 0;
      if (!found.empty())
        by = each->name + ": " + found.substr(0, 100);
    }
    std::sort(checks_.begin(), checks_.end(), [](killer const& one, killer const& other) {
      return one.in_vain < other.in_vain;
    });
    return by;
  }

private:
  struct killer {
    std::string name;
    std::function<std::string(Mutant const&)> check;
    std::clock_t in_vain; //!< what it cost to find nothing
  };

  static std::string finding(killer const& one, Mutant const& in) {
    try {
      return one.check(in);
    } catch (std::exception const& thrown) {
      return thrown.what();
    }
  }

  std::vector<killer> checks_;
};
