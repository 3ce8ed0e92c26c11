// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Times and bytes of every stage of a model on given GPUs. Header for
//! pipelining::training_setup, stage_content, stage_bytes, parted_contents, pass_seconds,
//! copy_seconds, sent_bytes, predict_costs, predict_bytes, memory_band and chunk_tax_band.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/flow/training_kinds.hpp>
#include <pipe/planner/model/gpu.hpp>
#include <pipe/planner/model/transformer.hpp>
#include <pipe/timetable/cost_table.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief How a model is trained, beside its pipeline.
struct training_setup {
  std::int64_t sequence = 1; //!< tokens of a sequence
  int sequences = 1;         //!< sequences of a microbatch
  int tensor = 1;            //!< GPUs that share every layer, with sequence parallelism
  int data = 1;              //!< replicas of the pipeline, which share the optimizer's state
  int expert = 1;            //!< GPUs over which the experts of a layer are spread
};

//! @brief What one stage holds of the model.
struct stage_content {
  int layers = 1;         //!< layers of the model
  bool embedding = false; //!< the embedding of tokens
  bool output = false;    //!< the output layer and the loss
  int shards = 1;         //!< of the vocabulary, of which this stage has one
  // Parts of layers beside the whole ones, of which each has one of every part.
  int projections = 0; //!< what gives query, keys and values
  int attentions = 0;  //!< attention, which has no weights
  int remainders = 0;  //!< what follows attention

  friend constexpr bool operator==(stage_content const&, stage_content const&) = default;
};

//! @brief Bytes of one stage on one GPU.
struct stage_bytes {
  std::int64_t activation = 0; //!< of one microbatch, all its chunks
  std::int64_t weights = 0;    //!< bf16
  std::int64_t gradients = 0;  //!< single precision
  std::int64_t optimizer = 0;  //!< master weights and two moments, shared by the replicas
  std::int64_t logits = 0;     //!< and their gradient, of the chunk with the most tokens
  std::int64_t carried = 0;    //!< gradients of keys and values that travel between chunks
  std::int64_t message = 0;    //!< of one microbatch: an activation or a gradient

  //! @brief What is there whatever the schedule: everything but activations and messages.
  [[nodiscard]] constexpr std::int64_t resident() const noexcept {
    return weights + gradients + optimizer + logits + carried;
  }
};

//! @brief Checks a setup. @throws std::invalid_argument with one sentence.
constexpr void check_setup(transformer const& model, training_setup const& setup) {
  detail::check_transformer(model);
  if (setup.sequence < 1 || setup.sequences < 1 || setup.tensor < 1 || setup.data < 1 ||
      setup.expert < 1)
    throw std::invalid_argument("training_setup: every number must be at least 1");
  if (model.heads % setup.tensor != 0)
    throw std::invalid_argument("training_setup: the heads of the model must be a multiple of the "
                                "tensor parallel GPUs, but " +
                                std::to_string(model.heads) + " is none of " +
                                std::to_string(setup.tensor));
  if (setup.expert > 1 && model.experts == 0)
    throw std::invalid_argument("training_setup: the model has no experts to spread over GPUs");
  if (setup.expert > 1 && model.experts % setup.expert != 0)
    throw std::invalid_argument("training_setup: the experts of a layer must be a multiple of the "
                                "GPUs that they are spread over, but " +
                                std::to_string(model.experts) + " is none of " +
                                std::to_string(setup.expert));
  double const of_token =
    static_cast<double>(activation_bytes(model, 1) + key_value_bytes(model, 1)) * model.layers +
    static_cast<double>(detail::logits_bytes(model, 1));
  if (static_cast<double>(setup.sequence) * setup.sequences * of_token > 1e18)
    throw std::invalid_argument("training_setup: a microbatch that keeps more than 1e18 bytes is "
                                "not counted; give shorter sequences or fewer of them");
}

//! @brief The stages of a pipeline with these layers: the first holds the embedding, the last the
//! output layer.
//! @param layers [S]
[[nodiscard]] inline std::vector<stage_content> stage_contents(std::span<int const> layers) {
  std::vector<stage_content> result;
  for (std::size_t stage = 0; stage < layers.size(); ++stage)
    result.push_back({layers[stage], stage == 0, stage + 1 == layers.size()});
  return result;
}

//! @brief The stages of HelixPipe: what is around attention, with the ends of two layers, and
//! attention, in turn.
//! @param layers of the model
[[nodiscard]] inline std::vector<stage_content> parted_contents(int layers) {
  std::vector<stage_content> result{{0, true, false, 1, 1}};
  for (int layer = 1; layer <= layers; ++layer) {
    bool const last = layer == layers;
    result.push_back({.layers = 0, .attentions = 1});
    result.push_back({0, false, last, 1, last ? 0 : 1, 0, 1});
  }
  return result;
}

//! @brief Seconds that the GPUs of a tensor parallel group exchange activations for one pass of a
//! stage, which computes nothing of its own meanwhile: all-reduces, or with sequence parallelism
//! gathers and scatters. 0 for the gradient of weights.
//! @param tokens those of the chunk.
//! @source own derivation; a layer gathers and scatters twice forward and twice backward, of which
//! the first gather is before its projection.
[[nodiscard]] constexpr double exchange_seconds(transformer const& model,
                                                training_setup const& setup,
                                                gpu const& on,
                                                stage_content const& stage,
                                                pass_kind kind,
                                                std::int64_t tokens) noexcept {
  if (detail::training_kind(kind).is == role::weights)
    return 0;
  double const gathered = static_cast<double>(message_bytes(model, tokens, setup.sequences));
  double const layers = stage.layers + 0.25 * stage.projections + 0.75 * stage.remainders;
  return layers * 2 * 2.0 * (setup.tensor - 1) / setup.tensor * gathered / (on.link_gb_per_s * 1e9);
}

//! @brief Seconds of one pass of a stage: arithmetic at the given efficiency, exchanges of tensor
//! and expert parallelism behind it.
//! @param tokens those of the chunk.
//! @pre kind is not `backward`
//! @source own derivation
[[nodiscard]] constexpr double pass_seconds(transformer const& model,
                                            training_setup const& setup,
                                            gpu const& on,
                                            efficiency const& reached,
                                            stage_content const& stage,
                                            pass_kind kind,
                                            token_range tokens) noexcept {
  double const rate = on.peak_tflops * 1e12 * setup.tensor;
  double const linear = linear_flops(model, tokens, setup.sequences);
  double const projection = 2.0 * setup.sequences * static_cast<double>(tokens.length) *
                            static_cast<double>(detail::projection_parameters(model));
  double seconds = (stage.layers * linear + stage.projections * projection +
                    stage.remainders * (linear - projection)) /
                     (rate * reached.linear) +
                   (stage.layers + stage.attentions) *
                     attention_flops(model, kind, tokens, setup.sequences) /
                     (rate * reached.attention);
  if (stage.output)
    seconds +=
      vocabulary_flops(model, tokens, setup.sequences) / (rate * reached.vocabulary * stage.shards);
  if (detail::training_kind(kind).is != role::weights)
    seconds += (stage.layers + stage.remainders) *
               detail::expert_message_bytes(model, tokens.length, setup.expert, setup.sequences) /
               setup.tensor / (on.link_gb_per_s * 1e9);
  return seconds + exchange_seconds(model, setup, on, stage, kind, tokens.length);
}

//! @brief Whether two devices of the pipeline sit in one machine. A device is `tensor` GPUs; those
//! of the devices fill machine after machine.
[[nodiscard]] constexpr bool
in_one_machine(gpu const& on, training_setup const& setup, int one, int other) noexcept {
  auto const machine = [&](std::int64_t number) { return number / on.gpus_per_machine; };
  std::int64_t const first = std::int64_t{one < other ? one : other} * setup.tensor;
  std::int64_t const last = (std::int64_t{one < other ? other : one} + 1) * setup.tensor - 1;
  return machine(first) == machine(last);
}

//! @brief Seconds of a message between two devices of the pipeline.
//! @param tokens of the message: those of the longest chunk.
[[nodiscard]] constexpr double message_seconds(transformer const& model,
                                               training_setup const& setup,
                                               gpu const& on,
                                               int from,
                                               int to,
                                               std::int64_t tokens) noexcept {
  double const rate = in_one_machine(on, setup, from, to) ? on.link_gb_per_s : on.network_gb_per_s;
  return static_cast<double>(message_bytes(model, tokens, setup.sequences)) / setup.tensor /
         (rate * 1e9);
}

//! @brief Seconds of the copy of what a pass keeps to the host, or back.
[[nodiscard]] constexpr double copy_seconds(transformer const& model,
                                            training_setup const& setup,
                                            gpu const& on,
                                            stage_content const& stage,
                                            std::int64_t tokens) noexcept {
  return stage.layers * static_cast<double>(activation_bytes(model, tokens, setup.sequences)) /
         setup.tensor / (on.host_gb_per_s * 1e9);
}

//! @brief Bytes of the message of a stage to the one behind it, on one GPU: an activation; behind
//! a projection query, keys and values too, behind attention its output.
[[nodiscard]] constexpr std::int64_t sent_bytes(transformer const& model,
                                                training_setup const& setup,
                                                stage_content const& stage,
                                                std::int64_t tokens) noexcept {
  auto const bytes = stage.projections > 0
                       ? detail::projected_message_bytes(model, tokens, setup.sequences)
                     : stage.attentions > 0 ? attended_message_bytes(model, tokens, setup.sequences)
                                            : message_bytes(model, tokens, setup.sequences);
  return bytes / setup.tensor;
}

//! @brief The time of every pass and of messages on every link, in seconds. A recomputation takes
//! as long as its forward pass. The latency is that of the slowest link and the longest message.
//! Exchanges of a tensor parallel group are hidden by fused backward passes and by composite ones,
//! as `cost_table` does.
//! @param content [S] what each stage holds. @param chunk_lengths [C] tokens of each chunk.
//! @throws std::invalid_argument when there is not one entry per stage and chunk.
//! @complexity O(S C + P^2)
[[nodiscard]] inline cost_table predict_costs(transformer const& model,
                                              training_setup const& setup,
                                              gpu const& on,
                                              efficiency const& reached,
                                              shape const& extents,
                                              std::span<stage_content const> content,
                                              std::span<int const> chunk_lengths) {
  if (content.size() != static_cast<std::size_t>(stages(extents)) ||
      chunk_lengths.size() != static_cast<std::size_t>(extents.chunks))
    throw std::invalid_argument(
      "predict_costs: give one content per stage and one length per chunk");
  std::int64_t longest = 0;
  for (int const length : chunk_lengths)
    longest = length > longest ? length : longest;
  training_setup one_gpu = setup;
  one_gpu.tensor = 1;
  std::int64_t widest = 0; // a token of parts of layers is as many tokens of whole ones
  for (stage_content const& each : content)
    widest = std::max(widest, sent_bytes(model, one_gpu, each, longest));
  longest = widest / message_bytes(model, 1, setup.sequences);
  int const last = extents.devices - 1;
  cost_table table(
    extents, {.communication = last > 0 ? message_seconds(model, setup, on, 0, last, longest) : 0});
  for (int from = 0; from <= last; ++from)
    for (int to = 0; to <= last; ++to)
      if (double const time =
            from == to ? table.latency() : message_seconds(model, setup, on, from, to, longest);
          time != table.latency())
        table.set_link(from, to, time);
  token_range tokens{0, 0};
  for (int chunk = 0; chunk < extents.chunks; ++chunk) {
    tokens.prefix += tokens.length;
    tokens.length = chunk_lengths[static_cast<std::size_t>(chunk)];
    for (int stage = 0; stage < stages(extents); ++stage) {
      stage_content const& held = content[static_cast<std::size_t>(stage)];
      auto const seconds = [&](role is) {
        return pass_seconds(model, setup, on, reached, held, kind_with(training, is), tokens);
      };
      for (role const is : {role::forward, role::input, role::weights})
        table.set(is, stage, chunk, seconds(is));
      table.set(role::again, stage, chunk, seconds(role::forward));
      for (role const is : {role::forward, role::again, role::input})
        table.set_exchanges(
          is,
          stage,
          chunk,
          exchange_seconds(model, setup, on, held, kind_with(training, is), tokens.length));
      table.set(role::copy, stage, chunk, copy_seconds(model, setup, on, held, tokens.length));
    }
  }
  return table;
}

//! @brief The bytes of one stage on one GPU.
//! @param chunk_lengths [C] tokens of each chunk.
//! @source 18 bytes per parameter, of which 12 are the optimizer's: Rajbhandari et al., SC 2020.
[[nodiscard]] constexpr stage_bytes predict_bytes(transformer const& model,
                                                  training_setup const& setup,
                                                  stage_content const& stage,
                                                  std::span<int const> chunk_lengths) noexcept {
  std::int64_t longest = 0;
  for (int const length : chunk_lengths)
    longest = length > longest ? length : longest;
  std::int64_t const dense =
    detail::layer_parameters(model) -
    (model.experts > 0
       ? (model.gated ? 3 : 2) * std::int64_t{model.hidden} * model.experts * model.ffn
       : 0);
  std::int64_t const held =
    (stage.layers + stage.remainders) *
      (dense + (detail::layer_parameters(model) - dense) / setup.expert) +
    (stage.projections - stage.remainders) * detail::projection_parameters(model) +
    ((stage.embedding ? 1 : 0) + (stage.output ? 1 : 0)) *
      ((detail::vocabulary_parameters(model) + stage.shards - 1) / stage.shards);
  std::int64_t const share = (held + setup.tensor - 1) / setup.tensor;
  stage_bytes result;
  // Beside attention a projection keeps the inputs of its norm and its product, and what follows
  // attention all else, with a copy of attention's output.
  std::int64_t const whole = activation_bytes(model, setup.sequence, setup.sequences);
  std::int64_t const attention = attention_activation_bytes(model, setup.sequence, setup.sequences);
  std::int64_t const before = 2 * input_bytes(model, setup.sequence, setup.sequences);
  std::int64_t const copy = attended_message_bytes(model, setup.sequence, setup.sequences) -
                            message_bytes(model, setup.sequence, setup.sequences);
  result.activation =
    (stage.layers * whole + stage.attentions * attention + stage.projections * before +
     stage.remainders * (whole - attention - before + copy)) /
    setup.tensor;
  result.weights = 2 * share;
  result.gradients = 4 * share;
  result.optimizer = (12 * share + setup.data - 1) / setup.data;
  if (stage.output)
    result.logits =
      detail::logits_bytes(model, longest, setup.sequences) / setup.tensor / stage.shards;
  if (chunk_lengths.size() > 1)
    result.carried = 2 * (stage.layers + stage.attentions) *
                     key_value_bytes(model, setup.sequence, setup.sequences) / setup.tensor;
  result.message = sent_bytes(model, setup, stage, setup.sequence);
  return result;
}

namespace detail {

//! What a gather moves, or else the scatter: weights in bf16, gradients in single precision.
[[nodiscard]] constexpr double travelling_bytes(stage_bytes const& stage, pass_kind kind) noexcept {
  return static_cast<double>(detail::training_kind(kind).calls == stage_call::scatter_gradients
                               ? stage.gradients
                               : stage.weights);
}

//! The speed of runs with four chunks over what equal efficiencies predict, from one
//! published table of Seq1F1B on a 7B model: smaller products run at a lower rate.
inline constexpr band chunk_tax_band{0.88, 0.93};

} // namespace detail

//! @brief Seconds in which a GPU gathers the bf16 weights of a stage from the shards of its
//! replicas, or scatters its gradients in single precision to them: all but its own share cross the
//! network.
//! @param kind a gather, or else the scatter.
[[nodiscard]] constexpr double sharding_seconds(training_setup const& setup,
                                                gpu const& on,
                                                stage_bytes const& stage,
                                                pass_kind kind) noexcept {
  return detail::travelling_bytes(stage, kind) * (setup.data - 1) / setup.data /
         (on.network_gb_per_s * 1e9);
}

//! @brief The time in which the weights of a stage come from the host, or its gradients go there
//! (`scatter_gradients`), in seconds. For `weights_on_host`.
[[nodiscard]] constexpr double
loading_seconds(gpu const& on, stage_bytes const& stage, pass_kind kind) noexcept {
  return detail::travelling_bytes(stage, kind) / (on.host_gb_per_s * 1e9);
}

//! @brief What runs may hold over what is predicted: the factors that published figures support.
//!
//! Without tensor parallelism 1F1B and zero-bubble figures lie within 15 %; with it up to 26 % is
//! held beyond the count (gathered copies, reserve), with chunks up to 43 %; V shapes free a part
//! early and hold up to 29 % less than the count.
//! @param tensor GPUs that share every layer. @param chunks of a sequence. @param v_shape whether
//! stages lie in a V.
[[nodiscard]] constexpr band memory_band(int tensor, int chunks, bool v_shape) noexcept {
  band result{1 / 1.15, 1 / 0.85};
  if (tensor > 1)
    result.most = 1 / 0.74;
  if (chunks > 1)
    result.most = 1 / 0.57;
  if (v_shape)
    result.least = 1 / 1.29;
  return result;
}

} // namespace pipelining::inline v0_3
