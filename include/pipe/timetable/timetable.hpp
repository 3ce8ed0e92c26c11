// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Timetables that own their arrays. Header for pipelining::dynamic_timetable.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/timetable/timetable_view.hpp>

#include <cstdint>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! A flow, copied as bytes. Compilers write the fields of a constant one by one, at every place.
[[nodiscard]] inline flow copied(flow const& declared) noexcept {
  return declared;
}

} // namespace detail

//! @brief What a timetable keeps of its pipeline beside the extents: a value of its own.
struct pipeline_tables {
  flow declared = detail::copied(training); //!< what passes do
  std::vector<std::uint16_t> holders;       //!< of a custom placement: [routes][S], else empty
  std::vector<int> first_units;             //!< of unequal numbers of chunks: [M + 1], else empty
  std::vector<int> edges; //!< of stages that are no chain: `edge_table`, else empty

  //! The pipeline of these extents, valid as long as this is.
  [[nodiscard]] pipeline over(shape const& extents) const noexcept {
    return {extents,
            &declared,
            holders.empty() ? nullptr : holders.data(),
            first_units.empty() ? nullptr : first_units.data(),
            edges.empty() ? nullptr : edges.data()};
  }
};

//! @brief The tables of a view, in memory of their own.
[[nodiscard]] inline pipeline_tables copy_tables(timetable_view const& table) {
  pipeline_tables result{*table.declared, {}, {}, {}};
  int const holders = stages(table.extents) * routes(table.extents);
  if (table.holders != nullptr)
    result.holders.assign(table.holders, table.holders + holders);
  if (table.first_units != nullptr)
    result.first_units.assign(table.first_units,
                              table.first_units + table.extents.microbatches + 1);
  if (table.edges != nullptr)
    result.edges.assign(table.edges, table.edges + table_size(table.edges, stages(table.extents)));
  return result;
}

//! @brief The order of passes on every device, not timed yet; `never` stands nowhere in it.
struct device_orders {
  shape extents;            //!< of the pipeline
  std::vector<pass> passes; //!< row after row
  std::vector<int> offsets; //!< [rows + 1]
  pipeline_tables tables{}; //!< what else the pipeline has

  //! The pipeline that they are of.
  [[nodiscard]] pipeline over() const noexcept { return tables.over(extents); }
};

//! @brief A timetable whose extents are known at run time. Owns its arrays.
struct dynamic_timetable {
  shape extents;               //!< of the pipeline
  double latency = 0;          //!< time of a message
  std::vector<pass> passes;    //!< row after row, each in its order
  std::vector<double> starts;  //!< of every pass
  std::vector<double> ends;    //!< of every pass
  std::vector<int> offsets;    //!< as in the view
  pipeline_tables tables{};    //!< what else the pipeline has
  group_times groups{};        //!< times between a group and other stages
  std::vector<double> links{}; //!< times of messages [P x P]; empty: all take `latency`

  //! The pipeline that it is of.
  [[nodiscard]] pipeline over() const noexcept { return tables.over(extents); }
  [[nodiscard]] timetable_view view() const noexcept {
    pipeline const mine = over();
    return {extents,
            latency,
            passes.data(),
            starts.data(),
            ends.data(),
            offsets.data(),
            mine.declared,
            mine.holders,
            mine.first_units,
            mine.edges,
            groups,
            links.empty() ? nullptr : links.data()};
  }
  operator timetable_view() const noexcept {
    return view();
  } // NOLINT(google-explicit-constructor): owning to view
};

} // namespace pipelining::inline v0_3
