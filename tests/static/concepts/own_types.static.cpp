// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The types of docs/how_to/types_of_your_own.md: one for each place where the library takes a
// user's.
#include <pipe/attention/mask.hpp>
#include <pipe/attention/score.hpp>
#include <pipe/pipe.hpp>
#include <pipe/planner.hpp>
#include <pipe/view.hpp>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

namespace pp = pipelining;

namespace {

struct layer {
  void forward(pp::context const&, pp::input, pp::output) {}
  void backward_input(pp::context const&, pp::input, pp::output) {}
  void backward_weight(pp::context const&) {}
};
static_assert(pp::stage_functor<layer> && pp::detail::can_forward<layer>);
static_assert(pp::detail::can_split_backward<layer> &&
              !pp::detail::can_backward<layer>); // no fused one
static_assert(!pp::detail::can_recompute<layer> && !pp::detail::can_perform<layer> &&
              !pp::detail::is_frozen<layer>);

struct bytes_by_chunk { // of a plan: how large slots are
  std::int64_t bytes(pp::slot_class of, pp::pass const& what) const {
    return of == pp::slot_class::activation ? 4096 << (what.chunk % 2) : 1024;
  }
};
static_assert(pp::buffer_sizes<bytes_by_chunk>);

struct one_communicator { // of NCCL: which messages share a communicator
  static constexpr char const* name = "one_communicator";
  static constexpr bool duplex_groups = true;
  static std::int64_t key(int, int) { return 0; }
};
static_assert(pp::communication_policy<one_communicator>);

struct first_half { // recompute: which passes, and how much of the forward time that takes
  bool operator()(pp::shape const& over, pp::pass const& what) const {
    return what.stage < over.stages() / 2;
  }
  double operator()(pp::pass const& what) const { return what.chunk == 0 ? 0.5 : 1; }
};
static_assert(pp::recompute_rule<first_half> && pp::recompute_share<first_half>);

struct longest_idle { // offload: the activation of a device that lies unused for the longest time
  void operator()(int, std::vector<pp::offload::idle_activation>& all) const {
    auto const idle = [](pp::offload::idle_activation const& one) { return one.needed - one.made; };
    auto const longest = std::max_element(
      all.begin(), all.end(), [idle](auto const& a, auto const& b) { return idle(a) < idle(b); });
    if (longest != all.end())
      longest->moves = true;
  }
};
static_assert(pp::offload_rule<longest_idle>);

struct chunks_share { // weights in shards: which visits share one gather
  int prefetch = 1;
  int resident = 2;
  bool keeps_weights(pp::pass const& now, pp::pass const& next) const {
    return now.microbatch == next.microbatch;
  }
  bool keeps_gradients(pp::pass const&, pp::pass const&) const { return true; }
};
static_assert(pp::sharding_rule<chunks_share>);

struct quadratic { // cut sequences: what a chunk costs, from its length and the tokens before it
  double operator()(pp::pass_kind, int length, int prefix) const {
    return length * (1 + prefix / 4096.0);
  }
};
static_assert(pp::chunk_time<quadratic>);

struct counted { // write anything: what takes the text
  std::size_t letters = 0;
  void append(std::string_view text) { letters += text.size(); }
};
static_assert(pp::text_sink<counted>);

struct halved { // attention: a score, and its derivative
  float value(float logit, pp::attention::pair_position) const { return logit / 2; }
  float derivative(float, float, pp::attention::pair_position) const { return 0.5F; }
};
static_assert(pp::attention::score<halved>);

// [snippet blocks]
constexpr pp::strides<2> legs{.stride = {1, 1, 1, 1},
                              .gap = {0, pp::first_fit, pp::first_fit, pp::first_fit}};
using Wave =
  pp::Repeat<pp::fixed_block<legs>, pp::placed_on<0, 1, 1, 0>>; // two devices, four stages
static_assert(pp::schedule<Wave>);
using Listed =
  pp::Repeat<pp::strides<2>, pp::placed_by_list>; // offsets and places known at run time
// [snippet blocks]
static_assert(pp::schedule<Listed>);

} // namespace
