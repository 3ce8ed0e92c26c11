// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What passes make, read and free, declared once, and the pools that it lies in. Header for
//! pipelining::flow and pipelining::slot_class.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/stage_graph.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace pipelining::inline v0_3 {

//! @brief The content of a buffer. Every device has, for every class, slots 0 ... n - 1 of one
//! size. The classes are the pools of the flows of training, in order.
enum class slot_class : std::uint8_t {
  activation,        //!< what a forward pass keeps for its backward: from F to the end of B or W
  received_input,    //!< an activation from another device: from its receive to the end of F
  output,            //!< an activation made here: from F until it is sent, or read on this device
  received_gradient, //!< a gradient from another device: from its receive to the end of B or I
  input_gradient,    //!< a gradient made here: from B or I until it is sent, or read on this device
  weight_input,      //!< what I keeps for W
  sequence, //!< keys and values of a microbatch on a stage: first chunk's F to the end of its
            //!< backward
  sequence_gradient, //!< their gradients, carried from the last chunk's backward to the first
                     //!< chunk's
  tied_gradient,     //!< the gradients of a weight that the first and the last stage share: slot 0
                     //!< is the first stage's, slot 1 the last one's, until both are added
  totals,            //!< a row of numbers of each stage, slot s for stage s, until the end of the
                     //!< iteration
  host_activation,   //!< an activation that has been copied to the host
  logits, //!< what a shard of the output layer keeps of its logits until their gradients are made
  statistics, //!< largest logit, sum of exponentials, logit of the label of each token, of one
              //!< shard
  received_statistics, //!< those of a shard on another device
  weights,             //!< the whole weights of a stage, from their gather to their release
  full_gradients,      //!< gradients of the whole weights, until they have been scattered
  copied_gradient      //!< gradients of a stage, slot c from its c-th copy in the order of devices,
                       //!< until all are added
};

namespace detail {

//! The most classes of slots. Pools of flows have the numbers of `slot_class`; those that no
//! pass takes, tied and copied gradients and totals, are not for flows.
inline constexpr int slot_classes = 17;

//! The member of a context that hands a pass the slot of a datum: one of those that stay, or
//! the list of what it reads or of what it fills.
enum class slot_place : std::uint8_t {
  none, //!< the datum lies in no slot
  activation,
  weight_input,
  state,
  state_gradient,
  inputs,
  outputs
};

//! The member that hands out slots of a class of what stays; else `none`.
[[nodiscard]] constexpr slot_place member_of(slot_class of) noexcept {
  switch (of) {
  case slot_class::activation:
  case slot_class::logits: return slot_place::activation;
  case slot_class::weight_input: return slot_place::weight_input;
  case slot_class::sequence: return slot_place::state;
  case slot_class::sequence_gradient: return slot_place::state_gradient;
  default: return slot_place::none;
  }
}

//! The word of a class in sentences and tables.
[[nodiscard]] constexpr char const* word(slot_class of) noexcept {
  switch (of) {
  case slot_class::activation: return "activation";
  case slot_class::received_input: return "received_input";
  case slot_class::output: return "output";
  case slot_class::received_gradient: return "received_gradient";
  case slot_class::input_gradient: return "input_gradient";
  case slot_class::weight_input: return "weight_input";
  case slot_class::sequence: return "sequence";
  case slot_class::sequence_gradient: return "sequence_gradient";
  case slot_class::tied_gradient: return "tied_gradient";
  case slot_class::totals: return "totals";
  case slot_class::host_activation: return "host_activation";
  case slot_class::logits: return "logits";
  case slot_class::statistics: return "statistics";
  case slot_class::received_statistics: return "received_statistics";
  case slot_class::weights: return "weights";
  case slot_class::full_gradients: return "full_gradients";
  case slot_class::copied_gradient: return "copied_gradient";
  }
  return "unknown";
}

} // namespace detail

//! @brief The engine of a device that a kind of pass keeps busy. A device has a row of passes for
//! each engine that its flow uses; each row runs in order.
enum class engine : std::uint8_t { compute, copy_out, copy_in, network };

//! @brief Where the bytes of a datum lie. `nowhere`: in memory of the user, such as weight
//! gradients.
enum class residence : std::uint8_t { device, host, nowhere };

//! @brief The ways in which a pass uses a datum.
enum class does : std::uint8_t {
  makes,   //!< brings the instance of its own unit to life
  reads,   //!< waits for whoever made it
  frees,   //!< reads it for the last time; with `makes` in one kind: memory to work in
  adds_to, //!< of a datum per microbatch: the first chunk makes it, later ones add to it
  needs, //!< of a datum that lies nowhere: it, or another of its pool, is there, of whichever unit
  follows, //!< waits for whoever made it, and does nothing with it
};

//! @brief Whose datum an effect is about: that of the pass's own stage, of the stages that it gets
//! its input from, of those that read its output, or of all stages of its group.
enum class of_stage : std::uint8_t { own, before, after, group };

//! @brief A short text kept by value, so that a flow is a value.
struct flow_word {
  char text[28]{}; //!< ends with a zero

  constexpr flow_word() = default;
  template <std::size_t Size>
  // NOLINTNEXTLINE(google-explicit-constructor): a literal is a word
  //! A literal of at most 27 letters.
  constexpr flow_word(char const (&literal)[Size]) {
    static_assert(Size <= 28, "flow: a word has at most 27 letters");
    for (std::size_t i = 0; i < Size; ++i)
      text[i] = literal[i];
  }
  //! Joins a text and an end to it.
  //! @throws std::invalid_argument for more than 27 letters together.
  [[nodiscard]] static constexpr flow_word of(char const* word, char const* end = "") {
    flow_word result;
    std::size_t at = 0;
    for (char const* const part : {word, end})
      for (int i = 0; part[i] != '\0'; ++i) {
        if (at + 1 == sizeof text)
          throw std::invalid_argument("flow: a word has at most 27 letters");
        result.text[at++] = part[i];
      }
    return result;
  }
  //! For calls that want C strings.
  [[nodiscard]] constexpr char const* c_str() const noexcept { return text; }
  friend constexpr bool operator==(flow_word const&, flow_word const&) = default;
};

//! @brief Something that passes make and others read.
//!
//! Its bytes lie in a pool of slots of one size. Several data may share a pool: their slots are
//! taken from the same ones. What comes from another device lies in the pool `arrives_in`.
struct datum {
  //! How many instances a datum has: one for a unit of a stage, for a microbatch of a stage,
  //! or for each stage that reads it (the gradient of an input is for the stage that made it).
  enum class per : std::uint8_t { unit, microbatch, reader };

  flow_word word;                      //!< what sentences call it
  std::uint8_t pool = 0;               //!< where it lies
  std::uint8_t arrives_in = 0;         //!< where it lies when it came from another device
  residence lives = residence::device; //!< on which memory
  per instance = per::unit;            //!< how often there is one
  bool wanted = false;       //!< every unit of every stage must have it made, exactly once
  bool only_chunked = false; //!< there where sequences are cut into chunks

  friend constexpr bool operator==(datum const&, datum const&) = default;
};

//! @brief One thing that a kind of pass does.
struct effect {
  //! In which order the chunks of a microbatch add to a datum.
  enum class chunk_order : std::uint8_t { ascending, descending };

  does what = does::reads;                    //!< what is done
  std::uint8_t of = 0;                        //!< number of the datum
  of_stage stage = of_stage::own;             //!< to the datum of which stage
  chunk_order order = chunk_order::ascending; //!< where chunks add to one datum

  friend constexpr bool operator==(effect const&, effect const&) = default;
};

//! @brief The member of a stage functor that a kind of pass calls. Copies, where the library moves
//! the slots, and marks between passes call none. `perform` is for kinds of one's own.
enum class stage_call : std::uint8_t {
  forward,
  backward,
  backward_input,
  backward_weight,
  recompute,
  copy,
  gather_weights,
  use_weights,
  collect_gradients,
  scatter_gradients,
  perform
};

//! @brief The purpose of a kind of pass. Costs, pictures and bounds ask for role and engine where
//! they do not know the kind: kinds are numbers of their flow only.
enum class role : std::uint8_t {
  forward,    //!< goes from the first stage to the last one
  backward,   //!< goes back, and makes the gradients of inputs and of weights
  input,      //!< goes back, and makes only the gradient of its input
  weights,    //!< makes the gradients of weights that `input` has left
  again,      //!< does a second time what has been done for a forward pass
  copy,       //!< moves slots
  mark,       //!< stands between passes, and takes no time
  communicate //!< exchanges something with other devices
};

//! @brief A kind of pass: its letter in files and pictures, its word in sentences, the engine it
//! occupies, and what it does.
struct kind_of_pass {
  static constexpr int most_effects = 10; //!< of one kind

  char letter = '\0';                     //!< what files and pictures call it; 0: its word
  flow_word word;                         //!< what sentences call it; none: no such kind
  engine on = engine::compute;            //!< the engine that it occupies
  stage_call calls = stage_call::perform; //!< the member of a stage that it calls
  role is = role::forward;                //!< what it is for
  effect effects[most_effects]{};         //!< what it does
  int effect_count = 0;                   //!< how much of that there is
  bool in_groups = false;                 //!< runs on stages of groups only, others on all others

  //! Whether the flow has such a kind.
  [[nodiscard]] constexpr bool exists() const noexcept { return word.text[0] != '\0'; }
  //! The first effect.
  [[nodiscard]] constexpr effect const* begin() const noexcept { return effects; }
  //! After the last one.
  [[nodiscard]] constexpr effect const* end() const noexcept { return effects + effect_count; }
  //! The same kind with another role.
  [[nodiscard]] constexpr kind_of_pass with_role(role other) const noexcept {
    kind_of_pass result = *this;
    result.is = other;
    return result;
  }
  friend constexpr bool operator==(kind_of_pass const&, kind_of_pass const&) = default;
};

namespace detail {

//! The number of a kind in the arrays of a flow.
[[nodiscard]] constexpr int index_of(pass_kind kind) noexcept {
  return static_cast<int>(kind);
}

//! True for the kinds that stand between passes and take no time: marks, and what calls no
//! stage, or hands it memory.
[[nodiscard]] constexpr bool stands_between(kind_of_pass const& kind) noexcept {
  return kind.is == role::mark ||
         (kind.on == engine::compute &&
          (kind.calls == stage_call::copy || kind.calls == stage_call::use_weights ||
           kind.calls == stage_call::collect_gradients));
}

//! The lines that a pass waits for and makes. A line is a row of a flow on a stage: data
//! that the same pass makes share a row, so that the maker of the row is enough to know.
struct kind_links {
  using number = std::int8_t;        //!< of a row or a datum; a flow has many links
  static constexpr number none = -1; //!< no row
  static constexpr int most_own = 4; //!< rows of its own stage that a pass waits for

  number made[3] = {none, none, none}; //!< rows that a pass of this kind makes, the first names it
  number input = none;                 //!< row that it reads of another stage
  number input_step = 0; //!< -1: of the stages before, +1: of those after; or `group_step`
  number own[4] = {none, none, none, none}; //!< rows that it reads of its own stage and unit
  number chunk_step = 0; //!< -1, +1: it follows its row of the chunk before, after
  number products[3] = {none, none, none}; //!< the data that it makes for other stages
  number wanted = 0;                       //!< how many of the rows that it makes each unit wants

  friend constexpr bool operator==(kind_links const&, kind_links const&) = default;
};

} // namespace detail

//! @brief Data, and kinds of passes with their effects on data: a training loop, or anything else
//! that flows through stages. Waits, messages and lives of memory follow from it.
//!
//! A value: make one with `declare`. Kinds and data are known by their numbers.
//! @source own derivation, see docs/explanation/flow.md
struct flow {
  static constexpr int most_kinds = 64;           //!< kinds of passes
  static constexpr int most_data = 64;            //!< data
  static constexpr int engine_count = 4;          //!< engines of a device
  static constexpr pass_kind no_kind{most_kinds}; //!< a kind that no flow has

  datum data[most_data]{};          //!< by number
  int data_count = 0;               //!< how many there are
  kind_of_pass kinds[most_kinds]{}; //!< by number
  int kind_count = 0;               //!< one more than the last number

  // What follows from data and kinds, worked out once by `declare`.
  int rows = 0;                         //!< rows of lines, of which a stage has one each
  std::int8_t row_of[most_data]{};      //!< the row of a datum
  std::uint64_t makers[most_data]{};    //!< by row: the kinds that make it, one bit each
  bool wanted[most_data]{};             //!< by row: must be made for every unit
  std::int8_t reader_step[most_data]{}; //!< by datum: -1, +1 where the stage before, after reads
                                        //!< it, `group_step` where those of the group do
  bool freed[most_data]{};              //!< by datum: a kind frees it
  detail::kind_links links[most_kinds][2]{}; //!< [kind][1 where a stage comes after, else 0]
  //! [kind][effect], the member of a context that hands a pass the slot of an effect. The first
  //! datum of each pool of what stays has a member of its own. All others stand in `inputs` or,
  //! where the pass brings them to life, in `outputs`, in the order of the effects; what is not
  //! there on a stage takes no place. A copy has one of each.
  detail::slot_place places[most_kinds][kind_of_pass::most_effects]{};
  int engine_row[engine_count] = {
    0, -1, -1, -1};             //!< which row of a device an engine is, -1 for none
  int engines = 1;              //!< rows of passes of a device
  bool reads_in_groups = false; //!< a kind reads what the stages of its group make
  bool reads_beside = false;    //!< a kind of another engine than compute reads of other stages
  bool scatters = false;        //!< gradients of weights that are gathered are scattered
  bool has_needs = false;       //!< a kind needs what another keeps there for several units
  //! Whether a unit may have every wanted row made once and still be wrong, so that its kinds must
  //! be looked at together (a copy out of what was not meant to leave).
  bool has_choices = false;

  //! The definition of a kind of pass.
  [[nodiscard]] constexpr kind_of_pass const& operator[](pass_kind kind) const noexcept {
    return kinds[detail::index_of(kind)];
  }
  //! Whether the flow has a kind.
  [[nodiscard]] constexpr bool has(pass_kind kind) const noexcept {
    return detail::index_of(kind) < most_kinds && (*this)[kind].exists();
  }
  //! @brief The kind with a word: `constexpr auto experts = declared.kind_named("experts");`
  //! @throws std::invalid_argument (in the compiler: no constant) where the flow has no such kind.
  [[nodiscard]] constexpr pass_kind kind_named(flow_word const& called) const {
    for (int kind = 0; kind < kind_count; ++kind)
      if (kinds[kind].exists() && kinds[kind].word == called)
        return static_cast<pass_kind>(kind);
    throw std::invalid_argument(std::string("flow: there is no kind '") + called.c_str() + "'");
  }
  //! @brief The kind that stages outside groups have for a role; of several the first. It takes
  //! time.
  //! @return `no_kind` where there is none
  [[nodiscard]] constexpr pass_kind kind_with(role is, engine on = engine::compute) const noexcept {
    for (int kind = 0; kind < kind_count; ++kind)
      if (kind_of_pass const& one = kinds[kind]; one.exists() && one.is == is && one.on == on &&
                                                 !one.in_groups && !detail::stands_between(one))
        return static_cast<pass_kind>(kind);
    return no_kind;
  }
  //! @brief The letter of a kind in texts: its own, or that of its role; '?' for one that the flow
  //! does not have.
  [[nodiscard]] constexpr char letter(pass_kind kind) const noexcept {
    constexpr char of_roles[] = {'F', 'B', 'I', 'W', 'R', 'C', 'M', 'N'};
    if (!has(kind))
      return '?';
    return (*this)[kind].letter != '\0' ? (*this)[kind].letter
                                        : of_roles[static_cast<int>((*this)[kind].is)];
  }
  //! @brief The word of a kind in sentences; "unknown" for one that the flow does not have.
  [[nodiscard]] constexpr char const* word(pass_kind kind) const noexcept {
    return has(kind) ? (*this)[kind].word.c_str() : "unknown";
  }
  //! @brief True for the kinds that add to the weight gradients of their stage, which lie nowhere
  //! that the library knows of.
  [[nodiscard]] constexpr bool adds_gradients(pass_kind kind) const noexcept {
    return std::any_of((*this)[kind].begin(), (*this)[kind].end(), [this](effect const& one) {
      return one.what == does::makes && data[one.of].lives == residence::nowhere &&
             data[one.of].wanted;
    });
  }
  friend constexpr bool operator==(flow const&, flow const&) = default;
};

namespace detail {

//! The step from a pass's own stage to those of which an effect is about a datum.
[[nodiscard]] constexpr int step_to(of_stage whose) noexcept {
  return whose == of_stage::before  ? -1
         : whose == of_stage::after ? 1
         : whose == of_stage::group ? group_step
                                    : 0;
}
//! The step back: from the stage that makes a datum to those that read it.
[[nodiscard]] constexpr int step_back(of_stage whose) noexcept {
  return whose == of_stage::group ? group_step : -step_to(whose);
}

//! Whether an effect brings a datum to life, on the first chunk at least.
[[nodiscard]] constexpr bool brings(effect const& one) noexcept {
  return one.what == does::makes || one.what == does::adds_to;
}
//! Whether a kind does something with a datum of its own stage.
[[nodiscard]] constexpr bool has_effect(kind_of_pass const& kind, does what, int of) noexcept {
  return std::any_of(kind.begin(), kind.end(), [&](effect const& one) {
    return one.what == what && one.of == of && one.stage == of_stage::own;
  });
}
//! Whether a kind brings a datum to life, on the first chunk at least.
[[nodiscard]] constexpr bool brings(kind_of_pass const& kind, int of) noexcept {
  return has_effect(kind, does::makes, of) || has_effect(kind, does::adds_to, of);
}
//! Whether a pass that does this has the slot of the datum.
[[nodiscard]] constexpr bool has_slot(does what) noexcept {
  return what < does::needs;
}
//! The first effect of a kind on the datum of one of its effects. Only memory to work in has two.
[[nodiscard]] constexpr int first_on_datum(kind_of_pass const& of, int number) noexcept {
  int first = 0;
  while (of.effects[first].of != of.effects[number].of ||
         of.effects[first].stage != of.effects[number].stage)
    ++first;
  return first;
}

//! Whether the library moves a slot, next to the compute engine. A kind of the compute engine that
//! calls no stage merely stands between passes.
[[nodiscard]] constexpr bool is_copy(kind_of_pass const& of) noexcept {
  return of.calls == stage_call::copy && of.on != engine::compute;
}

//! The role of a kind that says nothing else: what its call and its engine suggest.
[[nodiscard]] constexpr role usual_role(engine on, stage_call calls) noexcept {
  using enum role;
  constexpr role of_calls[] = {
    forward, backward, input, weights, again, copy, communicate, mark, mark, communicate};
  if (calls == stage_call::copy && on == engine::compute)
    return mark;
  if (calls < stage_call::perform)
    return of_calls[static_cast<int>(calls)];
  return on == engine::compute ? forward : on == engine::network ? communicate : copy;
}

//! The class of the slot that a kind of pass has as its activation.
[[nodiscard]] constexpr slot_class activation_class(flow const& declared, pass_kind kind) noexcept {
  kind_of_pass const& of = declared[kind];
  bool const keeps_logits =
    of.in_groups && std::any_of(of.begin(), of.end(), [&](effect const& one) {
      return declared.data[one.of].pool == static_cast<int>(slot_class::logits);
    });
  return keeps_logits ? slot_class::logits : slot_class::activation;
}

//! True for the kinds of which the last on a stage completes its weight gradients: those
//! that add to them, and those that scatter what has been added up.
[[nodiscard]] constexpr bool completes_gradients(flow const& declared, pass_kind kind) noexcept {
  return declared[kind].calls == stage_call::scatter_gradients || declared.adds_gradients(kind);
}

} // namespace detail

//! @brief A kind with its effects: `declare_kind('F', "forward", engine::compute, {...})`.
//! @throws std::invalid_argument for more than 10 effects.
[[nodiscard]] constexpr kind_of_pass declare_kind(char letter,
                                                  flow_word const& word,
                                                  engine on,
                                                  stage_call calls,
                                                  std::initializer_list<effect> effects) {
  kind_of_pass result{letter, word, on, calls, detail::usual_role(on, calls)};
  if (effects.size() > kind_of_pass::most_effects)
    throw std::invalid_argument("flow: a kind has at most 10 effects; split it into two kinds");
  for (effect const& one : effects)
    result.effects[result.effect_count++] = one;
  return result;
}

//! @brief The same without a letter: files and pictures have the word, or the letter of the role.
[[nodiscard]] constexpr kind_of_pass declare_kind(flow_word const& word,
                                                  engine on,
                                                  stage_call calls,
                                                  std::initializer_list<effect> effects) {
  return declare_kind('\0', word, on, calls, effects);
}

} // namespace pipelining::inline v0_3
