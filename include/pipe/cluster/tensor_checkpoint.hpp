// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Checkpoints of named tensors, which any layout of ranks and stages can go on from. Header
//! for pipelining::save_tensors and pipelining::load_tensors.

#include <pipe/cluster/checkpoint.hpp>
#include <pipe/cluster/rank_layout.hpp>
#include <pipe/cluster/run_text.hpp>
#include <pipe/cluster/safetensors.hpp>
#include <pipe/cluster/socket.hpp>
#include <pipe/cluster/store.hpp>
#include <pipe/cluster/tensor_index.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <type_traits>
#include <unistd.h>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief A tensor of the state of a run, or a box of one, and where its numbers lie here.
struct state_tensor {
  std::string name{};                //!< in the whole model, such as "layers.3.up.value"
  std::string dtype{};               //!< as safetensors calls it: "F32", "U8"
  std::vector<std::int64_t> shape{}; //!< of what is here
  std::span<std::byte> bytes{};      //!< its numbers, row by row
  std::vector<std::int64_t> whole{}; //!< shape of the whole tensor; empty: all of it is here
  std::vector<std::int64_t> first{}; //!< where in it the box begins; empty: at its beginning
};

//! @brief The bytes that `load_tensors` has read.
struct loaded_bytes {
  std::int64_t read = 0;  //!< [bytes] of tensors, from all files
  std::int64_t moved = 0; //!< [bytes] of these that another rank has written
};

//! @brief All numbers of a vector as a tensor. They must stay where they are while it is in use.
//! @param shape empty: one axis.
template <class T>
requires std::is_arithmetic_v<T>
[[nodiscard]] state_tensor
tensor_of(std::string name, std::vector<T>& numbers, std::vector<std::int64_t> shape = {}) {
  if (shape.empty())
    shape = {static_cast<std::int64_t>(numbers.size())};
  char const kind = std::is_floating_point_v<T> ? 'F' : std::is_signed_v<T> ? 'I' : 'U';
  return {.name = std::move(name),
          .dtype = kind + std::to_string(8 * sizeof(T)),
          .shape = std::move(shape),
          .bytes = std::as_writable_bytes(std::span<T>(numbers))};
}

namespace detail {

//! A step is not whole: files are missing, torn or changed. Another one may be.
class torn_checkpoint : public std::runtime_error {
public:
  using std::runtime_error::runtime_error;
};

inline constexpr std::string_view index_ending = ".index.json";
inline constexpr std::string_view tensors_ending = ".safetensors";

[[nodiscard]] inline tensor_box box_of(state_tensor const& tensor) {
  return {tensor.first.empty() ? std::vector<std::int64_t>(tensor.shape.size()) : tensor.first,
          tensor.shape};
}
[[nodiscard]] inline std::vector<std::int64_t> const& whole_of(state_tensor const& tensor) {
  return tensor.whole.empty() ? tensor.shape : tensor.whole;
}

//! @throws std::invalid_argument where a tensor is not in its whole, or has not the bytes of it.
inline void check_tensor(state_tensor const& tensor) {
  auto const refuse = [&](std::string const& what) {
    throw std::invalid_argument("checkpoint: tensor " + json_text(tensor.name) + ' ' + what);
  };
  if (auto const wrong = wrong_with(box_of(tensor), whole_of(tensor)); !wrong.empty())
    refuse(wrong);
  if (bytes_of_tensor(tensor.dtype, tensor.shape) != static_cast<std::int64_t>(tensor.bytes.size()))
    refuse("has " + std::to_string(tensor.bytes.size()) + " bytes here, but not its shape " +
           list_of(tensor.shape) + " of " + tensor.dtype);
}

[[nodiscard]] inline std::string_view text_of(std::span<std::byte const> bytes) noexcept {
  return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}

//! A file of a checkpoint, by what its name says.
struct checkpoint_file {
  std::string owner{};
  std::int64_t step = 0;
  std::string_view ending{};

  [[nodiscard]] std::string name() const {
    return owner + ".step-" + std::to_string(step) + std::string(ending);
  }
};

//! Takes the name of a file of tensors, or of an index, apart; nothing for any other name.
[[nodiscard]] inline std::optional<checkpoint_file> read_file_name(std::string_view name) {
  for (std::string_view const ending : {index_ending, tensors_ending})
    if (std::size_t const at = name.rfind(".step-"); at != name.npos && name.ends_with(ending)) {
      std::string_view const digits = name.substr(at + 6, name.size() - at - 6 - ending.size());
      checkpoint_file found{std::string(name.substr(0, at)), 0, ending};
      found.step = read_number<std::int64_t>(digits).value_or(-1);
      if (found.name() == name)
        return found;
    }
  return std::nullopt;
}

//! All files of tensors in a folder, and their indices.
[[nodiscard]] inline std::vector<checkpoint_file> tensor_files(std::string const& path) {
  std::vector<checkpoint_file> found;
  for_names_in(path, [&](std::string_view name) {
    if (auto file = read_file_name(name))
      found.push_back(std::move(*file));
  });
  return found;
}

//! The owners of the indices after `step` steps: this one first, the others by name.
[[nodiscard]] inline std::vector<std::string> owners_of(checkpoint_place const& place,
                                                        std::int64_t step) {
  std::set<std::string> others;
  for (checkpoint_file const& each : tensor_files(place.folder))
    if (each.step == step && each.ending == index_ending)
      others.insert(each.owner);
  std::vector<std::string> owners;
  if (others.erase(place.owner) != 0)
    owners.push_back(place.owner);
  owners.insert(owners.end(), others.begin(), others.end());
  return owners;
}

//! The steps of the indices of this rank, or of all ranks, ascending.
[[nodiscard]] inline std::vector<std::int64_t> indexed_steps(checkpoint_place const& place,
                                                             bool of_all) {
  std::set<std::int64_t> steps;
  for (checkpoint_file const& each : tensor_files(place.folder))
    if (each.ending == index_ending && (of_all || each.owner == place.owner))
      steps.insert(each.step);
  return {steps.begin(), steps.end()};
}

//! Removes the files of all ranks whose step is in [first, last): indices first, so that no index
//! speaks of a file that is gone.
inline void remove_steps(checkpoint_place const& place, std::int64_t first, std::int64_t last) {
  auto const files = tensor_files(place.folder);
  for (std::string_view const ending : {index_ending, tensors_ending})
    for (checkpoint_file const& each : files)
      if (each.ending == ending && each.step >= first && each.step < last)
        (void)::unlink((place.folder + '/' + each.name()).c_str());
}

//! A file that is open for reading.
class open_file {
public:
  //! @throws torn_checkpoint where it cannot be opened; std::runtime_error where it is no file.
  explicit open_file(std::string path) : path_(std::move(path)) {
    refuse_what_is_no_file(path_);
    file_ = descriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat found {};
    if (file_.get() < 0 || ::fstat(file_.get(), &found) != 0)
      torn(std::strerror(errno));
    bytes_ = found.st_size;
  }
  [[nodiscard]] std::int64_t size() const noexcept { return bytes_; }
  //! Fills `to` with what stands there from byte `at` on. @throws torn_checkpoint
  void read(std::int64_t at, std::span<std::byte> to) const {
    while (!to.empty()) {
      auto const count = ::pread(file_.get(), to.data(), to.size(), at);
      if (count < 0 && errno == EINTR)
        continue;
      if (count <= 0)
        torn(count < 0 ? std::strerror(errno) : "it ends early");
      at += count;
      to = to.subspan(static_cast<std::size_t>(count));
    }
  }
  [[nodiscard]] std::string read(std::int64_t at, std::int64_t count) const {
    std::string text(static_cast<std::size_t>(count), '\0');
    read(at, std::as_writable_bytes(std::span(text)));
    return text;
  }
  [[noreturn]] void torn(std::string const& why) const {
    throw torn_checkpoint("checkpoint: " + path_ + " is not whole: " + why);
  }
  [[nodiscard]] std::string const& path() const noexcept { return path_; }

private:
  std::string path_;
  descriptor file_;
  std::int64_t bytes_ = 0;
};

//! A tensor in a file, or a box of one.
struct saved_tensor {
  safetensor of{};
  std::vector<std::int64_t> whole{};
  tensor_box box{};
  std::string sum{};
};

//! One rank's file, by what its index and its header say. It is closed: there may be thousands.
struct saved_file {
  std::string owner{};
  std::string path{};
  std::int64_t head_bytes = 0;
  std::map<std::string, saved_tensor> tensors{};
};

//! The key of the metadata that has the box of a tensor.
[[nodiscard]] inline std::string box_key(std::string const& name) {
  return "box of " + name;
}

//! The metadata of a file's header, but for boxes: its owner, step, run and layout.
[[nodiscard]] inline std::map<std::string, std::string>
file_metadata(checkpoint_place const& place, std::string const& owner, std::int64_t step) {
  return {{"owner", owner},
          {"step", std::to_string(step)},
          {"about", place.about},
          {"layout", lines_of(place.layout)}};
}

//! @throws std::runtime_error where a file is of another rank, step or run than its name and this
//! run say.
inline void refuse_foreign(checkpoint_place const& place,
                           checkpoint_file const& name,
                           std::string const& path,
                           std::map<std::string, std::string> const& says) {
  auto const value = [&](char const* key) {
    auto const found = says.find(key);
    return found == says.end() ? std::string() : found->second;
  };
  refuse_elsewhere(path,
                   "owner=" + value("owner") + "\nstep=" + value("step") + '\n' + value("about"),
                   "owner=" + name.owner + "\nstep=" + std::to_string(name.step) + '\n' +
                     place.about);
}

//! The whole and the box of a tensor in a file, which stand in its metadata where they differ.
inline void read_box(saved_tensor& tensor, std::map<std::string, std::string> const& metadata) {
  tensor.whole = tensor.of.shape;
  tensor.box = {std::vector<std::int64_t>(tensor.of.shape.size()), tensor.of.shape};
  auto const found = metadata.find(box_key(tensor.of.name));
  if (found == metadata.end())
    return;
  tensor.whole.clear();
  tensor.box.first.clear();
  json_cursor<std::runtime_error> at(found->second);
  at.list([&] { tensor.whole.push_back(at.number()); });
  at.list([&] { tensor.box.first.push_back(at.number()); });
  at.end();
  if (auto const wrong = wrong_with(tensor.box, tensor.whole); !wrong.empty())
    at.fail("tensor " + json_text(tensor.of.name) + ' ' + wrong);
}

//! Opens the file of a rank and its index, and holds one against the other.
//! @throws torn_checkpoint where they are not whole; std::runtime_error where they are of another
//! rank, step or run.
[[nodiscard]] inline saved_file
open_saved(checkpoint_place const& place, std::string const& owner, std::int64_t step) {
  checkpoint_file const index_name{owner, step, index_ending};
  checkpoint_file const name{owner, step, tensors_ending};
  open_file const index_file(place.folder + '/' + index_name.name());
  open_file const file(place.folder + '/' + name.name());
  saved_file found{.owner = owner, .path = file.path()};
  tensor_index index;
  safetensors_header header;
  std::string head;
  if (index_file.size() > largest_safetensors_header)
    index_file.torn("it has more bytes than a header of its file may have");
  std::string const text = index_file.read(0, index_file.size());
  try {
    index = read_index(text);
  } catch (std::runtime_error const& error) {
    index_file.torn(error.what());
  }
  if (index.file != name.name())
    throw std::runtime_error("checkpoint: " + index_file.path() +
                             " belongs elsewhere: it is the index of " + index.file +
                             "; give files their own names back");
  try {
    head = file.read(0, std::min(file.size(), std::int64_t{8}));
    head = file.read(0, safetensors_head_bytes(file.path(), head, file.size()));
    header = read_safetensors_head(file.path(), head, file.size());
    for (safetensor const& each : header.tensors) {
      saved_tensor& tensor = found.tensors[each.name] = {.of = each};
      read_box(tensor, header.metadata);
    }
  } catch (torn_checkpoint const&) {
    throw;
  } catch (std::runtime_error const& error) {
    throw torn_checkpoint("checkpoint: " + std::string(error.what()));
  }
  if (checksum_text(crc32_of(head)) != index.head_sum) {
    if (header.metadata["owner"] != owner || header.metadata["step"] != std::to_string(step))
      refuse_foreign(place, name, file.path(), header.metadata);
    file.torn("its header is another one than its index has seen");
  }
  refuse_foreign(place, name, file.path(), header.metadata);
  if (index.sums.size() != found.tensors.size() || index.bytes != file.size() - header.bytes)
    file.torn("its tensors are others than its index has seen");
  for (auto& [key, tensor] : found.tensors) {
    auto const sum = index.sums.find(key);
    if (sum == index.sums.end())
      file.torn("its index does not know tensor " + json_text(key));
    tensor.sum = sum->second;
  }
  found.head_bytes = header.bytes;
  return found;
}

//! A tensor of a file of which some numbers are wanted.
struct chosen_tensor {
  saved_file const* file = nullptr;
  saved_tensor const* tensor = nullptr;
};

//! Finds the tensors of the files that have the numbers of a wanted one: each number once. Of the
//! copies that replicas write, the first counts.
//! @throws torn_checkpoint where some are missing, or stand in boxes that overlap;
//! std::runtime_error where the tensor is another one.
[[nodiscard]] inline std::vector<chosen_tensor> choose_saved(state_tensor const& wanted,
                                                             std::vector<saved_file> const& files,
                                                             std::string const& where) {
  tensor_box const box = box_of(wanted);
  std::vector<chosen_tensor> chosen;
  std::int64_t count = 0;
  for (saved_file const& file : files) {
    auto const found = file.tensors.find(wanted.name);
    if (found == file.tensors.end())
      continue;
    saved_tensor const& saved = found->second;
    auto const& whole = whole_of(wanted);
    if (saved.of.dtype != wanted.dtype || saved.whole != whole)
      throw std::runtime_error("checkpoint: " + file.path + " is of another model: tensor " +
                               json_text(wanted.name) + " is " + saved.of.dtype +
                               list_of(saved.whole) + " there, and " + wanted.dtype +
                               list_of(whole) + " in this run");
    std::int64_t const common = numbers_of(common_of(saved.box, box));
    if (common == 0)
      continue;
    bool copy = false;
    for (chosen_tensor const& other : chosen) {
      bool const same = other.tensor->box == saved.box;
      copy = copy || same;
      if (same ? other.tensor->sum != saved.sum
               : numbers_of(common_of(other.tensor->box, common_of(saved.box, box))) != 0)
        throw torn_checkpoint("checkpoint: " + file.path + " and " + other.file->path +
                              " have other numbers of tensor " + json_text(wanted.name) +
                              " in the same place");
    }
    if (!copy) {
      chosen.push_back({&file, &saved});
      count += common;
    }
  }
  if (count != numbers_of(box))
    throw torn_checkpoint("checkpoint: " + where + " has " + std::to_string(count) + " of " +
                          std::to_string(numbers_of(box)) + " numbers of tensor " +
                          json_text(wanted.name) + "; a rank's file is missing or not whole");
  return chosen;
}

//! The numbers of all wanted tensors as they were saved, in their order.
//! @throws as open_saved and choose_saved, and torn_checkpoint where numbers have changed.
[[nodiscard]] inline std::vector<std::vector<std::byte>>
read_tensors(checkpoint_place const& place,
             std::int64_t step,
             std::span<state_tensor const> wanted,
             loaded_bytes& counted) {
  std::string const where = place.folder + " after step " + std::to_string(step);
  std::vector<saved_file> files;
  for (std::string const& owner : owners_of(place, step))
    files.push_back(open_saved(place, owner, step));
  std::vector<std::vector<std::byte>> numbers;
  std::vector<std::byte> piece;
  for (state_tensor const& each : wanted) {
    check_tensor(each);
    numbers.emplace_back(each.bytes.size());
    for (auto const& [file, tensor] : choose_saved(each, files, where)) {
      piece.resize(static_cast<std::size_t>(tensor->of.end - tensor->of.begin));
      open_file const saved(file->path);
      saved.read(file->head_bytes + tensor->of.begin, piece);
      if (checksum_text(crc32_of(text_of(piece))) != tensor->sum)
        saved.torn("the numbers of tensor " + json_text(each.name) + " are not those it had");
      copy_common(tensor->box, piece, box_of(each), numbers.back(), bytes_of_dtype(each.dtype));
      counted.read += static_cast<std::int64_t>(piece.size());
      counted.moved += file->owner == place.owner ? 0 : static_cast<std::int64_t>(piece.size());
    }
  }
  return numbers;
}

//! The file of some tensors: its bytes before the numbers, and its index.
struct tensor_draft {
  std::vector<std::string_view> parts{}; //!< in the order of the file, but for the head
  std::string head{};
  tensor_index index{};
};

[[nodiscard]] inline tensor_draft
draft_of(checkpoint_place const& place, std::int64_t step, std::span<state_tensor const> tensors) {
  tensor_draft draft;
  std::vector<safetensor> laid_out;
  std::map<std::string_view, std::string_view> numbers;
  auto metadata = file_metadata(place, place.owner, step);
  for (state_tensor const& each : tensors) {
    check_tensor(each);
    laid_out.push_back({.name = each.name, .dtype = each.dtype, .shape = each.shape});
    numbers[each.name] = text_of(each.bytes);
    if (whole_of(each) != each.shape)
      metadata[box_key(each.name)] = list_of(whole_of(each)) + ' ' + list_of(box_of(each).first);
  }
  lay_out(laid_out);
  for (safetensor const& each : laid_out) {
    draft.parts.push_back(numbers.at(each.name));
    draft.index.sums[each.name] = checksum_text(crc32_of(draft.parts.back()));
    draft.index.bytes = each.end;
  }
  draft.head = safetensors_head(laid_out, metadata);
  draft.index.file = checkpoint_file{place.owner, step, tensors_ending}.name();
  draft.index.head_sum = checksum_text(crc32_of(draft.head));
  return draft;
}

} // namespace detail

//! @brief Writes the tensors that this rank has, after `step` steps: OWNER.step-N.safetensors, and
//! OWNER.step-N.index.json with checksums of it. When this returns, both are on the disk; a process
//! that ends before leaves the earlier ones as they were.
//!
//! Ranks write at the same time and need not know of each other. Where two of them have the same
//! tensor, as replicas do, both or one may write it. A file without an index does not count. Older
//! files in the folder go then, of all ranks, but for the newest `keep` of this rank. Two are
//! enough where all ranks save after the same steps: no rank ends a step before all have begun it,
//! so when one has saved twice, all have once.
//!
//! A process that limits the size of its files (ulimit -f) ignores SIGXFSZ, which would end it
//! here; then the error says so.
//!
//! @param step [count] how many steps the state has done.
//! @param place `layout` is written, and not compared: another one can load what is written here.
//! @pre keep >= 2, and no rank is further ahead than that of the slowest.
//! @throws std::runtime_error where a file cannot be written, or those of this rank are of another
//! run, none of which is touched then; std::invalid_argument where `owner` names no file, or a
//! tensor has a name that is taken, an unknown dtype, or not the bytes of its shape.
//! @complexity O(bytes), and three flushes of the disk.
//! @source the order of calls: own derivation from POSIX write, fsync and rename.
inline void save_tensors(checkpoint_place const& place,
                         std::int64_t step,
                         std::span<state_tensor const> tensors,
                         std::size_t keep = 2) {
  if (place.owner.find_first_of("\n/") != std::string::npos || !detail::is_utf8(place.owner) ||
      !detail::is_utf8(place.about))
    throw std::invalid_argument(
      "checkpoint: checkpoint_place::owner must be one line without '/', and `about` UTF-8");
  detail::make_folders(place.folder);
  for (std::int64_t const other : detail::indexed_steps(place, false))
    try {
      (void)detail::open_saved(place, place.owner, other);
    } catch (detail::torn_checkpoint const&) { // is no other run's
    }
  detail::tensor_draft draft = detail::draft_of(place, step, tensors);
  std::string const index = detail::index_text(draft.index);
  detail::checkpoint_file const name{place.owner, step, detail::index_ending};
  draft.parts.insert(draft.parts.begin(), draft.head);
  detail::write_file(place, place.folder + '/' + draft.index.file, draft.parts);
  detail::write_file(place, place.folder + '/' + name.name(), {index});
  detail::settle_folder(place.folder);
  std::vector<std::int64_t> const steps = detail::indexed_steps(place, false);
  if (steps.size() > keep)
    detail::remove_steps(place, 0, steps[steps.size() - keep]);
}

//! @brief Reads the tensors that this rank has now, after `step` steps, whichever ranks have
//! written them: of each file the tensors that are wanted, or parts of them.
//!
//! Nothing is overwritten before all has been read and held against its checksums.
//! @param wanted named as they were saved; a box may be another one.
//! @throws std::runtime_error where numbers are missing, torn or changed, or files are of another
//! rank, step, run or model.
//! @complexity O(bytes of the tensors that are wanted), twice in memory; a tensor in a file is read
//! as a whole, since its checksum is of all of it.
inline loaded_bytes load_tensors(checkpoint_place const& place,
                                 std::int64_t step,
                                 std::span<state_tensor const> wanted) {
  loaded_bytes counted;
  auto const numbers = detail::read_tensors(place, step, wanted, counted);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    std::copy(numbers[i].begin(), numbers[i].end(), wanted[i].bytes.begin());
  return counted;
}

//! @brief The steps after which the folder has all tensors that this rank wants, whole, ascending.
//! @throws std::runtime_error where a file is of another rank, step, run or model.
//! @complexity as load_tensors, for each step.
[[nodiscard]] inline std::vector<std::int64_t>
checkpoints_of(checkpoint_place const& place, std::span<state_tensor const> wanted) {
  std::vector<std::int64_t> steps = detail::indexed_steps(place, true);
  std::erase_if(steps, [&](std::int64_t step) {
    try {
      loaded_bytes counted;
      (void)detail::read_tensors(place, step, wanted, counted);
      return false;
    } catch (detail::torn_checkpoint const&) {
      return true;
    }
  });
  return steps;
}

//! @brief All ranks choose the newest checkpoint that has all tensors that each of them wants, and
//! forget later ones. Collective.
//! @param rank in the store, which has `size` of them.
//! @param name tells what ranks say here apart; used once in a store, such as "attempt 2".
//! @return how many steps all ranks have done there; nothing: they begin at the beginning.
//! @throws std::runtime_error where a rank cannot take part, on all ranks; deadline_error past the
//! deadline.
//! @complexity O(size) values from the store, and as checkpoints_of.
template <run_store Store>
[[nodiscard]] std::optional<std::int64_t> agree_on_checkpoint(Store& line,
                                                              checkpoint_place const& place,
                                                              std::span<state_tensor const> wanted,
                                                              int rank,
                                                              int size,
                                                              std::string const& name,
                                                              std::chrono::nanoseconds deadline) {
  auto const key = [&](int of) { return name + "/checkpoints/" + std::to_string(of); };
  try {
    std::string mine;
    for (std::int64_t const step : checkpoints_of(place, wanted))
      mine += std::to_string(step) + '\n';
    line.set(key(rank), mine);
    std::vector<std::vector<std::int64_t>> all;
    for (int other = 0; other < size; ++other) {
      std::string const said = line.get(key(other), deadline);
      all.emplace_back();
      for (std::string_view rest = said; !rest.empty();)
        all.back().push_back(
          detail::read_number<std::int64_t>(detail::take_line(rest)).value_or(-1));
    }
    std::optional<std::int64_t> const chosen = detail::newest_in_common(all);
    detail::remove_steps(place, chosen.value_or(-1) + 1, std::numeric_limits<std::int64_t>::max());
    // Nobody writes a new one while others still have old ones of the same step.
    line.barrier(name + "/chosen", size, deadline);
    return chosen;
  } catch (std::exception const& error) {
    line.abort("rank " + std::to_string(rank) + " cannot go on from a checkpoint: " + error.what());
    throw;
  }
}

} // namespace pipelining::inline v0_3
