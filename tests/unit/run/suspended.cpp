// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Steps on threads that liveness_test.py stops in the middle. Says "begun" and "ended".
#include <pipe/plan/lower.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <chrono>
#include <cstdio>
#include <exception>
#include <thread>
#include <vector>

namespace pp = pipelining;

namespace {

constexpr auto pass_time = std::chrono::milliseconds(25);

struct slow_stage {
  void forward(pp::context const&, pp::input, pp::output) {
    std::this_thread::sleep_for(pass_time);
  }
  void backward(pp::context const&, pp::input, pp::output) {
    std::this_thread::sleep_for(pass_time);
  }
};

void say(char const* word) {
  std::puts(word);
  std::fflush(stdout);
}

} // namespace

int main() {
  try {
    std::vector<slow_stage> model(3);
    pp::thread_runner runner(pp::lower(pp::make_timetable<pp::OneFOneB>({3, 4})),
                             model,
                             {.deadline = std::chrono::milliseconds(400)});
    runner.step();
    say("begun");
    runner.step();
    runner.step();
    say("ended");
    return 0;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
