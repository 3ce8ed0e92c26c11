// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>

namespace support {

//! An empty folder that goes with the object.
class temporary_folder {
public:
  //! @param name what its name begins with
  explicit temporary_folder(std::string const& name) {
    path_ = std::filesystem::temp_directory_path().string() + '/' + name + "-XXXXXX";
    path_ = ::mkdtemp(path_.data());
  }
  temporary_folder(temporary_folder const&) = delete;
  temporary_folder& operator=(temporary_folder const&) = delete;
  ~temporary_folder() { std::filesystem::remove_all(path_); }
  [[nodiscard]] std::string const& path() const { return path_; }
  //! The names of what is in it.
  [[nodiscard]] std::set<std::string> files() const {
    std::set<std::string> names;
    for (auto const& each : std::filesystem::directory_iterator(path_))
      names.insert(each.path().filename().string());
    return names;
  }

private:
  std::string path_;
};

} // namespace support
