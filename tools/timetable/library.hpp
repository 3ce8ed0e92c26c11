// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What every verb opens, as all of them compile together: the doors of the library, its
//! schedules by name, and what is used of the standard library.

#include <pipe/pipe.hpp>
#include <pipe/planner.hpp>
#include <pipe/planner/registry/adapters.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/view.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "options.hpp"
#include "tools/support/decimals.hpp"
