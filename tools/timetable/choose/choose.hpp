// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief `timetable choose`: its command line, its candidates for pipelines and for sequences of
//! unequal length, which of them can be run, and its reports.

#include <map>

#include "tools/timetable/library.hpp"
#include "tools/timetable/progress_line.hpp"

namespace examples {

//! What the user asked for.
struct choose_command {
  verbs verb = verbs::choose;
  std::string model_name;
  pp::transformer model;
  std::string gpu_name;
  std::vector<pp::gpu> gpus; //!< one for all devices, or one for each

  //! Of a device.
  [[nodiscard]] pp::gpu const& gpu(int device) const {
    return gpus[gpus.size() == 1 ? 0 : static_cast<std::size_t>(device)];
  }
  //! Tokens of a step, without padding.
  [[nodiscard]] double tokens() const {
    return lengths.empty() ? static_cast<double>(setup.sequence) * setup.sequences * microbatches
                           : std::accumulate(lengths.begin(), lengths.end(), 0.0);
  }
  //! Layers, those of an encoder and modules for further tokens among them.
  [[nodiscard]] int parts() const { return model.encoder.layers + model.layers + model.modules; }
  //! Whether measured times are of parts: the embedding, each layer and the output layer.
  [[nodiscard]] bool measures_parts() const { return measured && measured->stages == parts() + 2; }
  //! Whether measured times are of equal shares of the layers, which nobody can cut.
  [[nodiscard]] bool measures_shares() const { return measured && !measures_parts(); }
  //! Whether a search leaves layers where they are: a layout says where, measured times are of
  //! equal shares, and other stages would be frozen in another cut.
  [[nodiscard]] bool keeps_cut() const {
    return !layout.empty() || measures_shares() || frozen > 0;
  }
  //! What stages with so many of these hold, [S].
  [[nodiscard]] std::vector<pp::stage_content> contents(std::span<int const> parts) const {
    return pp::stage_content::of_layers(
      parts, model.dense_layers, frozen, model.encoder.layers, model.modules);
  }
  //! Predictions for GPUs of this kind.
  [[nodiscard]] pp::prediction predicted(pp::gpu const& on) const {
    return {model, setup, on, reached};
  }
  //! Predictions for the GPUs of the first device.
  [[nodiscard]] pp::prediction predicted() const { return predicted(gpus.front()); }
  //! The memory of a GPU of a device.
  [[nodiscard]] double room_gb(int device) const {
    return capped ? memory_gb : gpu(device).memory_gb;
  }
  //! What a device holds, where `memory_gb` is all of its memory.
  [[nodiscard]] double gigabytes_of(int device, double bytes) const {
    return bytes / 1e9 * memory_gb / room_gb(device);
  }
  pp::efficiency reached;
  pp::training_setup setup;
  int devices = 0;
  int microbatches = 0;
  std::vector<int> lengths; //!< of the sequences of a step where they are unequal, else empty
  double memory_gb = 0;     //!< of the largest GPU
  bool capped = false;      //!< --memory has given it, for all
  double jitter = 0;        //!< standard deviation of a pass over its time
  std::string cost_file;
  std::optional<pp::cut_costs> measured;        //!< of --cost FILE, in place of predicted times
  std::optional<pp::cut_costs> measured_layers; //!< the same of layers cut at their experts
  std::vector<int> layout;                      //!< of --layout: parts of each stage, or empty
  std::string layout_word;                      //!< as it was given
  std::vector<std::string> schedules;           //!< names of --schedules, or empty: all
  int frozen = 0;       //!< the first layers that have nothing to train, nor has the embedding
  bool clip = false;    //!< gradients are clipped by the norm of all, so stages have totals
  bool tied = false;    //!< first and last stage share a weight, whatever the model says
  bool experts = false; //!< dispatch and combine run next to the passes of other microbatches
  std::optional<int> modules; //!< for further tokens, where they are not the model's
  int pictures = 0;           //!< of a sequence; 0: the model's encoder is left out
  bool all = false;           //!< every row of the table
  bool search = false;        //!< whether cut, places and order are searched, too
  double seconds = 5;         //!< of the search
  int rounds = 0;             //!< in place of seconds; 0: not given
  std::uint64_t seed = 1;     //!< of the search
  int threads = 0;            //!< 0: one for each core
  std::string format = "text";
};

//! @throws usage_error
[[nodiscard]] choose_command read_choose_command(verbs verb, std::span<char const* const> words);
//! The options of choose or systems.
[[nodiscard]] std::vector<offered_option> choose_options(verbs one);

using packing = std::vector<pp::packed_microbatch>;

//! Sequences of unequal length as they are put together.
struct packed_sequences {
  packing whole;   //!< microbatches, cut into chunks or not
  std::string how; //!< what they are, for people
};

//! A choice to look at, and the sequences of a step where they are of unequal length.
struct trial {
  schedule_choice choice;
  std::shared_ptr<packed_sequences const> sequences{};
};

//! GPUs that share the tokens of sequences.
struct gpu_group {
  int gpus = 1;
  std::vector<int> sequences; //!< their numbers
};

//! One schedule with its options, and what it would take.
struct candidate {
  schedule_choice choice;
  std::string label; //!< name and options as the timetable tool takes them, and the adapter
  pp::shape extents;
  std::vector<int> layers; //!< [S], with modules, of the stages between shards if there are some
  std::vector<int> chunk_lengths; //!< [C]
  double seconds = 0;             //!< makespan
  double ranked = 0;              //!< what it is compared by: makespan, or its 95th percentile
  bool judged = true;             //!< false: bounds stand for its times and its memory
  double bubble = 0;              //!< share of the span
  double bound = 0;               //!< no order on this placement with this memory takes less
  double gigabytes = 0; //!< of the device with the least room, as a share of the largest memory
  std::vector<double> device_gigabytes; //!< [P] the same of each device
  double host_gigabytes = 0;            //!< of the device that has the most on the host
  std::shared_ptr<packed_sequences const> sequences; //!< of unequal length; else null
  //! [microbatches] in place of a pipeline; empty of all schedules
  std::vector<std::vector<gpu_group>> groups;
  std::vector<int> places; //!< [P] the device at each place; empty: as they are given
  //! Of a pipeline that was searched: its order where no schedule has it, and the time that no cut,
  //! no placement and no order of the model on these devices can beat.
  std::shared_ptr<pp::dynamic_timetable const> own_order;
  double any_bound = 0;
  std::uint64_t order = 0; //!< a hash of its passes, row by row
  std::string cannot; //!< why it cannot be run as the model and the user need it; empty: it can
  std::shared_ptr<pp::dynamic_timetable const> table; //!< of what may become the pick
};

//! All candidates, and why others are none.
struct candidates {
  std::vector<candidate> all;
  std::vector<std::string> refused;         //!< label: reason
  double fastest = HUGE_VAL;                //!< of those that fit and can be run
  std::int64_t kept_passes = 0;             //!< of their timetables
  int simulated = 0;                        //!< how many were
  int searched = 0;                         //!< of these, after sweeps
  std::map<std::string, std::string> known; //!< why schedules, adapters and stages cannot be run
  std::shared_ptr<made_orders> orders = std::make_shared<made_orders>(); //!< of all of them
};

//! Numbers of the candidates that are wanted, those with the least key first.
[[nodiscard]] std::vector<std::size_t>
numbers_of(candidates const& found, auto const& wanted, auto const& key) {
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < found.all.size(); ++i)
    if (wanted(found.all[i]))
      numbers.push_back(i);
  std::ranges::stable_sort(
    numbers, {}, [&](std::size_t i) { return std::invoke(key, found.all[i]); });
  return numbers;
}

//! Whether a schedule is one of those that were asked for.
[[nodiscard]] bool is_wanted(named_schedule const& schedule, choose_command const& asked);

//! A schedule without options.
[[nodiscard]] schedule_choice plain_call(named_schedule const& schedule,
                                         choose_command const& asked);

//! The ways to call one schedule. A new adapter of schedules adds its calls here.
[[nodiscard]] std::vector<schedule_choice> calls_of(named_schedule const& schedule,
                                                    choose_command const& asked);

//! Those of them whose layers do not stay whole on a device: parts of layers are elsewhere, or
//! their weights travel or lie on the host. Empty for all other schedules. Their costs are
//! predicted alone, for GPUs of one kind, and what is found has no type to write down.
[[nodiscard]] std::vector<schedule_choice> calls_apart(named_schedule const& schedule,
                                                       choose_command const& asked);

//! Whether that is so of a choice.
[[nodiscard]] bool is_apart(schedule_choice const& choice);

//! Its C++ type, but for frozen stages and layers that are cut; empty where it is known at run time
//! alone.
[[nodiscard]] std::string type_of(schedule_choice const& choice);

//! How the timetable tool is asked for it; and what the sequences are.
[[nodiscard]] std::string label_of(trial const& one);

//! A candidate and its timetable.
struct evaluated {
  candidate what;
  pp::dynamic_timetable table;
  //! Bytes of a message of this pass to this reader; empty: see `sent_bytes`.
  std::function<double(pp::pass const&, pp::detail::product_reader const&)> sent = {};
};

//! Simulates one of them.
//! @param made orders of those before
//! @param cut layers of its stages; empty: the best of a few
//! @throws std::invalid_argument where the schedule or the model cannot have it.
[[nodiscard]] evaluated evaluate(choose_command const& asked,
                                 trial const& one,
                                 made_orders& made,
                                 std::vector<int> const& cut = {});

//! A trial with its names, extents and chunks. @throws std::invalid_argument as `evaluate` does
[[nodiscard]] candidate without_layers(choose_command const& asked, trial const& one);

//! The layers of its stages that may be best. @throws as `cuts_of_layers` does
[[nodiscard]] std::vector<std::vector<int>> cuts_of(choose_command const& asked,
                                                    candidate const& one);

//! Evaluates a choice; where its order by sweeps cannot have its adapter, the searched one.
[[nodiscard]] evaluated evaluate_swept(choose_command const& asked, trial one, made_orders& orders);

//! Puts candidates in their place that are evaluated anew: `evaluate(trial)`, on any thread, as
//! long as they are wanted when their turn comes.
//! @return how many were
int evaluate_anew(choose_command const& asked,
                  std::span<std::size_t const> numbers,
                  std::function<bool(candidate const&)> const& wanted,
                  std::function<evaluated(trial const&)> const& evaluate,
                  candidates& found);

//! What the text names of the candidates so far, of those that are judged and can be run.
struct named_so_far {
  double fastest = HUGE_VAL; //!< that fits
  double fourth = HUGE_VAL;  //!< time of those that fit
  double whole = HUGE_VAL;   //!< fastest that fits with whole sequences, and needs no search
  double sure = HUGE_VAL;    //!< fastest of which published runs say that it fits
  double least = HUGE_VAL;   //!< memory
  double next = HUGE_VAL;    //!< memory of what is faster than all that fits

  named_so_far(choose_command const& asked, candidates const& found, candidate const* but);
};

//! Whether one whose order was made by sweeps may be shown once it is searched: among the fastest
//! that fit, as the fastest with whole sequences, or for its memory, where nothing that takes as
//! little is as fast.
[[nodiscard]] bool
may_be_shown(choose_command const& asked, candidate const& one, candidates const& found);

//! A candidate that is too large with each of its cuts, as its order shows without times, or one
//! with shards that fits with each: not judged. Nothing where times decide.
[[nodiscard]] std::optional<candidate>
without_times(choose_command const& asked, schedule_choice const& choice, made_orders& made);

//! Whether model or user need more than a plain plan.
[[nodiscard]] bool needs_more(choose_command const& asked);

//! Evaluates those that are not judged and that the text may name.
//! @return whether there was one
bool judge_named(choose_command const& asked, candidates& found);

//! The same of schedules whose weights do not stay on a device, and of SlimPipe's exchange; not of
//! HelixPipe, which is a pipeline of stages.
[[nodiscard]] evaluated evaluate_apart(choose_command const& asked, schedule_choice const& choice);

//! Measured times of the passes of whole parts, from those of layers cut at their experts.
[[nodiscard]] pp::cut_costs whole_layers(pp::cut_costs const& of);

//! The same candidate with the layers of each stage cut at their experts, so that dispatch and
//! combine run next to other passes; or why it cannot have that.
//! @param whole the times of its passes; messages take as long
//! @param microbatches pieces of all of them, or of one where they are alike
[[nodiscard]] evaluated cut_at_experts(choose_command const& asked,
                                       evaluated plain,
                                       any_cost const& whole,
                                       std::span<pp::packed_microbatch const> microbatches);

//! Simulates all of them, for sequences of one length or of several. Shows what it is at on a
//! terminal.
[[nodiscard]] candidates evaluate_all(choose_command const& asked);

//! Bytes of stages with these contents.
[[nodiscard]] std::vector<pp::stage_bytes> bytes_of(choose_command const& asked,
                                                    std::vector<pp::stage_content> const& content,
                                                    std::vector<int> const& chunk_lengths);

//! Where a choice has bytes of devices, gives it those of its stages as they are cut.
//! @pre a chunk and a stage on each device
void give_bytes(choose_command const& asked, candidate& one);

//! The copies of a stage that a device has: two where both ways go through it.
[[nodiscard]] int copies_on(pp::timetable_view table, int stage, int device);

//! Bytes that a device and its host hold at most.
struct held_at_once {
  double bytes = 0;
  double on_host = 0;
};
//! Fills in the memory of a candidate by that of each device: `of(device)`.
void count_devices(choose_command const& asked,
                   candidate& one,
                   std::function<held_at_once(int device)> const& of);

//! Bytes of its stages that a device and its host have all the time.
//! @param bytes [S]
[[nodiscard]] held_at_once resident_on(choose_command const& asked,
                                       candidate const& one,
                                       pp::timetable_view table,
                                       std::vector<pp::stage_bytes> const& bytes,
                                       int device);
//! The most bytes of whole weights and of whole gradients that a device has, where these are
//! gathered and scattered.
[[nodiscard]] double
gathered_at_once(pp::timetable_view table, int device, std::vector<pp::stage_bytes> const& bytes);

//! Fills in the memory that a timetable of a candidate takes.
void count_memory(choose_command const& asked, pp::timetable_view table, candidate& one);

//! Fills in times of a timetable: makespan, or what it is ranked by, and bubble.
void measure_time(choose_command const& asked,
                  pp::dynamic_timetable const& table,
                  any_cost const& cost,
                  candidate& one);

//! Fills in what it takes: time, memory, bounds.
void measure(choose_command const& asked,
             pp::dynamic_timetable const& table,
             pp::cost_table const& cost,
             candidate& one);

//! Times of the parts of a model for a whole microbatch. The look-up in the embedding takes none,
//! unless it was measured.
struct part_times {
  std::vector<pp::layer_cost> layers; //!< and modules
  pp::layer_cost output;
  pp::layer_cost embedding{0, 0, 0};
};

//! @param exchanges whether those of a tensor parallel group take time, as in passes that run alone
[[nodiscard]] part_times
times_of_parts(choose_command const& asked, pp::gpu const& on, bool exchanges = true);

//! Layers per stage such that no device is slow, whatever stages it has, and where that is another
//! cut, such that no stage is slow. The first stage has the embedding besides, the last the output
//! layer, and any may have no layer. Measured times are of stages of equal numbers of layers.
//! Where a layout was given it is the only one.
//! @param shards whether the output layer is in no stage
//! @return one cut or two that differ, the likely best first
//! @throws std::invalid_argument where measured times are of fewer layers than there are stages, or
//! the layout has another number of stages.
[[nodiscard]] std::vector<std::vector<int>>
cuts_of_layers(choose_command const& asked, pp::shape const& extents, bool shards);

//! Whether a cut of a candidate is better than another: what fits comes first, then what is faster
//! by more than rounding; of what does not fit, the smaller one.
[[nodiscard]] bool
is_better_cut(choose_command const& asked, candidate const& one, candidate const& other);

//! Tokens of the chunks: of equal work, where a layer's attention grows with what lies before; of
//! sequences of unequal length the longest.
[[nodiscard]] std::vector<int>
chunk_lengths_of(choose_command const& asked, packed_sequences const* sequences, int chunks);

//! What the stages of a candidate hold, [S].
[[nodiscard]] std::vector<pp::stage_content> content_of(choose_command const& asked,
                                                        candidate const& one);

//! What the stages of a candidate hold, as `write_layout` writes it. Empty where layers do not stay
//! whole on a device.
[[nodiscard]] std::string layout_of(choose_command const& asked, candidate const& one);

//! Stages between the first and the last with modules for further tokens, which have copies of the
//! embedding whose gradients no plan adds up.
[[nodiscard]] std::vector<int> inner_modules(choose_command const& asked, candidate const& one);

//! Modules that stay with the output layer, since totals need all gradients; shards have theirs.
[[nodiscard]] inline int staying_modules(choose_command const& asked, bool shards) {
  return asked.clip && !shards ? asked.model.modules : 0;
}

//! Tries every move of a layer to a stage at most `reach` away, and keeps those that help.
//! @param staying layers of the last stage that stay there
//! @param helps `helps(cut)`; asked as long as `goes_on()`
//! @return whether one has helped
bool move_layers(
  std::vector<int>& cut, int reach, int staying, auto const& goes_on, auto const& helps) {
  bool better = false;
  int const stages = static_cast<int>(cut.size());
  for (int from = 0; from < stages; ++from)
    for (int to = std::max(0, from - reach); to <= std::min(stages - 1, from + reach); ++to) {
      int& giver = cut[static_cast<std::size_t>(from)];
      int& taker = cut[static_cast<std::size_t>(to)];
      if (to == from || giver == (from + 1 == stages ? staying : 0) || !goes_on())
        continue;
      --giver;
      ++taker;
      bool const helped = helps(cut);
      giver += helped ? 0 : 1;
      taker -= helped ? 0 : 1;
      better = better || helped;
    }
  return better;
}

//! The times of a candidate's passes.
[[nodiscard]] pp::cost_table costs_of(choose_command const& asked, candidate const& one);

//! Of a message between devices that differ: GPUs of different kinds sit in different machines, and
//! the slower end counts.
[[nodiscard]] double
seconds_between(choose_command const& asked, int from, int to, std::int64_t tokens);

//! Enters the times of messages between devices, `seconds(from, to)`.
void set_links(pp::cost_table& cost, int devices, auto const& seconds) {
  for (int from = 0; from < devices; ++from)
    for (int to = 0; to < devices; ++to)
      if (from != to)
        cost.set_link(from, to, seconds(from, to));
}

//! True where even the upper end of its band fits; where none is published, of runs without what
//! makes it unlike them.
[[nodiscard]] bool surely_fits(choose_command const& asked, candidate const& one);

//! The report in the format asked for. Lowers the pick.
[[nodiscard]] std::string choose_report(choose_command const& asked, candidates& found);

//! Follows the command line after the word "choose".
//! @throws std::exception with one line for the user.
void choose(std::span<char const* const> words);

//! What there is to look at for the sequences of a step: each padded to the longest; several packed
//! into one of that length; and cut into chunks of a size, the short ones packed.
[[nodiscard]] std::vector<trial> trials_of_lengths(choose_command const& asked);
//! Groups of GPUs that share sequences, in place of pipelines.
void add_groups(choose_command const& asked, progress_line& line, candidates& found);

[[nodiscard]] int tokens_of(std::vector<pp::sequence_piece> const& chunk);
//! The microbatches as a pipeline with so many chunks has them.
//! @throws std::invalid_argument where one has fewer tokens than chunks
[[nodiscard]] packing microbatches_of(packed_sequences const& sequences, int chunks);
//! The command with the tokens of the longest microbatch.
[[nodiscard]] choose_command sized_for(choose_command const& asked,
                                       packed_sequences const& sequences);
//! Tokens of each sequence as it is laid out, padding among them.
[[nodiscard]] std::vector<int> laid_out(choose_command const& asked,
                                        std::span<pp::packed_microbatch const> microbatches);
//! Measured times of whole sequences, and what pieces of them take: as much of it as is predicted.
//! A table with one time for all microbatches is of the longest sequence.
class measured_sequences {
public:
  measured_sequences(choose_command const& asked, pp::cost_table cost)
      : devices_(asked.devices), lengths_(asked.lengths),
        longest_(*std::max_element(lengths_.begin(), lengths_.end())), cost_(std::move(cost)) {}

  //! What the measured time is of: the sequence of a piece, or the longest one.
  [[nodiscard]] pp::sequence_piece whole(pp::sequence_piece const& piece) const;
  //! @param predicted seconds of the piece @param predicted_whole and of `whole(piece)`
  [[nodiscard]] double operator()(pp::pass_kind kind,
                                  int stage,
                                  pp::sequence_piece const& piece,
                                  double predicted,
                                  double predicted_whole) const;
  //! Of a message of so many tokens.
  [[nodiscard]] double message_seconds(int from, int to, std::int64_t tokens) const;

private:
  int devices_;
  std::span<int const> lengths_;
  int longest_;
  pp::cost_table cost_;
};
//! Predictions for a piece: pictures are spread over the tokens of its sequence.
//! @param tokens of each sequence
[[nodiscard]] pp::prediction
predicted_for(pp::prediction of, pp::sequence_piece const& piece, std::span<int const> tokens);
//! `costs_of` and `count_memory` for sequences of unequal length.
[[nodiscard]] pp::cost_table packed_costs(choose_command const& asked, candidate const& one);
void count_packed_memory(choose_command const& asked, pp::timetable_view table, candidate& one);

//! The order of a candidate, for a search to start from.
struct choose_start {
  std::size_t candidate = 0; //!< its number
  pp::device_orders orders;
};
//! Searches cut, places of devices and order together from these orders, all for the same
//! sequences, and adds what it finds where that is better than they are. Says on stderr what it is
//! at.
void add_searched(choose_command const& asked,
                  std::span<choose_start const> starts,
                  candidates& found);

//! Other cuts of candidates whose layers are cut at their experts: single layers move to other
//! stages of the fastest few as long as that makes one of them faster.
void add_searched_experts(choose_command const& asked, candidates& found);

//! Adds a candidate. Where model or user need more than a plain plan, it is lowered, or another one
//! of its schedule, adapter and stages was, and says why it cannot be run. One that may be the pick
//! keeps its timetable.
void add_candidate(choose_command const& asked, evaluated const& made, candidates& found);

//! Moves single layers of candidates whose timetables are kept, the fastest first, as long as that
//! makes them faster and a bound on simulated passes allows.
void improve_cuts(choose_command const& asked, candidates& found);

//! The pick, lowered and proven as it is printed; what cannot be lowered says so and is none.
[[nodiscard]] pp::memory_choice choose_lowered(choose_command const& asked, candidates& found);

//! Memory and time of what can be run; without end of the rest.
[[nodiscard]] std::vector<pp::choice_point> points_of(candidates const& found);

//! The text of a header with the pick as a type, its costs, timetable and plan.
//! @throws usage_error for a pick that has no type.
[[nodiscard]] std::string choose_header(choose_command const& asked, candidate const& pick);

} // namespace examples
