// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Times and memory of training a transformer on GPUs: predicted for stages, for a
//! vocabulary in shards and for groups of GPUs. Header for
//! pipelining::prediction and grouped_gpus.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/planner/model/gpu.hpp>
#include <pipe/planner/model/stage_content.hpp>
#include <pipe/planner/model/transformer.hpp>
#include <pipe/timetable/cost_table.hpp>
#include <pipe/timetable/peaks.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>

namespace pipelining::inline v0_3 {

namespace detail {

//! The first kind of groups that reads stages on this side, or `no_kind`.
[[nodiscard]] constexpr pass_kind kind_in_groups(flow const& declared, of_stage read) noexcept {
  for (int kind = 0; kind < declared.kind_count; ++kind)
    for (effect const& one : declared.kinds[kind])
      if (declared.kinds[kind].in_groups && one.stage == read)
        return static_cast<pass_kind>(kind);
  return flow::no_kind;
}

//! The layers that a pass of a stage goes through: backward passes leave out frozen ones.
[[nodiscard]] constexpr stage_content passed_layers(stage_content stage, pass_kind kind) noexcept {
  if (kinds_of_training[kind].is == role::input || kinds_of_training[kind].is == role::weights) {
    int const before = std::min(stage.encoders, stage.frozen);
    int const frozen = stage.frozen - before;
    stage.encoders -= before;
    stage.layers -= frozen; // the first ones, as are those without experts
    stage.dense = stage.dense > frozen ? stage.dense - frozen : 0;
  }
  return stage;
}

//! Calls `part(stage, chunk, tokens)` for all of them, chunk after chunk.
//! @param chunk_lengths [C] tokens of each chunk.
void for_each_part(shape const& extents, std::span<int const> chunk_lengths, auto const& part) {
  token_range tokens{0, 0};
  for (int chunk = 0; chunk < extents.chunks; ++chunk) {
    tokens.prefix += tokens.length;
    tokens.length = chunk_lengths[static_cast<std::size_t>(chunk)];
    for (int stage = 0; stage < extents.stages(); ++stage)
      part(stage, chunk, tokens);
  }
}

//! The longest chunk; 0 of none.
[[nodiscard]] constexpr int longest_of(std::span<int const> chunk_lengths) noexcept {
  return chunk_lengths.empty() ? 0 : std::ranges::max(chunk_lengths);
}

//! The bytes of a gather, or else of a scatter: weights in bf16, gradients in single precision.
[[nodiscard]] constexpr double travelling_bytes(stage_bytes const& stage, pass_kind kind) noexcept {
  return static_cast<double>(detail::kinds_of_training[kind].calls == stage_call::scatter_gradients
                               ? stage.gradients
                               : stage.weights);
}

} // namespace detail

//! @brief The training of one model on GPUs of one kind, for predictions.
struct prediction {
  transformer model{};    //!< its shape
  training_setup setup{}; //!< sequences and sharing
  gpu on{};               //!< each of the GPUs
  efficiency reached{};   //!< shares of the peak rate

  //! @brief Seconds that the GPUs of a tensor parallel group exchange activations for one pass of a
  //! stage, which computes nothing of its own meanwhile: all-reduces, or with sequence parallelism
  //! gathers and scatters. 0 for the gradient of weights.
  //! @param tokens those of the chunk.
  //! @source own derivation; a layer gathers and scatters twice forward and twice backward, of
  //! which the first gather is before its projection.
  [[nodiscard]] constexpr double
  exchange_seconds(stage_content const& stage, pass_kind kind, std::int64_t tokens) const noexcept {
    if (detail::kinds_of_training[kind].is == role::weights)
      return 0;
    double const gathered = static_cast<double>(model.message_bytes(setup.sequences * tokens));
    stage_content const passed = detail::passed_layers(stage, kind);
    double const layers =
      passed.layers + passed.modules + 0.25 * stage.projections + 0.75 * stage.remainders;
    double const pictures = passed.encoders > 0 ? passed.encoders * encoded_bytes(tokens) : 0;
    return 2 * 2.0 * (setup.tensor - 1) / setup.tensor * (layers * gathered + pictures) /
           (on.link_gb_per_s * 1e9);
  }

  //! @brief Seconds of one pass of a stage: arithmetic at the given efficiency, exchanges of tensor
  //! and expert parallelism after it.
  //! @param tokens those of the chunk.
  //! @pre kind is not `backward`
  //! @source own derivation
  [[nodiscard]] constexpr double
  pass_seconds(stage_content const& content, pass_kind kind, token_range tokens) const noexcept {
    stage_content const stage = detail::passed_layers(content, kind);
    double const rate = on.peak_tflops * 1e12 * setup.tensor;
    std::int64_t const all = setup.sequences * tokens.length;
    double const linear = model.linear_flops(all);
    double const projection = model.flops_with(model.projection_parameters(), all);
    double const products = model.of_layers(
      stage.layers, stage.dense, [all](transformer const& of) { return of.linear_flops(all); });
    double const joining = model.flops_with(model.joining_parameters(), all);
    double seconds = (products + stage.modules * (linear + joining) +
                      stage.projections * projection + stage.remainders * (linear - projection)) /
                       (rate * reached.linear) +
                     (stage.layers + stage.modules + stage.attentions) *
                       model.attention_flops(kind, tokens, setup.sequences) /
                       (rate * reached.attention);
    if (stage.encoders > 0)
      seconds += stage.encoders * encoder_seconds(kind, tokens.length);
    if (stage.output)
      seconds += (1 + model.modules) * model.vocabulary_flops(all) /
                 (rate * reached.vocabulary * stage.shards);
    if (detail::kinds_of_training[kind].is != role::weights)
      seconds += (stage.layers - stage.dense + stage.modules + stage.remainders) *
                 model.expert_message_bytes(all, setup.expert) / setup.tensor /
                 (on.link_gb_per_s * 1e9);
    return seconds + exchange_seconds(content, kind, tokens.length);
  }

  //! @brief True when two devices of the pipeline sit in one machine. A device is `tensor` GPUs.
  //! Devices fill machine after machine.
  [[nodiscard]] constexpr bool in_one_machine(int one, int other) const noexcept {
    auto const machine = [&](std::int64_t number) { return number / on.gpus_per_machine; };
    std::int64_t const first = std::int64_t{one < other ? one : other} * setup.tensor;
    std::int64_t const last = (std::int64_t{one < other ? other : one} + 1) * setup.tensor - 1;
    return machine(first) == machine(last);
  }

  //! @brief Seconds of a message between two devices of the pipeline.
  //! @param tokens of the message: the tokens of the longest chunk.
  [[nodiscard]] constexpr double
  message_seconds(int from, int to, std::int64_t tokens) const noexcept {
    double const rate = in_one_machine(from, to) ? on.link_gb_per_s : on.network_gb_per_s;
    return static_cast<double>(model.message_bytes(setup.sequences * tokens)) / setup.tensor /
           (rate * 1e9);
  }

  //! @brief Bytes that the forward passes of some tokens keep on a stage, of all GPUs that share
  //! it. A module keeps the inputs of two norms and their product besides those of its layer.
  [[nodiscard]] constexpr std::int64_t kept_bytes(stage_content const& stage,
                                                  std::int64_t tokens) const noexcept {
    stage_content const kept = detail::passed_layers(stage, training.kind_with(role::weights));
    std::int64_t const all = setup.sequences * tokens;
    std::int64_t bytes = model.of_layers(
      kept.layers, kept.dense, [all](transformer const& of) { return of.activation_bytes(all); });
    bytes += kept.modules * (model.activation_bytes(all) + 4 * model.message_bytes(all));
    if (kept.encoders > 0)
      bytes += static_cast<std::int64_t>(
        picture_share(tokens) * kept.encoders *
        static_cast<double>(model.encoder_shape().activation_bytes(picture_tokens())));
    return bytes;
  }
  //! @brief Seconds of a copy of the data that a pass keeps, to the host or back.
  [[nodiscard]] constexpr double copy_seconds(stage_content const& stage,
                                              std::int64_t tokens) const noexcept {
    return static_cast<double>(kept_bytes(stage, tokens)) / setup.tensor / (on.host_gb_per_s * 1e9);
  }

  //! @brief Bytes of the message of a stage to the next one, on one GPU: an activation; after a
  //! projection query, keys and values too, after attention its output, after a module one hidden
  //! state more, between layers of an encoder those of pictures next to the embedded text.
  [[nodiscard]] constexpr std::int64_t sent_bytes(stage_content const& stage,
                                                  std::int64_t tokens) const noexcept {
    std::int64_t const all = setup.sequences * tokens;
    auto const bytes = stage.projections > 0  ? model.projected_message_bytes(all)
                       : stage.attentions > 0 ? model.attended_message_bytes(all)
                                              : stage.states * model.message_bytes(all);
    auto const pictures = stage.pictures ? static_cast<std::int64_t>(encoded_bytes(tokens)) : 0;
    return (bytes + pictures) / setup.tensor;
  }

  //! @brief The tokens of the widest message between these stages, of a chunk of so many: a token
  //! of parts of layers, or with hidden states of modules, is as many tokens of whole layers.
  [[nodiscard]] constexpr std::int64_t widest_message(std::span<stage_content const> content,
                                                      std::int64_t tokens) const noexcept {
    prediction one_gpu{model, setup};
    one_gpu.setup.tensor = 1;
    std::int64_t widest = 0;
    for (stage_content const& each : content)
      widest = std::max(widest, one_gpu.sent_bytes(each, tokens));
    return widest / model.message_bytes(setup.sequences);
  }

  //! @brief The time of every pass and of messages on every link, in seconds. A recomputation takes
  //! as long as its forward pass. The slowest link and the longest message give the latency.
  //! Exchanges of a tensor parallel group are hidden by fused backward passes and by composite
  //! ones, as `cost_table` does.
  //! @param content [S] what each stage holds. @param chunk_lengths [C] tokens of each chunk.
  //! @throws std::invalid_argument when there is not one entry per stage and chunk.
  //! @complexity O(S C + P^2)
  [[nodiscard]] cost_table costs(shape const& extents,
                                 std::span<stage_content const> content,
                                 std::span<int const> chunk_lengths) const {
    if (content.size() != static_cast<std::size_t>(extents.stages()) ||
        chunk_lengths.size() != static_cast<std::size_t>(extents.chunks))
      throw std::invalid_argument("costs: give one content per stage and one length per chunk");
    std::int64_t const longest = widest_message(content, detail::longest_of(chunk_lengths));
    int const last = extents.devices - 1;
    cost_table table(extents, {.communication = last > 0 ? message_seconds(0, last, longest) : 0});
    for (int from = 0; from <= last; ++from)
      for (int to = 0; to <= last; ++to)
        if (double const time = from == to ? table.latency() : message_seconds(from, to, longest);
            time != table.latency())
          table.set_link(from, to, time);
    detail::for_each_part(extents, chunk_lengths, [&](int stage, int chunk, token_range tokens) {
      stage_content const& held = content[static_cast<std::size_t>(stage)];
      auto const seconds = [&](role is) {
        return pass_seconds(held, training.kind_with(is), tokens);
      };
      for (role const is : {role::forward, role::input, role::weights})
        table.set(is, stage, chunk, seconds(is));
      table.set(role::again, stage, chunk, seconds(role::forward));
      for (role const is : {role::forward, role::again, role::input})
        table.set_exchanges(
          is, stage, chunk, exchange_seconds(held, training.kind_with(is), tokens.length));
      table.set(role::copy, stage, chunk, copy_seconds(held, tokens.length));
    });
    return table;
  }

  //! @brief The bytes of one stage on one GPU.
  //! @param chunk_lengths [C] tokens of each chunk.
  //! @source 18 bytes per parameter, of which 12 are the optimizer's: Rajbhandari et al., SC 2020.
  [[nodiscard]] constexpr stage_bytes bytes(stage_content const& stage,
                                            std::span<int const> chunk_lengths) const noexcept {
    std::int64_t const longest = detail::longest_of(chunk_lengths);
    std::int64_t const dense =
      model.layer_parameters() -
      (model.experts > 0
         ? (model.gated ? 3 : 2) * std::int64_t{model.hidden} * model.experts * model.ffn
         : 0);
    auto const of_stage = [&](int layers, int without_experts) {
      return model.of_layers(layers, without_experts, [&](transformer const& of) {
        return of.experts > 0 ? dense + (model.layer_parameters() - dense) / setup.expert
                              : of.layer_parameters();
      });
    };
    // Modules of a stage have the embedding of the first one, or a copy of it, but for shards.
    bool const copy_of_embedding =
      stage.modules > 0 && stage.shards == 1 && !stage.embedding && !(model.tied && stage.output);
    std::int64_t const encoder_layer = model.encoder_shape().layer_parameters();
    std::int64_t const held =
      of_stage(stage.layers + stage.modules + stage.remainders, stage.dense) +
      stage.modules * model.joining_parameters() + stage.encoders * encoder_layer +
      (stage.projections - stage.remainders) * model.projection_parameters() +
      ((stage.embedding ? 1 : 0) + (stage.output ? 1 : 0) + (copy_of_embedding ? 1 : 0)) *
        ((model.vocabulary_parameters() + stage.shards - 1) / stage.shards);
    std::int64_t const share = (held + setup.tensor - 1) / setup.tensor;
    // Frozen layers, and the embedding before them, have weights only.
    int const frozen_encoders = std::min(stage.encoders, stage.frozen);
    int const frozen_layers = stage.frozen - frozen_encoders;
    std::int64_t const still = stage.frozen == 0
                                 ? 0
                                 : of_stage(frozen_layers, std::min(stage.dense, frozen_layers)) +
                                     frozen_encoders * encoder_layer +
                                     (stage.embedding ? model.vocabulary_parameters() : 0);
    std::int64_t const trained = (held - still + setup.tensor - 1) / setup.tensor;
    stage_bytes result;
    // In addition to attention a projection keeps the inputs of its norm and its product, and what
    // follows attention all else, with a copy of attention's output.
    std::int64_t const tokens = setup.sequences * setup.sequence;
    std::int64_t const whole = model.activation_bytes(tokens);
    std::int64_t const attention = model.attention_activation_bytes(tokens);
    std::int64_t const before = 2 * model.message_bytes(tokens);
    std::int64_t const copy = model.attended_message_bytes(tokens) - model.message_bytes(tokens);
    std::int64_t const layers = kept_bytes(stage, setup.sequence);
    result.activation = (layers + stage.attentions * attention + stage.projections * before +
                         stage.remainders * (whole - attention - before + copy)) /
                        setup.tensor;
    result.weights = 2 * share;
    result.gradients = 4 * trained;
    result.optimizer = (12 * trained + setup.data - 1) / setup.data;
    if (stage.output)
      result.logits = (1 + model.modules) * model.logits_bytes(setup.sequences * longest) /
                      setup.tensor / stage.shards;
    if (chunk_lengths.size() > 1)
      result.carried = 2 * (stage.layers + stage.modules + stage.attentions) *
                       model.key_value_bytes(tokens) / setup.tensor;
    result.message = sent_bytes(stage, setup.sequence);
    return result;
  }

  //! @brief Seconds in which a GPU gathers the bf16 weights of a stage from the shards of its
  //! replicas, or scatters its gradients in single precision to them: all but its own share cross
  //! the network.
  //! @param kind a gather, or else the scatter.
  [[nodiscard]] constexpr double sharding_seconds(stage_bytes const& stage,
                                                  pass_kind kind) const noexcept {
    return detail::travelling_bytes(stage, kind) * (setup.data - 1) / setup.data /
           (on.network_gb_per_s * 1e9);
  }

  //! @brief The time in which the weights of a stage come from the host, or its gradients go there
  //! (`scatter_gradients`), in seconds. For `weights_on_host`.
  [[nodiscard]] constexpr double loading_seconds(stage_bytes const& stage,
                                                 pass_kind kind) const noexcept {
    return detail::travelling_bytes(stage, kind) / (on.host_gb_per_s * 1e9);
  }

  //! @brief The factors between predicted bytes and bytes that runs hold, as published figures have
  //! them.
  //!
  //! Without tensor parallelism 1F1B and zero-bubble figures lie within 15 %. With it up to 26 % is
  //! held beyond the count (gathered copies, reserve), with chunks up to 43 %. V shapes free a part
  //! early and hold up to 29 % less than the count.
  //! @param chunks of a sequence. @param v_shape whether stages lie in a V.
  [[nodiscard]] constexpr band memory_band(int chunks, bool v_shape) const noexcept {
    band result{1 / 1.15, 1 / 0.85};
    if (setup.tensor > 1)
      result.most = 1 / 0.74;
    if (chunks > 1)
      result.most = 1 / 0.57;
    if (v_shape)
      result.least = 1 / 1.29;
    return result;
  }

  //! @brief Costs like those of `costs`, with the passes of shards: a product with the rows of a
  //! shard in `logits`, two in `logits_gradient`; with one barrier it is the other way round. A
  //! look-up in the embedding takes no time, as in `costs`. A datum for all shards is as many
  //! messages of its device, one after the other, and so is a datum from each shard to one device.
  //! @param extents of `with_vocabulary` @param content as `stage_content::of_shards` gives it
  //! @throws std::invalid_argument as `costs` does.
  //! @complexity O(S C)
  [[nodiscard]] cost_table costs_of_shards(shape const& extents,
                                           std::span<stage_content const> content,
                                           std::span<int const> chunk_lengths,
                                           int barriers) const {
    cost_table table = costs(extents, content, chunk_lengths);
    table.set_groups(
      {(extents.devices - 1) * table.latency(), (extents.devices - 1) * table.latency()});
    pass_kind const products = training.kind_with(role::weights);
    pass_kind const logits = detail::kind_in_groups(detail::kinds_of_training, of_stage::before);
    pass_kind const gradient = detail::kind_in_groups(detail::kinds_of_training, of_stage::group);
    detail::for_each_part(extents, chunk_lengths, [&](int stage, int chunk, token_range tokens) {
      stage_content const& held = content[static_cast<std::size_t>(stage)];
      double const product = held.output ? pass_seconds(held, products, tokens) : 0;
      for (cost_table::timed_kind const& kind : table.kinds())
        if (kind.in_groups)
          table.set(kind.kind, stage, chunk, 0);
      table.set(logits, stage, chunk, product * (barriers == 1 ? 2 : 1));
      table.set(gradient, stage, chunk, product * (barriers == 1 ? 1 : 2));
    });
    return table;
  }

private:
  //! Tokens of all pictures of a microbatch.
  [[nodiscard]] constexpr std::int64_t picture_tokens() const noexcept {
    return std::int64_t{setup.sequences} * setup.pictures * model.encoder.tokens;
  }
  //! The part of them that comes with some tokens of a sequence.
  [[nodiscard]] constexpr double picture_share(std::int64_t tokens) const noexcept {
    return static_cast<double>(tokens) / static_cast<double>(setup.sequence);
  }
  //! Seconds of the arithmetic of one layer of the encoder for the pictures of a chunk.
  [[nodiscard]] constexpr double encoder_seconds(pass_kind kind,
                                                 std::int64_t tokens) const noexcept {
    transformer const layer = model.encoder_shape();
    double const rate = on.peak_tflops * 1e12 * setup.tensor;
    int const pictures = setup.sequences * setup.pictures;
    // Without a mask, twice the causal one.
    return picture_share(tokens) *
           (layer.linear_flops(picture_tokens()) / (rate * reached.linear) +
            2 * layer.attention_flops(kind, {model.encoder.tokens, 0}, pictures) /
              (rate * reached.attention));
  }
  //! Bytes of what the encoder gives for the pictures of a chunk.
  [[nodiscard]] constexpr double encoded_bytes(std::int64_t tokens) const noexcept {
    return picture_share(tokens) *
           static_cast<double>(model.encoder_shape().message_bytes(picture_tokens()));
  }
};

//! @brief A model without a pipeline: groups of GPUs share the tokens of their sequences, and all
//! GPUs share weights, gradients and the optimizer's state. A cost for `sequence_groups::best`.
//!
//! In a group every GPU has a part of the tokens, and in attention a part of the heads: four
//! all-to-alls of a layer forward (query, keys, values and output) and as many backward. Fewer
//! heads of keys and values than GPUs are repeated. Whole layers are gathered one after the other,
//! forward and again backward, and their gradients scattered. Data for GPUs of the same machine
//! take the links, the rest the network, both at once. Groups fill machines one after the other.
//! @source Wang et al., FlexSP (arXiv:2412.01523); Jacobs et al., DeepSpeed Ulysses
//! (arXiv:2309.14509); Rajbhandari et al., SC 2020 (shared state). The split over wires is an own
//! derivation.
struct grouped_gpus {
  transformer model;  //!< experts stay with their layer
  gpu on;             //!< each of them
  efficiency reached; //!< shares of the peak rate
  int gpus = 1;       //!< of all groups
  int data = 1;       //!< sets of so many GPUs that share weights, gradients and state, too
  int pictures = 1;   //!< of a sequence, where the model has an encoder

  //! @brief Seconds that a group of so many GPUs takes for a sequence, forward and backward;
  //! nothing hides its exchanges.
  [[nodiscard]] constexpr double time(int tokens, int size) const noexcept {
    return work_time(tokens, size) + exchange_time(tokens, size);
  }
  //! @brief The same without exchanges.
  [[nodiscard]] constexpr double work_time(int tokens, int size) const noexcept {
    prediction const group = group_of(tokens, size);
    double seconds = 0;
    for (pass_kind const kind : detail::split_kinds(training))
      seconds += group.pass_seconds(whole(), kind, {tokens, 0}) -
                 group.exchange_seconds(whole(), kind, tokens);
    return seconds;
  }
  //! @brief The all-to-alls of all layers, forward and backward, of the encoder's pictures as of
  //! tokens.
  [[nodiscard]] constexpr double exchange_time(int tokens, int size) const noexcept {
    auto const of_layer = [&](transformer const& of, double count) {
      double const width = static_cast<double>(of.query_width()) / of.heads;
      double const heads = 2.0 * of.heads + 2.0 * std::max(of.kv_heads, size);
      double const to_each = 2.0 * count * heads * width / size / size;
      int const nearby = std::min(size, on.gpus_per_machine);
      return seconds_of(to_each * (nearby - 1), to_each * (size - nearby));
    };
    double seconds = 2 * (model.layers + model.modules) * of_layer(model, tokens);
    if (model.encoder.layers > 0)
      seconds += 2 * model.encoder.layers *
                 of_layer(model.encoder_shape(), 1.0 * pictures * model.encoder.tokens);
    return seconds;
  }
  //! @brief Bytes that each of them holds of a sequence until its backward pass: activations,
  //! logits and their gradient. Infinite where heads, of layers or of the encoder's, are no
  //! multiple of the group.
  [[nodiscard]] constexpr double bytes(int tokens, int size) const noexcept {
    if (model.heads % size != 0 || (model.encoder.layers > 0 && model.encoder.heads % size != 0))
      return std::numeric_limits<double>::infinity();
    return static_cast<double>(group_of(tokens, 1).kept_bytes(whole(), tokens) +
                               (1 + model.modules) * model.logits_bytes(tokens)) /
           size;
  }
  //! @brief Bytes that are there whatever the sequences are: a share of all weights, gradients and
  //! state, and the weights of two layers, one in use and the next, with the gradients of one.
  [[nodiscard]] constexpr double resident_bytes() const noexcept {
    double const largest =
      static_cast<double>(std::max({model.layer_parameters(),
                                    model.vocabulary_parameters(),
                                    model.encoder_shape().layer_parameters()}));
    return 18.0 * static_cast<double>(model.parameters()) / gpus / data + (2 * 2 + 4) * largest;
  }
  //! @brief Seconds in which all layers are gathered twice and their gradients scattered: no
  //! microbatch takes less. Every machine gets the data that it lacks once, its GPUs a part each.
  [[nodiscard]] constexpr double gather_seconds() const noexcept {
    double const all = (2 * 2 + 4) * static_cast<double>(model.parameters());
    double const sharing = static_cast<double>(gpus) * data;
    double const nearby = std::min<double>(sharing, on.gpus_per_machine);
    return seconds_of(all * (nearby - 1) / nearby, all * (sharing - nearby) / sharing / nearby);
  }

private:
  [[nodiscard]] constexpr prediction group_of(int tokens, int size) const noexcept {
    return {model, {.sequence = tokens, .tensor = size, .pictures = pictures}, on, reached};
  }
  [[nodiscard]] constexpr stage_content whole() const noexcept {
    return {.layers = model.layers,
            .embedding = true,
            .output = true,
            .dense = model.dense_layers,
            .encoders = model.encoder.layers,
            .modules = model.modules};
  }
  [[nodiscard]] constexpr double seconds_of(double in_machine, double to_others) const noexcept {
    return std::max(in_machine / on.link_gb_per_s, to_others / on.network_gb_per_s) / 1e9;
  }
};

} // namespace pipelining::inline v0_3
