// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Where checkpoints lie, and files that are there as a whole or not at all. Header for
//! pipelining::checkpoint_place.

#include <pipe/cluster/rank_layout.hpp>
#include <pipe/cluster/run_text.hpp>
#include <pipe/cluster/socket.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
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
  //! The layout of the run, so which rank has which stages; it is written, and not compared.
  rank_layout layout{};
};

namespace detail {

//! Calls `each(name)` for whatever is in a folder; for nothing where there is none.
template <class Each>
void for_names_in(std::string const& path, Each const& each) {
  if (DIR* const folder = ::opendir(path.c_str())) {
    while (dirent const* const entry = ::readdir(folder))
      each(std::string_view(entry->d_name));
    ::closedir(folder);
  }
}

//! Makes a folder and those above it. What cannot be made is found when a file is written there.
inline void make_folders(std::string const& path) {
  for (std::size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1))
    (void)::mkdir(path.substr(0, end).c_str(), S_IRWXU | S_IRWXG);
  (void)::mkdir(path.c_str(), S_IRWXU | S_IRWXG);
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

} // namespace pipelining::inline v0_3
