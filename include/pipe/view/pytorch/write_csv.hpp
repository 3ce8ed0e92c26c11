// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Writes the schedule files of torch.distributed.pipelining. Header for
//! pipelining::write_pytorch_csv. The format is described in <pipe/view/pytorch/read_csv.hpp>.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/view/append.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief The contents of a file: passes only, or also the messages between devices.
enum class pytorch_content : std::uint8_t { passes, passes_and_messages };

//! @brief The version of torch that reads a file with messages. All versions read a file without
//! them.
enum class pytorch_release : std::uint8_t {
  v2_10, //!< 2.10 to 2.14: a REDUCE_GRAD of each stage, in which gradients are divided by M
  v2_15  //!< 2.15: also a WAIT_REDUCE_GRAD of each stage, and a WAIT_SEND of each message
};

namespace detail {

//! Appends a cell to a row.
template <class... Part>
void append_cell(std::string& row, Part const&... parts) {
  append(row, row.empty() ? "" : ",", parts...);
}

//! The letter of torch's action for a pass, or 0 for passes that its file leaves out: gathers and
//! scatters of weights, and steps that the user's stages take within a backward pass:
//! recomputation, by checkpointing, and copies to the host, by hooks of saved tensors.
//! @throws std::invalid_argument for a pass of a user's own kind.
[[nodiscard]] inline char torch_letter(flow const& declared, pass const& what) {
  switch (declared[what.kind].calls) {
  case stage_call::forward: return 'F';
  case stage_call::backward: return 'B';
  case stage_call::backward_input: return 'I';
  case stage_call::backward_weight: return 'W';
  case stage_call::perform:
    throw std::invalid_argument(
      std::string("write_pytorch_csv: PyTorch's format has no action for kind ") +
      declared.word(what.kind) + "; it has forward and backward passes alone");
  default: return 0;
  }
}

//! True where forward passes read the stage before, and backward passes the stage after.
[[nodiscard]] constexpr bool trains_as_torch(flow const& declared) noexcept {
  bool goes_back = false;
  for (int kind = 0; kind < declared.kind_count; ++kind) {
    stage_call const calls = declared.kinds[kind].calls;
    bool const back = calls == stage_call::backward || calls == stage_call::backward_input;
    if (!declared.kinds[kind].exists() || (!back && calls != stage_call::forward))
      continue;
    kind_links const& links = declared.links[kind][1];
    if (links.input == kind_links::none || links.input_step != (back ? 1 : -1))
      return false;
    goes_back = goes_back || back;
  }
  return goes_back;
}

[[nodiscard]] inline std::string action_text(flow const& declared, pass const& what) {
  char const kind[] = {torch_letter(declared, what), '\0'};
  std::string text;
  append(text, what.stage, kind, what.microbatch);
  return text;
}

//! Appends entry i, with its other half where it is the first of a pair; nothing where torch has no
//! action for it. Returns the entries taken.
inline int append_entry(std::string& row, timetable_view order, int i, int end) {
  flow const& declared = *order.over.declared;
  pass const& first = order.passes[i];
  char const kind = torch_letter(declared, first);
  if (kind == 0)
    return 1;
  if (i + 1 == end || !order.passes[i + 1].overlapped) {
    append_cell(row, action_text(declared, first));
    return 1;
  }
  pass const& second = order.passes[i + 1];
  char const other = torch_letter(declared, second);
  if (kind != 'F' || (other != 'B' && other != 'I'))
    throw std::invalid_argument("write_pytorch_csv: PyTorch's pairs are of a forward pass and a "
                                "backward pass, not " +
                                action_text(declared, first) + " and " +
                                action_text(declared, second) + "; run such pairs in turn");
  append_cell(
    row, "(", action_text(declared, first), ";", action_text(declared, second), ")OVERLAP_F_B");
  return 2;
}

//! Puts passes and messages into one order that all devices can follow: whenever a pass has run,
//! its message is sent and received at once. The wait for a message forwards comes when its
//! gradient has been made, the wait for a message backwards at the end, as in torch itself.
class pytorch_message_writer {
public:
  pytorch_message_writer(timetable_view order, pytorch_release release)
      : order_(order), release_(release),
        rows_(static_cast<std::size_t>(order.over.extents.devices)), ends_(rows_.size()),
        done_(static_cast<std::size_t>(order.over.pass_indices()), 1),
        left_(static_cast<std::size_t>(order.over.extents.stages()),
              order.over.extents.microbatches),
        next_(order.offsets, order.offsets + order.over.extents.devices) {
    // Nobody waits for what is not in the file.
    for (int entry = 0; entry < order.size(); ++entry)
      if (is_action(entry))
        done_[index_of(order.passes[entry])] = 0;
  }

  [[nodiscard]] std::vector<std::string> write() {
    // Copies have rows of their own, which are not in the file.
    int left = order_.offsets[order_.over.extents.devices];
    for (int device = 0; device < order_.over.extents.devices; ++device)
      left -= write_marks(device); // before anything is received
    while (left > 0) {
      int ran = 0;
      for (int device = 0; device < order_.over.extents.devices; ++device)
        ran += run_next(device);
      if (ran == 0)
        throw std::invalid_argument(
          "write_pytorch_csv: the order of passes is circular; verify names the pass");
      left -= ran;
    }
    for (std::size_t device = 0; device < rows_.size(); ++device)
      rows_[device] += ends_[device];
    return std::move(rows_);
  }

private:
  [[nodiscard]] std::size_t index_of(pass const& what) const {
    return static_cast<std::size_t>(pass_index(order_.over, what));
  }
  [[nodiscard]] bool is_action(int entry) const {
    return torch_letter(*order_.over.declared, order_.passes[entry]) != 0;
  }

  [[nodiscard]] bool is_ready(pass const& what) const {
    dependency_list const needed(order_.over, what);
    for (int k = 0; k < needed.count; ++k)
      if (done_[static_cast<std::size_t>(needed.index(k))] == 0)
        return false;
    return true;
  }

  //! Leaves out what torch has no action for. Where weights are in shards, torch begins a gather
  //! when it is told to, and passes wait for it.
  int write_marks(int device) {
    int& next = next_[static_cast<std::size_t>(device)];
    int const first = next;
    for (; next < order_.offsets[device + 1] && !is_action(next); ++next) {
      pass const& what = order_.passes[next];
      std::string& row = rows_[static_cast<std::size_t>(device)];
      if (meets_gather(what.kind, does::makes, does::reads))
        append_cell(row, what.stage, "UNSHARD");
      if (meets_gather(what.kind, does::frees, does::makes))
        append_cell(row, what.stage, "RESHARD");
    }
    return next - first;
  }
  //! True when a kind does `what` with a datum with which a gather does `gather_does`.
  [[nodiscard]] bool meets_gather(pass_kind kind, does what, does gather_does) const {
    flow const& declared = *order_.over.declared;
    kind_of_pass const& one = declared[kind];
    for (kind_of_pass const& other : declared.kinds)
      for (int i = 0; i < one.effect_count; ++i)
        for (int k = 0; k < other.effect_count && other.calls == stage_call::gather_weights; ++k)
          if (one.effects[i].of == other.effects[k].of && one.effects[i].what == what &&
              other.effects[k].what == gather_does)
            return true;
    return false;
  }

  int run_next(int device) {
    int const marks = write_marks(device);
    int const i = next_[static_cast<std::size_t>(device)];
    int const end = order_.offsets[device + 1];
    bool const pair = i + 1 < end && order_.passes[i + 1].overlapped;
    if (i == end || !is_ready(order_.passes[i]) || (pair && !is_ready(order_.passes[i + 1])))
      return marks;
    int const ran = append_entry(rows_[static_cast<std::size_t>(device)], order_, i, end);
    for (int k = i; k < i + ran; ++k)
      finish(device, order_.passes[k]);
    next_[static_cast<std::size_t>(device)] += ran;
    return marks + ran;
  }

  void finish(int device, pass const& what) {
    done_[index_of(what)] = 1;
    auto const own = static_cast<std::size_t>(device);
    char const kind = torch_letter(*order_.over.declared, what);
    bool const forward = kind == 'F';
    int const consumer = receiver(order_.over, what);
    if (consumer != kind_links::none) {
      int const stage = reader_of(order_.over, what).stage;
      char const* const of = forward ? "F" : "B";
      append_cell(rows_[own], what.stage, "SEND_", of, what.microbatch);
      append_cell(rows_[static_cast<std::size_t>(consumer)], stage, "RECV_", of, what.microbatch);
      if (!forward && waits())
        append(ends_[own], ",", what.stage, "WAIT_SEND_B", what.microbatch);
    }
    if ((kind == 'B' || kind == 'I') && waits() && what.stage + 1 < order_.over.extents.stages() &&
        device_of(order_, what.stage + 1) != device)
      append_cell(rows_[own], what.stage, "WAIT_SEND_F", what.microbatch);
    if ((kind == 'B' || kind == 'W') && --left_[what.stage] == 0) {
      append_cell(rows_[own], what.stage, "REDUCE_GRAD");
      if (waits())
        append_cell(rows_[own], what.stage, "WAIT_REDUCE_GRAD");
    }
  }

  [[nodiscard]] bool waits() const { return release_ == pytorch_release::v2_15; }

  timetable_view order_;
  pytorch_release release_;
  std::vector<std::string> rows_;
  std::vector<std::string> ends_; // of every row: the waits after everything else
  std::vector<unsigned char> done_;
  std::vector<int> left_; // [S] microbatches whose weight gradients are missing
  std::vector<int> next_;
};

} // namespace detail

//! @brief Writes the order of a timetable as a file of torch.distributed.pipelining. Its times play
//! no part.
//!
//! Where messages are wanted, each is sent and received as soon as its pass has run, in one order
//! that all devices share, so no device waits in a circle. Such a file is complete for the release
//! of torch that it is written for, which would run no other: it has the scaling of gradients, and
//! the waits. Parameters are gathered (UNSHARD) and released (RESHARD) in it where
//! `with_sharded_weights` says so; torch scatters gradients once, with REDUCE_GRAD. Files without
//! messages leave that to torch. Recomputation and copies to the host are no actions of torch: its
//! stages do both within their passes, so a file has the order of the passes around them.
//!
//! @param release the torch that reads the file; of no effect without messages.
//! @throws std::invalid_argument where the format has no words: chunks of sequences, pairs of other
//! passes, passes of a user's own kinds, microbatches from both ends or on other ways than others,
//! stages that are no chain or hand on other things than in training, devices without a stage.
//! @complexity O(n) for n passes; with messages O(n P) in the worst case.
void write_pytorch_csv(text_sink auto& out,
                       timetable_view order,
                       pytorch_content content = pytorch_content::passes,
                       pytorch_release release = pytorch_release::v2_15) {
  if (order.over.extents.chunks > 1)
    throw std::invalid_argument("write_pytorch_csv: PyTorch's format has no chunks of sequences");
  if (order.over.extents.where == placement::bidirectional)
    throw std::invalid_argument(
      "write_pytorch_csv: PyTorch's format has one device for every stage, so microbatches "
      "cannot enter at both ends");
  if (order.over.extents.routes() > 1)
    throw std::invalid_argument("write_pytorch_csv: PyTorch's format has one device for every "
                                "stage, but here it depends on the microbatch");
  if (order.over.edges != nullptr)
    throw std::invalid_argument("write_pytorch_csv: PyTorch's stages are a chain");
  if (!detail::trains_as_torch(*order.over.declared))
    throw std::invalid_argument(
      "write_pytorch_csv: PyTorch's stages go forward and back: they hand "
      "activations to the stage after them and gradients to the one "
      "before, which this flow does not");
  std::vector<std::string> rows(static_cast<std::size_t>(order.over.extents.devices));
  if (content == pytorch_content::passes_and_messages) {
    rows = detail::pytorch_message_writer(order, release).write();
  } else {
    for (int device = 0; device < order.over.extents.devices; ++device)
      for (int i = order.offsets[device]; i < order.offsets[device + 1];)
        i += detail::append_entry(
          rows[static_cast<std::size_t>(device)], order, i, order.offsets[device + 1]);
  }
  auto const idle = std::find(rows.begin(), rows.end(), std::string());
  if (idle != rows.end())
    throw std::invalid_argument("write_pytorch_csv: device " + std::to_string(idle - rows.begin()) +
                                " has no pass, and PyTorch's format no device without a stage");
  for (std::string const& row : rows)
    append(out, row, "\n");
}

} // namespace pipelining::inline v0_3
