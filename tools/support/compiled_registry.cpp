// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The registry of schedules, compiled once for all tools and tests.
#include <pipe/planner/registry/registry.hpp>

namespace pipelining::registry {

template std::span<named_schedule const> named_schedules<published_schedules>();
template named_schedule const& find_schedule<published_schedules>(std::string_view);
template std::string written_type<published_schedules>(schedule_choice const&);
template shape arrange<published_schedules>(schedule_choice const&);
template pipeline arrange_pipeline<published_schedules>(schedule_choice const&);
template std::optional<int> least_microbatches<published_schedules>(schedule_choice);
template shape shown_extents<published_schedules>(schedule_choice const&);
template device_orders plain_orders<published_schedules>(schedule_choice const&, any_cost const&);
template any_cost
cost_by_parts<published_schedules>(schedule_choice const&, uniform_cost const&, double);
template any_cost
cost_in_adapter<published_schedules>(schedule_choice const&, any_cost const&, any_cost const&);
template dynamic_timetable make_named_timetable<published_schedules>(schedule_choice const&,
                                                                     any_cost const&,
                                                                     made_orders*,
                                                                     bool);
template dynamic_timetable make_adapted_timetable<published_schedules>(device_orders const&,
                                                                       schedule_choice const&,
                                                                       any_cost const&);

} // namespace pipelining::registry
