// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The host as a machine of stages, see memory.hpp: its types, attention, and what the
//! stages of a device share.

#include <pipe/attention/backward.hpp>
#include <pipe/attention/forward.hpp>
#include <pipe/attention/merge.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "../layer.hpp"
#include "arithmetic.hpp"

namespace gpt {

namespace host {
template <class Number>
class device_work;

//! Memory of a stage.
class memory {
public:
  explicit memory(std::int64_t bytes = 0) : bytes_(static_cast<std::size_t>(bytes)) {}
  [[nodiscard]] std::byte* data() const { return bytes_.data(); }

private:
  mutable std::vector<std::byte> bytes_;
};
} // namespace host

//! Stages on the host.
template <class Number>
struct host_machine {
  using number = Number;
  using element = Number;
  using attended = Number;
  using weight = parameter<Number>;
  using work = host::device_work<Number>;
  using stream = host::stream;
  using memory = host::memory;
  //! Of the tensors in a slot.
  static constexpr std::int64_t alignment = alignof(Number);

  [[nodiscard]] static stream stream_of(pp::context const&) { return {}; }
  [[nodiscard]] static std::int64_t attention_scratch(model_size const&, std::int64_t) { return 0; }
  static void copy_text(std::byte* to, std::vector<std::uint8_t> const& text, stream) {
    std::memcpy(to, text.data(), text.size());
  }
  //! One number after the other.
  [[nodiscard]] static double sum(Number const* numbers, std::int64_t count) {
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i)
      sum += static_cast<double>(numbers[i]);
    return sum;
  }
};

namespace host {

//! What the stages of one device share. Belongs to the device's thread.
template <class Number>
class device_work {
public:
  pipelining::attention::workspace<pipelining::attention::accumulate_t<Number>> attention_space;

  //! There are no shards whose sums the host makes in the middle of a pass.
  struct no_sum {
    explicit operator bool() const { return false; }
    void operator()(Number*, std::int64_t, stream) const {}
  } sum;

  //! Before each pass.
  void begin(model_size const& size, std::int64_t tokens, stream) {
    if (tokens <= tokens_)
      return;
    auto counted = slot_of<host_machine<Number>>();
    (void)scratch_tensors<host_machine<Number>>(counted, size, tokens);
    memory_.resize(static_cast<std::size_t>(counted.bytes()));
    auto in = slot_of<host_machine<Number>>(memory_.data());
    tensors_ = scratch_tensors<host_machine<Number>>(in, size, tokens);
    tokens_ = tokens;
  }
  [[nodiscard]] scratch_tensors<host_machine<Number>> const& scratch() const { return tensors_; }
  //! Memory of a fused backward pass.
  [[nodiscard]] std::byte* between(std::int64_t bytes) {
    between_.resize(std::max(between_.size(), static_cast<std::size_t>(bytes)));
    return between_.data();
  }
  [[nodiscard]] matrix_pass<Number> matrix(parameter<Number>& of,
                                           std::int64_t tokens,
                                           std::int64_t inputs,
                                           std::int64_t outputs) const {
    return {of, tokens, inputs, outputs};
  }

private:
  std::int64_t tokens_ = 0;
  std::vector<std::byte> memory_;
  std::vector<std::byte> between_;
  scratch_tensors<host_machine<Number>> tensors_{};
};

template <class Number>
[[gnu::noinline]] void attend(attending const& at,
                              attention_tensors<Number, Number> const& of,
                              device_work<Number>& work,
                              stream) {
  attention::forward(at.parameters(),
                     at.forward_tensors(of),
                     attention::causal{},
                     attention::plain{},
                     work.attention_space);
}
template <class Number>
[[gnu::noinline]] void attend_backward(attending const& at,
                                       attention_tensors<Number, Number> const& of,
                                       attention_gradients<Number, Number> const& to,
                                       device_work<Number>& work,
                                       stream on) {
  clear(to.query, at.chunk.count() * at.size.width, on);
  attention::backward(at.parameters(),
                      at.backward_tensors(of, to),
                      attention::causal{},
                      attention::plain{},
                      work.attention_space);
}

//! The output and log-sum-exp of attention to some keys become those of these and others.
template <class Number>
void merge(Number* output,
           Number* log_sum_exp,
           Number const* other_output,
           Number const* other_log_sum_exp,
           model_size const& size,
           std::int64_t tokens,
           stream) {
  attention::merge(attention::dense_tensor(output, 1, tokens, size.heads, size.head_dim()),
                   attention::dense_rows(log_sum_exp, 1, size.heads, tokens),
                   attention::dense_tensor(other_output, 1, tokens, size.heads, size.head_dim()),
                   attention::dense_rows(other_log_sum_exp, 1, size.heads, tokens));
}

} // namespace host
} // namespace gpt
