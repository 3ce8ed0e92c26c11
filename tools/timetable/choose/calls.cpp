// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Which schedules `timetable choose` tries, and with which options.
#include "choose.hpp"

namespace examples {
namespace {

std::string plain_type_of(schedule_choice const& c) {
  // A searched one has no name, and bytes of devices no type.
  std::string const type = c.name.empty() || !c.room.empty() ? "" : written_type(c);
  return type.empty() ? type : "pipelining::" + type;
}

//! True where devices hold several stages one after the other: passes of those before the last hide
//! the loads of its weights.
bool is_looped(schedule_choice choice) {
  choice.adapted = adapter::none;
  try {
    pp::shape const extents = arrange(choice);
    return extents.where == pp::placement::looped && extents.stages_per_device > 1;
  } catch (std::invalid_argument const&) {
    return false; // it says so where it stands alone
  }
}

//! Weights in shards may stay as long as there is room, up to all of a device, and be gathered as
//! far ahead as those that stay have slots.
void add_residencies(std::vector<schedule_choice>& calls) {
  std::vector<schedule_choice> more;
  for (schedule_choice call : calls)
    for (int const held =
           call.adapted == adapter::sharded_weights ? call.stages_per_device.value_or(1) : 1;
         call.resident < held;) {
      ++call.resident;
      call.prefetch = 1;
      more.push_back(call);
      call.prefetch = call.resident - 1;
      more.push_back(call);
    }
  calls.insert(calls.end(), more.begin(), more.end());
}

//! Every call with each of the values of one more option.
template <class Value, class Set>
void vary(std::vector<schedule_choice>& calls, std::vector<Value> const& values, Set const& set) {
  std::vector<schedule_choice> more;
  for (schedule_choice const& call : calls)
    for (auto const& value : values) {
      more.push_back(call);
      set(more.back(), value);
    }
  calls = std::move(more);
}

//! Limits of memory to search under, in activations of a stage.
std::vector<int> memory_limits(named_schedule const& schedule, int devices) {
  int const p = devices;
  std::vector<int> values{p, p + p / 2, 2 * p};
  if (schedule.traits.stages_per_device > 1) // the devices of a V hold two stages each
    values = {std::max(2, 2 * ((p + 4) / 3)), p + p / 3, 2 * p - p / 3, 2 * p};
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

//! Calls with the values of all options that a schedule has.
void vary_options(named_schedule const& schedule,
                  choose_command const& asked,
                  std::vector<schedule_choice>& calls) {
  if (has(schedule.takes, option::chunks)) {
    bool const over_chunks = schedule.traits.over_chunks;
    std::vector<std::optional<int>> values;
    if (!over_chunks)
      values.push_back(std::nullopt);
    for (int const chunks : {2, 4, 8})
      if ((over_chunks || chunks < 8) && asked.setup.sequence / chunks >= 64)
        values.push_back(chunks);
    vary(calls, values, [](schedule_choice& c, std::optional<int> value) { c.chunks = value; });
  }
  if (has(schedule.takes, option::stages_per_device)) {
    std::vector<int> values;
    int const given = static_cast<int>(asked.layout.size()) / asked.devices;
    for (int const count : given > 0 ? std::vector<int>{given} : std::vector<int>{1, 2, 4})
      if ((count > 1 || schedule.traits.two_copies) &&
          std::int64_t{count} * asked.devices <= asked.parts() + 2) // with both ends
        values.push_back(count);
    vary(calls, values, [](schedule_choice& c, int value) { c.stages_per_device = value; });
  }
  if (has(schedule.takes, option::group) && !has(schedule.takes, option::stages_per_device))
    vary(calls, std::vector<int>{2, 4}, [](schedule_choice& c, int value) { c.group = value; });
  if (has(schedule.takes, option::eager))
    vary(calls, std::vector<bool>{false, true}, [](schedule_choice& c, bool value) {
      c.eager = value;
    });
  if (has(schedule.takes, option::memory_limit)) {
    vary(calls, memory_limits(schedule, asked.devices), [](schedule_choice& c, int value) {
      c.memory_limit = value;
    });
    // These searches take longest; with chunks, the blocks that they start from do as well.
    std::erase_if(calls, [](schedule_choice const& c) { return c.chunks.has_value(); });
  }
}

//! Calls in all adapters that the command can have.
void vary_adapters(choose_command const& asked, std::vector<schedule_choice>& calls) {
  std::vector<adapter> adapters{adapter::none, adapter::recompute, adapter::offload};
  // Costs from a file do not know shards.
  if (!asked.measured && asked.layout.empty() && asked.devices > 1)
    adapters.insert(adapters.end(),
                    {adapter::vocabulary_1, adapter::vocabulary_2, adapter::vocabulary_interlaced});
  if (asked.setup.data > 1)
    adapters.push_back(adapter::sharded_weights);
  adapters.push_back(adapter::weights_on_host);
  vary(calls, adapters, [](schedule_choice& c, adapter value) { c.adapted = value; });
  std::erase_if(calls, [](schedule_choice const& c) {
    return c.adapted == adapter::weights_on_host && !is_looped(c);
  });
  add_residencies(calls);
}

} // namespace

std::string type_of(schedule_choice const& c) {
  std::string const plain = plain_type_of(c);
  if (plain.empty() || c.adapted == adapter::none)
    return plain;
  struct {
    adapter which;
    char const* name;
    char const* arguments = "";
  } constexpr types[] = {
    {adapter::recompute, "recompute", ", pipelining::recompute::where_it_frees"},
    {adapter::offload, "offload"},
    {adapter::sharded_weights, "sharded_weights"},
    {adapter::weights_on_host, "sharded_weights", ", pipelining::weights_on_host"},
    {adapter::vocabulary_1, "vocabulary", ", 1"},
    {adapter::vocabulary_interlaced, "vocabulary", ", pipelining::interlaced"},
    {adapter::vocabulary_2, "vocabulary"}};
  std::string type;
  for (auto const& each : types)
    if (each.which == c.adapted)
      pp::append(type, "pipelining::with_", each.name, "<", plain, each.arguments, ">");
  return type;
}

std::string label_of(trial const& one) {
  schedule_choice const& c = one.choice;
  std::string text = c.name;
  for (named_option const& each : named_option::all())
    if (each.number != nullptr && each.which != option::keep && each.given(c))
      pp::append(text, " ", each.name, " ", *(c.*each.number));
  if (c.memory_limit)
    pp::append(text, " --memory-limit ", static_cast<int>(*c.memory_limit));
  bool const alike = std::equal(c.room.begin() + !c.room.empty(), c.room.end(), c.room.begin());
  for (std::size_t d = 0; d < (alike ? std::min<std::size_t>(1, c.room.size()) : c.room.size());
       ++d)
    text += (d == 0 ? " --memory " : ",") + rounded(c.room[d] / 1e9, 3) + "GB";
  text += c.eager ? " --eager" : "";
  if (c.frozen > 0)
    text += " --frozen " + std::to_string(c.frozen);
  if (!c.adapted_stages.empty())
    text += " --on-stages " + write_stage_numbers(c.adapted_stages);
  schedule_choice const usual;
  if (c.resident != usual.resident)
    text += " --resident " + std::to_string(c.resident);
  if (c.prefetch != usual.prefetch)
    text += " --prefetch " + std::to_string(c.prefetch);
  return in_adapter(text, c.adapted) + (one.sequences ? ", " + one.sequences->how : "");
}

bool is_apart(schedule_choice const& choice) {
  if (choice.name.empty()) // a searched one
    return false;
  named_schedule const& schedule = find_schedule(choice.name);
  return schedule.traits.cuts_layers || schedule.traits.weights_travel ||
         schedule.traits.stages_go_one_way || choice.adapted == adapter::attention_exchange;
}

schedule_choice plain_call(named_schedule const& schedule, choose_command const& asked) {
  schedule_choice call;
  call.name = std::string(schedule.name);
  call.devices = asked.devices;
  call.microbatches = asked.microbatches;
  return call;
}

std::vector<schedule_choice> calls_apart(named_schedule const& schedule,
                                         choose_command const& asked) {
  schedule_choice call = plain_call(schedule, asked);
  int const layers_of_device = asked.model.layers / asked.devices;
  if (schedule.traits.weights_travel)
    return {call};
  if (schedule.traits.stages_go_one_way) {
    call.adapted = adapter::sharded_weights; // which lie on the host
    return {call};
  }
  if (schedule.traits.cuts_layers) {
    call.stages_per_device = 2 * layers_of_device;
    if (asked.microbatches % (2 * asked.devices) == 0)
      call.group = 2; // the paper's, which hides messages
    std::vector<schedule_choice> calls{call, call};
    calls.back().adapted = adapter::recompute; // but for attention
    return calls;
  }
  call.stages_per_device = layers_of_device; // a stage is a layer
  call.adapted = adapter::attention_exchange;
  return schedule.traits.exchanges_attention ? std::vector{call} : std::vector<schedule_choice>{};
}

bool is_wanted(named_schedule const& schedule, choose_command const& asked) {
  std::vector<std::string> const& names = asked.schedules;
  return names.empty() || std::find(names.begin(), names.end(), schedule.name) != names.end();
}

std::vector<schedule_choice> calls_of(named_schedule const& schedule, choose_command const& asked) {
  if (has(schedule.takes, option::keep) || !is_wanted(schedule, asked))
    return {}; // the first are for sequences of unequal length; here they are of one
  // No type is written down of these, and costs are predicted alone.
  bool const apart = !asked.measured && asked.layout.empty() && asked.gpus.size() == 1 &&
                     asked.lengths.empty() && asked.format != "header" &&
                     asked.model.dense_layers == 0 && asked.frozen == 0 &&
                     asked.parts() == asked.model.layers && asked.model.layers >= asked.devices;
  std::vector<schedule_choice> const others =
    apart ? calls_apart(schedule, asked) : std::vector<schedule_choice>{};
  if (schedule.traits.cuts_layers || schedule.traits.weights_travel ||
      schedule.traits.stages_go_one_way)
    return others;
  schedule_choice base = plain_call(schedule, asked);
  std::vector<schedule_choice> calls{base};
  vary_options(schedule, asked, calls);
  vary_adapters(asked, calls);
  if (has(schedule.takes, option::memory_limit) && schedule.traits.stages_per_device == 1 &&
      asked.lengths.empty() && asked.format != "header") { // whose type cannot have bytes
    calls.push_back(base);
    for (int device = 0; device < asked.devices; ++device)
      calls.back().room.push_back(asked.room_gb(device) * 1e9);
  }
  if (schedule.traits.sees_recomputation) // next to nothing is held before it
    for (int const limit : {1, 2}) {
      base.memory_limit = limit;
      base.adapted = adapter::recompute;
      if (limit < asked.devices)
        calls.push_back(base);
    }
  calls.insert(calls.end(), others.begin(), others.end());
  return calls;
}

} // namespace examples
