// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The planner: costs and memory of models, cuts into stages, bounds and searches.

#include <pipe/config.hpp>

#if __cplusplus >= 202002L // what comes below would bury the one error of config.hpp
// IWYU pragma: begin_exports
#include <pipe/planner/cut/expert_layers.hpp>
#include <pipe/planner/cut/layout.hpp>
#include <pipe/planner/cut/round_stages.hpp>
#include <pipe/planner/cut/sequence_groups.hpp>
#include <pipe/planner/cut/sequence_partition.hpp>
#include <pipe/planner/model/cost_file.hpp>
#include <pipe/planner/model/measured.hpp>
#include <pipe/planner/model/peak_bytes.hpp>
#include <pipe/planner/model/predict.hpp>
#include <pipe/planner/model/read_shape.hpp>
#include <pipe/planner/model/stage_content.hpp>
#include <pipe/planner/search/exact.hpp>
#include <pipe/planner/search/frontier.hpp>
#include <pipe/planner/search/pipeline_search.hpp>
#include <pipe/planner/search/v_auto.hpp>
#include <pipe/planner/search/zero_bubble_within.hpp>
#include <pipe/planner/thread_workers.hpp>
// IWYU pragma: end_exports
#endif
