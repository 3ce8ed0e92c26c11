// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The readers of files and of the store's frames, a fuzzer each.

#include <string_view>

namespace fuzz {

//! A schedule file of PyTorch.
void read_csv(std::string_view text);
//! A timetable as CSV or, after a brace, as JSON.
void read_timetable(std::string_view text);
//! A file of costs.
void read_cost_file(std::string_view text);
//! A model's file, for the GPU "a100".
void read_model_file(std::string_view text);
//! A GPU's file, for the model "gpt-7b".
void read_gpu_file(std::string_view text);
//! A layout of stages.
void read_layout_text(std::string_view text);
//! A rank's file of tensors and its index: "raw\n" or "sums\n", the header's JSON, "---\n", the
//! index, "---\n" and the numbers. With "sums" the index is one that fits them.
void read_tensor_files(std::string_view text);
//! What connections send to a store: a line each, of its connection ('a' to 'c'), 'f' and a frame
//! or 'b' and bytes. In a line "\0" is a zero byte.
void read_frames(std::string_view text);
//! The file of a store, for the job "job".
void read_address(std::string_view text);
//! Variables of launchers, NAME=VALUE in a line each.
void read_launch_variables(std::string_view text);
//! What a store says to a rank, as lines of read_frames without the connection.
void read_answers(std::string_view text);

//! Choices of a flow, a pipeline and an order, a byte each: see support::dice.
void read_flow(std::string_view choices);

} // namespace fuzz
