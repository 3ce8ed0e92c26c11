// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "choose.hpp"
#include "packed_model.hpp"
#include "search.hpp"
#include "tools/timetable/files.hpp"
#include "tools/timetable/make.hpp"
#include "tools/timetable/progress_line.hpp"

namespace examples {
namespace {

//! About so many sequences are put onto groups for one candidate: a tenth of a second.
constexpr std::int64_t most_work = 20'000'000;
constexpr int most_gpus = 4096;

pp::sequence_groups
best_groups(std::vector<int> const& lengths, pp::grouped_gpus const& on, double room, int parts) {
  std::int64_t const each = std::int64_t{on.gpus} * static_cast<std::int64_t>(lengths.size());
  std::int64_t const steps = std::max<std::int64_t>(most_work / parts / each, 16);
  pp::sequence_groups const best = pp::sequence_groups::best(lengths, on.gpus, on, room, steps);
  return best.group_of.empty() ? pp::sequence_groups::best(
                                   lengths, on.gpus, on, std::numeric_limits<double>::max(), steps)
                               : best;
}

//! How the report calls it.
std::string groups_label(std::size_t microbatches) {
  return "sequence groups, " + std::to_string(microbatches) +
         (microbatches == 1 ? " microbatch" : " microbatches");
}

//! The sequences of a microbatch.
using sequence_numbers = std::vector<int>;

//! Ways to make microbatches of sequences of like length: of all with so many microbatches those
//! whose largest has the fewest tokens.
std::vector<std::vector<sequence_numbers>> like_microbatches(std::vector<int> const& lengths) {
  auto const length = [&](int i) { return lengths[static_cast<std::size_t>(i)]; };
  std::vector<int> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return length(a) > length(b); });
  auto const cut = [&](std::int64_t most) {
    std::vector<sequence_numbers> microbatches;
    std::int64_t tokens = most;
    for (int const sequence : order) {
      tokens += length(sequence);
      if (tokens > most) {
        microbatches.emplace_back();
        tokens = length(sequence);
      }
      microbatches.back().push_back(sequence);
    }
    return microbatches;
  };
  std::vector<std::vector<sequence_numbers>> result;
  for (std::size_t const count : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}) {
    std::int64_t least = length(order.front());
    std::int64_t enough = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    while (least < enough) {
      std::int64_t const middle = least + (enough - least) / 2;
      if (cut(middle).size() <= count)
        enough = middle;
      else
        least = middle + 1;
    }
    std::vector<sequence_numbers> microbatches = cut(enough);
    if (result.empty() || result.back().size() != microbatches.size())
      result.push_back(std::move(microbatches));
  }
  return result;
}

//! FlexSP: for each microbatch the groups of GPUs whose slowest is fastest. Within the memory where
//! that can be, else as fast as can be.
//! @throws std::invalid_argument where the model or the GPUs cannot have it.
candidate evaluate_groups(choose_command const& asked,
                          std::vector<sequence_numbers> const& microbatches) {
  std::int64_t const gpus = std::int64_t{asked.devices} * asked.setup.tensor;
  if (asked.gpus.size() > 1)
    throw std::invalid_argument("its times are of GPUs of one kind");
  if (asked.jitter > 0 || asked.frozen > 0 || !asked.layout.empty())
    throw std::invalid_argument("it has no stages, so no layout, no frozen ones and no passes that "
                                "vary");
  if (asked.measured || asked.pictures > 0)
    throw std::invalid_argument("its times are predicted, of sequences without pictures");
  if (asked.setup.expert > 1)
    throw std::invalid_argument(
      "its GPUs take whole layers one after the other, so that no experts "
      "are spread over them");
  if (gpus > most_gpus)
    throw std::invalid_argument("more than " + std::to_string(most_gpus) +
                                " GPUs have too many groups to look at");
  pp::grouped_gpus const on{
    asked.model, asked.gpu(0), asked.reached, static_cast<int>(gpus), asked.setup.data};
  candidate one;
  one.label = groups_label(microbatches.size());
  one.layers = {asked.model.layers};
  one.chunk_lengths = {static_cast<int>(asked.setup.sequence)};
  double busy = 0; // GPUs times seconds
  double most = 0;
  for (sequence_numbers const& sequences : microbatches) {
    std::vector<int> lengths;
    for (int const sequence : sequences)
      lengths.push_back(asked.lengths[static_cast<std::size_t>(sequence)]);
    pp::sequence_groups const best = best_groups(lengths,
                                                 on,
                                                 asked.memory_gb * 1e9 - on.resident_bytes(),
                                                 static_cast<int>(microbatches.size()));
    std::vector<gpu_group>& groups = one.groups.emplace_back();
    std::vector<double> bytes(best.sizes.size());
    for (int const size : best.sizes)
      groups.push_back({size, {}});
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      auto const group = static_cast<std::size_t>(best.group_of[i]);
      groups[group].sequences.push_back(sequences[i]);
      bytes[group] += on.bytes(lengths[i], best.sizes[group]);
      busy += best.sizes[group] * on.time(lengths[i], best.sizes[group]);
    }
    most = std::max(most, *std::max_element(bytes.begin(), bytes.end()));
    one.seconds += std::max(best.time, on.gather_seconds());
    one.bound += std::max(best.bound, on.gather_seconds());
  }
  one.ranked = one.seconds;
  one.bubble = std::max(0.0, 1 - busy / (static_cast<double>(gpus) * one.seconds));
  one.gigabytes = (on.resident_bytes() + most) / 1e9;
  return one;
}

constexpr std::size_t most_sequences = 4096;

int tokens_of(std::vector<pp::sequence_piece> const& chunk) {
  int tokens = 0;
  for (pp::sequence_piece const& piece : chunk)
    tokens += piece.tokens;
  return tokens;
}

//! Every microbatch cut into as many chunks of about as many tokens each.
packing cut_microbatches(packing const& whole, int chunks) {
  packing result;
  for (pp::packed_microbatch const& microbatch : whole) {
    std::vector<pp::sequence_piece> pieces;
    for (std::vector<pp::sequence_piece> const& chunk : microbatch)
      pieces.insert(pieces.end(), chunk.begin(), chunk.end());
    int const all = tokens_of(pieces);
    if (all < chunks)
      throw std::invalid_argument("a microbatch has fewer tokens than chunks");
    pp::packed_microbatch& cut = result.emplace_back();
    std::size_t at = 0;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      auto const share = [&](int c) { return static_cast<int>(std::int64_t{all} * c / chunks); };
      int room = share(chunk + 1) - share(chunk);
      for (cut.emplace_back(); room > 0;) {
        pp::sequence_piece& from = pieces[at];
        int const taken = std::min(room, from.tokens);
        cut.back().push_back({from.sequence, from.offset, taken});
        from.offset += taken;
        from.tokens -= taken;
        room -= taken;
        at += from.tokens == 0 ? 1 : 0;
      }
    }
  }
  return result;
}

void count_packed_memory(choose_command const& asked,
                         packing const& microbatches,
                         pp::timetable_view table,
                         candidate& one) {
  std::vector<pp::stage_content> const content = content_of(asked, one);
  std::vector<double> resident;
  // Gradients of keys and values travel between the chunks of one sequence at a time.
  for (pp::stage_content const& stage : content)
    resident.push_back(
      static_cast<double>(asked.predicted().bytes(stage, one.chunk_lengths).resident()));
  std::vector<int> const lengths = laid_out(asked, microbatches);
  auto const bytes_of = [&](pp::pass const& what) {
    pp::stage_content const& stage = content[what.stage];
    // A chunk that is recomputed keeps its input, and keys and values for those behind it.
    int const read_again = one.extents.chunks > 1 ? stage.layers + stage.modules : 0;
    double all = 0;
    double kept = 0;
    for (pp::sequence_piece const& piece : microbatches[what.microbatch][what.chunk]) {
      pp::prediction const on = predicted_for(asked.predicted(), piece, lengths);
      auto const part = [&](std::int64_t bytes) {
        return static_cast<double>(bytes) / asked.setup.tensor;
      };
      all += part(pp::detail::kept_bytes(asked.model, on.setup, stage, piece.tokens));
      kept += read_again * part(asked.model.key_value_bytes(piece.tokens));
      if (what.stage > 0) // else it is tokens, which take next to nothing
        kept +=
          static_cast<double>(on.sent_bytes(content[what.stage - std::size_t{1}], piece.tokens));
    }
    return pp::unit_bytes{all, kept, all};
  };
  one.device_gigabytes.clear();
  for (int device = 0; device < asked.devices; ++device) {
    double held = pp::peak_device_bytes(table, device, bytes_of);
    for (int stage = 0; stage < one.extents.stages(); ++stage)
      for (int const holder : pp::holders_of(table.over, stage))
        held += holder == device ? resident[static_cast<std::size_t>(stage)] : 0;
    double const on_host = pp::peak_slot_bytes(
      table, device, pp::slot_class::host_activation, [&](pp::pass const& what) {
        return bytes_of(what).moved;
      });
    one.host_gigabytes = std::max(one.host_gigabytes, on_host / 1e9);
    one.device_gigabytes.push_back(asked.gigabytes_of(device, held));
    one.gigabytes = std::max(one.gigabytes, one.device_gigabytes.back());
  }
}

//! Fills in what a timetable takes.
void measure_packed(choose_command const& asked,
                    packing const& microbatches,
                    pp::dynamic_timetable const& table,
                    packed_model const& cost,
                    candidate& one) {
  measure_time(asked, table, cost, one);
  if (asked.format == "header")
    one.packed = std::make_shared<packed_pipeline const>(packed_pipeline{microbatches, cost});
  one.bound =
    one.choice.frozen > 0
      ? busiest_work(table, cost.without_exchanges())
      : pp::least_times(table.over, cost.without_exchanges(), {.pairs = true}).makespan.least();
  count_packed_memory(asked, microbatches, table, one);
}

int longest_of(packing const& microbatches) {
  int longest = 0;
  for (pp::packed_microbatch const& microbatch : microbatches)
    for (std::vector<pp::sequence_piece> const& chunk : microbatch)
      longest = std::max(longest, tokens_of(chunk));
  return longest;
}

//! The command with the tokens of the longest microbatch.
choose_command sized_for(choose_command const& asked, packing const& microbatches) {
  choose_command sized = asked;
  sized.setup.sequence = 0;
  for (pp::packed_microbatch const& microbatch : microbatches) {
    std::int64_t tokens = 0;
    for (std::vector<pp::sequence_piece> const& chunk : microbatch)
      tokens += tokens_of(chunk);
    sized.setup.sequence = std::max(sized.setup.sequence, tokens);
  }
  return sized;
}

//! The command with the pictures of a mean microbatch, for its cut.
choose_command mean_of(choose_command const& sized, packing const& microbatches) {
  choose_command mean = sized;
  std::size_t const pictures =
    sized.lengths.size() * static_cast<std::size_t>(sized.setup.pictures);
  mean.setup.pictures = static_cast<int>(std::max<std::size_t>(1, pictures / microbatches.size()));
  return mean;
}

//! Microbatches of one packing, for a search from the schedules that have it.
class packed_work {
public:
  //! @param asked for sequences of unequal length. @param whole whole microbatches, or those that
  //! are cut already
  packed_work(choose_command const& asked, packing const& whole) : whole_(whole) {
    for (int device = 0; device < asked.devices; ++device) {
      double const rate = asked.gpu(device).peak_tflops / asked.gpu(0).peak_tflops;
      double const link = asked.gpu(device).link_gb_per_s / asked.gpu(0).link_gb_per_s;
      speed_ += asked.setup.expert > 1 ? std::max(rate, link) : rate; // what experts get is sent
    }
    if (asked.frozen > 0 && asked.measures_shares())
      return; // the file does not say what of a share is frozen
    // What no padding and no exchange adds to, on the first GPU.
    choose_command first = asked;
    first.gpus.resize(1);
    first.devices = 1;
    candidate one;
    one.extents = {.devices = 1};
    one.layers = {asked.parts()};
    packing alone;
    for (std::size_t i = 0; i < asked.lengths.size(); ++i)
      alone.push_back({{{static_cast<int>(i), 0, asked.lengths[i]}}});
    packed_model const cost = packed_model(first, one, alone).without_exchanges();
    for (int i = 0; i < static_cast<int>(alone.size()); ++i)
      for (pp::pass_kind const kind : pp::detail::split_kinds(pp::training))
        work_ += cost.duration(pp::row_writer::make(kind, 0, i));
  }

  [[nodiscard]] packing cut(pp::shape const& extents) const {
    bool const given = std::any_of(
      whole_.begin(), whole_.end(), [](auto const& microbatch) { return microbatch.size() > 1; });
    return given || extents.chunks == 1 ? whole_ : cut_microbatches(whole_, extents.chunks);
  }
  [[nodiscard]] std::vector<int> chunk_lengths(pp::shape const& extents) const {
    return std::vector<int>(static_cast<std::size_t>(extents.chunks), longest_of(cut(extents)));
  }
  [[nodiscard]] packed_model
  costs(choose_command const& asked, pp::pipeline_view const& over, candidate const& one) const {
    return {asked, one, cut(over.extents)};
  }
  void count_memory(choose_command const& asked, pp::timetable_view table, candidate& one) const {
    packing const microbatches = cut(table.over.extents);
    count_packed_memory(sized_for(asked, microbatches), microbatches, table, one);
  }
  void
  measure(choose_command const& asked, pp::dynamic_timetable const& table, candidate& one) const {
    packing const microbatches = cut(table.over.extents);
    measure_packed(sized_for(asked, microbatches),
                   microbatches,
                   table,
                   packed_model(asked, one, microbatches),
                   one);
  }
  //! All devices at work all the time.
  [[nodiscard]] double least_time(pp::pipeline_view const&) const { return work_ / speed_; }
  [[nodiscard]] bool is_bounded(candidate const& one) const { return one.groups.empty(); }

private:
  packing const& whole_;
  double speed_ = 0; // of all devices together, in that of the first
  double work_ = 0;  // its seconds
};

//! All that is tried, and what becomes of it.
class length_trials {
public:
  explicit length_trials(choose_command const& asked) : asked_(asked) {}

  void add(schedule_choice choice, std::shared_ptr<packed_sequences const> const& sequences) {
    choice.devices = asked_.devices;
    choice.microbatches = static_cast<int>(sequences->whole.size());
    std::string const label = label_of(choice) + ", " + sequences->how;
    say(label);
    try {
      evaluated best = evaluate_packed(choice, sequences, {});
      add_candidate(asked_, best, result_);
      if (asked_.search && choice.adapted == adapter::none &&
          best.table.over.declared == pp::training)
        keep_start(std::move(best.table), sequences->whole);
    } catch (std::invalid_argument const& error) {
      result_.refused.push_back(label + ": " + error.what());
    }
  }
  //! Groups of GPUs in place of a pipeline.
  void add_groups(std::vector<sequence_numbers> const& microbatches) {
    std::string const label = groups_label(microbatches.size());
    say(label);
    try {
      result_.all.push_back(evaluate_groups(asked_, microbatches));
    } catch (std::invalid_argument const& error) {
      result_.refused.push_back(label + ": " + error.what());
    }
  }
  //! Makes room where only some devices lack it. Searches from the schedules of the packing whose
  //! best is fastest, of those that fit.
  [[nodiscard]] candidates end() {
    evaluate_again const again =
      [this](candidate const& like, schedule_choice const& choice, std::vector<int> const& cut) {
        return evaluate_packed(choice, like.sequences, cut);
      };
    add_relieved(
      asked_, again, [this](std::string const& text) { line_.say(text); }, result_);
    line_.end();
    if (asked_.search && asked_.experts)
      add_searched_experts(asked_, again, result_);
    packed_starts const* best = nullptr;
    double fastest = HUGE_VAL;
    for (packed_starts const& each : starts_)
      for (choose_start const& start : each.starts)
        if (candidate const& one = result_.all[start.candidate];
            one.seconds < fastest && one.gigabytes <= asked_.memory_gb) {
          fastest = one.seconds;
          best = &each;
        }
    if (best != nullptr)
      add_searched(asked_, packed_work(asked_, best->whole), best->starts, result_);
    return std::move(result_);
  }

private:
  //! Orders for microbatches that are packed alike.
  struct packed_starts {
    packing whole;
    std::vector<choose_start> starts;
  };

  //! With a cut, or the best of a few.
  [[nodiscard]] evaluated evaluate_packed(schedule_choice const& choice,
                                          std::shared_ptr<packed_sequences const> const& sequences,
                                          std::vector<int> const& given) const {
    candidate one;
    one.choice = choice;
    one.sequences = sequences;
    one.type = type_of(choice);
    one.extents = arrange(choice);
    bool const as_it_is = !choice.chunk_counts.empty() || one.extents.chunks == 1;
    packing const cut =
      as_it_is ? sequences->whole : cut_microbatches(sequences->whole, one.extents.chunks);
    choose_command const sized = sized_for(asked_, cut);
    one.chunk_lengths.assign(static_cast<std::size_t>(one.extents.chunks), longest_of(cut));
    auto const with_cut = [&](std::vector<int> const& layers) {
      candidate made = one;
      made.layers = layers;
      made.choice.frozen = frozen_stages(asked_, layers);
      made.label = label_of(made.choice) + ", " + sequences->how;
      if (made.choice.frozen > 0)
        made.type.clear();
      packed_model const cost(sized, made, cut);
      pp::dynamic_timetable table = make_named_timetable(made.choice, cost);
      check_copies(made.choice, table);
      measure_packed(sized, cut, table, cost, made);
      evaluated result{std::move(made), std::move(table)};
      return asked_.experts ? cut_at_experts(sized, std::move(result), cost, cut) : result;
    };
    if (!given.empty() || asked_.experts) // whose orders have other passes
      return with_cut(given.empty() ? cuts_of(mean_of(sized, cut), one).front() : given);
    return with_best_cut(
      sized,
      cuts_of(mean_of(sized, cut), one),
      with_cut,
      [&](candidate const& other) { return packed_model(sized, other, cut); },
      [&](pp::timetable_view table, candidate& other) {
        count_packed_memory(sized, cut, table, other);
      });
  }

  void keep_start(pp::dynamic_timetable&& table, packing const& whole) {
    auto found = std::find_if(starts_.begin(), starts_.end(), [&](packed_starts const& each) {
      return each.whole == whole;
    });
    if (found == starts_.end())
      found = starts_.insert(starts_.end(), {whole, {}});
    found->starts.push_back(
      {result_.all.size() - 1,
       {std::move(table.over), std::move(table.passes), std::move(table.offsets)}});
  }
  void say(std::string const& label) {
    line_.say(std::to_string(result_.all.size() + result_.refused.size()) + " so far, " + label);
  }

  choose_command const& asked_;
  candidates result_;
  std::vector<packed_starts> starts_;
  progress_line line_{HUGE_VAL};
};

} // namespace

std::vector<int> read_lengths(std::string_view option, std::string_view word) {
  bool const given = word.find_first_not_of("0123456789x,") == std::string_view::npos;
  std::string text(word);
  if (!given)
    try {
      text = read_file(text);
    } catch (usage_error const& error) {
      throw usage_error(std::string(option) +
                        " wants lengths of sequences, such as 1024x20,32768, or a file of them; " +
                        error.what());
    }
  std::vector<int> lengths;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t const end = std::min(text.find_first_of(", \t\r\n", at), text.size());
    std::string_view const each = std::string_view(text).substr(at, end - at);
    at = end + 1;
    if (each.empty())
      continue;
    std::size_t const by = std::min(each.find('x'), each.size());
    auto const read = [](std::string_view digits) {
      int const value = number_in<int>(digits).value_or(0);
      return value <= 1 << 24 ? value : 0;
    };
    int const length = read(each.substr(0, by));
    int const count = by < each.size() ? read(each.substr(by + 1)) : 1;
    if (length < 1 || count < 1)
      throw usage_error(std::string(option) +
                        " wants lengths of sequences, LENGTH or LENGTHxCOUNT, not " + quoted(each));
    if (lengths.size() + static_cast<std::size_t>(count) > most_sequences)
      throw usage_error(std::string(option) + " has more than " + std::to_string(most_sequences) +
                        " sequences; give those of one step");
    lengths.insert(lengths.end(), static_cast<std::size_t>(count), length);
  }
  if (lengths.empty())
    throw usage_error(std::string(option) + " has no lengths; give some, such as 1024x20,32768");
  return lengths;
}

candidates evaluate_lengths(choose_command const& asked) {
  std::vector<int> const& lengths = asked.lengths;
  int const longest = *std::max_element(lengths.begin(), lengths.end());
  auto const named = [](packing whole, std::string how) {
    return std::make_shared<packed_sequences const>(
      packed_sequences{std::move(whole), std::move(how)});
  };
  packing all;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    all.push_back({{{static_cast<int>(i), 0, longest}}});
  auto const padded = named(std::move(all), "padded to " + std::to_string(longest));
  auto const packed =
    named(pp::chunk_sequences(lengths, longest), "packed to " + std::to_string(longest));
  length_trials trials(asked);
  for (named_schedule const& schedule : named_schedules())
    for (schedule_choice const& call : calls_of(schedule, asked)) {
      if (call.adapted != adapter::none && call.adapted != adapter::recompute &&
          call.adapted != adapter::offload)
        continue;
      trials.add(call, padded);
      if (packed->whole.size() < padded->whole.size())
        trials.add(call, packed);
    }
  for (int parts = 1; parts <= 64 && longest / parts >= 64; parts *= 2) {
    int const size = (longest + parts - 1) / parts;
    packing const chunks = pp::chunk_sequences(lengths, size);
    schedule_choice choice;
    choice.chunk_counts = pp::counts_of(chunks);
    std::string const how = "chunks of " + std::to_string(size);
    for (named_schedule const& schedule : named_schedules()) {
      if (!has(schedule.takes, option::chunk_counts) || !is_wanted(schedule, asked))
        continue;
      choice.name = std::string(schedule.name);
      choice.keep.reset();
      if (!has(schedule.takes, option::keep))
        trials.add(choice, named(chunks, how));
      else
        for (int keep = 1; keep <= parts; keep *= 2) {
          choice.keep = keep;
          trials.add(choice, named(chunks, how + ", " + std::to_string(keep) + " kept"));
        }
    }
  }
  for (std::vector<sequence_numbers> const& microbatches : like_microbatches(lengths))
    trials.add_groups(microbatches);
  return trials.end();
}

} // namespace examples
