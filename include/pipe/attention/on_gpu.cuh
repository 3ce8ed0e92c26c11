// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The front door to attention on a GPU: takes the fastest kernels that the GPU and the
//! program have, and says which.

#include <pipe/config.hpp>

#if __cplusplus >= 202002L // what comes below would bury the one error of config.hpp
#include <pipe/attention/built_here.cuh>
#include <pipe/attention/hopper/code_in_program.cuh>
#include <pipe/attention/hopper/tensor_map.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/kernel_choice.hpp>
#include <pipe/attention/key_splits.hpp>
#include <pipe/attention/launch_memory.cuh>
#include <pipe/attention/start_backward.cuh>
#include <pipe/attention/start_forward.cuh>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace pipelining::inline v0_3::attention {

//! @brief Memory of the GPU that a call may use until its kernels are over. Calls of one stream can
//! share it.
struct gpu_scratch {
  float* data = nullptr;  //!< begins at a multiple of 16 bytes
  std::int64_t count = 0; //!< floats
  //! 4 bytes that hold 0 before the first call; each call leaves them so. With them blocks of
  //! forward stay and take work piece by piece, which is faster where sequences are short. Null:
  //! each block does one piece.
  std::uint32_t* taken = nullptr;
  //! Memory of the host in which calls remember what they know of the GPU: half of what a call
  //! costs the host. Null: each call asks anew.
  launch_memory* memory = nullptr;
  //! Multiprocessors that other kernels hold meanwhile, as NCCL's do: forward cuts keys so that the
  //! others are full.
  std::int32_t held = 0;
  bool portable = false; //!< takes the portable kernels on any GPU
};

namespace detail {

//! Refuses GPUs that no kernel runs on.
inline void check_gpu(gpu_facts const& gpu) {
  if (gpu.major < 8) {
    refuse("the kernels run on compute capability 8.0 and up, but the current GPU has " +
           std::to_string(gpu.major) + "." + std::to_string(gpu.minor) +
           "; use attention::forward and attention::backward on the host");
  }
}

//! Floats that there are.
inline std::int64_t count_of(gpu_scratch const& scratch) {
  return scratch.data == nullptr ? 0 : scratch.count;
}

inline void check_scratch(gpu_scratch const& scratch, std::int64_t wanted) {
  if (count_of(scratch) < wanted) {
    refuse("scratch holds " + std::to_string(count_of(scratch)) + " floats, but the call needs " +
           std::to_string(wanted));
  }
  if (reinterpret_cast<std::uintptr_t>(scratch.data) % 16 != 0) {
    refuse("scratch does not begin at a multiple of 16 bytes");
  }
}

//! The kernels for a call on the current GPU.
//! @param code says whether the program has those for Hopper; asked where the GPU is one
//! @param portable  as gpu_scratch::portable
//! @param can_copy  see are_strides_of_copies
template <class Code>
kernel_choice
choose(launch_memory& memory, Code const& code, bool portable = false, bool can_copy = true) {
  check_gpu(memory.gpu());
  if (portable || !memory.gpu().is_hopper()) {
    return {kernel_family::portable, portable ? choice_reason::asked : choice_reason::other_gpu};
  }
  auto const reason = code(memory);
  if (reason == choice_reason::all_there) {
    return can_copy ? kernel_choice{kernel_family::hopper, reason}
                    : kernel_choice{kernel_family::portable, choice_reason::strides};
  }
  return {kernel_family::portable, reason};
}

//! Floats of dO . O, up to the next multiple of 16 bytes.
[[nodiscard]] constexpr std::int64_t floats_of_means(parameters const& p) {
  return (p.batch * p.heads * p.query_length + 3) / 4 * 4;
}

//! As many parts of the keys as scratch holds, at most `best`.
inline key_splits splits_in(gpu_scratch const& scratch, parameters const& p, std::int32_t best) {
  auto const fit = count_of(scratch) / std::max<std::int64_t>(1, key_splits::scratch(p, 1));
  auto const count = static_cast<std::int32_t>(std::clamp<std::int64_t>(fit, 1, best));
  return count == 1 ? key_splits{} : key_splits::in(scratch.data, p, count);
}

} // namespace detail

//! @brief The kernels that forward_on_gpu takes for dense tensors on the current GPU.
//! @tparam Dim elements of a head: 64, 80, 96, 112, 128, 256, or head_dims(192, 128)
//! @throws std::invalid_argument where the current GPU is below compute capability 8.0
//! @throws cuda::error where the runtime cannot say
template <int Dim, class Element, mask Mask = causal, score Score = plain, class Built = built_here>
[[nodiscard]] kernel_choice chosen_forward() {
  launch_memory once;
  return detail::choose(once, detail::forward_code<Dim, Element, Mask, Score, Built>);
}

//! @brief The kernels that backward_on_gpu takes for dense tensors on the current GPU.
//! @tparam Dim elements of a head: 64, 80, 96, 112, 128, 256, or head_dims(192, 128)
//! @throws as chosen_forward
template <int Dim,
          class Element,
          mask Mask = causal,
          score Score = plain,
          class Built = built_here,
          query_order Order = query_order::kept>
[[nodiscard]] kernel_choice chosen_backward() {
  launch_memory once;
  return detail::choose(once, detail::backward_code<Dim, Element, Mask, Score, Built, Order>);
}

//! @brief Floats of scratch with which forward_on_gpu is fastest on the current GPU: 0 where the
//! queries alone fill it. With less the result is the same but for rounding.
//! @param held, portable as of gpu_scratch
//! @throws as chosen_forward
template <int Dim, class Element, mask Mask = causal, score Score = plain, class Built = built_here>
[[nodiscard]] std::int64_t
forward_scratch(parameters const& p, std::int32_t held = 0, bool portable = false) {
  launch_memory once;
  auto const choice =
    detail::choose(once, detail::forward_code<Dim, Element, Mask, Score, Built>, portable);
  auto const count =
    detail::best_key_splits<Dim, Element, Mask, Score, Built>(once, choice.family, p, held);
  return count == 1 ? 0 : detail::key_splits::scratch(p, count);
}

//! @brief Floats of scratch that backward_on_gpu needs, whichever kernels it takes: dO . O of the
//! queries, and what they sum dQ in. About head_dim + 3 for each query of a head.
[[nodiscard]] constexpr std::int64_t backward_scratch(parameters const& p) {
  return detail::floats_of_means(p) +
         std::max(detail::query_sums::scratch(p, kernel_family::portable),
                  detail::query_sums::scratch(p, kernel_family::hopper));
}

//! @brief Attention of one chunk of queries over the keys cached so far, with the fastest kernels
//! that the current GPU and the program have.
//!
//! Writes O and the natural-log log-sum-exp; a query that sees no key gets O = 0 and -infinity.
//! With parameters::from = carry::in it goes on from the (O, log-sum-exp) of other keys instead.
//! Does what attention::forward of the host does, with sums in float and weights rounded to
//! elements.
//!
//! The kernels for Hopper where the GPU has compute capability 9.0, the program is compiled for
//! sm_90a (-gencode arch=compute_90a,code=sm_90a), and strides are above 0; portable ones, of
//! compute capability 8.0 and up, otherwise. All compute the same within one tolerance. The same
//! call on the same kind of GPU gives the same bits.
//!
//! @tparam Dim elements of a head: 64, 80, 96, 112, 128, 256, or head_dims(192, 128)
//! @param p       sizes, offsets, scale (above 0)
//! @param t       views of device memory, bf16 or fp16, each 16-byte aligned with strides that are
//!                multiples of 8 elements; shapes as forward_tensors says
//! @param scratch none, or up to forward_scratch floats: where queries are few, it lets keys be
//!                worked on in parts side by side
//! @param m       which pairs are kept; tiles that it skips are neither read nor multiplied
//! @param f       what is done to scale * query . key
//! @param stream  in whose order the kernels run, on the current GPU; the call does not wait
//! @return which kernels, and why these
//! @throws std::invalid_argument as check_for_kernels, where the current GPU is below compute
//!         capability 8.0, and where scratch is not aligned, before any launch
//! @throws cuda::error where a launch fails
template <int Dim, class Element, mask Mask = causal, score Score = plain, class Built = built_here>
kernel_choice forward_on_gpu(parameters const& p,
                             forward_tensors<Element, float> const& t,
                             gpu_scratch const& scratch,
                             Mask const& m,
                             Score const& f,
                             cudaStream_t stream) {
  static_assert(detail::is_kernel_element<Element>,
                "attention::forward_on_gpu: elements must be __nv_bfloat16 or __half, because the "
                "matrix units multiply no others here; use attention::forward for float");
  detail::check_for_kernels<Dim>(p, t);
  detail::check_scratch(scratch, 0);
  launch_memory once;
  detail::launcher const launch{scratch.memory == nullptr ? once : *scratch.memory, stream};
  auto const choice =
    detail::choose(launch.memory,
                   detail::forward_code<Dim, Element, Mask, Score, Built>,
                   scratch.portable,
                   detail::are_strides_of_copies(t.query, t.key, t.value, t.output));
  if (p.batch * p.query_length == 0) {
    return choice;
  }
  auto const best = detail::count_of(scratch) < detail::key_splits::scratch(p, 2)
                      ? 1
                      : detail::best_key_splits<Dim, Element, Mask, Score, Built>(
                          launch.memory, choice.family, p, scratch.held);
  auto const splits = detail::splits_in(scratch, p, best);
  detail::forward_call<Element, Mask, Score> const call{
    p, t, m, f, static_cast<float>(p.effective_scale())};
  if (choice.family == kernel_family::hopper) {
    detail::start_on_hopper<Dim, Built>(launch, call, splits, scratch.taken);
  } else {
    detail::start_on_device<Dim, Built>(launch, call, splits);
  }
  return choice;
}

//! @brief Gradients of one chunk of queries: writes dQ, adds to the running dK and dV, with the
//! fastest kernels that the current GPU and the program have.
//!
//! The chunks of a sequence come last chunk first; start with zeros before the last chunk. After
//! chunk c, dK and dV of chunk c's own keys are final. With parameters::from = carry::in, dQ is
//! added to (keys in slices, with the log-sum-exp and O of all keys). One kernel with five products
//! of tiles, after one that prepares sums; it rounds dQ itself, or a kernel after it does. Every
//! number of dK and dV is summed by one thread in one order. Several blocks add to one of dQ: in a
//! kept order, in which each waits for the one before, or as they come. Kernels as forward_on_gpu.
//!
//! @tparam Dim   elements of a head: 64, 80, 96, 112, 128, 256, or head_dims(192, 128)
//! @tparam Order of the sums of dQ. kept: the same call gives the same bits. free: the last bits
//!               of dQ differ from call to call; faster where few heads leave blocks waiting
//! @param p       sizes, offsets, scale (above 0): those of the chunk's forward
//! @param t       views of device memory, each 16-byte aligned with strides that are multiples of
//!                16 bytes; shapes as backward_tensors says
//! @param scratch at least backward_scratch floats
//! @param m       the mask of forward
//! @param f       the score of forward
//! @param stream  in whose order the kernels run, on the current GPU; the call does not wait
//! @return which kernels, and why these
//! @throws std::invalid_argument as check_for_kernels, where the current GPU is below compute
//!         capability 8.0, and where scratch is too short or not aligned, before any launch
//! @throws cuda::error where a launch fails
template <int Dim,
          class Element,
          mask Mask = causal,
          score Score = plain,
          class Built = built_here,
          query_order Order = query_order::kept>
kernel_choice backward_on_gpu(parameters const& p,
                              backward_tensors<Element, float, float> const& t,
                              gpu_scratch const& scratch,
                              Mask const& m,
                              Score const& f,
                              cudaStream_t stream) {
  static_assert(detail::is_kernel_element<Element>,
                "attention::backward_on_gpu: elements must be __nv_bfloat16 or __half, because the "
                "matrix units multiply no others here; use attention::backward for float");
  detail::check_for_kernels<Dim>(p, t);
  launch_memory once;
  detail::launcher const launch{scratch.memory == nullptr ? once : *scratch.memory, stream};
  auto const choice =
    detail::choose(launch.memory,
                   detail::backward_code<Dim, Element, Mask, Score, Built, Order>,
                   scratch.portable,
                   detail::are_strides_of_copies(t.query, t.key, t.value, t.output_gradient));
  detail::check_scratch(scratch, backward_scratch(p));
  if (p.batch * p.query_length == 0) {
    return choice;
  }
  auto const mean = dense_rows(scratch.data, p.batch, p.heads, p.query_length);
  auto const sums =
    detail::query_sums::in(scratch.data + detail::floats_of_means(p), p, choice.family);
  detail::backward_call<Element, Mask, Score> const call{
    p, t, mean, m, f, static_cast<float>(p.effective_scale())};
  if (choice.family == kernel_family::hopper) {
    detail::start_on_hopper<Dim, Built, Order>(launch, call, sums);
  } else {
    detail::start_on_device<Dim, Built, Order>(launch, call, sums);
  }
  return choice;
}

} // namespace pipelining::inline v0_3::attention
#endif
