// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A pick of `timetable choose` as a C++ header.

#include <pipe/view/append.hpp>

#include <cstddef>
#include <string>

#include "choose.hpp"

namespace examples {

//! A constant array of a header.
template <class List>
void append_list(std::string& out, char const* type, char const* name, List const& list) {
  pipelining::append(out, "inline constexpr ", type, " ", name, "[] = {");
  for (std::size_t i = 0; i < list.size(); ++i)
    pipelining::append(out, i > 0 ? ", " : "", list[i]);
  pipelining::append(out, "};\n");
}

//! The rest of a header for sequences of unequal length, behind its type: what each chunk has, what
//! its passes take, timetable and plan.
//! @param value the schedule
void append_packed(std::string& out,
                   choose_command const& asked,
                   candidate const& pick,
                   std::string const& value);

//! The text of a header with the pick as a type, its costs, timetable and plan.
//! @throws usage_error for a pick that has no type.
[[nodiscard]] std::string choose_header(choose_command const& asked, candidate const& pick);

} // namespace examples
