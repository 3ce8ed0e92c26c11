// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The front door on GPUs of several kinds, in programs that are compiled for several.
#include <pipe/attention/key_splits.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "calls.hpp"
#include "simulators/cuda/standin.hpp"
#include "tests/support/attention_call.hpp"

namespace {

using namespace gpu_tests;
using namespace device_tests;

//! The machine of the stand-in gets GPUs of this compute capability.
void plug_in(int major, int minor) {
  standin::configuration machine;
  machine.compute_major = major;
  machine.compute_minor = minor;
  standin::configure(machine);
}

void check_answers(program const& calls, std::string const& family) {
  attention_call c;
  attention_answers const expected(c);
  device_array<float> scratch(c.scratch_count());
  CHECK(at::name_of(calls.forward(c.p, c.forward(), nullptr, 0, nullptr).family) == family);
  CHECK(at::name_of(
          calls.backward(c.p, c.backward(), scratch.data(), scratch.count(), nullptr).family) ==
        family);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(standin::summary() == "");
  c.output.fetch();
  c.lse.fetch();
  CHECK(apart(c.output.numbers(), expected.output) < 0.03); // two roundings of the largest |v|
  CHECK(apart(c.lse.numbers(), expected.lse) < 1e-4);
  check_gradients(c, expected);
}

} // namespace

TEST_CASE("on gpu: what is chosen, by GPU and by program, and the word for it") {
  using at::choice_reason;
  using at::kernel_choice;
  constexpr auto portable = at::kernel_family::portable;
  struct expectation {
    int major, minor;
    program const* calls;
    kernel_choice chosen;
  };
  for (auto const& e : {
         expectation{8, 0, &for_80_and_90a, {portable, choice_reason::other_gpu}},
         expectation{8, 6, &for_80, {portable, choice_reason::other_gpu}},
         expectation{9, 0, &for_80_and_90a, {at::kernel_family::hopper, choice_reason::all_there}},
         expectation{9, 0, &for_80_and_90, {portable, choice_reason::no_code}},
         expectation{9, 0, &for_80, {portable, choice_reason::no_code}},
         expectation{10, 0, &for_80_and_90a, {portable, choice_reason::other_gpu}},
         expectation{12, 0, &for_80_and_90a, {portable, choice_reason::other_gpu}},
       }) {
    CAPTURE(e.major);
    CAPTURE(e.minor);
    plug_in(e.major, e.minor);
    CHECK(e.calls->chosen_forward() == e.chosen);
    CHECK(e.calls->chosen_forward_256() == e.chosen);
    CHECK(e.calls->chosen_backward() == e.chosen);
  }
  plug_in(9, 0);
  CHECK(at::describe(for_80_and_90a.chosen_forward()) ==
        "hopper: compute capability 9.0, and the program has sm_90a code");
  CHECK(at::describe(for_80.chosen_forward()) ==
        "portable: this program has no sm_90a code; compile with -gencode "
        "arch=compute_90a,code=sm_90a");
}

TEST_CASE("on gpu: the numbers are those of the double reference, whatever is chosen") {
  SUBCASE("Hopper") {
    plug_in(9, 0);
    check_answers(for_80_and_90a, "hopper");
  }
  SUBCASE("Hopper, in a program without code for it") {
    plug_in(9, 0);
    check_answers(for_80_and_90, "portable");
  }
  SUBCASE("a GPU after Hopper, through PTX of sm_80") {
    plug_in(12, 0);
    check_answers(for_80_and_90a, "portable");
  }
}

TEST_CASE("on gpu: a call whose tensors are known asks for launches only") {
  for (int const major : {8, 9}) {
    plug_in(major, 0);
    attention_call c;
    attention_answers const expected(c);
    device_array<float> scratch(c.scratch_count());
    at::launch_memory memory;
    auto const run = [&] {
      auto const before = standin::calls();
      for_80_and_90a.remembering(
        c.p, c.forward(), c.backward(), scratch.data(), scratch.count(), memory);
      std::map<std::string, std::uint64_t> made;
      for (auto const& [name, count] : standin::calls()) {
        auto const had = before.find(name);
        if (auto const more = count - (had == before.end() ? 0 : had->second); more != 0) {
          made[name] = more;
        }
      }
      return made;
    };
    auto const first = run();
    CHECK(first.at("cudaGetDevice") == 1);
    CHECK(first.at("cudaDeviceGetAttribute") == 5);
    CHECK(first.count("cuTensorMapEncodeTiled") == (major == 9 ? 1 : 0));
    auto const launches = first.at("cudaLaunchKernel");
    CHECK(run() == std::map<std::string, std::uint64_t>{{"cudaLaunchKernel", launches}});
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(standin::summary() == "");
    c.output.fetch();
    c.query_gradient.fetch();
    CHECK(apart(c.output.numbers(), expected.output) < 0.03);
    CHECK(apart(c.query_gradient.numbers(), expected.query_gradient) < 0.03);
    // Another tensor is not taken for one that is known.
    attention_call other(c.p, 2);
    attention_answers const others(other);
    for_80_and_90a.remembering(
      other.p, other.forward(), other.backward(), scratch.data(), scratch.count(), memory);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    other.output.fetch();
    CHECK(apart(other.output.numbers(), others.output) < 0.03);
  }
}

TEST_CASE("on gpu: a GPU that no kernel runs on is refused in one sentence") {
  plug_in(7, 5);
  attention_call c;
  device_array<float> scratch(c.scratch_count());
  auto const expected = "attention: the kernels run on compute capability 8.0 and up, but the "
                        "current GPU has 7.5; use attention::forward and attention::backward on "
                        "the host";
  CHECK(sentence_of([&] { for_80.forward(c.p, c.forward(), nullptr, 0, nullptr); }) == expected);
  CHECK(sentence_of([&] {
          for_80.backward(c.p, c.backward(), scratch.data(), scratch.count(), nullptr);
        }) == expected);
  CHECK(sentence_of([&] { (void)for_80.chosen_forward(); }) == expected);
  CHECK(standin::counters().kernels == 0);
}

TEST_CASE("on gpu: a call that asks for the portable kernels gets them on any GPU") {
  for (int const major : {8, 9}) {
    plug_in(major, 0);
    attention_call c;
    attention_answers const expected(c);
    auto const chosen = for_80_and_90a.portable(c.p, c.forward());
    CHECK(at::describe(chosen) == "portable: the call asks for them");
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(standin::summary() == "");
    c.output.fetch();
    CHECK(apart(c.output.numbers(), expected.output) < 0.03);
  }
}

TEST_CASE("on gpu: what tensor copies cannot take goes to the portable kernels") {
  plug_in(9, 0);
  attention_call c;
  attention_answers const expected(c);
  // The tokens of a sequence from last to first in memory.
  auto t = c.forward();
  auto const row = t.key.length_stride;
  for (auto* view : {&t.key, &t.value}) {
    view->data += (c.p.key_length - 1) * row;
    view->length_stride = -row;
  }
  std::vector<device_array<__nv_bfloat16>*> const tensors{&c.key, &c.value};
  for (auto* tensor : tensors) {
    auto const forwards = tensor->host;
    for (std::int64_t b = 0; b < c.p.batch; ++b) {
      for (std::int64_t i = 0; i < c.p.key_length; ++i) {
        auto const from = (b * c.p.key_length + i) * row;
        auto const to = (b * c.p.key_length + c.p.key_length - 1 - i) * row;
        std::copy_n(forwards.begin() + from, row, tensor->host.begin() + to);
      }
    }
    tensor->send();
  }
  CHECK(for_80_and_90a.forward(c.p, t, nullptr, 0, nullptr) ==
        at::kernel_choice{at::kernel_family::portable, at::choice_reason::strides});
  c.output.fetch();
  CHECK(apart(c.output.numbers(), expected.output) < 0.03);
  auto backward = c.backward();
  backward.key = t.key;
  backward.value = t.value;
  device_array<float> scratch(c.scratch_count());
  CHECK(for_80_and_90a.backward(c.p, backward, scratch.data(), scratch.count(), nullptr) ==
        at::kernel_choice{at::kernel_family::portable, at::choice_reason::strides});
  c.query_gradient.fetch();
  CHECK(apart(c.query_gradient.numbers(), expected.query_gradient) < 0.03);
}

TEST_CASE("on gpu: what tensor copies do not promise to take goes to the portable kernels") {
  plug_in(9, 0);
  attention_call c;
  auto t = c.forward();
  t.key.batch_stride = 0; // all sequences have the keys of the first
  CHECK(for_80_and_90a.forward(c.p, t, nullptr, 0, nullptr) ==
        at::kernel_choice{at::kernel_family::portable, at::choice_reason::strides});
}

TEST_CASE("on gpu: code for Hopper that could not run is not started, and a sentence says why") {
  standin::configuration machine;
  std::string word;
  SUBCASE("compiled for fewer registers than it shares out") {
    machine.registers_per_thread = 120;
    word = "portable: the sm_90a code of this program has too few registers; compile without "
           "-maxrregcount";
  }
  SUBCASE("a runtime that does not report launch bounds") {
    machine.reports_launch_bounds = false;
    word = "portable: the runtime does not report the launch bounds that tell of sm_90a code";
  }
  standin::configure(machine);
  attention_call c;
  CHECK(at::describe(for_80_and_90a.chosen_forward()) == word);
  CHECK(at::describe(for_80_and_90a.chosen_backward()) == word);
  CHECK(at::describe(for_80_and_90a.forward(c.p, c.forward(), nullptr, 0, nullptr)) == word);
}

TEST_CASE("on gpu: scratch lets keys be worked on in parts, as many as it holds") {
  auto p = some_parameters;
  p.query_length = 20;
  p.query_offset = 1680;
  p.key_length = 1700;
  program const* calls = nullptr;
  std::int32_t parts = 0; // of at least two tiles, while the GPU has room
  SUBCASE("Hopper: fourteen tiles") {
    calls = &for_80_and_90a;
    parts = 7;
  }
  SUBCASE("portable: 27 tiles") {
    calls = &for_80;
    parts = 7;
  }
  plug_in(9, 0);
  attention_call c(p);
  attention_answers const expected(c);
  auto const floats = calls->forward_scratch(p, 0, false);
  REQUIRE(floats == at::detail::key_splits::scratch(p, parts));
  device_array<float> scratch(floats);
  std::uint64_t kernels = 0;
  for (auto const given : {floats, at::detail::key_splits::scratch(p, 2) - 1, std::int64_t{0}}) {
    calls->forward(p, c.forward(), scratch.data(), given, nullptr);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(standin::summary() == "");
    CHECK(standin::counters().kernels - kernels == (given == floats ? 2 : 1)); // and the merge
    kernels = standin::counters().kernels;
    c.output.fetch();
    CHECK(apart(c.output.numbers(), expected.output) < 0.03);
  }
  calls->forward(p, c.forward(), nullptr, floats, nullptr); // no memory, whatever the count says
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(standin::summary() == "");
  CHECK(standin::counters().kernels - kernels == 1);
  kernels = standin::counters().kernels;
  // Next to a kernel that leaves one multiprocessor, parts fill nothing.
  CHECK(calls->forward_scratch(p, 131, false) == 0);
  calls->forward_next_to(p, c.forward(), scratch.data(), floats, 131);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(standin::counters().kernels - kernels == 1);
  p.batch = 200; // enough queries to fill the GPU
  CHECK(calls->forward_scratch(p, 0, false) == 0);
}

TEST_CASE("on gpu: scratch that is short or not aligned is refused in one sentence") {
  plug_in(9, 0);
  attention_call c;
  device_array<float> scratch(c.scratch_count());
  auto const refused = [&](float* data, std::int64_t floats) {
    return sentence_of([&] { for_80_and_90a.backward(c.p, c.backward(), data, floats, nullptr); });
  };
  auto const wanted = c.scratch_count();
  auto const needs = " floats, but the call needs " + std::to_string(wanted);
  CHECK(refused(scratch.data(), wanted - 1) ==
        "attention: scratch holds " + std::to_string(wanted - 1) + needs);
  CHECK(refused(nullptr, wanted) == "attention: scratch holds 0" + needs);
  CHECK(refused(scratch.data() + 1, wanted) ==
        "attention: scratch does not begin at a multiple of 16 bytes");
  CHECK(standin::counters().kernels == 0);
}
