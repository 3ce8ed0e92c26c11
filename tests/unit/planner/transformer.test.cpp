// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/planner/model/transformer.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <tests/support/golden_lines.hpp>

namespace pp = pipelining;

namespace {

struct golden_shape {
  std::string name;
  std::int64_t sequence = 0;
  pp::transformer shape;
  std::int64_t parameters = 0;
  std::int64_t layer_parameters = 0;
  double forward = 0;
  double input = 0;
  double weight = 0;
  double last_quarter = 0;
  double vocabulary = 0;
  std::int64_t activation = 0;
  std::int64_t activation_tensor8 = 0;
  std::int64_t recomputed = 0;
  std::int64_t message = 0;
};

golden_shape read(std::string const& line) {
  std::istringstream in(line);
  golden_shape g;
  char colon = 0;
  in >> g.name >> g.sequence >> colon >> g.shape.layers >> g.shape.hidden >> g.shape.heads >>
    g.shape.kv_heads >> g.shape.ffn >> g.shape.gated >> g.shape.vocabulary >> colon >>
    g.parameters >> g.layer_parameters >> colon >> g.forward >> g.input >> g.weight >>
    g.last_quarter >> g.vocabulary >> colon >> g.activation >> g.activation_tensor8 >>
    g.recomputed >> g.message;
  REQUIRE(!in.fail());
  return g;
}

} // namespace

TEST_CASE("shapes count what the golden file counts") {
  for (std::string const& line : support::golden_lines("golden/model/shapes.txt")) {
    golden_shape const g = read(line);
    CAPTURE(line);
    pp::token_range const all{g.sequence, 0};
    CHECK(pp::find_transformer(g.name) == g.shape);
    CHECK(pp::parameters(g.shape) == g.parameters);
    CHECK(pp::detail::layer_parameters(g.shape) == g.layer_parameters);
    CHECK(pp::detail::layer_flops(g.shape, pp::pass_kind::forward, all) == g.forward);
    CHECK(pp::detail::layer_flops(g.shape, pp::pass_kind::backward_input, all) == g.input);
    CHECK(pp::detail::layer_flops(g.shape, pp::pass_kind::backward_weight, all) == g.weight);
    CHECK(pp::detail::layer_flops(g.shape, pp::pass_kind::backward, all) == g.input + g.weight);
    pp::token_range const quarter{g.sequence / 4, g.sequence / 4 * 3};
    CHECK(pp::detail::layer_flops(g.shape, pp::pass_kind::forward, quarter) == g.last_quarter);
    CHECK(pp::vocabulary_flops(g.shape, all) == g.vocabulary);
    CHECK(pp::activation_bytes(g.shape, g.sequence) == g.activation);
    CHECK(pp::activation_bytes(g.shape, g.sequence) / 8 == g.activation_tensor8);
    CHECK(pp::input_bytes(g.shape, g.sequence) == g.recomputed);
    CHECK(pp::message_bytes(g.shape, g.sequence) == g.message);
  }
}

TEST_CASE("chunks of a sequence add up to it") {
  for (pp::detail::named_transformer const& each : pp::detail::named_transformers()) {
    CAPTURE(each.name);
    double sum = 0;
    std::int64_t bytes = 0;
    pp::token_range tokens{0, 0};
    for (std::int64_t const length : {1000, 24, 3000, 72}) {
      tokens = {length, tokens.prefix + tokens.length};
      sum += pp::detail::layer_flops(each.shape, pp::pass_kind::backward_input, tokens);
      bytes += pp::activation_bytes(each.shape, length);
    }
    CHECK(sum == pp::detail::layer_flops(each.shape, pp::pass_kind::backward_input, {4096, 0}));
    CHECK(bytes == pp::activation_bytes(each.shape, 4096));
    CHECK(pp::detail::layer_flops(each.shape, pp::pass_kind::forward, {64, 0}, 3) ==
          3 * pp::detail::layer_flops(each.shape, pp::pass_kind::forward, {64, 0}));
  }
}

TEST_CASE("a mixture of experts holds all of them and runs some") {
  pp::transformer const mixtral = pp::find_transformer("mixtral-8x7b");
  // Its model card: 46.7 billion parameters, of which a token meets 12.9 billion.
  CHECK(static_cast<double>(pp::parameters(mixtral)) / 1e9 == doctest::Approx(46.7).epsilon(0.002));
  pp::transformer met = mixtral;
  met.experts = 2;
  CHECK(static_cast<double>(pp::parameters(met)) / 1e9 == doctest::Approx(12.9).epsilon(0.005));
  // A token's work is that of the dense layer it meets, and of the router.
  pp::transformer dense = mixtral;
  dense.experts = dense.experts_per_token = 0;
  dense.ffn *= 2;
  double const router = 2.0 * 100 * mixtral.hidden * mixtral.experts;
  CHECK(pp::linear_flops(mixtral, {100, 0}) == pp::linear_flops(dense, {100, 0}) + router);
  // Two of eight devices' experts: 7/8 of the tokens' copies leave, and come back.
  CHECK(pp::detail::expert_message_bytes(mixtral, 100, 8) == 2 * 2.0 * 100 * 4096 * 2 * 7 / 8);
  CHECK(pp::detail::expert_message_bytes(mixtral, 100, 1) == 0);
}

TEST_CASE("shapes that no model has are refused by name") {
  auto const message = [](pp::transformer const& shape) -> std::string {
    try {
      pp::detail::check_transformer(shape);
    } catch (std::invalid_argument const& error) {
      return error.what();
    }
    return "";
  };
  pp::transformer good = pp::find_transformer("llama-70b");
  CHECK(message(good).empty());
  good.kv_heads = 7;
  CHECK(message(good).find("multiple of kv_heads") != std::string::npos);
  good = pp::find_transformer("mixtral-8x7b");
  CHECK(message(good).empty());
  good.experts_per_token = 9;
  CHECK(message(good).find("experts_per_token") != std::string::npos);
  CHECK_THROWS_WITH(pp::find_transformer("gpt-8b"), doctest::Contains("gpt-7b"));
}

TEST_CASE(
  "shapes whose parameters or bytes cannot be counted are refused, the largest are counted") {
  int const most = 1 << 24;
  auto const shape = [](int layers, int hidden, int ffn, int vocabulary) {
    return pp::transformer{
      .layers = layers, .hidden = hidden, .ffn = ffn, .vocabulary = vocabulary};
  };
  CHECK_THROWS_WITH(pp::detail::check_transformer(shape(1, most, 1, 1)),
                    doctest::Contains("more than 1e15 parameters"));
  CHECK_NOTHROW(pp::detail::check_transformer(shape(1, most / 4, 1, 1)));
  CHECK_THROWS_WITH(pp::detail::check_transformer(shape(1, most + 1, 1, 1)),
                    "transformer: hidden must be a whole number from 0 to 2^24");
  for (pp::transformer const& large : {shape(most, most, 1, 1),
                                       shape(1, most, most, 1),
                                       shape(most, 1 << 12, 1 << 14, 1),
                                       shape(1, most, 1, most)})
    CHECK_THROWS_WITH(pp::detail::check_transformer(large),
                      doctest::Contains("more than 1e15 parameters"));
  pp::transformer experts = shape(1, 1 << 14, 1 << 14, 1);
  experts.experts = experts.experts_per_token = most;
  CHECK_THROWS_WITH(pp::detail::check_transformer(experts),
                    doctest::Contains("more than 1e15 parameters"));
  pp::transformer heads = shape(1, 1 << 14, 1, 1);
  heads.heads = heads.head_width = most;
  CHECK_THROWS_WITH(pp::detail::check_transformer(heads),
                    doctest::Contains("more than 1e15 parameters"));
}
