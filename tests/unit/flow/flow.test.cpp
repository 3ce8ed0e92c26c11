// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/flow/declare.hpp>
#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shades.hpp>
#include <pipe/flow/training_flows.hpp>
#include <pipe/plan/prove.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace pp = pipelining;

namespace {

using pp::pass_kind;
using pp::detail::kind_links;

kind_links const& links(pp::flow const& declared, pass_kind kind, bool has_after) {
  return declared.links[pp::detail::index_of(kind)][has_after ? 1 : 0];
}

// Rows of training, in the order in which it declares what is wanted.
constexpr int outputs = 0;
constexpr int input_gradients = 1;
constexpr int weight_gradients = 2;

} // namespace

TEST_CASE("the rules of training follow from what its passes make and read") {
  REQUIRE(pp::training.rows == 3);
  CHECK(pp::training.engines == 1);
  CHECK_FALSE(pp::training.has_choices);
  for (bool const has_after : {false, true}) {
    kind_links const& forward = links(pp::training, pass_kind::forward, has_after);
    CHECK(forward.made[0] == outputs);
    CHECK(forward.made[1] == kind_links::none);
    CHECK(forward.input == outputs);
    CHECK(forward.input_step == -1);
    CHECK(forward.chunk_step == -1);
    CHECK(forward.own[0] == kind_links::none);
    for (pass_kind const kind : {pass_kind::backward, pass_kind::backward_input}) {
      kind_links const& gradient = links(pp::training, kind, has_after);
      CHECK(gradient.made[0] == input_gradients);
      CHECK(gradient.made[1] ==
            (kind == pass_kind::backward ? weight_gradients : kind_links::none));
      CHECK(gradient.input == input_gradients);
      CHECK(gradient.input_step == 1);
      CHECK(gradient.chunk_step == 1);
      // After the last stage nothing says that the own forward has run.
      CHECK(gradient.own[0] == (has_after ? kind_links::none : outputs));
    }
    kind_links const& weights = links(pp::training, pass_kind::backward_weight, has_after);
    CHECK(weights.made[0] == weight_gradients);
    CHECK(weights.input == kind_links::none);
    CHECK(weights.own[0] == input_gradients);
    CHECK(weights.chunk_step == 0);
  }
}

TEST_CASE("the flow of training keeps the rules that it is not asked for") {
  pp::flow const& known = pp::training;
  CHECK(pp::declare(std::span(known.data, static_cast<std::size_t>(known.data_count)),
                    std::span(known.kinds, static_cast<std::size_t>(known.kind_count))) == known);
}

TEST_CASE("who reads what a pass makes follows too") {
  pp::pipeline_view const over{{.devices = 4, .microbatches = 2, .chunks = 2}};
  auto const of = [](pass_kind kind, int stage) {
    return pp::pass{kind, false, static_cast<std::uint16_t>(stage), 1, 0};
  };
  CHECK(pp::detail::reader_of(over, of(pass_kind::forward, 2)).stage == 3);
  CHECK(pp::detail::reader_of(over, of(pass_kind::forward, 3)).stage == kind_links::none);
  CHECK(pp::detail::reader_of(over, of(pass_kind::backward, 2)).stage == 1);
  CHECK(pp::detail::reader_of(over, of(pass_kind::backward_input, 0)).stage == kind_links::none);
  CHECK(pp::detail::reader_of(over, of(pass_kind::backward_weight, 2)).stage == kind_links::none);
}

static bool uses_all_data(pp::flow const& declared, pp::detail::flow_set kinds) {
  return pp::detail::uses_all_data(pp::detail::data_users(declared), kinds);
}

TEST_CASE("what a unit needs: of all sets of kinds of training, two") {
  int complete = 0;
  for (unsigned kinds = 1; kinds < 16; ++kinds) {
    auto const set = static_cast<pp::detail::flow_set>(kinds);
    bool const by_rows = pp::detail::find_wrong_row(pp::training, set) == pp::nothing;
    CHECK((by_rows && uses_all_data(pp::training, set)) == by_rows);
    complete += by_rows ? 1 : 0;
  }
  CHECK(complete == 2); // F B, and F I W
}

TEST_CASE("of all sets of kinds in less memory, those are complete that keep, recompute or copy") {
  CHECK(pp::detail::frugal_training<>.has_choices);
  auto const complete = [](char const* letters) {
    unsigned kinds = 0;
    for (char const* at = letters; *at != '\0'; ++at)
      for (int kind = 0; kind < pp::flow::most_kinds; ++kind)
        if (pp::detail::frugal_training<>.kinds[kind].letter == *at)
          kinds |= 1U << static_cast<unsigned>(kind);
    auto const set = static_cast<pp::detail::flow_set>(kinds);
    return pp::detail::find_wrong_row(pp::detail::frugal_training<>, set) == pp::nothing &&
           uses_all_data(pp::detail::frugal_training<>, set);
  };
  for (char const* const good : {"FB", "FIW", "KRB", "KRIW", "HOQLB", "HOQLIW"})
    CHECK(complete(good));
  for (char const* const bad :
       {"F", "KB", "FRB", "HB", "HOB", "HOLB", "FOQLB", "HRB", "KHRB", "HOQLRB"})
    CHECK_FALSE(complete(bad));
}

namespace {

using pp::does;
using pp::effect;
using pp::engine;
using pp::of_stage;

constexpr auto pool(pp::slot_class of) {
  return static_cast<std::uint8_t>(of);
}

// A forward and a backward kind; tests change one thing.
struct small_flow {
  std::vector<pp::datum> data{{.word = "output",
                               .pool = pool(pp::slot_class::output),
                               .arrives_in = pool(pp::slot_class::received_input),
                               .wanted = true},
                              {.word = "kept", .wanted = true},
                              {.word = "done", .lives = pp::residence::nowhere, .wanted = true}};
  std::vector<pp::detail::numbered_kind> kinds{
    {pass_kind::forward,
     pp::declare_kind('F',
                      "ahead",
                      engine::compute,
                      pp::stage_call::perform,
                      {{does::reads, 0, of_stage::before}, {does::makes, 1}, {does::makes, 0}})},
    {pass_kind::backward,
     pp::declare_kind('B',
                      "back",
                      engine::compute,
                      pp::stage_call::perform,
                      {{does::frees, 1}, {does::makes, 2}})}};

  pp::kind_of_pass& kind(int number) { return kinds[static_cast<std::size_t>(number)].kind; }
  void add(int number, effect const& one) {
    kind(number).effects[kind(number).effect_count++] = one;
  }
  // What `declare` says, without "flow: ".
  [[nodiscard]] std::string refusal() const {
    try {
      (void)pp::declare(data, kinds);
      return "";
    } catch (std::invalid_argument const& found) {
      return std::string(found.what()).substr(6);
    }
  }
};

template <class Change>
std::string refusal(Change change) {
  small_flow flow;
  change(flow);
  return flow.refusal();
}

} // namespace

TEST_CASE("kinds without numbers and letters are known by their words") {
  small_flow const of;
  std::vector<pp::kind_of_pass> kinds;
  for (pp::detail::numbered_kind one : of.kinds) {
    one.kind.letter = '\0';
    kinds.push_back(one.kind);
  }
  kinds[1].is = pp::role::backward;
  pp::flow const declared = pp::declare(of.data, kinds);
  pass_kind const back = declared.kind_named("back");
  CHECK(pp::detail::index_of(back) == 1);
  CHECK_THROWS_WITH_AS(
    (void)declared.kind_named("forth"), "flow: there is no kind 'forth'", std::invalid_argument);
  CHECK(declared.letter(back) == 'B'); // that of its role
  CHECK(pp::detail::sign(declared, back) == "back");
  CHECK(pp::detail::sign(pp::training, pass_kind::backward) == "B");
  CHECK(std::string_view(declared.word(static_cast<pass_kind>(64))) == "unknown");
  CHECK(declared.kind_with(pp::role::backward) == back);
  CHECK(declared.kind_with(pp::role::weights) == pp::flow::no_kind);
}

TEST_CASE("kinds of training have the roles that costs and pictures ask for") {
  using enum pp::role;
  struct row {
    pass_kind kind;
    pp::role is;
    bool takes_no_time;
  };
  constexpr row rows[] = {{pass_kind::forward, forward, false},
                          {pass_kind::backward, backward, false},
                          {pass_kind::backward_input, input, false},
                          {pass_kind::backward_weight, weights, false},
                          {pass_kind::checkpointed_forward, forward, false},
                          {pass_kind::recompute, again, false},
                          {pass_kind::offloaded_forward, forward, false},
                          {pass_kind::copy_out, copy, false},
                          {pass_kind::copy_in, copy, false},
                          {pass_kind::copy_request, mark, true},
                          {pass_kind::embed, forward, false},
                          {pass_kind::logits, forward, false},
                          {pass_kind::logits_gradient, backward, false},
                          {pass_kind::embed_gradient, backward, false},
                          {pass_kind::request_weights, mark, true},
                          {pass_kind::gather_weights, communicate, false},
                          {pass_kind::use_weights, mark, true},
                          {pass_kind::release_weights, mark, true},
                          {pass_kind::request_weights_again, again, true},
                          {pass_kind::gather_weights_again, again, false},
                          {pass_kind::use_weights_again, again, true},
                          {pass_kind::release_weights_again, again, true},
                          {pass_kind::collect_gradients, mark, true},
                          {pass_kind::request_scatter, mark, true},
                          {pass_kind::scatter_gradients, communicate, false},
                          {pass_kind::keep_weights, mark, true}};
  static constexpr pp::flow sharded_training = pp::detail::shard_weights(pp::training);
  constexpr pp::flow const* flows[] = {
    &pp::detail::frugal_training<>, &pp::detail::vocabulary_training<2>, &sharded_training};
  int seen = 0;
  for (row const& each : rows)
    for (pp::flow const* const declared : flows)
      if ((*declared)[each.kind].exists()) {
        CAPTURE(declared->word(each.kind));
        CHECK((*declared)[each.kind].is == each.is);
        CHECK(pp::detail::stands_between((*declared)[each.kind]) == each.takes_no_time);
        ++seen;
      }
  CHECK(seen == 10 + 8 + 16);
  CHECK(pp::detail::frugal_training<>.kind_with(again) == pass_kind::recompute);
  CHECK(sharded_training.kind_with(again) == pp::flow::no_kind); // of those that compute
}

TEST_CASE("a flow that cannot be is refused, with kind, datum and what to write") {
  CHECK(small_flow{}.refusal().empty());
  CHECK(refusal([](small_flow& of) { of.data[1].pool = 200; }) ==
        "datum 'kept' names a pool that flows do not have; pools are the numbers of slot_class, "
        "without tied_gradient, copied_gradient and totals");
  CHECK(
    refusal([](small_flow& of) { of.data[1].arrives_in = 9; }).starts_with("datum 'kept' names"));
  CHECK(
    refusal([](small_flow& of) {
      of.add(0, {does::makes, 1});
    }) ==
    "kind 'ahead' and datum 'kept': two effects on one datum are only for memory to work in, "
    "which a kind makes or adds to, and then frees; leave one of them out, or change their order");
  CHECK(refusal([](small_flow& of) {
          of.data.push_back({.word = "away", .lives = pp::residence::host});
          of.add(1, {does::makes, 3});
        }) ==
        "datum 'away' is on the host in a pool of the device, or the other way round; give it a "
        "pool of its own");
  CHECK(refusal([](small_flow& of) {
          of.add(0, {does::makes, 7});
        }).starts_with("kind 'ahead' has an effect on a datum that does not exist"));
  CHECK(refusal([](small_flow& of) { of.kind(0).effect_count = 11; }) ==
        "kind 'ahead' has more than 10 effects; split it into two kinds");
  CHECK(refusal([](small_flow& of) { of.kind(1).letter = 'F'; }) ==
        "kind 'back' has the letter of another kind; give each kind one of its own, or none");
  CHECK(refusal([](small_flow& of) { of.kind(0).letter = of.kind(1).letter = '\0'; }).empty());
  CHECK(refusal([](small_flow& of) { of.kind(1).word = "ahead"; }) ==
        "kind 'ahead' has the word of another kind; give each kind one of its own");
  CHECK(refusal([](small_flow& of) { of.kind(1).word = ""; }) ==
        "kind '' has no word; give it one");
  CHECK(refusal([](small_flow& of) {
          of.kind(1).is = static_cast<pp::role>(8);
        }).starts_with("kind 'back' has an engine, a call or a role that is none"));
  CHECK(refusal([](small_flow& of) { of.kinds[1].number = static_cast<pass_kind>(63); }).empty());
  CHECK(refusal([](small_flow& of) {
          of.kinds[1].number = static_cast<pass_kind>(64);
        }).starts_with("kind 'back' has a number of 64 or more"));
  CHECK(refusal([](small_flow& of) { of.data.push_back({.word = "lost"}); }) ==
        "datum 'lost' is made by no kind; let one make it");
  CHECK(refusal([](small_flow& of) {
          of.kind(1).effect_count = 1;
          of.data.pop_back();
        }).starts_with("kind 'back' makes nothing"));
  CHECK(refusal([](small_flow& of) {
          of.add(1, {does::adds_to, 1});
        })
          .starts_with("kind 'back' and datum 'kept': only a datum that is there once per "
                       "microbatch is added to"));
  CHECK(refusal([](small_flow& of) {
          of.add(0, {does::reads, 0, of_stage::after});
        }) ==
        "kind 'ahead' and datum 'output': a pass reads one datum of other stages; let a second "
        "kind read the other one");
  CHECK(refusal([](small_flow& of) {
          of.add(1, {does::frees, 1, of_stage::after});
        }).starts_with("kind 'back' and datum 'kept': a pass does nothing but read data of other"));
  CHECK(refusal([](small_flow& of) {
          of.add(1, {does::reads, 0});
        }).starts_with("kind 'back' and datum 'output': its slot is given back when the last"));
  CHECK(refusal([](small_flow& of) {
          std::fill(std::begin(of.data[1].word.text), std::end(of.data[1].word.text), 'x');
        }).ends_with(" has a word without an end; a word has at most 27 letters"));
  CHECK(refusal([](small_flow& of) { of.data[1].lives = static_cast<pp::residence>(9); }) ==
        "datum 'kept' has a residence or a `per` that is none; use the enumerators");
  CHECK(refusal([](small_flow& of) { of.data[1].instance = pp::datum::per::reader; }) ==
        "datum 'kept' is there for each reader, but no other stage reads it; make it one per unit");
  CHECK(refusal([](small_flow& of) {
          of.add(1, {does::reads, 0, of_stage::group});
        }) ==
        "kind 'back' and datum 'output': only kinds that run in groups read data of their group; "
        "set in_groups");
  CHECK(refusal([](small_flow& of) {
          of.add(1, {does::reads, 0, of_stage::after});
        }) ==
        "datum 'output' is read by stages before, after or of the group, but by more than one of "
        "these; declare a datum for each");
  CHECK(refusal([](small_flow& of) { // a row for each set of kinds that make a datum
          char const* const words[] = {"third", "fourth", "fifth"};
          for (int i = 0; i < 3; ++i) {
            auto const made = static_cast<std::uint8_t>(3 + i);
            of.data.push_back({.word = pp::flow_word::of(words[i]),
                               .lives = pp::residence::nowhere,
                               .wanted = true});
            of.add(0, {does::makes, made});
            of.kinds.push_back({static_cast<pass_kind>(10 + i),
                                pp::declare_kind('\0',
                                                 pp::flow_word::of(words[i]),
                                                 engine::compute,
                                                 pp::stage_call::perform,
                                                 {{does::makes, made}})});
          }
        }) == "kind 'ahead' makes more than three rows of data; let the same kinds make what "
              "belongs together");
  CHECK_THROWS_AS((void)pp::declare({}, {}), std::invalid_argument);
  CHECK_THROWS_AS((void)pp::flow_word::of("fourteen chars", "fourteen chars"),
                  std::invalid_argument);
  effect const one{does::makes, 0};
  CHECK_THROWS_AS((void)pp::declare_kind('F',
                                         "forward",
                                         engine::compute,
                                         pp::stage_call::perform,
                                         {one, one, one, one, one, one, one, one, one, one, one}),
                  std::invalid_argument);
}

TEST_CASE("a kind of one's own that alone adds to a datum is refused where its slot has no place") {
  auto const adds = [](pp::slot_class in, pp::datum::per instance) {
    return refusal([&](small_flow& of) {
      of.data.push_back({.word = "sum", .pool = pool(in), .instance = instance});
      of.add(1, {does::adds_to, 3});
    });
  };
  CHECK(adds(pp::slot_class::sequence, pp::datum::per::microbatch).empty());
  CHECK(adds(pp::slot_class::weights, pp::datum::per::microbatch)
          .starts_with("datum 'sum' is there once per microbatch, which only slots that stay"));
  CHECK(adds(pp::slot_class::sequence, pp::datum::per::unit)
          .starts_with("kind 'back' and datum 'sum': only a datum that is there once per"));
}

TEST_CASE("a kind of any engine reads, frees and makes as one of compute does") {
  auto const network = [](does what) {
    small_flow of;
    of.data.push_back({.word = "routed", .pool = pool(pp::slot_class::weight_input)});
    of.data.push_back({.word = "sent", .lives = pp::residence::nowhere, .wanted = true});
    of.add(0, {does::makes, 3});
    of.kinds.push_back({pass_kind::recompute,
                        pp::declare_kind('N',
                                         "dispatch",
                                         engine::network,
                                         pp::stage_call::perform,
                                         {{what, 3}, {does::makes, 4}})});
    return of.refusal();
  };
  CHECK(network(does::frees).empty());
  CHECK(network(does::reads).empty());
  small_flow of; // of another stage, and of two engines of its own
  of.data.push_back({.word = "asked", .lives = pp::residence::nowhere, .wanted = true});
  of.data.push_back({.word = "told", .lives = pp::residence::nowhere, .wanted = true});
  of.data.push_back({.word = "last", .lives = pp::residence::nowhere, .wanted = true});
  auto const marks =
    [&of](pass_kind kind, pp::flow_word const& word, engine on, std::uint8_t made) {
      of.kinds.push_back(
        {kind, pp::declare_kind(word, on, pp::stage_call::perform, {{does::makes, made}})});
    };
  marks(pass_kind::copy_in, "ask", engine::copy_in, 3);
  marks(pass_kind::copy_out, "tell", engine::copy_out, 4);
  of.kinds.push_back({pass_kind::recompute,
                      pp::declare_kind('L',
                                       "late",
                                       engine::compute,
                                       pp::stage_call::perform,
                                       {{does::reads, 0, of_stage::before},
                                        {does::reads, 3},
                                        {does::reads, 4},
                                        {does::makes, 5}})});
  CHECK(of.refusal().empty());
}

TEST_CASE("the library moves one slot to another, and fills none that no stage is called for") {
  auto const copies = [](engine on, std::initializer_list<effect> effects) {
    small_flow of;
    of.data.push_back({.word = "moved", .pool = pool(pp::slot_class::weight_input)});
    of.data.push_back({.word = "far", .pool = pool(pp::slot_class::weights)});
    of.add(0, {does::makes, 3});
    of.kinds.push_back(
      {pass_kind::recompute, pp::declare_kind('N', "move", on, pp::stage_call::copy, effects)});
    return of.refusal();
  };
  CHECK(copies(engine::copy_out, {{does::frees, 3}, {does::makes, 4}}).empty());
  CHECK(copies(engine::copy_out, {{does::reads, 3}, {does::makes, 4}}) ==
        "kind 'move' and datum 'moved': a copy frees one datum of its unit and makes another; let "
        "it call a stage, which may read, free and make any number");
  CHECK(
    copies(engine::copy_out, {{does::makes, 4}}) ==
    "kind 'move' copies, but does not free one datum and make another; give it both effects, or "
    "another call");
  CHECK(copies(engine::compute, {{does::frees, 3}, {does::makes, 4}}) ==
        "kind 'move' and datum 'far': it calls no stage, so that nobody fills what it makes; give "
        "it another call, or an engine that copies");
}

TEST_CASE("whoever frees a datum follows all that use it, or is refused") {
  auto const looks = [](bool wanted) {
    small_flow of;
    of.data.push_back({.word = "seen", .lives = pp::residence::nowhere, .wanted = wanted});
    of.kinds.push_back({pass_kind::recompute,
                        pp::declare_kind('L',
                                         "look",
                                         engine::network,
                                         pp::stage_call::perform,
                                         {{does::reads, 1}, {does::makes, 3}})});
    return of;
  };
  small_flow const seen = looks(true);
  pp::flow const made = pp::declare(seen.data, seen.kinds);
  pp::kind_of_pass const& back = made[pass_kind::backward];
  REQUIRE(back.effect_count == 3);
  CHECK(back.effects[2] == effect{does::follows, 3});
  CHECK(made.links[pp::detail::index_of(pass_kind::backward)][0].own[0] == made.row_of[3]);
  CHECK(looks(false).refusal() ==
        "kind 'back' and datum 'kept': it frees what another kind of the unit may read later, and "
        "nothing that each unit has made says when; let that kind make a wanted datum that lies "
        "nowhere, and this one follow it");
  CHECK(refusal([](small_flow& of) {
          of.add(1, {does::follows, 0});
        }) ==
        "kind 'back' and datum 'output': a pass follows whoever made a datum of its own unit that "
        "each stage has; declare one that lies nowhere, and follow it");
}
