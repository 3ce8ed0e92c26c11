// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Writes the schedule files of torch.distributed.pipelining. Header for
//! pipelining::write_pytorch_csv. The format is described in <pipe/io/pytorch_actions.hpp>.

#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/io/append.hpp>
#include <pipe/timetable/dependencies.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pipelining::inline v0_1 {

//! @brief Whether a file has the messages between devices.
enum class pytorch_content : std::uint8_t { passes, passes_and_messages };

namespace detail {

//! Appends a cell to a row.
template <class... Part>
void append_cell(std::string& row, Part const&... parts) {
  append(row, row.empty() ? "" : ",", parts...);
}

[[nodiscard]] inline std::string action_text(pass const& what) {
  char const kind[] = {letter(what.kind), '\0'};
  std::string text;
  append(text, what.stage, kind, what.microbatch);
  return text;
}

//! Appends entry i, with its other half where it is the first of a pair. Returns the entries taken.
inline int append_entry(std::string& row, timetable_view order, int i, int end) {
  std::string const first = action_text(order.passes[i]);
  if (i + 1 == end || !order.passes[i + 1].overlapped) {
    append_cell(row, first);
    return 1;
  }
  append_cell(row, "(", first, ";", action_text(order.passes[i + 1]), ")OVERLAP_F_B");
  return 2;
}

//! Puts passes and messages into one order that all devices can follow: whenever a pass has run,
//! its message is sent and received at once.
class pytorch_message_writer {
public:
  explicit pytorch_message_writer(timetable_view order)
      : order_(order), rows_(static_cast<std::size_t>(order.extents.devices)),
        done_(static_cast<std::size_t>(pass_indices(order.extents))),
        next_(order.offsets, order.offsets + order.extents.devices) {}

  [[nodiscard]] std::vector<std::string> write() {
    int left = order_.size();
    while (left > 0) {
      int ran = 0;
      for (int device = 0; device < order_.extents.devices; ++device)
        ran += run_next(device);
      if (ran == 0)
        throw std::invalid_argument(
          "write_pytorch_csv: the order of passes is circular; verify names the pass");
      left -= ran;
    }
    return std::move(rows_);
  }

private:
  [[nodiscard]] bool is_ready(pass const& what) const {
    dependency_list const needed = dependencies(order_.extents, what);
    for (int k = 0; k < needed.count; ++k)
      if (done_[static_cast<std::size_t>(needed.index[k])] == 0)
        return false;
    return true;
  }

  int run_next(int device) {
    int const i = next_[static_cast<std::size_t>(device)];
    int const end = order_.offsets[device + 1];
    if (i == end)
      return 0;
    bool const pair = i + 1 < end && order_.passes[i + 1].overlapped;
    if (!is_ready(order_.passes[i]) || (pair && !is_ready(order_.passes[i + 1])))
      return 0;
    int const ran = append_entry(rows_[static_cast<std::size_t>(device)], order_, i, end);
    for (int k = i; k < i + ran; ++k)
      finish(device, order_.passes[k]);
    next_[static_cast<std::size_t>(device)] += ran;
    return ran;
  }

  void finish(int device, pass const& what) {
    done_[static_cast<std::size_t>(pass_index(order_.extents, what))] = 1;
    int const stage = consumer_stage(order_.extents, what);
    int const consumer = device_of(order_.extents, stage);
    if (stage == what.stage || consumer == device)
      return;
    char const* const of = what.kind == pass_kind::forward ? "F" : "B";
    append_cell(rows_[static_cast<std::size_t>(device)], what.stage, "SEND_", of, what.microbatch);
    append_cell(rows_[static_cast<std::size_t>(consumer)], stage, "RECV_", of, what.microbatch);
  }

  timetable_view order_;
  std::vector<std::string> rows_;
  std::vector<unsigned char> done_;
  std::vector<int> next_;
};

} // namespace detail

//! @brief Writes the order of a timetable as a file of torch.distributed.pipelining. Its times play
//! no part.
//!
//! Where messages are wanted, each is sent and received as soon as its pass has run, in one order
//! that all devices share, so no device waits in a circle.
//!
//! @throws std::invalid_argument where the format has no words: chunks of sequences, microbatches
//! from both ends.
//! @complexity O(n) for n passes; with messages O(n P) in the worst case.
template <text_sink Sink>
void write_pytorch_csv(Sink& out,
                       timetable_view order,
                       pytorch_content content = pytorch_content::passes) {
  if (order.extents.chunks > 1)
    throw std::invalid_argument("write_pytorch_csv: PyTorch's format has no chunks of sequences");
  if (order.extents.where == placement::bidirectional)
    throw std::invalid_argument(
      "write_pytorch_csv: PyTorch's format has one device for every stage, so microbatches "
      "cannot enter at both ends");
  std::vector<std::string> rows(static_cast<std::size_t>(order.extents.devices));
  if (content == pytorch_content::passes_and_messages) {
    rows = detail::pytorch_message_writer(order).write();
  } else {
    for (int device = 0; device < order.extents.devices; ++device)
      for (int i = order.offsets[device]; i < order.offsets[device + 1];)
        i += detail::append_entry(
          rows[static_cast<std::size_t>(device)], order, i, order.offsets[device + 1]);
  }
  for (std::string const& row : rows)
    append(out, row, "\n");
}

//! @brief The same, for an order without times.
template <text_sink Sink>
void write_pytorch_csv(Sink& out,
                       device_orders const& orders,
                       pytorch_content content = pytorch_content::passes) {
  timetable_view view{
    orders.extents, 0, orders.passes.data(), nullptr, nullptr, orders.offsets.data()};
  if (orders.extents.where == placement::custom)
    view.extents.custom_devices = orders.custom_devices.data();
  write_pytorch_csv(out, view, content);
}

} // namespace pipelining::inline v0_1
