// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What schedules take for `timetable choose --experts`: every layer is a stage of its own, and
// dispatch and combine run on the network.
#include <array>

#include "choose.hpp"

namespace examples {
namespace {

//! What a stage goes through: its layers, modules and the output layer, or one stage that passes
//! on.
std::vector<pp::stage_content> layers_of(pp::stage_content const& stage) {
  std::vector<pp::stage_content> result;
  auto const add = [&result](int count, pp::stage_content const& each) {
    result.insert(result.end(), static_cast<std::size_t>(count), each);
  };
  add(stage.encoders, {.layers = 0, .encoders = 1});
  add(stage.dense, {.layers = 1, .dense = 1});
  add(stage.layers - stage.dense, {.layers = 1});
  add(stage.modules, {.layers = 0, .modules = 1});
  add(stage.output || result.empty() ? 1 : 0, {.layers = 0, .output = stage.output});
  return result;
}

//! Bytes of weights and gradients of the layers of a stage; the first has the embedding's, too.
std::vector<pp::stage_bytes> weights_of(choose_command const& asked,
                                        pp::stage_content const& stage,
                                        std::span<pp::stage_content const> layers,
                                        std::vector<int> const& chunk_lengths) {
  std::vector<pp::stage_bytes> result;
  pp::stage_content so_far{.layers = 0, .embedding = stage.embedding, .shards = stage.shards};
  pp::stage_bytes before;
  for (pp::stage_content const& each : layers) {
    so_far.output = so_far.output || each.output;
    so_far.layers += each.layers;
    so_far.dense += each.dense;
    so_far.encoders += each.encoders;
    so_far.modules += each.modules;
    pp::stage_bytes const now = asked.predicted().bytes(so_far, chunk_lengths);
    result.push_back(
      {.weights = now.weights - before.weights, .gradients = now.gradients - before.gradients});
    before = now;
  }
  return result;
}

//! True where tokens of a layer travel.
bool has_experts(pp::stage_content const& layer) {
  return layer.layers - layer.dense + layer.modules > 0;
}

//! Bytes of a layer and microbatch that its passes keep: with the copies of tokens that are on
//! their way to experts and back.
struct layer_bytes {
  double attention = 0;
  double experts = 0;
  double copies = 0;
  double input = 0; //!< which a checkpointed forward pass keeps

  //! How much more a device holds when a pass starts, or ends.
  [[nodiscard]] double change(pp::pass_kind kind, bool ends) const {
    switch (kinds[kind].letter) {
    case 'A':
    case 'X': return ends ? 0 : attention + copies;
    case 'F': return ends ? input - attention : attention + copies;
    case 'R': return ends ? -input : attention + copies;
    case 'D':
    case 'G':
    case 'S': return ends ? -copies : experts;
    case 'E':
    case 'Z': return ends ? 0 : copies;
    case 'H': return ends ? -experts : copies;
    case 'T': return ends ? -copies : copies;
    case 'C': return ends ? -copies : 0;
    case 'N': return ends ? 0 : experts;
    case 'L': return ends ? 0 : attention;
    case 'P':
    case 'W': return ends ? -experts : 0;
    case 'O':
    case 'V': return ends ? -attention : 0;
    default: return 0;
    }
  }
  //! The same of its host.
  [[nodiscard]] double change_on_host(pp::pass_kind kind, bool ends) const {
    switch (kinds[kind].letter) {
    case 'O': return ends ? 0 : attention;
    case 'P': return ends ? 0 : experts;
    case 'N': return ends ? -experts : 0;
    case 'L': return ends ? -attention : 0;
    default: return 0;
    }
  }

  layer_bytes& operator+=(layer_bytes const& other) {
    attention += other.attention;
    experts += other.experts;
    copies += other.copies;
    input += other.input;
    return *this;
  }

  static constexpr pp::flow const& kinds = pp::detail::frugal_expert_training;
};

//! Of a piece of a sequence, or of a whole microbatch.
layer_bytes bytes_of_piece(pp::prediction const& on,
                           pp::stage_content const& layer,
                           pp::sequence_piece const& piece) {
  pp::transformer const& model = on.model;
  double const tensor = on.setup.tensor;
  double const all = static_cast<double>(on.kept_bytes(layer, piece.tokens)) / tensor;
  if (!has_experts(layer))
    return {.attention = all};
  double const tokens = static_cast<double>(piece.tokens) * on.setup.sequences;
  double const copies = tokens * 2 * model.hidden * model.experts_per_token / tensor;
  double const inner =
    tokens * (model.gated ? 6.0 : 4.0) * static_cast<double>(model.inner_width()) / tensor;
  return {.attention = all - copies - inner, .experts = copies + inner, .copies = copies};
}

//! The layers of all stages, and the microbatches that go through them.
struct expert_work {
  choose_command const& asked;
  std::span<pp::packed_microbatch const> microbatches{}; //!< one where all are alike
  std::vector<pp::stage_content> layers{};
  std::vector<pp::stage_bytes> weights{}; //!< of these, and their gradients
  std::vector<int> counts{};              //!< [S] layers of each stage
  std::vector<int> stages{};              //!< [layers] the stage of each

  //! Adds the layers of the next stage.
  void add(pp::stage_content const& stage, std::vector<int> const& chunk_lengths) {
    std::vector<pp::stage_content> const more = layers_of(stage);
    std::vector<pp::stage_bytes> const bytes = weights_of(asked, stage, more, chunk_lengths);
    layers.insert(layers.end(), more.begin(), more.end());
    weights.insert(weights.end(), bytes.begin(), bytes.end());
    stages.insert(stages.end(), more.size(), static_cast<int>(counts.size()));
    counts.push_back(static_cast<int>(more.size()));
  }

  //! [layers][microbatches], of what `of(on, layer, piece)` gives for each piece
  template <class Value, class Of>
  [[nodiscard]] std::vector<Value> sums(Of const& of) const {
    std::vector<int> const lengths = laid_out(asked, microbatches);
    std::vector<Value> result;
    for (std::size_t layer = 0; layer < layers.size(); ++layer)
      for (pp::packed_microbatch const& microbatch : microbatches) {
        Value& sum = result.emplace_back();
        for (std::vector<pp::sequence_piece> const& chunk : microbatch)
          for (pp::sequence_piece const& piece : chunk)
            sum += of(predicted_for(asked.predicted(), piece, lengths), layer, piece);
      }
    return result;
  }
  [[nodiscard]] std::size_t index(pp::pass const& what) const {
    std::size_t const microbatch = microbatches.size() == 1 ? 0 : what.microbatch;
    return what.stage * microbatches.size() + microbatch;
  }
  //! Bytes of layers, one after the other.
  [[nodiscard]] std::vector<layer_bytes> bytes() const {
    return sums<layer_bytes>(
      [this](pp::prediction const& on, std::size_t layer, pp::sequence_piece const& piece) {
        layer_bytes result = bytes_of_piece(on, layers[layer], piece);
        if (layer > 0) // else it is tokens, which take next to nothing
          result.input = static_cast<double>(on.sent_bytes(layers[layer - 1], piece.tokens));
        return result;
      });
  }
};

//! The kind whose measured time a kind takes. @pre it is no copy and no mark
pp::pass_kind measured_kind(pp::pass_kind kind) {
  switch (layer_bytes::kinds[kind].letter) {
  case 'F':
  case 'R':
  case 'X': return pp::expert_training.kind_named("attention");
  case 'G':
  case 'S': return pp::expert_training.kind_named("dispatch");
  case 'H':
  case 'T':
  case 'Z': return pp::expert_training.kind_named("experts");
  default: return kind; // of expert_training, too
  }
}

//! The measured times of layers in place of those of parts. The first one has the embedding, too.
pp::cost_table measured_times(pp::cut_costs const& parts,
                              std::span<pp::stage_content const> layers) {
  std::vector<std::vector<int>> from(layers.size());
  from.front() = {0};
  for (int next = 1; pp::stage_content const& of : layers) {
    std::vector<int>& own = from[static_cast<std::size_t>(&of - layers.data())];
    if (of.layers + of.encoders + of.modules > 0)
      own.push_back(next++);
    else if (of.output)
      own.push_back(parts.stages - 1);
  }
  pp::shape const extents{.devices = static_cast<int>(layers.size())};
  return parts.times.reshaped(extents, 0, [&](pp::pass const& what) {
    double sum = 0;
    for (int const part : from[what.stage])
      for (int chunk = 0; chunk < parts.chunks; ++chunk)
        sum += parts.times.duration(pp::row_writer::make(what.kind, part, what.microbatch, chunk));
    return sum;
  });
}

//! Times of the passes of layers. Shards of a vocabulary and messages take as long as before, and a
//! layer its part of the bytes of what its stage gathers or scatters.
class expert_times {
public:
  //! @param stages bytes of the stages @param whole the times of their passes
  expert_times(expert_work const& work,
               std::vector<pp::stage_bytes> const& stages,
               any_cost const& whole)
      : work_(work), stages_(stages), whole_(whole) {
    std::optional<measured_sequences> of_sequences;
    if (work.asked.measured_layers) {
      measured_ = measured_times(*work.asked.measured_layers, work.layers);
      if (!work.asked.lengths.empty())
        of_sequences.emplace(work.asked, *std::exchange(measured_, {}));
    }
    of_layer_ = work.sums<times>(
      [&](pp::prediction const& on, std::size_t layer, pp::sequence_piece const& piece) {
        times result = times_of(on, work.layers[layer], piece);
        if (of_sequences)
          result.measure(*of_sequences, on, static_cast<int>(layer), work.layers[layer], piece);
        return result;
      });
  }

  [[nodiscard]] double duration(pp::pass const& what) const {
    if (pp::detail::index_of(what.kind) >= layer_bytes::kinds.kind_count)
      return duration_of_shards(what);
    if (measured_ && is_measured(what.kind)) {
      pp::pass as = what;
      as.kind = measured_kind(what.kind);
      return measured_->duration(as);
    }
    return of_layer_[work_.index(what)].of[static_cast<std::size_t>(what.kind)];
  }
  [[nodiscard]] double latency() const noexcept { return whole_.latency(); }
  [[nodiscard]] auto groups() const noexcept { return whole_.groups(); }
  [[nodiscard]] std::span<double const> links() const noexcept { return whole_.links(); }

private:
  [[nodiscard]] double duration_of_shards(pp::pass const& what) const {
    std::size_t const layer = what.stage;
    pp::pass of = what;
    of.kind =
      static_cast<pp::pass_kind>(pp::detail::index_of(what.kind) - pp::detail::shards_later);
    of.stage = static_cast<decltype(of.stage)>(work_.stages[layer]);
    double const all = whole_.duration(of);
    pp::kind_of_pass const& kind = pp::detail::kinds_of_training[of.kind];
    if (kind.on == pp::engine::compute || all == 0)
      return all;
    auto const part = kind.calls == pp::stage_call::scatter_gradients ? &pp::stage_bytes::gradients
                                                                      : &pp::stage_bytes::weights;
    return all * static_cast<double>(work_.weights[layer].*part) /
           static_cast<double>(stages_[of.stage].*part);
  }

  struct times {
    std::array<double, layer_bytes::kinds.kind_count> of{};

    times& operator+=(times const& other) {
      std::transform(of.begin(), of.end(), other.of.begin(), of.begin(), std::plus<>());
      return *this;
    }
    //! Puts measured times in place of predicted ones of a piece.
    void measure(measured_sequences const& measured,
                 pp::prediction on,
                 int layer,
                 pp::stage_content const& content,
                 pp::sequence_piece const& piece) {
      on.setup.sequence = measured.whole(piece).tokens;
      times const whole = times_of(on, content, measured.whole(piece));
      for (std::size_t i = 0; i < of.size(); ++i)
        if (auto const kind = static_cast<pp::pass_kind>(i); is_measured(kind))
          of[i] = measured(measured_kind(kind), layer, piece, of[i], whole.of[i]);
    }
  };

  static bool is_measured(pp::pass_kind kind) {
    pp::role const is = layer_bytes::kinds[kind].is;
    return is != pp::role::copy && is != pp::role::mark;
  }

  static times times_of(pp::prediction const& of,
                        pp::stage_content const& layer,
                        pp::sequence_piece const& piece) {
    layer_bytes const bytes = bytes_of_piece(of, layer, piece);
    pp::token_range const all{piece.tokens, piece.offset};
    bool const travels = has_experts(layer);
    double const message =
      travels ? of.model.expert_message_bytes(of.setup.sequences * all.length, of.setup.expert) /
                  of.setup.tensor / (of.on.link_gb_per_s * 1e9)
              : 0;
    double const parameters =
      (of.model.gated ? 3.0 : 2.0) * of.model.hidden * static_cast<double>(of.model.inner_width());
    double const experts =
      travels ? 2.0 * of.setup.sequences * static_cast<double>(all.length) * parameters /
                  (of.on.peak_tflops * 1e12 * of.setup.tensor * of.reached.linear)
              : 0;
    double const kept = bytes.attention + bytes.experts;
    double const copy = kept > 0 ? of.copy_seconds(layer, all.length) / kept : 0;
    times result{};
    static constexpr auto of_experts = [] {
      std::array<bool, std::tuple_size_v<decltype(times::of)>> by_kind{};
      for (std::size_t kind = 0; kind < by_kind.size(); ++kind)
        by_kind[kind] = std::string_view(layer_bytes::kinds.word(static_cast<pp::pass_kind>(kind)))
                          .find("expert") != std::string_view::npos;
      return by_kind;
    }();
    for (std::size_t kind = 0; kind < result.of.size(); ++kind) {
      pp::kind_of_pass const& declared = layer_bytes::kinds[static_cast<pp::pass_kind>(kind)];
      pp::role const is = declared.is == pp::role::again ? pp::role::forward : declared.is;
      double const before = is == pp::role::weights ? experts : experts + message;
      result.of[kind] =
        is == pp::role::mark          ? 0
        : is == pp::role::copy        ? copy * (of_experts[kind] ? bytes.experts : bytes.attention)
        : is == pp::role::communicate ? message / 2
        : of_experts[kind]            ? experts
                           : of.pass_seconds(layer, pp::training.kind_with(is), all) - before;
    }
    return result;
  }

  expert_work const& work_;
  std::vector<pp::stage_bytes> const& stages_;
  any_cost const& whole_;
  std::vector<times> of_layer_;            // [layers][microbatches]
  std::optional<pp::cost_table> measured_; // by microbatch, in place of these, but for copies
};

//! The shorter one of the orders with and without passes put together.
pp::dynamic_timetable
shorter_of(pp::timetable_view whole, std::span<int const> counts, expert_times const& times) {
  pp::dynamic_timetable both = pp::simulate(pp::with_experts(whole, counts), times);
  pp::dynamic_timetable apart = pp::simulate(pp::with_experts(whole, counts, false), times);
  return pp::makespan(apart) < pp::makespan(both) ? apart : both;
}

} // namespace

pp::cut_costs whole_layers(pp::cut_costs const& of) {
  pp::cut_costs result = of;
  pp::shape const extents{.devices = of.stages, .chunks = of.chunks};
  pp::cost_table const none =
    pp::cost_table(extents, pp::uniform_cost{}).by_microbatch(of.times.microbatches());
  result.times = none.reshaped(extents, of.times.latency(), [&](pp::pass what) {
    pp::role const own = pp::detail::kinds_of_training[what.kind].is;
    pp::role const is = own == pp::role::again ? pp::role::forward : own;
    double sum = 0;
    if (is == pp::role::forward || is == pp::role::input || is == pp::role::weights)
      for (pp::pass_kind const kind : pp::detail::kinds_of_layer(pp::training.kind_with(is))) {
        what.kind = kind;
        sum += of.times.duration(what);
      }
    return sum;
  });
  return result;
}

evaluated cut_at_experts(choose_command const& asked,
                         evaluated plain,
                         any_cost const& whole,
                         std::span<pp::packed_microbatch const> microbatches) {
  candidate& one = plain.what;
  if (is_apart(one.choice)) {
    one.cannot = "experts need layers that stay";
    return plain;
  }
  expert_work work{asked, microbatches};
  std::vector<pp::stage_content> const content = content_of(asked, one);
  for (pp::stage_content const& stage : content)
    work.add(stage, one.chunk_lengths);
  std::vector<pp::stage_bytes> const stages = bytes_of(asked, content, one.chunk_lengths);
  std::vector<held_at_once> resident;
  for (int device = 0; device < asked.devices; ++device)
    resident.push_back(resident_on(asked, one, plain.table, stages, device));
  std::vector<layer_bytes> const bytes = work.bytes();
  expert_times const times(work, stages, whole);
  try {
    plain.table = shorter_of(plain.table, work.counts, times);
  } catch (std::invalid_argument const& error) {
    one.cannot = error.what();
    return plain;
  }
  one.label += ", experts overlapped";
  measure_time(asked, plain.table, times, one);
  one.bound = 0;
  count_devices(asked, one, [&](int device) {
    one.bound = std::max(one.bound, pp::busy(plain.table, device));
    auto const peak = [&](auto change) {
      return pp::detail::peak_by<double>(
        plain.table, device, [&, change](pp::pass const& what, bool ends) {
          return (bytes[work.index(what)].*change)(what.kind, ends);
        });
    };
    held_at_once held = resident[static_cast<std::size_t>(device)];
    held.bytes += peak(&layer_bytes::change);
    held.on_host += peak(&layer_bytes::change_on_host);
    if (one.choice.gathers_weights())
      held.bytes += gathered_at_once(plain.table, device, work.weights);
    return held;
  });
  return plain;
}

} // namespace examples
