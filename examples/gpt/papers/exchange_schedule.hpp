// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The schedule whose devices take over attention of each other, with sizes known at run
//! time.

#include <pipe/schedule/slim_pipe.hpp>

namespace gpt {

namespace pp = pipelining;

using exchange_schedule = pp::SlimPipeExchange<pp::dynamic, pp::dynamic>;

} // namespace gpt
