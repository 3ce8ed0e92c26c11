// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The stages on a GPU as code that nvcc does not compile sees them.

#include <pipe/cluster/packed_state.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/slot_class.hpp>
#include <pipe/run/context.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../adamw.hpp"
#include "../model.hpp"
#include "../stage.hpp"
#include "../text.hpp"
#include "../vocabulary_cut.hpp"
#include "gpu_run.hpp"

namespace gpt {

namespace pp = pipelining;

//! Why no model can run here, as a sentence; "" where one can.
[[nodiscard]] std::string missing_gpu();

//! An on_gpu::stage of either type of operands, with the work of its device.
class gpu_stage {
public:
  struct either;
  gpu_stage(std::unique_ptr<either> of, gpu_run const& how);
  ~gpu_stage();
  gpu_stage(gpu_stage const&) = delete;
  gpu_stage& operator=(gpu_stage const&) = delete;

  void forward(pp::context const& where, pp::input in, pp::output out);
  void backward(pp::context const& where, pp::input in, pp::output out);
  void backward_input(pp::context const& where, pp::input in, pp::output out);
  void backward_weight(pp::context const& where);
  //! One half of a composite pass on the stream of its context, with memory of its own.
  void run_half(pp::pass_kind kind, pp::composite_half const& given, int half);

  // With weights that are gathered.
  void gather_weights(pp::context const& where, pp::output out);
  void use_weights(pp::context const& where, pp::input in);
  void collect_gradients(pp::context const& where, pp::output out);
  void scatter_gradients(pp::context const& where, pp::input in);
  //! Whether they are, and its gradients of all replicas added up when they are scattered.
  [[nodiscard]] bool is_gathered() const;

  //! Before a step: the bytes to learn from.
  void set_text(batch const& pieces, cudaStream_t stream);
  //! Before a step: how its work is cut.
  void set_cut(step_cut const& cut);

  // With clipping, be it part of the plan or behind it: these follow the passes.
  void contribute(pp::context const& where, pp::output row);
  void optimizer_step(pp::context const& where, pp::totals const& all);
  //! Brings back what was there before the last step.
  void roll_back(pp::context const& where);
  //! @pre no step is under way
  [[nodiscard]] step_counts counts() const;

  //! Writes or reads what the next step depends on. @pre nothing is under way
  void exchange(pp::state_packer& with);
  void exchange(pp::state_unpacker& with);

  //! One step of the optimizer between iterations.
  void update(adamw const& optimizer, std::int64_t step, cudaStream_t stream);

  //! Calls visit(gradient, count) for every trained tensor, in the order of the layers; where they
  //! are gathered, for the pieces that lie on the GPU between steps.
  void for_each_gradient(std::function<void(float*, std::int64_t)> const& visit) const;
  //! Calls visit(numbers, count) for all that two copies of a stage add up: gradients, and the
  //! losses of tokens, which are 0 where the other copy has the microbatch.
  void for_each_sum(std::function<void(float*, std::int64_t)> const& visit) const;
  //! The sum of the losses of all tokens; 0 but on the last stage. @pre the step has ended
  [[nodiscard]] double loss_sum() const;
  //! All gradients and all values, in the order of the layers; of gathered ones collective in their
  //! group. @pre nobody writes them
  [[nodiscard]] std::vector<float> gradients() const;
  [[nodiscard]] std::vector<float> values() const;

private:
  std::unique_ptr<either> of_;
  sum_over_gpus over_replicas_;
};

//! [ways, stages]: two ways where pipelines enter at both ends, with a copy of every stage each; or
//! all ways where attention is on other devices than its layer, whose other stages are on the first
//! one alone. Null where a stage is not on a way, or of another process.
using gpu_stages = std::vector<std::vector<std::unique_ptr<gpu_stage>>>;

//! Adds up what two copies of a stage have: both have the sum then.
void add_copies(gpu_stage& one, gpu_stage& other, cudaStream_t stream);

//! The stages of a timetable on the current GPU; those of a device share cuBLAS and scratch.
//! @param cut how the timetable cuts the work of a step
//! @param only the device whose stages are made; without it, all
//! @throws std::invalid_argument for schedules with passes that the stages lack, and for heads of
//! other sizes than attention has kernels for
[[nodiscard]] gpu_stages make_gpu_stages(model_size const& size,
                                         pp::timetable_view table,
                                         step_cut const& cut,
                                         std::uint64_t seed,
                                         gpu_run const& how,
                                         std::optional<int> only = {});

//! Bytes of the slots with whole weights and gradients, by stage; none where none are gathered.
struct gathered_slots {
  std::vector<std::int64_t> weights{};
  std::vector<std::int64_t> gradients{};
};
[[nodiscard]] gathered_slots
gathered_slots_of(model_size const& size, pp::timetable_view table, gpu_run const& how);

//! Bytes of the slots that the plan of such stages needs; see buffer_sizes of the library.
struct gpu_slot_sizes {
  operands numbers;
  shard_of_stage shard;
  model_size size;
  step_cut cut;
  std::vector<layer_range> stages;     //!< what each holds
  std::int64_t totals_bytes = 0;       //!< of a stage's row
  std::optional<sharded_cut> around{}; //!< where the vocabulary is in shards
  gathered_slots gathered{};
  std::optional<exchange_schedule> exchange{}; //!< where devices take over attention
  pp::shape extents{};                         //!< of that

  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& maker) const;
  //! @param reader the stage that reads it
  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& maker, int reader) const;
};

} // namespace gpt
