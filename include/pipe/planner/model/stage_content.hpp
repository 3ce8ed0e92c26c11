// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The parts of a model on the stages of a pipeline. Header for pipelining::training_setup,
//! stage_content and stage_bytes.

#include <pipe/planner/model/transformer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief The training of a model, next to its pipeline.
struct training_setup {
  std::int64_t sequence = 1; //!< tokens of a sequence
  int sequences = 1;         //!< sequences of a microbatch
  int tensor = 1;            //!< GPUs that share every layer, with sequence parallelism
  int data = 1;              //!< replicas of the pipeline, which share the optimizer's state
  int expert = 1;            //!< GPUs over which the experts of a layer are spread
  int pictures = 1;          //!< of a sequence, where the model has an encoder; spread evenly

  //! @brief Checks this setup of a model. @throws std::invalid_argument with one sentence.
  constexpr void check(transformer const& model) const {
    model.check();
    if (sequence < 1 || sequences < 1 || tensor < 1 || data < 1 || expert < 1 || pictures < 1)
      throw std::invalid_argument("training_setup: every number must be at least 1");
    if (model.heads % tensor != 0)
      throw std::invalid_argument(
        "training_setup: the heads of the model must be a multiple of the "
        "tensor parallel GPUs, but " +
        std::to_string(model.heads) + " is none of " + std::to_string(tensor));
    if (expert > 1 && model.experts == 0)
      throw std::invalid_argument("training_setup: the model has no experts to spread over GPUs");
    if (expert > 1 && model.experts % expert != 0)
      throw std::invalid_argument(
        "training_setup: the experts of a layer must be a multiple of the "
        "GPUs that they are spread over, but " +
        std::to_string(model.experts) + " is none of " + std::to_string(expert));
    auto const kept = [](transformer const& of) {
      return static_cast<double>(of.activation_bytes(1) + of.key_value_bytes(1));
    };
    double const of_token =
      model.of_layers(model.layers, model.dense_layers, kept) +
      (1.0 + model.modules) *
        static_cast<double>(model.activation_bytes(1) + 8 * std::int64_t{model.hidden} +
                            model.logits_bytes(1));
    double const of_pictures = static_cast<double>(model.encoder.layers) * pictures *
                               model.encoder.tokens *
                               static_cast<double>(model.encoder_shape().activation_bytes(1));
    if (sequences * (static_cast<double>(sequence) * of_token + of_pictures) > 1e18)
      throw std::invalid_argument("training_setup: a microbatch that keeps more than 1e18 bytes is "
                                  "not counted; give shorter sequences or fewer of them");
  }
};

//! @brief The parts of the model on one stage.
struct stage_content {
  int layers = 1;         //!< layers of the model
  bool embedding = false; //!< the embedding of tokens
  bool output = false;    //!< the output layer and the loss
  int shards = 1;         //!< of the vocabulary, of which this stage has one if any of it
  // Parts of layers in addition to the whole ones, of which each has one of every part.
  int projections = 0; //!< what gives query, keys and values
  int attentions = 0;  //!< attention, which has no weights
  int remainders = 0;  //!< what follows attention
  int dense = 0;       //!< of the layers: without experts, though the model has some
  int frozen = 0;      //!< of encoders and layers: with nothing to train, nor any layer before them
  int encoders = 0;    //!< layers of the encoder, which come before the layers
  int modules = 0;     //!< for further tokens, which come after the layers
  int states = 1; //!< hidden states of a token that go on to the next stage: with those of modules
  bool pictures = false; //!< an output of the encoder goes on, too

  //! @brief The stages of a pipeline with these layers: the first holds the embedding, the last the
  //! output layer.
  //! @param layers [S], those of an encoder and modules for further tokens among them
  //! @param dense the first layers that have no experts, where others have
  //! @param frozen the first of all that have nothing to train
  //! @param encoders of all: the first are of an encoder @param modules of all: the last ones
  [[nodiscard]] static std::vector<stage_content> of_layers(
    std::span<int const> layers, int dense = 0, int frozen = 0, int encoders = 0, int modules = 0) {
    std::vector<stage_content> result;
    int const all = std::accumulate(layers.begin(), layers.end(), 0);
    int done = 0;
    for (std::size_t stage = 0; stage < layers.size(); ++stage) {
      // How many of [from, to) are on the stage.
      auto const among = [begin = done, end = done + layers[stage]](int from, int to) {
        return std::max(0, std::min(to, end) - std::max(from, begin));
      };
      done += layers[stage];
      bool const last = stage + 1 == layers.size();
      result.push_back({.layers = among(encoders, all - modules),
                        .embedding = stage == 0,
                        .output = last,
                        .dense = among(encoders, encoders + dense),
                        .frozen = among(0, frozen),
                        .encoders = among(0, encoders),
                        .modules = among(all - modules, all),
                        .states = last ? 1 : 1 + std::max(0, done - (all - modules)),
                        .pictures = !last && done > 0 && done <= encoders});
    }
    return result;
  }

  //! @brief The stages of HelixPipe, in turn: the parts around attention with the ends of two
  //! layers, and attention.
  //! @param layers of the model
  [[nodiscard]] static std::vector<stage_content> of_parts(int layers) {
    std::vector<stage_content> result{{0, true, false, 1, 1}};
    for (int layer = 1; layer <= layers; ++layer) {
      bool const last = layer == layers;
      result.push_back({.layers = 0, .attentions = 1});
      result.push_back({0, false, last, 1, last ? 0 : 1, 0, 1});
    }
    return result;
  }

  //! @brief The stages of `with_vocabulary`: a shard of the embedding per device, the stages
  //! inside, a shard of the output layer per device. The embeddings that modules read go to them
  //! with the hidden states.
  //! @param layers [stages inside] of each, and the rest, as for `of_layers`
  [[nodiscard]] static std::vector<stage_content> of_shards(
    std::span<int const> layers, int devices, int dense = 0, int encoders = 0, int modules = 0) {
    std::vector<stage_content> result(static_cast<std::size_t>(devices),
                                      stage_content{0, true, false, devices});
    bool embedded = true; // text is as it comes from the embedding
    int left = modules;
    for (stage_content each : of_layers(layers, dense, 0, encoders, modules)) {
      each.embedding = each.output = false;
      each.shards = devices;
      embedded = embedded && each.layers == 0;
      left -= each.modules;
      each.states = 1 + modules - left + (left > 0 && !embedded ? 1 : 0);
      result.push_back(each);
    }
    result.insert(
      result.end(), static_cast<std::size_t>(devices), stage_content{0, false, true, devices});
    return result;
  }

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

  //! @brief The bytes that every schedule needs: all but activations and messages.
  [[nodiscard]] constexpr std::int64_t resident() const noexcept {
    return weights + gradients + optimizer + logits + carried;
  }
};

} // namespace pipelining::inline v0_3
