// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "command_line.hpp"
#include "files.hpp"

namespace examples {
namespace {

//! An option that only some formats have.
struct format_option {
  std::string_view option;
  char const* formats;
  bool (*fits)(std::string const& format);
};

constexpr format_option format_options[] = {
  {"--width", "format text", [](std::string const& f) { return f == "text"; }},
  {"--iterations", "format text", [](std::string const& f) { return f == "text"; }},
  {"--policy",
   "formats calls and memory",
   [](std::string const& f) { return f == "calls" || f == "memory"; }},
  {"--bytes",
   "formats calls, memory and html",
   [](std::string const& f) { return f == "calls" || f == "memory" || f == "html"; }},
  {"--against", "format html", [](std::string const& f) { return f == "html"; }},
  {"--torch", "format pytorch-comms", [](std::string const& f) { return f == "pytorch-comms"; }},
};

void check_tokens(command const& result) {
  if (result.tokens.has_value() != result.attention_ratio.has_value() ||
      (result.even && !result.tokens))
    throw usage_error("--tokens and --attention-ratio belong together, and --even to both");
}

//! Makes the costs of a layout.
void take_layout(command& result, read_words const& read) {
  if (result.layout.text.empty() && read.has("--parts"))
    throw usage_error("--parts is for --layout only");
  if (result.layout.text.empty())
    return;
  if (!result.cost_file.empty())
    throw usage_error(
      "--layout makes the times of stages of those of a layer; give --cost F,I,W in "
      "place of a file");
  result.layout.layer = result.cost;
  result.measured = costs_of_layout(result.layout);
  if (result.verb == verbs::csv)
    return;
  bool const takes = result.verb != verbs::timetable ||
                     has(find_schedule(result.choice.name).takes, option::stages_per_device);
  int const stages = result.measured->stages;
  if (takes && !result.choice.stages_per_device && stages % result.choice.devices == 0)
    result.choice.stages_per_device = stages / result.choice.devices;
}

//! What costs of a file do not go with, and their means.
void check_measured(command& result) {
  if (!result.measured)
    return;
  if (result.tokens || result.attention_ratio)
    throw usage_error("--tokens and --attention-ratio do not go with a file of costs or a layout, "
                      "which say what every chunk takes");
  if (result.cost.overlapped_pair >= 0)
    throw usage_error(
      "--pair-cost does not go with a file of costs or a layout, which have no times of pairs; "
      "give --cost F,I,W");
  if (result.cost.all_reduce > 0)
    throw usage_error(
      "--all-reduce does not go with a file of costs or a layout, whose times have it already");
  pp::shape const share{.devices = result.choice.devices,
                        .microbatches = result.measured->times.microbatches()};
  pp::detail::check_extents(share);
  result.cost = mean_of(pp::costs_for(*result.measured, share), share);
}

//! What a limit in bytes needs.
void check_room(command& result) {
  std::vector<double>& room = result.search.room;
  if (room.empty())
    return;
  if (!result.measured || result.measured->memory.activation.empty())
    throw usage_error("--memory in bytes needs --cost FILE with activation_bytes, which say what a "
                      "stage holds of a microbatch; or give microbatches of a device's share");
  if (room.size() == 1)
    room.resize(static_cast<std::size_t>(result.choice.devices), room.front());
  if (room.size() != static_cast<std::size_t>(result.choice.devices))
    throw usage_error("--memory names " + std::to_string(room.size()) +
                      " amounts; give one for all devices, or one for each of the " +
                      std::to_string(result.choice.devices));
}

//! What adapters need, and options that belong to others.
void check_adapter(command const& result, read_words const& read) {
  auto const has_option = [&read](std::string_view name) { return read.has(name); };
  bool const offloads = result.choice.moves_activations();
  bool const from_file = !result.cost_file.empty();
  double const copy =
    result.layout.text.empty() ? result.cost.copy_out : result.layout.layer.copy_out;
  if (has_option("--copy-cost") && !offloads)
    throw usage_error("--copy-cost is for --with offload, offload-half and offload-chunks only");
  if (has_option("--offloaded-stages") &&
      (!offloads || result.choice.adapted == adapter::offload_chunks))
    throw usage_error("--offloaded-stages is for --with offload and offload-half only");
  if (has_option("--on-stages") && result.choice.adapted == adapter::none)
    throw usage_error("--on-stages is for --with recompute, offload and offload-half only");
  bool const recomputes = has(adapter::recompute | adapter::recompute_first, result.choice.adapted);
  if (has_option("--recompute-cost") && (!recomputes || from_file))
    throw usage_error("--recompute-cost is for --with recompute and recompute-first only, and not "
                      "for costs of a file");
  if (offloads && !(copy > 0) && !from_file)
    throw usage_error("--with offload needs --copy-cost T above 0: the time of a copy of an "
                      "activation to the host, or back");
  for (std::string_view const name : {"--gather", "--scatter"})
    if (has_option(name) && (!result.choice.gathers_weights() || from_file))
      throw usage_error(std::string(name) +
                        " is for --with sharded-weights, gathered-once and weights-on-host "
                        "only, and not for costs of a file");
  for (std::string_view const name : {"--resident", "--prefetch"})
    if (has_option(name) && result.choice.adapted != adapter::sharded_weights)
      throw usage_error(std::string(name) + " is for --with sharded-weights only");
  if (has_option("--vocabulary-cost") && !result.choice.has_shards())
    throw usage_error(
      "--vocabulary-cost is for a vocabulary in shards only, such as --with vocabulary-2");
  if (result.choice.has_shards() && (result.measured || result.tokens))
    throw usage_error("a vocabulary in shards wants --cost F,I,W and --vocabulary-cost, not costs "
                      "of a file, a layout or tokens, which say nothing of shards");
}

} // namespace

void check(command& result, read_words const& read) {
  auto const has_option = [&read](std::string_view name) { return read.has(name); };
  for (format_option const& each : format_options)
    if (has_option(each.option) && !each.fits(result.format))
      throw usage_error(std::string(each.option) + " is for the " + each.formats + " only");
  take_layout(result, read);
  check_measured(result);
  if (result.verb == verbs::csv)
    return check_adapter(result, read);
  for (std::string_view const name : {"--devices", "--microbatches"})
    if (!has_option(name))
      throw usage_error(std::string(name) + " is missing; see --help");
  if (result.verb == verbs::search && !has_option("--memory"))
    throw usage_error("--memory is missing: what a device may hold, in microbatches of its share "
                      "of the model; 1f1b holds as many as there are devices");
  check_room(result);
  if (result.verb == verbs::search || result.verb == verbs::gaps)
    return;
  bool const compares = result.verb == verbs::compare;
  check_adapter(result, read);
  bool const exchanges = result.choice.adapted == adapter::attention_exchange;
  if (exchanges && (!has_option("--tokens") || !has_option("--attention-ratio")))
    throw usage_error("--with attention-exchange needs --tokens and --attention-ratio: how much of "
                      "the work is attention; chunks are of equal length");
  if (!compares) {
    named_schedule const& schedule = find_schedule(result.choice.name);
    for (std::string_view const name : {"--tokens", "--attention-ratio", "--even"})
      if (has_option(name) && !has(schedule.takes, option::chunks))
        throw usage_error(std::string(schedule.name) +
                          " has no chunks, so it does not have the option " + std::string(name));
    if (has_option("--memory") && (!has(schedule.takes, option::memory_limit) ||
                                   has_option("--memory-limit") || result.search.room.empty()))
      throw usage_error("--memory is in bytes, 80GB, in place of --memory-limit; of " +
                        std::string(schedule.name) +
                        (has(schedule.takes, option::memory_limit) ? " give one of the two"
                                                                   : " neither is an option"));
    if (has_option("--pair-cost") && !has(schedule.takes, option::pair_cost) &&
        result.against.empty())
      throw usage_error(std::string(schedule.name) + " does not have the option --pair-cost");
  }
  check_tokens(result);
  if (result.tokens && !has_option("--cost")) {
    // The times that the work itself has, for a forward pass of 1.
    double const ratio = result.attention_ratio.value();
    result.cost.backward_input = (1 + 2.5 * ratio) / (1 + ratio);
    result.cost.backward_weight = 1 / (1 + ratio);
  }
}

} // namespace examples
