// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/core/declare.hpp>
#include <pipe/core/dependencies.hpp>
#include <pipe/core/pipeline.hpp>
#include <pipe/core/training_flows.hpp>

#include <doctest/doctest.h>

#include <stdexcept>

namespace pp = pipelining;

namespace {

using pp::kind_links;
using pp::pass_kind;

kind_links const& links(pp::flow const& declared, pass_kind kind, bool has_after) {
  return declared.links[pp::index_of(kind)][has_after ? 1 : 0];
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
      // Behind the last stage nothing says that the own forward has run.
      CHECK(gradient.own[0] == (has_after ? kind_links::none : outputs));
    }
    kind_links const& weights = links(pp::training, pass_kind::backward_weight, has_after);
    CHECK(weights.made[0] == weight_gradients);
    CHECK(weights.input == kind_links::none);
    CHECK(weights.own[0] == input_gradients);
    CHECK(weights.chunk_step == 0);
  }
}

TEST_CASE("who reads what a pass makes follows too") {
  pp::pipeline const over{{.devices = 4, .microbatches = 2, .chunks = 2}};
  auto const of = [](pass_kind kind, int stage) {
    return pp::pass{kind, false, static_cast<std::uint16_t>(stage), 1, 0};
  };
  CHECK(pp::reader_stage(over, of(pass_kind::forward, 2)) == 3);
  CHECK(pp::reader_stage(over, of(pass_kind::forward, 3)) == kind_links::none);
  CHECK(pp::reader_stage(over, of(pass_kind::backward, 2)) == 1);
  CHECK(pp::reader_stage(over, of(pass_kind::backward_input, 0)) == kind_links::none);
  CHECK(pp::reader_stage(over, of(pass_kind::backward_weight, 2)) == kind_links::none);
}

TEST_CASE("what a unit needs: of all sets of kinds of training, two") {
  int complete = 0;
  for (unsigned kinds = 1; kinds < 16; ++kinds) {
    auto const set = static_cast<pp::detail::flow_set>(kinds);
    bool const by_rows = pp::detail::makes_rows_once(pp::training, set);
    CHECK((by_rows && pp::detail::uses_all_data(pp::training, set)) == by_rows);
    complete += by_rows ? 1 : 0;
  }
  CHECK(complete == 2); // F B, and F I W
}

TEST_CASE("of all sets of kinds in less memory, those are complete that keep, recompute or copy") {
  CHECK(pp::frugal_training.has_choices);
  auto const complete = [](char const* letters) {
    unsigned kinds = 0;
    for (char const* at = letters; *at != '\0'; ++at)
      for (int kind = 0; kind < pp::most_kinds; ++kind)
        if (pp::frugal_training.kinds[kind].letter == *at)
          kinds |= 1U << static_cast<unsigned>(kind);
    auto const set = static_cast<pp::detail::flow_set>(kinds);
    return pp::detail::makes_rows_once(pp::frugal_training, set) &&
           pp::detail::uses_all_data(pp::frugal_training, set);
  };
  for (char const* const good : {"FB", "FIW", "KRB", "KRIW", "HOQLB", "HOQLIW"})
    CHECK(complete(good));
  for (char const* const bad :
       {"F", "KB", "FRB", "HB", "HOB", "HOLB", "FOQLB", "HRB", "KHRB", "HOQLRB"})
    CHECK_FALSE(complete(bad));
}

TEST_CASE("a flow that cannot be is refused") {
  using pp::does;
  using pp::engine;
  using pp::of_stage;
  using pp::stage_call;
  pp::datum const made{.word = "made", .wanted = true};
  CHECK_THROWS_AS((void)pp::declare({made}, {}), std::invalid_argument); // nobody makes it
  CHECK_THROWS_AS((void)pp::declare(
                    {made},
                    {{pass_kind::forward,
                      pp::declare_kind('F', "forward", engine::compute, stage_call::perform, {})}}),
                  std::invalid_argument);
  CHECK_THROWS_AS((void)pp::declare({made},
                                    {{pass_kind::forward,
                                      pp::declare_kind('F',
                                                       "forward",
                                                       engine::compute,
                                                       stage_call::perform,
                                                       {{does::makes, 0},
                                                        {does::reads, 0, of_stage::before},
                                                        {does::reads, 0, of_stage::after}})}}),
                  std::invalid_argument); // two other stages
}
