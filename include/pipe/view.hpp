// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Views of timetables, plans and runs: text, CSV, JSON, SVG, pages, traces, and
//! files of PyTorch.

#include <pipe/config.hpp>

#if __cplusplus >= 202002L // what comes below would bury the one error of config.hpp
// IWYU pragma: begin_exports
#include <pipe/view/csv.hpp>
#include <pipe/view/html.hpp>
#include <pipe/view/json.hpp>
#include <pipe/view/plan_tables.hpp>
#include <pipe/view/pytorch/read_csv.hpp>
#include <pipe/view/pytorch/write_csv.hpp>
#include <pipe/view/svg.hpp>
#include <pipe/view/text.hpp>
// IWYU pragma: end_exports
#endif
