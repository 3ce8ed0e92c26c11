// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What does not go with a vocabulary in shards is said in a sentence.
// clang-format off
// case 1: expected-error {{with_vocabulary: the schedule inside must be one of training; recomputation and copies to the host do not go with shards}}
// case 2: expected-error {{with_vocabulary: the schedule inside must have a chain of stages and as many chunks in every microbatch}}
// case 3: expected-error {{with_recompute: a vocabulary in shards does not go with recomputation}}
// case 4: expected-error {{with_offload: a vocabulary in shards does not go with copies to the host}}
// clang-format on
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/adapt/with_stage_graph.hpp>
#include <pipe/timetable/adapt/with_vocabulary.hpp>

namespace pp = pipelining;

#if FAIL_CASE == 1
pp::with_vocabulary<pp::with_recompute<pp::OneFOneB>> schedule;
#elif FAIL_CASE == 2
pp::with_vocabulary<pp::with_stage_graph<pp::OneFOneB>> schedule;
#elif FAIL_CASE == 3
pp::with_recompute<pp::with_vocabulary<pp::OneFOneB>> schedule;
#elif FAIL_CASE == 4
pp::with_offload<pp::with_vocabulary<pp::OneFOneB>> schedule;
#else
pp::with_vocabulary<pp::OneFOneB> schedule;
#endif
