// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What can be chosen of a run on a GPU, next to model and schedule; and the stages on it as
//! code that nvcc does not compile sees them.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "../papers/exchanged_stage.hpp"
#include "../papers/vocabulary_stage.hpp"
#include "../stages.hpp"

namespace gpt {

//! What products multiply. Trained values, the residual and all sums are in float, and attention's
//! operands in bf16, either way.
enum class operands : std::uint8_t { float32, bf16 };

//! Adds numbers up over several GPUs, as work of a stream.
template <class Number>
using sum_of = std::function<void(Number*, std::int64_t, cudaStream_t)>;
using sum_over_gpus = sum_of<float>;

//! Where the weights of stages lie whose schedule gathers them, see gathered_stage.cuh.
enum class weights_home : std::uint8_t {
  shards, //!< in pieces on the GPUs of a group; here, where it is one GPU
  host    //!< with their optimizer
};
//! Those that have a piece of every such weight each: the replicas of the pipeline.
struct weight_group {
  int number = 0; //!< of this one
  int of = 1;     //!< one: all pieces are here
  //! gather(mine, all, bytes of mine): one piece after the other.
  std::function<void(void const*, void*, std::int64_t, cudaStream_t)> gather{};
  //! scatter(all, mine, numbers of mine): its piece of the sum over the group.
  std::function<void(float const*, float*, std::int64_t, cudaStream_t)> scatter{};
  sum_over_gpus sum{}; //!< over the group; of weights on the host, which all have
};

//! How a model runs on a GPU.
struct gpu_run {
  operands numbers = operands::float32;
  bool graph = false;   //!< every iteration but the first is one CUDA graph
  bool timed = false;   //!< measure when passes run
  bool guarded = false; //!< look for stages that write where they must not
  //! Of cuBLAS, for each virtual device: what it recommends for Hopper, and more than for others.
  std::int64_t workspace_bytes = std::int64_t{32} << 20;
  shard_of_stage shard{}; //!< of every stage
  sum_over_gpus sum{};    //!< over all shards of a stage; wanted where there are several
  sum_over_gpus copies{}; //!< over both copies of a stage; wanted where one is on another GPU
  sum_over_gpus over_replicas{}; //!< all of them
  sum_of<double> over_rows{}; //!< over all ranks of a pipeline, where clipping is not in the plan
  int replicas = 1; //!< of the pipeline: the sum of their gradients is that of all microbatches
  clipping const* clip = nullptr; //!< must outlive the run; null: gradients are not clipped
  bool any_chunks = false;        //!< iterations may have other chunks than the first
  //! The vocabulary is in shards, with so many barriers; see with_vocabulary.
  std::optional<int> barriers{};
  weights_home home = weights_home::shards; //!< of gathered weights
  weight_group weights{};
  //! Devices take over attention of each other; clips not.
  std::optional<exchange_schedule> exchange{};
};

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

  //! One half of a composite pass on the stream of its context, with memory of its own; or a pass.
  void run_half(pp::pass_kind kind, pp::composite_half const& given, int half);
  //! Two passes of the device at once, so that one has something to do while the shards of the
  //! other make a sum. Those that add to the gradients of one stage follow each other.
  void braid(pp::pass_kind kind,
             pp::composite_half const& half,
             pp::pass_kind other_kind,
             pp::composite_half other_half,
             gpu_stage& other) {
    if (this == &other && kind != pp::pass_kind::forward)
      other_half.where.stream = half.where.stream;
    run_half(kind, half, 0);
    other.run_half(other_kind, other_half, 1);
  }

  // With weights that are gathered.
  void gather_weights(pp::context const& where, pp::output out);
  void use_weights(pp::context const& where, pp::input in);
  void collect_gradients(pp::context const& where, pp::output out);
  void scatter_gradients(pp::context const& where, pp::input in);

  void set_text(batch const& pieces, cudaStream_t stream);
  void set_cut(step_cut const& cut);

  //! Adds its gradients up over all replicas, if there are others. Those that were scattered are.
  void join_replicas(cudaStream_t stream);

  // With clipping, be it part of the plan or after it: these follow the passes.
  void set_clipping(clipping const&) {} //!< it has been told when it was made
  void contribute(pp::context const& where, pp::output row);
  void optimizer_step(pp::context const& where, pp::totals const& all);
  void roll_back(pp::context const& where);
  //! @pre no step is under way
  [[nodiscard]] step_counts counts() const;
  [[nodiscard]] std::int64_t rolled_back() const { return rolled_back_; }
  void set_counts(step_counts const& counts);

  //! What its weights are in the whole model, in the order in which it exchanges them.
  [[nodiscard]] std::vector<tensor_part> parts() const;
  //! Calls visit(bytes) with what the next step depends on, on the host, tensor by tensor. What it
  //! writes there is put back. @pre nothing is under way
  void exchange(std::function<void(std::span<std::byte>)> const& visit);

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
  [[nodiscard]] std::vector<float> gradients() const { return numbers(false); }
  [[nodiscard]] std::vector<float> values() const { return numbers(true); }

private:
  [[nodiscard]] std::vector<float> numbers(bool values) const;

  std::unique_ptr<either> of_;
  sum_over_gpus over_replicas_;
  std::int64_t rolled_back_ = 0;
};

using gpu_stages = stages_by_way<gpu_stage>;

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

//! What the slots of such stages take.
//! @param totals_bytes of a stage's row
[[nodiscard]] sizes_of_plan
gpu_slots(model_size const& size, gpu_run const& how, std::int64_t totals_bytes = 0);

} // namespace gpt
