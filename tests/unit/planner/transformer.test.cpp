// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/planner/model/read_shape.hpp>
#include <pipe/planner/model/transformer.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tests/support/golden_lines.hpp>

namespace pp = pipelining;

namespace {

//! Floating-point operations of one layer.
double layer_flops(pp::transformer const& model,
                   pp::pass_kind kind,
                   pp::token_range tokens,
                   int sequences = 1) {
  double const linear = model.linear_flops(sequences * tokens.length);
  return (kind == pp::pass_kind::backward ? 2 * linear : linear) +
         model.attention_flops(kind, tokens, sequences);
}

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
    CHECK(pp::transformer::named(g.name) == g.shape);
    CHECK(g.shape.parameters() == g.parameters);
    CHECK(g.shape.layer_parameters() == g.layer_parameters);
    CHECK(layer_flops(g.shape, pp::pass_kind::forward, all) == g.forward);
    CHECK(layer_flops(g.shape, pp::pass_kind::backward_input, all) == g.input);
    CHECK(layer_flops(g.shape, pp::pass_kind::backward_weight, all) == g.weight);
    CHECK(layer_flops(g.shape, pp::pass_kind::backward, all) == g.input + g.weight);
    pp::token_range const quarter{g.sequence / 4, g.sequence / 4 * 3};
    CHECK(layer_flops(g.shape, pp::pass_kind::forward, quarter) == g.last_quarter);
    CHECK(g.shape.vocabulary_flops(all.length) == g.vocabulary);
    CHECK(g.shape.activation_bytes(g.sequence) == g.activation);
    CHECK(g.shape.activation_bytes(g.sequence) / 8 == g.activation_tensor8);
    CHECK(g.shape.message_bytes(g.sequence) == g.recomputed);
    CHECK(g.shape.message_bytes(g.sequence) == g.message);
  }
}

TEST_CASE("chunks of a sequence add up to it") {
  for (pp::detail::named_transformer const& each : pp::detail::transformers) {
    CAPTURE(each.name);
    double sum = 0;
    std::int64_t bytes = 0;
    pp::token_range tokens{0, 0};
    for (std::int64_t const length : {1000, 24, 3000, 72}) {
      tokens = {length, tokens.prefix + tokens.length};
      sum += layer_flops(each.shape, pp::pass_kind::backward_input, tokens);
      bytes += each.shape.activation_bytes(length);
    }
    CHECK(sum == layer_flops(each.shape, pp::pass_kind::backward_input, {4096, 0}));
    CHECK(bytes == each.shape.activation_bytes(4096));
    CHECK(layer_flops(each.shape, pp::pass_kind::forward, {64, 0}, 3) ==
          3 * layer_flops(each.shape, pp::pass_kind::forward, {64, 0}));
  }
}

TEST_CASE("a mixture of experts holds all of them and runs some") {
  pp::transformer const mixtral = pp::transformer::named("mixtral-8x7b");
  // Its model card: 46.7 billion parameters, of which a token meets 12.9 billion.
  CHECK(static_cast<double>(mixtral.parameters()) / 1e9 == doctest::Approx(46.7).epsilon(0.002));
  pp::transformer met = mixtral;
  met.experts = 2;
  CHECK(static_cast<double>(met.parameters()) / 1e9 == doctest::Approx(12.9).epsilon(0.005));
  // A token's work is that of the dense layer it meets, and of the router.
  pp::transformer dense = mixtral;
  dense.experts = dense.experts_per_token = 0;
  dense.ffn *= 2;
  double const router = 2.0 * 100 * mixtral.hidden * mixtral.experts;
  CHECK(mixtral.linear_flops(100) == dense.linear_flops(100) + router);
  // Two of eight devices' experts: 7/8 of the tokens' copies leave, and come back.
  CHECK(mixtral.expert_message_bytes(100, 8) == 2 * 2.0 * 100 * 4096 * 2 * 7 / 8);
  CHECK(mixtral.expert_message_bytes(100, 1) == 0);
}

TEST_CASE("shapes that no model has are refused by name") {
  auto const message = [](pp::transformer const& shape) -> std::string {
    try {
      shape.check();
    } catch (std::invalid_argument const& error) {
      return error.what();
    }
    return "";
  };
  pp::transformer good = pp::transformer::named("llama-70b");
  CHECK(message(good).empty());
  good.kv_heads = 7;
  CHECK(message(good).find("multiple of kv_heads") != std::string::npos);
  good = pp::transformer::named("mixtral-8x7b");
  CHECK(message(good).empty());
  good.experts_per_token = 9;
  CHECK(message(good).find("experts_per_token") != std::string::npos);
  CHECK_THROWS_WITH(pp::transformer::named("gpt-8b"), doctest::Contains("gpt-7b"));
  CHECK_THROWS_WITH(
    (void)pp::transformer::named("gpt-8b"),
    doctest::Contains("there is no model of the name 'gpt-8b'; the known ones are "));
}

TEST_CASE(
  "shapes whose parameters or bytes cannot be counted are refused, the largest are counted") {
  int const most = 1 << 24;
  auto const shape = [](int layers, int hidden, int ffn, int vocabulary) {
    return pp::transformer{
      .layers = layers, .hidden = hidden, .ffn = ffn, .vocabulary = vocabulary};
  };
  CHECK_THROWS_WITH(shape(1, most, 1, 1).check(), doctest::Contains("more than 1e15 parameters"));
  CHECK_NOTHROW(shape(1, most / 4, 1, 1).check());
  CHECK_THROWS_WITH(shape(1, most + 1, 1, 1).check(),
                    "transformer: hidden must be a whole number from 0 to 2^24");
  for (pp::transformer const& large : {shape(most, most, 1, 1),
                                       shape(1, most, most, 1),
                                       shape(most, 1 << 12, 1 << 14, 1),
                                       shape(1, most, 1, most)})
    CHECK_THROWS_WITH(large.check(), doctest::Contains("more than 1e15 parameters"));
  pp::transformer experts = shape(1, 1 << 14, 1 << 14, 1);
  experts.experts = experts.experts_per_token = most;
  CHECK_THROWS_WITH(experts.check(), doctest::Contains("more than 1e15 parameters"));
  pp::transformer heads = shape(1, 1 << 14, 1, 1);
  heads.heads = heads.head_width = most;
  CHECK_THROWS_WITH(heads.check(), doctest::Contains("more than 1e15 parameters"));
}

// What the makers say of their models, in 1e9: all parameters, and those that a token meets,
// without the look-up in the embedding where they leave it out.
TEST_CASE("models of today have as many parameters as their makers say") {
  struct published {
    char const* name;
    double all;
    double met;
  };
  for (published const& each : {published{"llama3-8b", 8.03, 8.03},
                                {"llama3-70b", 70.6, 70.6},
                                {"llama3-405b", 405.9, 405.9},
                                {"qwen3-8b", 8.19, 8.19},
                                {"qwen3-14b", 14.8, 14.8},
                                {"qwen3-32b", 32.8, 32.8},
                                {"qwen3-30b-a3b", 30.5, 3.3},
                                {"qwen3-235b-a22b", 235, 22},
                                {"gpt-oss-20b", 20.9, 3.6},
                                {"gpt-oss-120b", 116.8, 5.1},
                                {"mixtral-8x7b", 46.7, 12.9},
                                {"mixtral-8x22b", 141, 39},
                                {"deepseek-v3", 671, 37}}) {
    CAPTURE(each.name);
    pp::transformer const model = pp::transformer::named(each.name);
    double const ends = (model.tied ? 1.0 : 2.0) * model.hidden * model.vocabulary;
    double const met =
      model.of_layers(model.layers, model.dense_layers, [](pp::transformer const& of) {
        return double(of.met_parameters());
      });
    CHECK(double(model.parameters()) / 1e9 > 0.988 * each.all);
    CHECK(double(model.parameters()) / 1e9 < 1.012 * each.all);
    CHECK((met + ends) / 1e9 > 0.97 * each.met);
    CHECK(met / 1e9 < 1.02 * each.met);
  }
}

TEST_CASE("the first layers of DeepSeek-V3 have no experts") {
  // By hand: in 1e6 parameters, attention has 187.1 and a matrix of an expert 3 x 7168 x 2048.
  pp::transformer const model = pp::transformer::named("deepseek-v3");
  double const attention = double(model.attention_parameters());
  double const expert = 3.0 * 7168 * 2048;
  double const all = 61 * attention + 3 * 3.0 * 7168 * 18432 + 58 * (257 * expert + 7168.0 * 256) +
                     2.0 * 7168 * 129280;
  CHECK(double(model.parameters()) == all);
  CHECK(all / 1e9 == doctest::Approx(671).epsilon(0.001));
  pp::transformer without = model;
  without.dense_layers = 0;
  CHECK_THROWS_WITH(without.check(), doctest::Contains("belong together"));
  without = model;
  without.dense_layers = 62;
  CHECK_THROWS_WITH(without.check(), doctest::Contains("at most all layers"));
}

TEST_CASE("latent attention multiplies wider queries and keys than it adds up") {
  // By hand: 2 heads of 4 + 2 and 4; scores cost 2 * 6 and values 2 * 4 each, a pair and a head.
  pp::transformer const model{.layers = 1,
                              .hidden = 16,
                              .heads = 2,
                              .kv_heads = 2,
                              .head_width = 4,
                              .vocabulary = 10,
                              .query_rank = 3,
                              .key_rank = 5,
                              .rope_width = 2};
  CHECK(model.attention_flops(pp::pass_kind::forward, {1, 7}) == 2 * (2 * 6 + 2 * 4) * 7.5);
  CHECK(model.attention_parameters() ==
        16 * 3 + 3 * 2 * 6 + 16 * (5 + 2) + 5 * 2 * (4 + 4) + 2 * 4 * 16);
  CHECK(model.key_value_bytes(1) == 2 * (2 * 6 + 2 * 4));
  CHECK(model.attention_activation_bytes(1) == 2 * (12 + 12 + 8 + 8) + 4 * 2);
}

TEST_CASE("files of model hubs give the shapes that have a name") {
  CHECK(pp::read_transformer(R"({"architectures": ["DeepseekV3ForCausalLM"],
    "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432,
    "kv_lora_rank": 512, "model_type": "deepseek_v3", "moe_intermediate_size": 2048,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "rope_scaling": {"factor": 40, "type": "yarn"}, "tie_word_embeddings": false,
    "v_head_dim": 128, "vocab_size": 129280})") == pp::transformer::named("deepseek-v3"));
  CHECK(pp::read_transformer(R"({"decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "num_key_value_heads": 4, "sliding_window": null,
    "tie_word_embeddings": false, "vocab_size": 151936})") ==
        pp::transformer::named("qwen3-30b-a3b"));
  CHECK(pp::read_transformer(R"({"experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
    "hidden_size": 2880, "intermediate_size": 2880, "layer_types": ["sliding_attention"],
    "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 36,
    "num_key_value_heads": 8, "num_local_experts": 128, "vocab_size": 201088})") ==
        pp::transformer::named("gpt-oss-120b"));
  // "MTP: 11.5B unique parameters, excluding the shared embedding and head", says its file of
  // weights.
  pp::transformer next = pp::read_transformer(R"({"layers": 2, "hidden": 8, "heads": 2,
    "vocabulary": 9, "num_nextn_predict_layers": 3})");
  CHECK(next.modules == 3);
  next = pp::transformer::named("deepseek-v3");
  next.modules = 1;
  CHECK(double(next.parameters() - pp::transformer::named("deepseek-v3").parameters()) ==
        doctest::Approx(11.5e9).epsilon(0.01));
  // Of a model that reads pictures, the part that reads texts; Gemma has a gate without SiLU.
  pp::transformer const gemma = pp::read_transformer(R"({"model_type": "gemma3",
    "vision_config": {"hidden_size": 1152}, "text_config": {"model_type": "gemma3_text",
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 3840, "intermediate_size": 15360,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
    "num_hidden_layers": 48, "tie_word_embeddings": true, "vocab_size": 262208}})");
  CHECK(gemma.gated);
  CHECK(gemma.parameters() / 1'000'000'000 == 11); // "12B" with what reads pictures
  CHECK(gemma.encoder.layers == 0);                // of which not all is said
  pp::transformer const seeing = pp::read_transformer(R"({"vision_config": {"hidden_size": 1152,
    "image_size": 896, "intermediate_size": 4304, "num_attention_heads": 16,
    "num_hidden_layers": 27, "patch_size": 14}, "text_config": {"hidden_size": 2560,
    "intermediate_size": 10240, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 256, "num_hidden_layers": 34, "vocab_size": 262208}})");
  CHECK(seeing.encoder ==
        pp::transformer::picture_encoder{
          .layers = 27, .hidden = 1152, .heads = 16, .ffn = 4304, .tokens = 64 * 64});
  // "SigLIP, 400M parameters", of which a pooling head and the embedding of patches are not
  // counted.
  pp::transformer blind = seeing;
  blind.encoder = {};
  CHECK(double(seeing.parameters() - blind.parameters()) == doctest::Approx(0.41e9).epsilon(0.03));
  auto const refusal = [](std::string const& encoder) -> std::string {
    try {
      (void)pp::read_transformer(R"({"layers": 2, "hidden": 8, "heads": 2, "vocabulary": 9,
        "encoder": )" + encoder + "}");
    } catch (std::invalid_argument const& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refusal(R"({"layers": 1, "hidden": 8, "heads": 2, "tokens": 4})") == "");
  CHECK(refusal(R"({"layers": 1, "hidden": 8, "heads": 2})") ==
        "model file, encoder: 'tokens' is missing");
  CHECK(refusal(R"({"layers": 1, "hidden": 8, "heads": 3, "tokens": 4})") ==
        "transformer: hidden must be a multiple of heads, but 8 is none of 3; or head_width must "
        "say how wide a head is");
}
