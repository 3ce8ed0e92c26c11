// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <tools/timetable/progress_line.hpp>
#include <unistd.h>

namespace {

//! What is written to stderr meanwhile.
class captured_stderr {
public:
  captured_stderr() : file_(std::tmpfile()), before_(dup(STDERR_FILENO)) {
    std::fflush(stderr);
    dup2(fileno(file_), STDERR_FILENO);
  }
  captured_stderr(captured_stderr const&) = delete;
  captured_stderr& operator=(captured_stderr const&) = delete;
  ~captured_stderr() {
    std::fflush(stderr);
    dup2(before_, STDERR_FILENO);
    close(before_);
    std::fclose(file_);
  }
  [[nodiscard]] std::string text() const {
    std::string all(4096, '\0');
    auto const size = pread(fileno(file_), all.data(), all.size(), 0);
    all.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
    return all;
  }

private:
  std::FILE* file_;
  int before_;
};

} // namespace

TEST_CASE("a single step that takes long does not do so in silence") {
  std::string written;
  {
    captured_stderr const captured;
    examples::progress_line line(1e9, 0.001, 0.05);
    line.say("the only step");
    // The step ends when it has been spoken of twice: no clock decides.
    while (written.find("the only step\n", written.find('\n') + 1) == std::string::npos) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      written = captured.text();
    }
    line.end();
    std::string const ended = captured.text();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(captured.text() == ended);
  }
  CHECK(written.find(" s: the only step\n") != std::string::npos);
}

TEST_CASE("what is short is done in silence") {
  captured_stderr const captured;
  {
    examples::progress_line line(0, 1000);
    line.say("a step");
    CHECK(!line.time_left());
  }
  CHECK(captured.text().empty());
}
