// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A class that somebody else wrote may use the names of hooks for other things. A hook is a member
// that a stage gives a context.
#include <pipe/run/stage.hpp>

#include <any>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

struct passes {
  void forward(pp::context const&, pp::input, pp::output) {}
  void backward(pp::context const&, pp::input, pp::output) {}
};

template <class Stage>
constexpr bool runs = pp::detail::check_stage<Stage>::good;

// --- every name, for other things ---

struct helpers {
  void gradients_ready() {}
  void tied_gradient(int) {}
  int add_tied(std::vector<float>&, float) { return 0; }
  template <class T>
  void contribute(T const&) {}
  void optimizer_step() {}
  void recompute(int) {}
  auto gather_weights(auto& model) { return model.weights(); }
  int use_weights = 0;
  void collect_gradients(std::string const&) {}
  static void scatter_gradients(void*, void*) {}
  bool accepts(std::any const&) { return true; }
  template <class... T>
  auto roll_back(T&&... all) {
    return (all.version() + ...);
  }
};

struct public_helpers : passes, helpers {};
struct final_helpers final : passes, helpers {};
struct helpers_of_a_private_base : passes, private helpers {};

class private_helpers : public passes {
  void gradients_ready(pp::context const&, int) {}
  void tied_gradient(int) {}
  void add_tied(pp::context const&) {}
  void contribute(int) {}
  void optimizer_step(int) {}
  void recompute(int) {}
  void gather_weights(int) {}
  void use_weights(pp::context const&) {}
  void collect_gradients(int) {}
  void scatter_gradients(int) {}
  void accepts(int) {}
  void roll_back(int) {}
};
class protected_helper : public passes {
protected:
  void contribute(pp::context const&) {}
};
struct below_protected final : protected_helper {};

static_assert(runs<public_helpers> && runs<final_helpers> && runs<helpers_of_a_private_base>);
static_assert(runs<private_helpers> && runs<protected_helper> && runs<below_protected>);

// --- a hook that fits, however it is written ---

struct plain_hooks : passes {
  void contribute(pp::context const&, pp::output) {}
  void contribute(int) {} // of the same name, and none
  void recompute(pp::context, pp::input) {}
};
struct hooks_of_a_base final : plain_hooks {};
struct generic_hooks : passes {
  auto contribute(auto const& where, auto out) { return where.stage + out.slot; }
  std::function<void(pp::context const&, pp::input)> recompute{};
};
static_assert(runs<plain_hooks> && runs<hooks_of_a_base> && runs<generic_hooks>);
static_assert(pp::detail::can_contribute<hooks_of_a_base> &&
              pp::detail::can_recompute<hooks_of_a_base>);
static_assert(pp::detail::can_contribute<generic_hooks> &&
              pp::detail::can_recompute<generic_hooks>);

// --- one whose other parameters do not fit ---

template <class Stage>
constexpr bool found =
  pp::detail::begins_with<decltype(pp::detail::contribute_of), Stage, pp::context>;

template <class Where, class... More>
struct takes {
  void contribute(Where, More...) {}
};
template <class... More>
constexpr bool found_with = found<takes<pp::context const&, More...>>;

static_assert(found<takes<pp::context>> && found<takes<pp::context&>>);
static_assert(found_with<> && found_with<pp::input> && found_with<pp::output&> && found_with<int>);
static_assert(found_with<pp::totals const&, bool> && found_with<std::byte*, std::size_t, float>);
static_assert(found_with<std::span<float>, std::span<float const>> && found_with<std::string>);
static_assert(found_with<std::any> && found_with<std::optional<int>, std::vector<int> const&>);
static_assert(found_with<std::function<void()>> && found_with<std::shared_ptr<int>>);

static_assert(!found<takes<int>> && !found<takes<bool, int>> && !found<takes<void*>>);
static_assert(!found<takes<pp::input, pp::output>> && !found<takes<pp::context const*>>);
static_assert(!found<takes<std::any>> && !found<takes<std::vector<std::any> const&>>);
static_assert(!found<takes<std::pair<int, int>>> && !found<takes<pp::shape>>); // aggregates
static_assert(!found<passes> && !found<private_helpers>);

struct base_misfit final : takes<pp::context const&, int> {};
struct private_base_misfit : private takes<pp::context const&, int> {};
struct of_two_bases : takes<int>, takes<pp::context const&> {}; // ambiguous
struct quietly {
  static bool contribute(pp::context const&, double) noexcept { return true; }
};
struct without_change {
  void contribute(pp::context const&, double) const {}
};
struct among_others {
  void contribute() {}
  void contribute(int) {}
  void contribute(pp::context const&) {}
  void contribute(pp::context const&, int) {}
};
struct after_a_template {
  template <class T>
  void contribute(pp::context const&, T&, int) {}
  template <class T>
  void contribute(T) {}
};
struct no_overload_of_it {
  void contribute(int) {}
  void contribute(std::vector<int>) {}
};
static_assert(found<base_misfit> && !found<private_base_misfit>);
static_assert(!found<of_two_bases>);
static_assert(found<quietly> && found<without_change> && found<among_others>);
static_assert(found<after_a_template> && !found<no_overload_of_it>);

} // namespace
