// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The data of a GPU that predictions need. Header for pipelining::gpu, efficiency and
//! band.
//!
//! The table holds data sheets, not measurements. Programs replace any number of it, and the
//! timetable tool reads a GPU from a file.

#include <pipe/flow/limits.hpp>
#include <pipe/flow/quote.hpp>

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace pipelining::inline v0_3 {

//! @brief The rates of one GPU. Bytes are decimal: 80 GB are 80e9.
struct gpu {
  double peak_tflops = 1;      //!< bf16, dense, 1e12 operations a second
  double memory_gb = 1;        //!< 1e9 bytes
  double link_gb_per_s = 1;    //!< to a GPU of the same machine, one way
  double network_gb_per_s = 1; //!< to a GPU of another machine, one way
  double host_gb_per_s = 1;    //!< to the memory of the host, one way
  int gpus_per_machine = 8;    //!< that are joined by links

  //! @brief The GPU of a name.
  //! @throws std::invalid_argument that lists the names when there is none.
  [[nodiscard]] static gpu named(std::string_view name);

  friend constexpr bool operator==(gpu const&, gpu const&) = default;
};

//! @brief A range that a figure lies in.
struct band {
  double least = 1; //!< its lower end
  double most = 1;  //!< its upper end
};

//! @brief The share of the peak rate that passes reach.
//!
//! Defaults come from pass times published for one 4B model on A100 (40 experiments with Vocabulary
//! Parallelism): whole layers, whose attention was a small part, and the output layer. Nothing
//! comparable is known of other GPUs or of attention by itself, so all take the same numbers.
struct efficiency {
  double linear = 0.62;     //!< of products with weights; published: 0.61 to 0.64
  double attention = 0.62;  //!< of attention
  double vocabulary = 0.40; //!< of the output layer; published: 0.31 to 0.48
};

namespace detail {

//! A GPU with its name.
struct named_gpu {
  std::string_view name; //!< as the command line spells it
  gpu rates;             //!< what it does in a second
};

//! Rates are dense, half of what data sheets give with sparsity. Links are half of what they give
//! for both ways together. Networks of one adapter of 200 or 400 Gbit/s per GPU, and 24 and 50 GB/s
//! of PCIe 4 and 5, are assumptions.
//! @source data sheets of the makers: "NVIDIA A100 Tensor Core GPU" (80 GB SXM), "NVIDIA H100
//! Tensor Core GPU" (SXM5), "NVIDIA H200 Tensor Core GPU", "NVIDIA L40S" (without NVLink), "NVIDIA
//! DGX B200" (an eighth of it: 36 PFLOPS, 1,440 GB, NVLink 5), "NVIDIA GB200 NVL72" (a 72nd of it:
//! 360 PFLOPS, 13.4 TB; half of the 450 GB/s one way between a Grace and its two GPUs), "AMD
//! Instinct MI300X" (1,307 TFLOPS, 192 GB; one of seven links of 128 GB/s leads to each neighbour).
inline constexpr named_gpu gpus[] = {
  {"a100", {312, 80, 300, 25, 24}},
  {"h100", {989, 80, 450, 50, 50}},
  {"h200", {989, 141, 450, 50, 50}},
  {"h20", {148, 96, 450, 50, 50}},
  {"b200", {2250, 180, 900, 50, 50}},
  {"gb200", {2500, 186, 900, 50, 225, 72}},
  {"l40s", {362, 48, 24, 25, 24}},
  {"mi300x", {1307, 192, 64, 50, 50}},
};

//! A number of `gpu` with its name.
struct gpu_member {
  char const* name;
  double gpu::*member;
};
inline constexpr gpu_member gpu_members[] = {{"peak_tflops", &gpu::peak_tflops},
                                             {"memory_gb", &gpu::memory_gb},
                                             {"link_gb_per_s", &gpu::link_gb_per_s},
                                             {"network_gb_per_s", &gpu::network_gb_per_s},
                                             {"host_gb_per_s", &gpu::host_gb_per_s}};
//! Checks that rates and memory lie in `gpu_range`.
//! @throws std::invalid_argument with one sentence.
constexpr void check_gpu(gpu const& rates) {
  for (gpu_member const& each : gpu_members)
    if (!gpu_range.contains(rates.*each.member))
      throw std::invalid_argument(std::string("gpu: ") + each.name + " must be " + gpu_range.words);
  if (rates.gpus_per_machine < 1)
    throw std::invalid_argument("gpu: gpus_per_machine must be at least 1");
}

} // namespace detail

inline gpu gpu::named(std::string_view name) {
  std::string all;
  for (detail::named_gpu const& each : detail::gpus) {
    if (each.name == name)
      return each.rates;
    all += (all.empty() ? "" : ", ") + std::string(each.name);
  }
  throw std::invalid_argument("there is no GPU of the name " + detail::quote(name) +
                              "; the known ones are " + all);
}

} // namespace pipelining::inline v0_3
