// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Is what a pass needs of its stage there where the pass stands?

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>

namespace pipelining::inline v0_3::detail {

//! The data in place for passes that need them, as the passes of one compute engine go by in order.
class needed_data {
public:
  constexpr explicit needed_data(pipeline_view const& over)
      : flow_(*over.declared), stages_(over.extents.stages()), held_(flow::most_data * stages_, 0) {
  }

  //! The next pass. @return whether all that it needs is there
  constexpr bool enter(pass const& what) noexcept {
    kind_of_pass const& kind = flow_[what.kind];
    for (int i = 0; i < kind.effect_count; ++i) {
      effect const& one = kind.effects[i];
      if (one.what == does::needs && !is_there(one.of, what.stage))
        return false;
      if (flow_.data[one.of].lives == residence::nowhere && one.stage == of_stage::own)
        held_[one.of * stages_ + what.stage] += one.what == does::makes   ? 1
                                                : one.what == does::frees ? -1
                                                                          : 0;
    }
    return true;
  }

private:
  [[nodiscard]] constexpr bool is_there(int needed, int stage) const noexcept {
    for (int of = 0; of < flow_.data_count; ++of)
      if (flow_.data[of].lives == residence::nowhere &&
          flow_.data[of].pool == flow_.data[needed].pool && held_[of * stages_ + stage] > 0)
        return true;
    return false;
  }

  flow const& flow_;
  int stages_;
  owned<int> held_; // [data][S]
};

} // namespace pipelining::inline v0_3::detail
