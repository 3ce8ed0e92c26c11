// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief How runners reach the stages of a model. Header for pipelining::detail::visit_stage.

#include <concepts>
#include <cstddef>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

namespace pipelining::inline v0_3 {

namespace detail {

template <class Stages>
concept tuple_of_stages = requires {
  std::tuple_size<Stages>::value;
}
&&!requires(Stages & stages) {
  stages[0];
};

//! `stages(3)` is stage 3, or a pointer to it.
template <class Stages>
concept function_of_stages = std::invocable<Stages&, int>;

//! Raw and smart pointers: may be null, and lead to a stage.
template <class Element>
concept points_to_stage = requires(Element const& element) {
  *element;
  element == nullptr;
};

//! Calls `visit` with a stage, or with the stage that a pointer leads to.
//! @return false for a null pointer.
template <class Element, class Visit>
bool visit_element(Element&& element, Visit& visit) {
  if constexpr (points_to_stage<std::remove_cvref_t<Element>>) {
    if (element == nullptr)
      return false;
    visit(*element);
  } else {
    visit(element);
  }
  return true;
}

template <std::size_t Index, class Stages, class Visit>
bool visit_tuple(Stages& stages, std::size_t stage, Visit& visit) {
  if constexpr (Index < std::tuple_size_v<Stages>)
    return Index == stage ? visit_element(std::get<Index>(stages), visit)
                          : visit_tuple<Index + 1>(stages, stage, visit);
  else
    return false;
}

//! Calls `visit` with one stage of a model.
//!
//! @param stages a vector, an array or a tuple (of stages of different types), of stages or of raw
//! or smart pointers to them; or a function from the number of a stage to a reference or a pointer.
//! Where there are pointers, those to stages that this process never runs may be null.
//! @return false where the stage is a null pointer.
//! @pre the stage exists.
template <class Stages, class Visit>
bool visit_stage(Stages& stages, int stage, Visit visit) {
  if constexpr (function_of_stages<Stages>)
    return visit_element(stages(stage), visit);
  else if constexpr (tuple_of_stages<Stages>)
    return visit_tuple<0>(stages, static_cast<std::size_t>(stage), visit);
  else
    return visit_element(stages[static_cast<std::size_t>(stage)], visit);
}

//! True when `stages` has exactly `needed` stages. A function has as many as are asked for.
template <class Stages>
[[nodiscard]] bool has_stages(Stages const& stages, std::size_t needed) {
  if constexpr (function_of_stages<Stages>)
    return true;
  else if constexpr (tuple_of_stages<Stages>)
    return std::tuple_size_v<Stages> == needed;
  else
    return stages.size() == needed;
}

//! The number of stages in a vector, an array or a tuple.
template <class Stages>
[[nodiscard]] std::size_t stage_count(Stages const& stages) {
  if constexpr (tuple_of_stages<Stages>)
    return std::tuple_size_v<Stages>;
  else
    return stages.size();
}

} // namespace detail

} // namespace pipelining::inline v0_3
