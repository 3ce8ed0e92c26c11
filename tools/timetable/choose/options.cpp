// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The command line of `timetable choose`.
#include "choose.hpp"
#include "tools/timetable/files.hpp"

namespace examples {
namespace {

//! A name that is known, or else a file. What is wrong with one is said of its name.
template <class Find, class Read>
auto named_or_file(std::string_view option, std::string_view word, Find find, Read read) {
  std::string known;
  try {
    return find(word);
  } catch (std::invalid_argument const& error) {
    known = error.what();
  }
  std::string const text =
    read_or_say<usage_error>(std::string(option) + ": " + known + "; as a file: ",
                             [&] { return read_file(std::string(word)); });
  return read_or_say<std::invalid_argument>(
    std::string(option) + ": cannot read " + quoted(word) + ": ", [&] { return read(text); });
}

//! The names between the commas of a word.
//! @param wanted what to name, for people
std::vector<std::string_view>
names_of(std::string_view option, std::string_view word, std::string_view wanted) {
  std::vector<std::string_view> const names = split_at_commas(word);
  if (std::find(names.begin(), names.end(), "") != names.end())
    throw usage_error(std::string(option) +
                      " has no name at the beginning, at the end or between two commas; name " +
                      std::string(wanted));
  return names;
}

constexpr std::size_t most_sequences = 4096;

//! Lengths of sequences: "4096,1024x20" or a file with such words.
std::vector<int> read_lengths(std::string_view option, std::string_view word) {
  bool const given = word.find_first_not_of("0123456789x,") == std::string_view::npos;
  std::string text(word);
  if (!given)
    text = read_or_say<usage_error>(
      std::string(option) +
        " wants lengths of sequences, such as 1024x20,32768, or a file of them; ",
      [&] { return read_file(text); });
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

constexpr verbs modelled = verbs::choose | verbs::systems;

word_list formats(verbs one) {
  if (one == verbs::systems)
    return {"text", "json"};
  return {"text", "json", "svg", "header"};
}

//! In the order of --help.
constexpr option_reader<choose_command> options[] = {
  {{"--model NAME|FILE", modelled},
   "a known model, or a config.json of a model hub",
   [](choose_command& c, std::string_view option, std::string_view word) {
     c.model_name = std::string(word);
     c.model = named_or_file(option, word, pp::transformer::named, pp::read_transformer);
   },
   [](verbs) { return names_in(pp::detail::transformers); }},
  {{"--gpu NAME|FILE[,...]", modelled},
   "a known GPU, or a JSON object with peak_tflops, memory_gb, link_gb_per_s, network_gb_per_s, "
   "host_gb_per_s; for devices that differ, one for each",
   [](choose_command& c, std::string_view option, std::string_view word) {
     c.gpu_name = std::string(word);
     for (std::string_view const name :
          names_of(option, word, "one GPU for all devices, or one for each"))
       c.gpus.push_back(named_or_file(option, name, pp::gpu::named, pp::read_gpu));
   },
   [](verbs) { return names_in(pp::detail::gpus); }},
  {{"--sequence S", modelled},
   "tokens of a sequence",
   set<count_of<(1 << 24)>, &choose_command::setup, &pp::training_setup::sequence>},
  {{"--devices P", modelled},
   "devices of the pipeline",
   set<count_of<256>, &choose_command::devices>},
  {{"--microbatches M", modelled},
   "microbatches of one step",
   set<count_of<4096>, &choose_command::microbatches>},
  {{"--lengths L,LxN,...", verbs::choose},
   "in place of --sequence and --microbatches: the lengths of the sequences of one step, N of a "
   "length, or a file with such words",
   set<read_lengths, &choose_command::lengths>},
  {{"--sequences B", modelled},
   "sequences of a microbatch; default 1",
   set<count_of<(1 << 12)>, &choose_command::setup, &pp::training_setup::sequences>},
  {{"--tensor T", modelled},
   "GPUs that share every layer; default 1",
   set<count_of<1024>, &choose_command::setup, &pp::training_setup::tensor>},
  {{"--data D", modelled},
   "replicas that share the optimizer's state; default 1",
   set<count_of<>, &choose_command::setup, &pp::training_setup::data>},
  {{"--expert E", modelled},
   "GPUs over which experts are spread; default 1",
   set<count_of<1024>, &choose_command::setup, &pp::training_setup::expert>},
  {{"--memory X", modelled},
   "of a GPU: 80GB, 80GiB; default: the GPU's",
   set<read_gigabytes, &choose_command::memory_gb>},
  {{"--modules N", verbs::choose},
   "modules for further tokens (multi-token prediction), 0 to 64; default: the model's",
   [](choose_command& c, std::string_view option, std::string_view word) {
     c.modules = word == "0" ? 0 : count_of<64>(option, word);
   }},
  {{"--pictures N", verbs::choose},
   "pictures of a sequence, which the model's encoder reads; default: none, and no encoder",
   set<count_of<(1 << 16)>, &choose_command::pictures>},
  {{"--efficiency L,A,V", modelled},
   "shares of the peak rate in layers, attention and the output layer; default 0.62,0.62,0.40",
   [](choose_command& c, std::string_view option, std::string_view word) {
     double* const shares[] = {&c.reached.linear, &c.reached.attention, &c.reached.vocabulary};
     std::vector<std::string_view> const parts = split_at_commas(word);
     if (parts.size() != std::size(shares))
       throw usage_error(std::string(option) +
                         " wants three shares of the peak rate, LAYERS,ATTENTION,OUTPUT, not " +
                         quoted(word));
     for (std::size_t i = 0; i < parts.size(); ++i) {
       *shares[i] = share_of<1>(option, parts[i]);
       if (!pp::detail::share_range.contains(*shares[i]))
         throw usage_error(std::string(option) + ": a share must be " +
                           pp::detail::share_range.words + ", not " + quoted(parts[i]));
     }
   }},
  {{"--cost FILE", modelled},
   "times that were measured, in seconds, in place of predicted ones: of equal shares of the "
   "model, "
   "or of each part",
   [](choose_command& c, std::string_view option, std::string_view word) {
     if (!names_cost_file(word))
       throw usage_error(std::string(option) + " of choose wants a file of measured costs, not " +
                         quoted(word));
     c.cost_file = std::string(word); // whose kinds depend on --experts
   }},
  {{"--layout LAYOUT", modelled},
   "the cut, as Megatron-LM writes it: Et*3|(tt|)*29,L; only schedules with as many stages",
   [](choose_command& c, std::string_view option, std::string_view word) {
     std::vector<std::string> const stages = read_stages(option, word);
     c.layout_word = std::string(word);
     std::ptrdiff_t outputs = 0;
     for (std::string const& each : stages) {
       c.layout.push_back(
         static_cast<int>(std::ranges::count_if(each, [](char part) { return part >= 'a'; })));
       outputs += std::count(each.begin(), each.end(), 'L');
     }
     if (!stages.front().starts_with('E') || !stages.back().ends_with('L') || outputs != 1)
       throw usage_error(std::string(option) +
                         ": the first stage must have the embedding E and the last one the output "
                         "layer L, the only one, not " +
                         quoted(word));
   }},
  {{"--schedules NAME,...", verbs::choose},
   "only these, of those that --list names; default: all",
   [](choose_command& c, std::string_view option, std::string_view word) {
     for (std::string_view const name : names_of(option, word, "the schedules to look at"))
       c.schedules.emplace_back(read_or_say<std::invalid_argument>(
         std::string(option) + ": ", [&] { return find_schedule(name).name; }));
   }},
  {{"--clip", verbs::choose},
   "gradients are clipped by the norm of all: only schedules whose stages can add up totals",
   flag<&choose_command::clip>},
  {{"--tied", verbs::choose},
   "first and last stage share a weight, as models with tie_word_embeddings do",
   flag<&choose_command::tied>},
  {{"--frozen N", verbs::choose},
   "the first N layers (an encoder's are before the others) and the embedding have nothing to "
   "train: stages of these only go forward",
   set<count_of<(1 << 20)>, &choose_command::frozen>},
  {{"--experts", verbs::choose},
   "tokens travel to experts and back while other microbatches are computed: only schedules whose "
   "layers can be cut there",
   flag<&choose_command::experts>},
  {{"--jitter X", verbs::choose},
   "passes vary by this share of their time (standard deviation); ranks by the 95th percentile of "
   "40 samples",
   set<share_of<1>, &choose_command::jitter>},
  {{"--search", verbs::choose},
   "then searches cut of layers, places of GPUs that differ and order of passes together, from all "
   "schedules",
   flag<&choose_command::search>},
  {{"--seconds X", verbs::choose},
   "of the search: how long; default 5",
   set<share_of<86400>, &choose_command::seconds>},
  {{"--rounds N", verbs::choose},
   "of the search: N rounds in place of seconds: the same result on any machine",
   set<count_of<>, &choose_command::rounds>},
  {{"--seed N", verbs::choose}, "of the search", set<count_of<(1 << 30)>, &choose_command::seed>},
  {{"--threads N", verbs::choose},
   "default: one for each core; the result is the same for any number",
   set<count_of<1024>, &choose_command::threads>},
  {{"--all", verbs::choose},
   "every row of the table, and the frontier of memory and time",
   flag<&choose_command::all>},
  {{"--format FORMAT", modelled},
   "text (default) or json; choose also has svg (memory and time of all) and header (C++: the pick "
   "as a type, its costs, timetable and plan; of schedules whose layers stay on a device)",
   set_one_of<formats, &choose_command::format>,
   formats},
  json_option<choose_command>(modelled),
};

//! What the cut of a layout does not go with.
void check_layout(choose_command const& asked) {
  if (asked.layout.empty())
    return;
  std::string given;
  for (std::string const& each : read_stages("--layout", asked.layout_word))
    given += each;
  struct {
    char letter;
    char const* word;
    int count;
  } const parts[] = {{'e', "layers of an encoder e", asked.model.encoder.layers},
                     {'t', "layers t", asked.model.layers},
                     {'m', "modules for further tokens m", asked.model.modules}};
  for (auto const& part : parts)
    if (auto const count = std::ranges::count(given, part.letter); count != part.count)
      throw usage_error("--layout has " + std::to_string(count) + " " + part.word + ", the model " +
                        std::to_string(part.count));
  if (asked.measures_shares())
    throw usage_error("--layout cuts parts; give a file with a stage for each, " +
                      std::to_string(asked.parts() + 2) + ", or leave --layout or --cost out");
  if (given.find_last_of('t') > given.find('m'))
    throw usage_error("--layout has a layer t after a module m; modules come last");
}

//! Modules and encoder as the command wants them.
void choose_parts(choose_command& asked) {
  if (asked.modules)
    asked.model.modules = *asked.modules;
  if (asked.pictures > 0 && asked.model.encoder.layers == 0)
    throw usage_error("--pictures is for models with an encoder; give a --model file with "
                      "layers, hidden, heads and tokens in its encoder, or leave it out");
  if (asked.pictures == 0)
    asked.model.encoder = {};
  else
    asked.setup.pictures = asked.pictures;
}

//! What frozen layers, and layers cut at their experts, do not go with.
void check_layers(choose_command const& asked) {
  if (int const most = asked.model.encoder.layers + asked.model.layers; asked.frozen > most)
    throw usage_error("--frozen has " + std::to_string(asked.frozen) + " layers, the model " +
                      std::to_string(most));
  if (asked.experts && asked.setup.expert == 1)
    throw usage_error("--experts is for experts on several GPUs; give --expert as well");
  if (asked.experts && asked.frozen > 0)
    throw usage_error("--experts is for layers that are all trained; leave it or --frozen out");
  if (asked.experts && asked.gpus.size() > 1)
    throw usage_error("--experts is for GPUs of one kind; give one --gpu, or leave it out");
  bool const header = asked.format == "header";
  if (header && asked.frozen > 0)
    throw usage_error("--format header knows no frozen layers; leave it or --frozen out");
  if (header && asked.experts)
    throw usage_error("--format header cuts no layer at its experts; leave it or --experts out");
  if (asked.measured_layers && asked.measures_shares())
    throw usage_error("--cost with --experts wants the times of all parts; leave one of them out");
}

//! The times of a file: of layers cut at their experts, or of whole parts.
void read_measured(choose_command& asked) {
  if (asked.cost_file.empty())
    return;
  pp::flow const& kinds = asked.experts ? pp::expert_training : pp::training;
  asked.measured = read_cost_file("--cost", asked.cost_file, kinds);
  if (asked.experts)
    asked.measured = whole_layers(asked.measured_layers.emplace(*asked.measured));
}

//! Checks what was read against each other, and completes it.
void check(choose_command& asked, read_words const& read) {
  for (std::string_view const needed :
       {"--model", "--sequence", "--gpu", "--devices", "--microbatches"})
    if (!read.has(needed) &&
        (asked.lengths.empty() || (needed != "--sequence" && needed != "--microbatches")))
      throw usage_error(std::string(needed) + " is missing; see " +
                        std::string(name_of(asked.verb)) + " --help");
  if (!asked.lengths.empty()) {
    for (std::string_view const other : {"--sequence", "--sequences", "--microbatches"})
      if (read.has(other))
        throw usage_error(std::string(other) +
                          " is for sequences of one length; leave it or --lengths out");
    asked.setup.sequence = *std::max_element(asked.lengths.begin(), asked.lengths.end());
    asked.microbatches = static_cast<int>(asked.lengths.size());
    if (int const own = asked.measured ? asked.measured->times.microbatches() : 1;
        own > 1 && own != asked.microbatches)
      throw usage_error("--cost has the times of " + std::to_string(own) +
                        " microbatches one by one, --lengths " +
                        std::to_string(asked.microbatches) +
                        " sequences; give those of each sequence, or of the longest one");
  }
  if (read.has("--efficiency") && asked.measured)
    throw usage_error("--efficiency is for predicted times, --cost has measured ones; "
                      "leave one of them out");
  if (read.has("--seconds") && read.has("--rounds"))
    throw usage_error("--rounds stands in place of --seconds; leave one of them out");
  for (std::string_view const name : {"--seconds", "--rounds", "--seed"})
    if (read.has(name) && !asked.search)
      throw usage_error(std::string(name) + " is of a search; give --search as well");
  choose_parts(asked);
  check_layout(asked);
  check_layers(asked);
  asked.setup.check(asked.model);
  if (asked.measures_shares() && asked.devices > asked.parts())
    throw usage_error(std::to_string(asked.devices) +
                      " devices are more than the model has layers, " +
                      std::to_string(asked.parts()) +
                      "; leave --cost out, since measured times do not say what a stage without a "
                      "layer takes");
  if (asked.gpus.size() != 1 && asked.gpus.size() != static_cast<std::size_t>(asked.devices))
    throw usage_error("--gpu names " + std::to_string(asked.gpus.size()) +
                      " GPUs; give one for all, or one for each of the " +
                      std::to_string(asked.devices) + " devices, in their order");
  if (asked.gpus.size() > 1 && asked.measured)
    throw usage_error("measured times are of devices as they are; with --cost, give one "
                      "--gpu, whose links and memory count");
}

} // namespace

std::vector<offered_option> choose_options(verbs one) {
  return offered<choose_command>(options, one);
}

choose_command read_choose_command(verbs verb, std::span<char const* const> words) {
  choose_command result;
  result.verb = verb;
  read_words const read = read_options<choose_command>(options, verb, result, words);
  no_names(verb, read);
  read_measured(result);
  read_or_say<usage_error>(std::string(name_of(verb)) + ": ", [&] { check(result, read); });
  result.capped = result.memory_gb > 0;
  for (pp::gpu const& each : result.gpus)
    if (!result.capped)
      result.memory_gb = std::max(result.memory_gb, each.memory_gb);
  return result;
}

} // namespace examples
