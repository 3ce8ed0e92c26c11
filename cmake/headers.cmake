# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Every public header of pipelining::core, one line each, by folder. A header that is not listed here is not
# installed; tests/check_headers.py fails when this list and include/pipe differ.

set(PIPELINING_HEADERS_ROOT
  config.hpp
  pipe.hpp
  version.hpp
)

set(PIPELINING_HEADERS_CORE
  core/pass.hpp
  core/ratio.hpp
  core/shape.hpp
)

set(PIPELINING_HEADERS_SCHEDULE
  schedule/breadth_first.hpp
  schedule/building_block.hpp
  schedule/dual_pipe.hpp
  schedule/gpipe.hpp
  schedule/grouped.hpp
  schedule/interleaved.hpp
  schedule/one_f_one_b.hpp
  schedule/schedule.hpp
  schedule/seq1f1b.hpp
  schedule/seq1f1b_interleaved.hpp
  schedule/unit_walk.hpp
  schedule/v_hand_order.hpp
  schedule/v_one_f_one_b.hpp
  schedule/v_search.hpp
  schedule/v_shape.hpp
  schedule/v_timeline.hpp
  schedule/v_workspace.hpp
  schedule/zero_bubble.hpp
  schedule/zero_bubble_auto.hpp
  schedule/zero_bubble_interleaved.hpp
  schedule/zero_bubble_v.hpp
)

set(PIPELINING_HEADERS_TIMETABLE
  timetable/cost.hpp
  timetable/dependencies.hpp
  timetable/describe.hpp
  timetable/diagnosis.hpp
  timetable/make_timetable.hpp
  timetable/metrics.hpp
  timetable/simulate.hpp
  timetable/static_timetable.hpp
  timetable/timetable.hpp
  timetable/verify.hpp
)

set(PIPELINING_HEADERS_SEARCH
  search/continuous_offsets.hpp
  search/sequence_partition.hpp
  search/v_auto.hpp
  search/v_continuous.hpp
)

set(PIPELINING_HEADERS_ATTENTION
  attention/backward.hpp
  attention/forward.hpp
  attention/kernel_call.hpp
  attention/kernel_choice.hpp
  attention/key_splits.hpp
  attention/mask.hpp
  attention/merge.hpp
  attention/parameters.hpp
  attention/reference.hpp
  attention/score.hpp
  attention/tile.hpp
)

set(PIPELINING_HEADERS_PLAN
  plan/bill.hpp
  plan/budget.hpp
  plan/calls.hpp
  plan/connect.hpp
  plan/describe.hpp
  plan/diagnosis.hpp
  plan/difference.hpp
  plan/drain.hpp
  plan/fingerprint.hpp
  plan/global_order.hpp
  plan/hooks.hpp
  plan/item.hpp
  plan/lower.hpp
  plan/lower_device.hpp
  plan/memory.hpp
  plan/message.hpp
  plan/plan.hpp
  plan/policy.hpp
  plan/program.hpp
  plan/proof.hpp
  plan/prove.hpp
  plan/prove_messages.hpp
  plan/prove_slots.hpp
  plan/prove_steps.hpp
  plan/scratch.hpp
  plan/sizes.hpp
  plan/slots.hpp
  plan/static_lowering.hpp
  plan/static_plan.hpp
  plan/static_proof.hpp
  plan/tables.hpp
  plan/waits.hpp
)

set(PIPELINING_HEADERS_IO
  io/append.hpp
  io/csv.hpp
  io/details.hpp
  io/json.hpp
  io/pytorch_actions.hpp
  io/pytorch_messages.hpp
  io/read_pytorch_csv.hpp
  io/shades.hpp
  io/svg.hpp
  io/text.hpp
  io/trace.hpp
  io/write_pytorch_csv.hpp
)

set(PIPELINING_HEADERS_RUN
  run/arena.hpp
  run/check.hpp
  run/clock.hpp
  run/context.hpp
  run/error.hpp
  run/execute.hpp
  run/launch_environment.hpp
  run/plan_agreement.hpp
  run/rendezvous.hpp
  run/run_item.hpp
  run/socket.hpp
  run/stage.hpp
  run/store.hpp
  run/store_file.hpp
  run/threads.hpp
)

set(PIPELINING_CORE_HEADERS
  ${PIPELINING_HEADERS_ROOT}
  ${PIPELINING_HEADERS_CORE}
  ${PIPELINING_HEADERS_SCHEDULE}
  ${PIPELINING_HEADERS_TIMETABLE}
  ${PIPELINING_HEADERS_SEARCH}
  ${PIPELINING_HEADERS_ATTENTION}
  ${PIPELINING_HEADERS_PLAN}
  ${PIPELINING_HEADERS_IO}
  ${PIPELINING_HEADERS_RUN}
)

# Headers of pipelining::mpi. They need <mpi.h>; they are installed with the others, since they need nothing built.
set(PIPELINING_MPI_HEADERS
  run/mpi.hpp
  run/mpi_device.hpp
  run/mpi_store.hpp
)

# Headers of pipelining::cuda. They need the CUDA toolkit, and nvcc where they hold kernels; they are installed with the
# others, since they need nothing built.
set(PIPELINING_CUDA_HEADERS
  attention/backward.cuh
  attention/backward_mma.cuh
  attention/backward_on_hopper.cuh
  attention/forward.cuh
  attention/forward_hopper.cuh
  attention/forward_mma.cuh
  attention/merge.cuh
  attention/forward_on_hopper.cuh
  attention/hopper.cuh
  attention/hopper_block.cuh
  attention/hopper_code.cuh
  attention/hopper_gradient_block.cuh
  attention/hopper_launch.cuh
  attention/hopper_products.cuh
  attention/hopper_softmax.cuh
  attention/key_gradient_hopper.cuh
  attention/merge_splits.cuh
  attention/query_gradient_hopper.cuh
  attention/query_statistics.cuh
  attention/on_gpu.cuh
  attention/shared_tile.cuh
  attention/tile_search.cuh
  attention/tensor_map.cuh
  attention/warp_matrix.cuh
  cuda.cuh
  cuda/error.cuh
  cuda/handles.cuh
  cuda/patience.cuh
  cuda/peer_copies.cuh
  cuda/ranges.cuh
  cuda/stream_device.cuh
  cuda/streams.cuh
  cuda/wait.cuh
)

# Headers of pipelining::nccl. They need <nccl.h> too.
set(PIPELINING_NCCL_HEADERS
  cuda/communicators.cuh
  cuda/nccl.cuh
  cuda/nccl_error.cuh
  cuda/nccl_machine.cuh
  cuda/nccl_messages.cuh
  cuda/nccl_ranks.cuh
)
