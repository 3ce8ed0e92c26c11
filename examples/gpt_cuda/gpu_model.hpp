// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The pipelined model on a GPU as code that nvcc does not compile sees it.

#include <pipe/timetable/timetable.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../gpt/adamw.hpp"
#include "../gpt/model.hpp"
#include "../gpt/stage.hpp"
#include "../gpt/text.hpp"
#include "gpu_run.hpp"

namespace gpt {

//! Why no model can run here, as a sentence; "" where one can.
[[nodiscard]] std::string missing_gpu();

//! Stages on virtual devices of GPU 0, as on_gpu::pipelined_model has them.
class gpu_model {
public:
  //! @throws std::invalid_argument as on_gpu::pipelined_model does
  gpu_model(model_size const& size,
            pipelining::timetable_view table,
            step_cut const& cut,
            std::uint64_t seed,
            gpu_run const& how = {});
  ~gpu_model();
  gpu_model(gpu_model const&) = delete;
  gpu_model& operator=(gpu_model const&) = delete;

  //! Forward and backward of all microbatches, without the optimizer. Returns the mean loss.
  double step(batch const& pieces);
  //! One step of the optimizer on every stage.
  void update(adamw const& optimizer, std::int64_t step);
  //! When each pass of the last step ran, in seconds.
  [[nodiscard]] pipelining::dynamic_timetable trace();
  //! All gradients and all values, in the order of the layers.
  [[nodiscard]] std::vector<float> gradients() const;
  [[nodiscard]] std::vector<float> values() const;

private:
  struct either;
  std::unique_ptr<either> model_;
};

} // namespace gpt
