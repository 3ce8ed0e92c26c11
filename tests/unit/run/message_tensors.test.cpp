// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Messages of several tensors.
#include <pipe/plan/lower.hpp>
#include <pipe/run/message_tensors.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <tests/support/text.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

constexpr int rows = 3, width = 5;

// [snippet layout]
// A stage hands on three tensors, and gets back the gradient of the first.
pp::message_layout const
  forth({{"hidden", "F32", {rows, width}}, {"positions", "I64", {rows}}, {"mask", "U8", {rows}}});
pp::message_layout const back({{"hidden", "F32", {rows, width}}});
pp::uniform_sizes const sizes{.message = std::max(forth.bytes(), back.bytes()),
                              .activation = forth.bytes(),
                              .weight_input = back.bytes()};
// [snippet layout]

//! A layer in C: y = 2 x where the mask says so, and positions move on.
void step_in_c(void const* const* in, void* const* out) {
  for (int r = 0; r < rows; ++r) {
    bool const on = static_cast<std::uint8_t const*>(in[2])[r] != 0;
    for (int i = r * width; i < (r + 1) * width; ++i)
      static_cast<float*>(out[0])[i] = static_cast<float const*>(in[0])[i] * (on ? 2.0F : 1.0F);
    static_cast<std::int64_t*>(out[1])[r] = static_cast<std::int64_t const*>(in[1])[r] + 1;
    static_cast<std::uint8_t*>(out[2])[r] = static_cast<std::uint8_t const*>(in[2])[r];
  }
}

struct masked_stage {
  std::vector<float> last{};
  std::vector<std::int64_t> positions{};
  float gradients = 0;

  void forward(pp::context const& at, pp::input in, pp::output out) {
    void const* from[3];
    void* to[3];
    void* kept[3];
    forth.pointers(at.activation, kept);
    if (at.first_stage()) {
      for (int i = 0; i < rows * width; ++i)
        forth.of<float>(at.activation, "hidden")[static_cast<std::size_t>(i)] =
          static_cast<float>(i + at.microbatch);
      for (std::size_t r = 0; r < rows; ++r) {
        forth.of<std::int64_t>(at.activation, 1)[r] = static_cast<std::int64_t>(100 * r);
        forth.of<std::uint8_t>(at.activation, "mask")[r] =
          (r + static_cast<std::size_t>(at.microbatch)) % 2;
      }
    } else {
      auto const x = forth.of<float>(in, "hidden");
      auto const where = forth.of<std::int64_t>(in, "positions");
      auto const mask = forth.of<std::uint8_t>(in, 2);
      std::copy(x.begin(), x.end(), static_cast<float*>(kept[0]));
      std::copy(where.begin(), where.end(), static_cast<std::int64_t*>(kept[1]));
      std::copy(mask.begin(), mask.end(), static_cast<std::uint8_t*>(kept[2]));
    }
    forth.pointers(out, to);
    CHECK((to[0] == nullptr) == at.last_stage());
    std::copy_n(kept, 3, from);
    if (!at.last_stage())
      return step_in_c(from, to);
    auto const end = forth.of<float>(at.activation, 0);
    last.insert(last.end(), end.begin(), end.end());
    auto const where = forth.of<std::int64_t>(at.activation, 1);
    positions.insert(positions.end(), where.begin(), where.end());
  }
  void backward_input(pp::context const& at, pp::input in, pp::output out) const {
    auto const dy = back.of<float>(in, "hidden");
    auto const mask = forth.of<std::uint8_t>(at.activation, "mask");
    auto const kept = back.of<float>(at.weight_input, 0);
    auto const dx = back.of<float>(out, 0);
    CHECK(dx.empty() == at.first_stage());
    CHECK(dy.empty() == at.last_stage());
    for (std::size_t i = 0; i < kept.size(); ++i) {
      kept[i] = at.last_stage() ? 1.0F : dy[i];
      if (!dx.empty())
        dx[i] = kept[i] * (mask[i / width] != 0 && !at.last_stage() ? 2.0F : 1.0F);
    }
    if (out.data != nullptr) // the plan's message is as large as the larger one
      std::fill(out.data + back.bytes(), out.data + out.bytes, std::byte{0});
  }
  void backward_weight(pp::context const& at) {
    for (float const each : back.of<float>(at.weight_input, 0))
      gradients += each;
  }
};

} // namespace

TEST_CASE("stages hand on several tensors, by number, by name and by pointers in C") {
  std::vector<masked_stage> model(4);
  pp::thread_runner runner(pp::lower(pp::make_timetable<pp::VHalf>({2, 4}), sizes), model);
  runner.step();
  std::vector<float> expected;
  std::vector<std::int64_t> positions;
  float first = 0;
  for (int m = 0; m < 4; ++m)
    for (int r = 0; r < rows; ++r) {
      float const factor = (r + m) % 2 != 0 ? 8.0F : 1.0F; // three stages before the last one
      positions.push_back(100 * r + 3);
      for (int i = r * width; i < (r + 1) * width; ++i)
        expected.push_back(static_cast<float>(i + m) * factor);
      first += width * factor;
    }
  CHECK(model[3].last == expected);
  CHECK(model[3].positions == positions);
  CHECK(model[3].gradients == 4 * rows * width);
  CHECK(model[0].gradients > model[1].gradients);
  // The first stage keeps the gradient of its output: two factors of two.
  CHECK(model[0].gradients == (first - 4 * rows * width) * 3 / 7 + 4 * rows * width);
}

TEST_CASE(
  "tensors drawn by lot do not overlap, are aligned, and end where their last number does") {
  std::mt19937 random(7);
  auto const below = [&](unsigned most) { return static_cast<std::int64_t>(random() % most); };
  char const* const kinds[] = {"U8", "BF16", "F32", "F64"};
  for (int round = 0; round < 300; ++round) {
    std::vector<pp::message_layout::tensor> tensors;
    for (std::int64_t i = below(5); i >= 0; --i) {
      pp::message_layout::tensor one{std::to_string(i), kinds[below(4)], {}, {}};
      for (std::int64_t axes = below(4); axes > 0; --axes)
        one.shape.push_back(below(5));
      for (std::size_t axis = 0; round % 2 == 0 && axis < one.shape.size(); ++axis)
        one.strides.push_back(below(9));
      tensors.push_back(one);
    }
    pp::message_layout const layout(tensors);
    std::int64_t end = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      auto const& one = tensors[i];
      std::int64_t const wide = 1 << (one.dtype == "U8"     ? 0
                                      : one.dtype == "BF16" ? 1
                                      : one.dtype == "F32"  ? 2
                                                            : 3);
      std::vector<std::int64_t> strides = one.strides;
      if (strides.empty() && !one.shape.empty()) {
        strides.assign(one.shape.size(), 1);
        for (std::size_t axis = one.shape.size() - 1; axis > 0; --axis)
          strides[axis - 1] = strides[axis] * one.shape[axis];
      }
      // Every number, by counting.
      std::int64_t last = -1;
      std::vector<std::int64_t> at(one.shape.size());
      bool more = std::find(one.shape.begin(), one.shape.end(), 0) == one.shape.end();
      while (more) {
        std::int64_t where = 0;
        for (std::size_t axis = 0; axis < at.size(); ++axis)
          where += at[axis] * strides[axis];
        last = std::max(last, where);
        more = false;
        for (std::size_t axis = at.size(); axis-- > 0 && !more;) {
          more = ++at[axis] < one.shape[axis];
          if (!more)
            at[axis] = 0;
        }
      }
      CHECK(layout.offset(i) % 64 == 0);
      CHECK(layout.offset(i) >= end);
      CHECK(layout.offset(i) < end + 64);
      end = layout.offset(i) + (last + 1) * wide;
      CHECK(layout.number(one.name) == i);
    }
    CHECK(layout.bytes() == end);
  }
}

TEST_CASE("what is no layout, and memory that is too small, is refused in a sentence") {
  using tensors = std::vector<pp::message_layout::tensor>;
  auto const refusal = [](tensors const& of) {
    return support::thrown_by([&] { (void)pp::message_layout(of); });
  };
  CHECK(refusal({{"x", "F31", {2}, {}}}) == "run: tensor x of a message has no dtype that "
                                            "safetensors knows; name one such as F32, BF16 or I64");
  CHECK(refusal({{"x", "F32", {2}, {}}, {"x", "F32", {2}, {}}}) ==
        "run: tensor x of a message has a name that stands twice; give each its own");
  CHECK(refusal({{"x", "F32", {2, 3}, {3}}}) ==
        "run: tensor x of a message has not as many strides as axes; give one for each, or none");
  CHECK(refusal({{"x", "F32", {2, -3}, {}}}) ==
        "run: tensor x of a message has a negative extent or stride");
  std::string const large =
    "run: tensor x of a message has more than 2^62 bytes; are its shape and strides right?";
  CHECK(refusal({{"x", "F32", {std::int64_t{1} << 40, std::int64_t{1} << 40}, {}}}) == large);
  CHECK(refusal({{"y", "U8", {std::int64_t{1} << 57}, {}}, {"x", "F32", {2}, {INT64_MAX}}}) ==
        large);
  CHECK(
    support::thrown_by([] { (void)forth.number("keys"); }) ==
    "run: the message has no tensor keys; it has hidden F32[3,5], positions I64[3], mask U8[3]");
  std::vector<std::byte> memory(256);
  pp::buffer const small{0, memory.data(), 100};
  CHECK(support::thrown_by([&] { (void)forth.of<float>(small, 0); }) ==
        "run: a message of 100 bytes has no room for the 131 of hidden F32[3,5], positions I64[3], "
        "mask "
        "U8[3]; lower the plan with message_layout::bytes()");
  void* all[3];
  CHECK_THROWS_AS(forth.pointers(small, all), std::invalid_argument);
  pp::buffer const enough{0, memory.data(), 256};
  CHECK(forth.of<float>(enough, 0).size() == 15);
  CHECK(
    support::thrown_by([&] { (void)forth.of<double>(enough, 0); }) ==
    "run: tensor hidden of a message was asked for as numbers of another width than its dtype has");
  CHECK_THROWS_AS((void)forth.of<float>(enough, 3), std::out_of_range);
  CHECK(pp::message_layout().bytes() == 0);
  CHECK(pp::message_layout().describe() == "none");
}
