// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief State that a rank writes between two steps, to go on from it after a failure. Header for
//! pipelining::save_checkpoint and pipelining::agree_on_checkpoint.

#include <pipe/cluster/packed_state.hpp>
#include <pipe/cluster/rank_layout.hpp>
#include <pipe/cluster/run_text.hpp>
#include <pipe/cluster/socket.hpp>
#include <pipe/cluster/store.hpp>
#include <pipe/flow/quote.hpp>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <dirent.h>
#include <exception>
#include <fcntl.h>
#include <fstream>
#include <ios>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief The place of a rank's checkpoints, and their run.
struct checkpoint_place {
  //! A folder that survives the process; all ranks may share one. It is made where it is missing.
  std::string folder{};
  //! Names the files of this rank in the folder: "rank-3". One line without '/'.
  std::string owner{};
  //! Of what program, model and options these are, as lines `key=value`; see agree_on_text. Files
  //! that say otherwise are refused: to go on from them, or to write over them, would be a mistake.
  std::string about{};
  //! The layout of the run, so which rank has which stages; compared as `about` is.
  rank_layout layout{};
};

namespace detail {

inline constexpr std::string_view checkpoint_magic = "pipelining checkpoint ";
inline constexpr char checkpoint_format = '2';

//! 64 bits of a file's content. Finds what was torn, not what was forged.
[[nodiscard]] inline std::uint64_t checksum_of(std::string_view bytes) noexcept {
  std::uint64_t sum = 0x9e3779b97f4a7c15u + bytes.size();
  for (std::size_t at = 0; at < bytes.size(); at += sizeof sum) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
    sum = std::rotl(sum ^ word, 29) * 0xbf58476d1ce4e5b9u;
  }
  return sum ^ (sum >> 32);
}

[[nodiscard]] inline std::string checkpoint_path(checkpoint_place const& place, std::int64_t step) {
  return place.folder + '/' + place.owner + ".step-" + std::to_string(step);
}

//! A number that fills the whole text.
[[nodiscard]] inline std::optional<std::int64_t> read_step(std::string_view text) noexcept {
  std::int64_t value = 0;
  auto const [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc{} || end != text.data() + text.size() || value < 0)
    return std::nullopt;
  return value;
}

//! Calls `each(name)` for whatever is in a folder; for nothing where there is none.
template <class Each>
void for_names_in(std::string const& path, Each const& each) {
  if (DIR* const folder = ::opendir(path.c_str())) {
    while (dirent const* const entry = ::readdir(folder))
      each(std::string_view(entry->d_name));
    ::closedir(folder);
  }
}

//! The steps of all files of this rank, whole or not, ascending. Drafts are not among them.
[[nodiscard]] inline std::vector<std::int64_t> checkpoint_files(checkpoint_place const& place) {
  std::vector<std::int64_t> steps;
  std::string const begin = place.owner + ".step-";
  for_names_in(place.folder, [&](std::string_view name) {
    if (name.starts_with(begin))
      if (auto const step = read_step(name.substr(begin.size())))
        steps.push_back(*step);
  });
  std::sort(steps.begin(), steps.end());
  return steps;
}

//! Makes a folder and those above it. What cannot be made is found when a file is written there.
inline void make_folders(std::string const& path) {
  for (std::size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1))
    (void)::mkdir(path.substr(0, end).c_str(), S_IRWXU | S_IRWXG);
  (void)::mkdir(path.c_str(), S_IRWXU | S_IRWXG);
}

//! All that a file must be of, as lines.
[[nodiscard]] inline std::string checkpoint_text(checkpoint_place const& place, std::int64_t step) {
  return "owner=" + place.owner + "\nstep=" + std::to_string(step) + '\n' + lines_of(place.layout) +
         place.about;
}

//! The first two lines of a file: its format, sizes and checksums.
[[nodiscard]] inline std::string
checkpoint_head(std::string_view text, std::int64_t state_bytes, std::string_view state_sum) {
  return std::string(checkpoint_magic) + checkpoint_format + '\n' + std::to_string(text.size()) +
         ' ' + std::to_string(checksum_of(text)) + ' ' + std::to_string(state_bytes) + ' ' +
         std::string(state_sum) + '\n';
}

//! @throws std::runtime_error where something else than a file, or nothing, has this name.
inline void refuse_what_is_no_file(std::string const& path) {
  if (std::string const other = what_is_no_file(path); !other.empty())
    throw std::runtime_error("checkpoint: " + path + " is " + other +
                             ", not a file; remove it, or name another folder");
}

//! @throws std::runtime_error where a file is of something else than this run has.
inline void
refuse_elsewhere(std::string const& path, std::string const& text, std::string const& wanted) {
  std::string const difference = differing_lines("the file", text, "this run", wanted);
  if (!difference.empty())
    throw std::runtime_error("checkpoint: " + path + " belongs elsewhere: " + difference +
                             "; name another folder, give files their own names back, or go on "
                             "with the options of that run");
}

//! A file that is open at its state.
struct open_checkpoint {
  std::ifstream file;
  std::int64_t bytes = 0; //!< of the state
  std::string sum{};      //!< of the state
};

//! Opens the file of a step and holds what it says against what it must be of; nothing where it is
//! not whole. The state is not read.
//! @throws std::runtime_error where it is whole so far, but of something else.
[[nodiscard]] inline std::optional<open_checkpoint> find_checkpoint(checkpoint_place const& place,
                                                                    std::int64_t step) {
  std::string const path = checkpoint_path(place, step);
  refuse_what_is_no_file(path);
  open_checkpoint found{std::ifstream(path, std::ios::binary)};
  std::string magic;
  std::string number; // of bytes of the text
  std::getline(found.file, magic);
  std::getline(found.file, number, ' ');
  if (!found.file || !magic.starts_with(checkpoint_magic))
    return std::nullopt;
  if (magic.substr(checkpoint_magic.size()) != std::string(1, checkpoint_format))
    throw std::runtime_error("checkpoint: " + path + " has another format, " + quote(magic) +
                             "; go on with the version of the library that wrote it, or name "
                             "another folder");
  std::string rest;
  std::getline(found.file, rest);
  auto const begin = static_cast<std::int64_t>(found.file.tellg());
  auto const length = static_cast<std::int64_t>(found.file.seekg(0, std::ios::end).tellg()) - begin;
  auto const text_bytes = read_step(number);
  if (!found.file || !text_bytes || *text_bytes > length)
    return std::nullopt;
  std::string text(static_cast<std::size_t>(*text_bytes), '\0');
  found.file.seekg(begin).read(text.data(), static_cast<std::streamsize>(text.size()));
  found.bytes = length - *text_bytes;
  found.sum = rest.substr(rest.rfind(' ') + 1);
  if (!found.file ||
      magic + '\n' + number + ' ' + rest + '\n' != checkpoint_head(text, found.bytes, found.sum))
    return std::nullopt;
  refuse_elsewhere(path, text, checkpoint_text(place, step));
  return found;
}

//! The state in a file; nothing where the file is not whole.
//! @throws std::runtime_error where it is of something else.
[[nodiscard]] inline std::optional<std::string> read_checkpoint(checkpoint_place const& place,
                                                                std::int64_t step) {
  auto found = find_checkpoint(place, step);
  if (!found)
    return std::nullopt;
  std::string state(static_cast<std::size_t>(found->bytes), '\0');
  found->file.read(state.data(), static_cast<std::streamsize>(state.size()));
  if (!found->file || found->sum != std::to_string(checksum_of(state)))
    return std::nullopt;
  return state;
}

//! Everything, or the error of the first call that fails.
[[nodiscard]] inline bool write_all(int file, std::string_view bytes) noexcept {
  while (!bytes.empty()) {
    auto const written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR)
      continue;
    if (written <= 0)
      return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

//! Writes a file of a checkpoint in one go, by a draft that is renamed when it is on the disk.
//! @throws std::runtime_error where that fails; the draft is gone then.
inline void write_file(checkpoint_place const& place,
                       std::string const& path,
                       std::vector<std::string_view> const& parts) {
  std::string const draft = place.folder + '/' + place.owner + ".draft";
  refuse_what_is_no_file(draft);
  descriptor const file(::open(draft.c_str(),
                               O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK,
                               S_IRUSR | S_IWUSR | S_IRGRP));
  bool const written =
    file.get() >= 0 && std::all_of(parts.begin(), parts.end(), [&](std::string_view part) {
      return write_all(file.get(), part);
    });
  if (!written || ::fsync(file.get()) != 0 || std::rename(draft.c_str(), path.c_str()) != 0) {
    std::string const why = std::strerror(errno);
    (void)::unlink(draft.c_str());
    throw std::runtime_error("checkpoint: cannot write " + path + ": " + why +
                             "; the earlier ones are as they were");
  }
}

//! Waits until the entries of a folder are on its disk. @throws std::runtime_error otherwise.
inline void settle_folder(std::string const& path) {
  descriptor const folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0 || ::fsync(folder.get()) != 0)
    throw std::runtime_error("checkpoint: cannot write the folder " + path + ": " +
                             std::strerror(errno));
}

//! The newest step in all lists.
//! @param steps [ranks] the steps of each rank, ascending.
//! @return nothing where there is none, or no list.
[[nodiscard]] inline std::optional<std::int64_t>
newest_in_common(std::vector<std::vector<std::int64_t>> const& steps) {
  if (steps.empty())
    return std::nullopt;
  for (auto step = steps.front().rbegin(); step != steps.front().rend(); ++step)
    if (std::all_of(steps.begin(), steps.end(), [&](std::vector<std::int64_t> const& others) {
          return std::binary_search(others.begin(), others.end(), *step);
        }))
      return *step;
  return std::nullopt;
}

} // namespace detail

//! @brief Writes the state of this rank after `step` steps. When this returns, the file is on the
//! disk; a process that ends before leaves the earlier ones as they were.
//!
//! A draft is written, flushed and renamed, so a file of the final name is whole. Then older files
//! of this rank go, but for the newest `keep`. Two are enough where all ranks save after the same
//! steps: no rank ends a step before all have begun it, so when one has saved twice, all have once.
//!
//! @param step [count] how many steps the state has behind it.
//! @param state what the rank needs to go on, such as state_packer::bytes.
//! @pre keep >= 2, and no rank is further ahead than that of the slowest.
//! A process that limits the size of its files (ulimit -f) ignores SIGXFSZ, which would end it
//! here; then the error says so.
//!
//! @throws std::runtime_error where the file cannot be written, or this rank's files there are of
//! another run, none of which is touched then; std::invalid_argument where `owner` names no file.
//! @complexity O(bytes), and two flushes of the disk.
//! @source the order of calls: own derivation from POSIX write, fsync and rename.
inline void save_checkpoint(checkpoint_place const& place,
                            std::int64_t step,
                            std::string_view state,
                            std::size_t keep = 2) {
  if (place.owner.find_first_of("\n/") != std::string::npos)
    throw std::invalid_argument("checkpoint: checkpoint_place::owner must be one line without '/'");
  detail::make_folders(place.folder);
  for (std::int64_t const other : detail::checkpoint_files(place))
    (void)detail::find_checkpoint(place, other);
  std::string const text = detail::checkpoint_text(place, step);
  std::string const head = detail::checkpoint_head(
    text, static_cast<std::int64_t>(state.size()), std::to_string(detail::checksum_of(state)));
  detail::write_file(place, detail::checkpoint_path(place, step), {head, text, state});
  detail::settle_folder(place.folder);
  std::vector<std::int64_t> const steps = detail::checkpoint_files(place);
  for (std::size_t i = 0; i + keep < steps.size(); ++i)
    (void)::unlink(detail::checkpoint_path(place, steps[i]).c_str());
}

//! @brief The steps after which this rank has a whole checkpoint, ascending.
//! @throws std::runtime_error where a file is of another run. @complexity O(bytes of all files)
[[nodiscard]] inline std::vector<std::int64_t> checkpoints_of(checkpoint_place const& place) {
  std::vector<std::int64_t> steps = detail::checkpoint_files(place);
  std::erase_if(steps, [&](std::int64_t step) { return !detail::read_checkpoint(place, step); });
  return steps;
}

//! @brief Reads the state of this rank after `step` steps.
//! @throws std::runtime_error where it is missing, torn or of another run.
[[nodiscard]] inline std::string load_checkpoint(checkpoint_place const& place, std::int64_t step) {
  if (auto state = detail::read_checkpoint(place, step))
    return std::move(*state);
  throw std::runtime_error("checkpoint: " + detail::checkpoint_path(place, step) +
                           " is missing or not whole");
}

namespace detail {

//! Removes this rank's checkpoints after later steps than `step`: the run goes on from
//! there, and what it writes next must not meet what an earlier attempt has written.
inline void forget_checkpoints_after(checkpoint_place const& place, std::int64_t step) {
  for (std::int64_t const later : detail::checkpoint_files(place))
    if (later > step)
      (void)::unlink(detail::checkpoint_path(place, later).c_str());
}

//! All ranks choose the newest step that each of them has, and forget later ones. Collective.
//! @param mine returns the steps of this rank, ascending.
//! @param forget called with the chosen step, -1 where there is none.
template <run_store Store, class Mine, class Forget>
[[nodiscard]] std::optional<std::int64_t> agree_on_steps(Store& line,
                                                         int rank,
                                                         int size,
                                                         std::string const& name,
                                                         std::chrono::nanoseconds deadline,
                                                         Mine const& mine,
                                                         Forget const& forget) {
  auto const key = [&](int of) { return name + "/checkpoints/" + std::to_string(of); };
  std::vector<std::vector<std::int64_t>> all;
  try {
    state_packer steps;
    steps(mine());
    line.set(key(rank), steps.bytes());
    for (int other = 0; other < size; ++other) {
      std::string const said = line.get(key(other), deadline);
      state_unpacker{said}(all.emplace_back());
    }
    std::optional<std::int64_t> const chosen = newest_in_common(all);
    forget(chosen.value_or(-1));
    // Nobody writes a new one while others still have old ones of the same step.
    line.barrier(name + "/chosen", size, deadline);
    return chosen;
  } catch (std::exception const& error) {
    line.abort("rank " + std::to_string(rank) + " cannot go on from a checkpoint: " + error.what());
    throw;
  }
}

} // namespace detail

//! @brief All ranks choose the newest checkpoint that each of them has whole, and forget later
//! ones. Collective.
//! @param rank in the store, which has `size` of them.
//! @param name tells what ranks say here apart; used once in a store, such as "attempt 2".
//! @return how many steps all ranks have behind them there; nothing: they begin at the beginning.
//! @throws std::runtime_error where a rank cannot take part, on all ranks; deadline_error past the
//! deadline.
//! @complexity O(size) values from the store, and O(bytes of this rank's files).
template <run_store Store>
[[nodiscard]] std::optional<std::int64_t> agree_on_checkpoint(Store& line,
                                                              checkpoint_place const& place,
                                                              int rank,
                                                              int size,
                                                              std::string const& name,
                                                              std::chrono::nanoseconds deadline) {
  return detail::agree_on_steps(
    line,
    rank,
    size,
    name,
    deadline,
    [&] { return checkpoints_of(place); },
    [&](std::int64_t chosen) { detail::forget_checkpoints_after(place, chosen); });
}

} // namespace pipelining::inline v0_3
