// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Trainings whose stages are no layers of one device: shards, exchanges, weights that
//! travel. An object of their own, so that two cores build the program side by side.

#include <optional>

#include "options.hpp"
#include "text.hpp"

namespace gpt {

//! Trains, checks and reports where the options ask for such stages.
//! @return the exit status of the program; nothing where every stage is whole on its device.
//! @throws as run_on_threads
std::optional<int> train_system(options o, text_to_learn const& text);

} // namespace gpt
