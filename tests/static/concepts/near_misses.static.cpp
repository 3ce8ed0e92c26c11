// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Every public concept takes a type that has all it asks for, and none that misses one thing.
// Number 0 of each type below has everything; the others miss the requirement of that number, or
// have it with another result.
#include <pipe/attention.hpp>
#include <pipe/attention/mask.hpp>
#include <pipe/attention/score.hpp>
#include <pipe/cluster.hpp>
#include <pipe/pipe.hpp>
#include <pipe/planner.hpp>
#include <pipe/view.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace pp = pipelining;

namespace {

struct no_double {};

template <int Missing>
struct cost {
  double duration(pp::pass const&) const requires(Missing != 1);
  double latency() const requires(Missing != 2);
  no_double duration(pp::pass const&) const requires(Missing == 3);
};
static_assert(pp::cost_model<cost<0>>);
static_assert(!pp::cost_model<cost<1>> && !pp::cost_model<cost<2>> && !pp::cost_model<cost<3>>);

template <int Missing>
struct closed_form {
  closed_form() = default;
  closed_form(closed_form const&) requires(Missing != 1) = default;
  closed_form& operator=(closed_form const&) requires(Missing != 1) = default;
  pp::shape arrange(int, int) const requires(Missing != 2 && Missing != 3);
  pp::shape arrange(int, int) requires(Missing == 2);
  int arrange(int, int) const requires(Missing == 3);
  void order(pp::shape const&, int, pp::row_writer&) const requires(Missing < 4);
  void order(pp::shape const&, int, pp::row_writer&) requires(Missing == 4);
  void order(pp::shape const&, pp::row_writer&) const requires(Missing == 5);
};
static_assert(pp::detail::orders_device<closed_form<0>> && pp::schedule<closed_form<0>>);
static_assert(!pp::detail::arranges<closed_form<1>> && !pp::schedule<closed_form<1>>);
static_assert(!pp::detail::arranges<closed_form<2>> && !pp::schedule<closed_form<2>>);
static_assert(!pp::detail::arranges<closed_form<3>> && !pp::schedule<closed_form<3>>);
static_assert(pp::detail::arranges<closed_form<4>> && !pp::schedule<closed_form<4>>);
static_assert(pp::detail::arranges<closed_form<5>> && !pp::schedule<closed_form<5>>);

template <int Missing>
struct generated {
  pp::shape arrange(int, int) const requires(Missing != 1);
  template <pp::cost_model Cost>
  void generate(pp::shape const&, Cost const&, pp::row_writer*) const requires(Missing != 2);
  template <pp::cost_model Cost>
  void generate(pp::shape const&, Cost const&, pp::row_writer*) requires(Missing == 2);
};
static_assert(pp::detail::generates_rows<generated<0>> && pp::schedule<generated<0>>);
static_assert(!pp::detail::orders_device<generated<0>>);
static_assert(!pp::schedule<generated<1>> && !pp::schedule<generated<2>>);

// What a schedule may have in addition to its order.
template <int Missing>
struct with_parts : closed_form<0> {
  int device_of(pp::shape const&, int, int) const requires(Missing != 1);
  int chunks_of(pp::shape const&, int) const requires(Missing != 2);
  std::vector<pp::stage_edge> edges_of(pp::shape const&) const requires(Missing != 3);
  std::vector<int> edges_of(pp::shape const&) const requires(Missing == 3);
};
static_assert(pp::detail::places_stages<with_parts<0>> &&
              !pp::detail::places_stages<with_parts<1>>);
static_assert(pp::detail::counts_chunks<with_parts<0>> &&
              !pp::detail::counts_chunks<with_parts<2>>);
static_assert(pp::detail::joins_stages<with_parts<0>> && !pp::detail::joins_stages<with_parts<3>>);

template <class Inner>
struct adapter : closed_form<0> {
  Inner of;
};
static_assert(pp::detail::adapts_schedule<adapter<pp::OneFOneB>>);
static_assert(!pp::detail::adapts_schedule<adapter<int>> &&
              !pp::detail::adapts_schedule<closed_form<0>>);

template <int Missing>
struct block {
  int stages_per_device = 1;
  bool fused = false;
  void lay_out(pp::building_block&) const requires(Missing != 1);
};
struct block_without_stages {
  bool fused = false;
  void lay_out(pp::building_block&) const;
};
struct block_without_backward {
  int stages_per_device = 1;
  void lay_out(pp::building_block&) const;
};
static_assert(pp::detail::repeatable_block<block<0>> && !pp::detail::repeatable_block<block<1>>);
static_assert(!pp::detail::repeatable_block<block_without_stages>);
static_assert(!pp::detail::repeatable_block<block_without_backward>);

template <int Missing>
struct stages_somewhere {
  pp::shape arrange(int, int, int, int) const requires(Missing != 1);
  int arrange(int, int, int, int) const requires(Missing == 1);
};
static_assert(pp::detail::stage_placement<stages_somewhere<0>>);
static_assert(!pp::detail::stage_placement<stages_somewhere<1>>);

template <int Missing>
struct counts {
  static constexpr bool equal = Missing != 3;
  int operator()(int) const requires(Missing != 1 && Missing != 2);
  int operator()(int) requires(Missing == 1);
  std::string operator()(int) const requires(Missing == 2);
};
static_assert(pp::detail::chunk_counts<counts<0>> && pp::detail::equal_chunk_counts<counts<0>>);
static_assert(!pp::detail::chunk_counts<counts<1>> && !pp::detail::chunk_counts<counts<2>>);
static_assert(pp::detail::chunk_counts<counts<3>> && !pp::detail::equal_chunk_counts<counts<3>>);

// Rules of adapters.
template <int Missing>
struct rule {
  bool operator()(pp::shape const&, pp::pass const&) const requires(Missing != 1 && Missing != 2);
  bool operator()(pp::shape const&, pp::pass const&) requires(Missing == 1);
  no_double operator()(pp::shape const&, pp::pass const&) const requires(Missing == 2);
  void operator()(int, std::vector<pp::offload::idle_activation>&) const requires(Missing != 3);
  void operator()(std::vector<pp::offload::idle_activation>&) const requires(Missing == 3);
  double operator()(pp::pass const&) const requires(Missing != 4);
  no_double operator()(pp::pass const&) const requires(Missing == 4);
};
static_assert(pp::recompute_rule<rule<0>>);
static_assert(!pp::recompute_rule<rule<1>> && !pp::recompute_rule<rule<2>>);
static_assert(pp::offload_rule<rule<0>> && !pp::offload_rule<rule<3>>);
static_assert(pp::recompute_share<rule<0>> && !pp::recompute_share<rule<4>>);

struct some_visits {};
template <int Missing>
struct weights_rule {
  bool keeps_weights(pp::pass const&, pp::pass const&) const requires(Missing != 1);
  bool keeps_weights(pp::pass const&, pp::pass const&) requires(Missing == 1);
  bool keeps_gradients(pp::pass const&, pp::pass const&) const requires(Missing != 2);
  no_double keeps_gradients(pp::pass const&, pp::pass const&) const requires(Missing == 2);
  std::conditional_t<Missing == 3, some_visits, int> prefetch;
  std::conditional_t<Missing == 4, some_visits, int> resident;
};
static_assert(pp::sharding_rule<weights_rule<0>> && !pp::sharding_rule<weights_rule<1>>);
static_assert(!pp::sharding_rule<weights_rule<2>> && !pp::sharding_rule<weights_rule<3>>);
static_assert(!pp::sharding_rule<weights_rule<4>>);

template <int Missing>
struct shards {
  int prefetch = 1;
  int resident = 1;
  bool keeps_weights(pp::pass const&, pp::pass const&) const requires(Missing != 1);
  bool keeps_gradients(pp::pass const&, pp::pass const&) const requires(Missing != 2);
  no_double keeps_gradients(pp::pass const&, pp::pass const&) const requires(Missing == 2);
};
struct shards_without_prefetch {
  int resident = 1;
  bool keeps_weights(pp::pass const&, pp::pass const&) const;
  bool keeps_gradients(pp::pass const&, pp::pass const&) const;
};
static_assert(pp::sharding_rule<shards<0>> && !pp::sharding_rule<shards<1>>);
static_assert(!pp::sharding_rule<shards<2>> && !pp::sharding_rule<shards_without_prefetch>);

template <int Missing>
struct layered {
  int layers() const requires(Missing != 1);
  bool equal_devices() const requires(Missing != 2);
  std::vector<int> start(pp::pipeline_view const&, std::vector<int> const&) const
    requires(Missing != 3);
  pp::cost_table costs(pp::pipeline_view const&, pp::arrangement const&) const
    requires(Missing != 4);
  double costs(pp::pipeline_view const&, pp::arrangement const&) const requires(Missing == 4);
  double excess(pp::timetable_view, pp::arrangement const&) const requires(Missing != 5);
  double least_time(pp::pipeline_view const&) const requires(Missing != 6);
};
static_assert(pp::layered_model<layered<0>>);
static_assert(!pp::layered_model<layered<1>> && !pp::layered_model<layered<2>>);
static_assert(!pp::layered_model<layered<3>> && !pp::layered_model<layered<4>>);
static_assert(!pp::layered_model<layered<5>> && !pp::layered_model<layered<6>>);

template <int Missing>
struct group {
  double time(int, int) const requires(Missing != 1);
  double time(int) const requires(Missing == 1);
  double bytes(int, int) const requires(Missing != 2);
};
static_assert(pp::group_cost<group<0>>);
static_assert(!pp::group_cost<group<1>> && !pp::group_cost<group<2>>);

template <int Missing>
struct time_of_chunk {
  double operator()(pp::pass_kind, int, int) const requires(Missing != 1 && Missing != 2);
  double operator()(pp::pass_kind, int, int) requires(Missing == 1);
  no_double operator()(pp::pass_kind, int, int) const requires(Missing == 2);
};
static_assert(pp::chunk_time<time_of_chunk<0>>);
static_assert(!pp::chunk_time<time_of_chunk<1>> && !pp::chunk_time<time_of_chunk<2>>);

// Plans.
template <int Missing>
struct sizes {
  int bytes(pp::slot_class, pp::pass const&) const requires(Missing != 1 && Missing != 2);
  int bytes(pp::slot_class, pp::pass const&) requires(Missing == 1);
  no_double bytes(pp::slot_class, pp::pass const&) const requires(Missing == 2);
};
static_assert(pp::buffer_sizes<sizes<0>>);
static_assert(!pp::buffer_sizes<sizes<1>> && !pp::buffer_sizes<sizes<2>>);

struct policy {
  [[maybe_unused]] static constexpr char const* name = "own";
  static constexpr bool duplex_groups = true;
  static std::int64_t key(int, int);
};
struct policy_without_name {
  static constexpr bool duplex_groups = true;
  static std::int64_t key(int, int);
};
struct policy_without_groups {
  [[maybe_unused]] static constexpr char const* name = "own";
  static std::int64_t key(int, int);
};
struct policy_of_narrow_keys : policy {
  static int key(int, int);
};
static_assert(pp::communication_policy<policy>);
static_assert(!pp::communication_policy<policy_without_name>);
static_assert(!pp::communication_policy<policy_without_groups>);
static_assert(!pp::communication_policy<policy_of_narrow_keys>);

// Stages.
template <int Missing>
struct stage {
  static constexpr bool frozen = Missing == 6;
  void forward(pp::context const&, pp::input, pp::output) requires(Missing != 1);
  void forward(pp::input, pp::output) requires(Missing == 1);
  void backward(pp::context const&, pp::input, pp::output) requires(Missing != 2 && Missing < 4);
  void backward_input(pp::context const&, pp::input, pp::output) requires(Missing != 3);
  void backward_weight(pp::context const&) requires(Missing != 3 && Missing < 5);
  void backward_weight() requires(Missing == 5);
  void recompute(pp::context const&, pp::input) requires(Missing != 1);
  void perform(pp::pass_kind, pp::context const&, pp::input, pp::output) requires(Missing == 7);
};
static_assert(pp::stage_functor<stage<0>> && pp::detail::can_forward<stage<0>>);
static_assert(!pp::detail::can_forward<stage<1>> && !pp::stage_functor<stage<1>>);
static_assert(pp::detail::can_recompute<stage<0>> && !pp::detail::can_recompute<stage<1>>);
static_assert(!pp::detail::can_backward<stage<2>> && pp::stage_functor<stage<2>>);
static_assert(!pp::detail::can_split_backward<stage<3>> && pp::stage_functor<stage<3>>);
static_assert(!pp::detail::can_backward<stage<4>> && pp::detail::can_split_backward<stage<4>>);
static_assert(!pp::stage_functor<stage<5>>, "half of a split backward is none");
static_assert(pp::detail::is_frozen<stage<6>> && !pp::detail::is_frozen<stage<0>> &&
              pp::stage_functor<stage<6>>);
static_assert(pp::detail::can_perform<stage<7>> && !pp::detail::can_perform<stage<0>>);

template <int Missing>
struct hooks {
  void gradients_ready(pp::context const&) requires(Missing != 1);
  void gradients_ready() requires(Missing == 1);
  void tied_gradient(pp::context const&, pp::output) requires(Missing != 2);
  void add_tied(pp::context const&, pp::input, pp::input) requires(Missing != 3);
  void contribute(pp::context const&, pp::output) requires(Missing != 4);
  void contribute(pp::context const&, pp::input) requires(Missing == 4);
  void optimizer_step(pp::context const&, pp::totals const&) requires(Missing != 5);
  void optimizer_step(pp::context const&, pp::totals&) requires(Missing == 5);
  void forward_backward(pp::composite_half const&,
                        pp::composite_half const&,
                        hooks&) requires(Missing != 6);
  void braid(pp::pass_kind,
             pp::composite_half const&,
             pp::pass_kind,
             pp::composite_half const&,
             hooks&) requires(Missing != 7);
  void gather_weights(pp::context const&, pp::output) requires(Missing != 8);
  void gather_weights(pp::context const&, pp::input) requires(Missing == 8);
  void use_weights(pp::context const&, pp::input) requires(Missing != 9);
  void collect_gradients(pp::context const&, pp::output) requires(Missing != 10);
  void scatter_gradients(pp::context const&, pp::input) requires(Missing != 11);
  void scatter_gradients(pp::context const&, pp::output) requires(Missing == 11);
};
static_assert(pp::detail::can_gather_weights<hooks<0>> &&
              !pp::detail::can_gather_weights<hooks<8>>);
static_assert(!pp::detail::can_gather_weights<hooks<9>>);
static_assert(pp::detail::can_scatter_gradients<hooks<0>> &&
              !pp::detail::can_scatter_gradients<hooks<10>>);
static_assert(!pp::detail::can_scatter_gradients<hooks<11>>);
static_assert(pp::detail::can_announce_gradients<hooks<0>> &&
              !pp::detail::can_announce_gradients<hooks<1>>);
static_assert(pp::detail::can_tie<hooks<0>> && !pp::detail::can_tie<hooks<2>> &&
              !pp::detail::can_tie<hooks<3>>);
static_assert(pp::detail::can_contribute<hooks<0>> && !pp::detail::can_contribute<hooks<4>>);
static_assert(pp::detail::can_update<hooks<0>> && !pp::detail::can_update<hooks<5>>);
static_assert(pp::detail::can_overlap<hooks<0>, hooks<0>> &&
              !pp::detail::can_overlap<hooks<6>, hooks<6>>);
static_assert(!pp::detail::can_overlap<hooks<0>, hooks<1>>, "the other stage is of another type");
static_assert(pp::detail::can_braid<hooks<0>, hooks<0>> &&
              !pp::detail::can_braid<hooks<7>, hooks<7>>);

// Runs.
template <int Missing>
struct line_to_store {
  using nanoseconds = std::chrono::nanoseconds;
  void set(std::string const&, std::string const&) requires(Missing != 1);
  std::string get(std::string const&, nanoseconds) requires(Missing != 2);
  std::optional<std::string> look_up(std::string const&, nanoseconds) requires(Missing != 3);
  void barrier(std::string const&, int, nanoseconds) requires(Missing != 4);
  void abort(std::string const&) requires(Missing != 5);
  std::optional<std::string> failure() requires(Missing != 6);
};
static_assert(pp::run_store<line_to_store<0>>);
static_assert(!pp::run_store<line_to_store<1>> && !pp::run_store<line_to_store<2>>);
static_assert(!pp::run_store<line_to_store<3>> && !pp::run_store<line_to_store<4>>);
static_assert(!pp::run_store<line_to_store<5>> && !pp::run_store<line_to_store<6>>);

template <int Missing>
struct device {
  void wait_for(int, pp::item const&) requires(Missing != 1);
  void run(int, pp::item const&) requires(Missing != 2);
  void post(int, std::span<pp::item const>) requires(Missing != 3);
  void finish() requires(Missing != 4);
  bool run_together(int, std::span<pp::item const>) requires(Missing != 5);
  void run_together(int, std::span<pp::item const>) requires(Missing == 5);
  bool begins_again() requires(Missing != 6);
};
static_assert(pp::detail::execution_device<device<0>>);
static_assert(!pp::detail::execution_device<device<1>> && !pp::detail::execution_device<device<2>>);
static_assert(!pp::detail::execution_device<device<3>> && !pp::detail::execution_device<device<4>>);
static_assert(!pp::detail::execution_device<device<5>> && !pp::detail::execution_device<device<6>>);

template <int Missing>
struct sink {
  void append(std::string_view) requires(Missing != 1);
  void append(char) requires(Missing == 1);
};
static_assert(pp::text_sink<sink<0>> && !pp::text_sink<sink<1>>);

// Attention.
template <int Missing>
struct logit {
  float value(float, pp::attention::pair_position) const requires(Missing != 1);
  float derivative(float, float, pp::attention::pair_position) const requires(Missing != 2);
};
static_assert(pp::attention::score<logit<0>>);
static_assert(!pp::attention::score<logit<1>> && !pp::attention::score<logit<2>>);

template <int Missing>
struct seen {
  bool keep(pp::attention::pair_position) const requires(Missing != 1);
  pp::attention::tile_cover cover(pp::attention::tile_position) const requires(Missing != 2);
};
static_assert(pp::attention::mask<seen<0>> && pp::attention::tile_mask<seen<0>>);
static_assert(!pp::attention::mask<seen<1>> && !pp::attention::tile_mask<seen<1>>);
static_assert(pp::attention::mask<seen<2>> && !pp::attention::tile_mask<seen<2>>);

} // namespace
