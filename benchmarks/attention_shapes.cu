// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief Times of the attention kernels for shapes that people train: few key heads, many heads,
//! windows, packed documents, chunks that fill a GPU badly, and forward next to a kernel that holds
//! some multiprocessors, as NCCL does.
//!
//!     bin/attention_shapes [--json FILE] [--milliseconds N]
//!
//! Each line is the median time of one call and the rate of the pairs that the mask keeps: 4
//! (forward) and 10 (backward) operations for each of them and element of a head. Backward adds to
//! dQ in the order that keeps bits, then as blocks come.
//!
//! Exit status: 0; 1 where the GPU fails; 77 where there is no GPU.

#include <pipe/attention/on_gpu.cuh>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "attention_case.cuh"

namespace {

using namespace benchmark;

//! A call: queries are the last of all tokens.
struct shape {
  char const* name;
  std::int64_t batch;
  std::int64_t heads;
  std::int64_t key_heads;
  std::int64_t queries;
  std::int64_t tokens;
  std::int64_t extent = 0; //!< of a window or a document, in tokens; 0: all
};

//! Holds multiprocessors for some nanoseconds.
__global__ void hold(std::uint64_t nanoseconds) {
  extern __shared__ unsigned char room[];
  room[threadIdx.x] = 1;
  auto const now = [] {
    std::uint64_t time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
  };
  for (auto const begin = now(); now() - begin < nanoseconds;) {
    __nanosleep(1000);
  }
}

struct program {
  effort spend{.least_runs = 5, .most_runs = 11, .milliseconds = 20, .warm_up = 200};
  std::ofstream json;

  void say(shape const& s, int dims, char const* what, double milliseconds, double pairs) {
    int const query_dim = at::detail::query_dim(dims);
    int const value_dim = at::detail::value_dim(dims);
    int const products = what[0] == 'b' ? 3 * query_dim + 2 * value_dim : query_dim + value_dim;
    auto const rate = 2.0 * products * pairs / (milliseconds * 1e9);
    std::printf(
      "%-26s D%3d/%-3d %3lld x %3lld/%-3lld %6lld of %6lld  %-20s %9.4f ms %7.1f TFLOP/s\n",
      s.name,
      query_dim,
      value_dim,
      static_cast<long long>(s.batch),
      static_cast<long long>(s.heads),
      static_cast<long long>(s.key_heads),
      static_cast<long long>(s.queries),
      static_cast<long long>(s.tokens),
      what,
      milliseconds,
      rate);
    std::fflush(stdout);
    json << R"({"name": ")" << s.name << R"(", "dim": )" << query_dim << R"(, "value_dim": )"
         << value_dim << R"(, "batch": )" << s.batch << R"(, "heads": )" << s.heads
         << R"(, "key_heads": )" << s.key_heads << R"(, "queries": )" << s.queries
         << R"(, "tokens": )" << s.tokens << R"(, "extent": )" << s.extent << R"(, "what": ")"
         << what << R"(", "milliseconds": )" << milliseconds << R"(, "tflops": )" << rate << "}\n"
         << std::flush;
  }
};

//! Tensors of a call with their memory.
template <int Dim>
struct tensors {
  static constexpr int query_dim = at::detail::query_dim(Dim);
  static constexpr int value_dim = at::detail::value_dim(Dim);
  shape s;
  at::parameters p;
  buffer<element> query, key, value, output, output_gradient, query_gradient;
  buffer<float> log_sum_exp, key_gradient, value_gradient, scratch;
  buffer<std::uint32_t> taken;
  at::launch_memory* memory = nullptr;

  explicit tensors(shape const& of)
      : s(of), p(parameters_of(of)), query(queries(query_dim)), key(keys(query_dim)),
        value(keys(value_dim)), output(queries(value_dim)), output_gradient(queries(value_dim)),
        query_gradient(queries(query_dim)), log_sum_exp(s.batch * s.queries * s.heads),
        key_gradient(keys(query_dim)), value_gradient(keys(value_dim)),
        scratch(std::max(at::backward_scratch(p), at::forward_scratch<Dim, element>(p))), taken(1) {
    taken.zero();
    query.fill(1);
    key.fill(2);
    value.fill(3);
    output_gradient.fill(4);
    key_gradient.zero();
    value_gradient.zero();
  }

  static at::parameters parameters_of(shape const& s) {
    at::parameters p;
    p.batch = s.batch;
    p.query_length = s.queries;
    p.query_offset = s.tokens - s.queries;
    p.key_length = s.tokens;
    p.heads = s.heads;
    p.key_heads = s.key_heads;
    p.head_dim = query_dim;
    p.value_dim = value_dim;
    return p;
  }
  [[nodiscard]] std::int64_t queries(int dim) const { return s.batch * s.queries * s.heads * dim; }
  [[nodiscard]] std::int64_t keys(int dim) const { return s.batch * s.tokens * s.key_heads * dim; }
  template <class T>
  [[nodiscard]] at::tensor_view<T>
  view(buffer<T> const& of, std::int64_t length, std::int64_t heads, int dim = query_dim) const {
    return at::dense_tensor(of.data(), s.batch, length, heads, dim);
  }
  [[nodiscard]] at::row_view<float> rows() const {
    return at::dense_rows(log_sum_exp.data(), s.batch, s.heads, s.queries);
  }
  [[nodiscard]] at::gpu_scratch room(bool stay) const {
    return {scratch.data(), scratch.count(), stay ? taken.data() : nullptr, memory};
  }

  template <class Mask>
  void forward(Mask const& m, bool stay = true, cudaStream_t stream = nullptr) const {
    at::forward_tensors<element> const t{view(query, s.queries, s.heads),
                                         view(key, s.tokens, s.key_heads),
                                         view(value, s.tokens, s.key_heads, value_dim),
                                         view(output, s.queries, s.heads, value_dim),
                                         rows()};
    at::forward_on_gpu<Dim>(p, t, room(stay), m, at::plain{}, stream);
  }

  template <at::query_order Order, class Mask>
  void backward(Mask const& m) const {
    at::backward_tensors<element> const t{view(query, s.queries, s.heads),
                                          view(key, s.tokens, s.key_heads),
                                          view(value, s.tokens, s.key_heads, value_dim),
                                          view(output, s.queries, s.heads, value_dim),
                                          rows(),
                                          view(output_gradient, s.queries, s.heads, value_dim),
                                          view(query_gradient, s.queries, s.heads),
                                          view(key_gradient, s.tokens, s.key_heads),
                                          view(value_gradient, s.tokens, s.key_heads, value_dim)};
    at::backward_on_gpu<Dim, element, Mask, at::plain, at::built_here, Order>(
      p, t, room(false), m, at::plain{}, nullptr);
  }

  //! Pairs that a mask keeps, of all heads.
  template <class Mask>
  [[nodiscard]] double pairs(Mask const& m) const {
    double one = 0;
    for (auto i = p.query_offset; i < s.tokens; ++i) {
      one += m(i);
    }
    return one * static_cast<double>(s.batch * s.heads);
  }
};

//! Keys that query i sees.
auto causal_keys() {
  return [](std::int64_t i) { return static_cast<double>(i + 1); };
}
auto window_keys(std::int64_t extent) {
  return [=](std::int64_t i) { return static_cast<double>(std::min(i + 1, extent)); };
}
auto document_keys(std::int64_t extent) {
  return [=](std::int64_t i) { return static_cast<double>(i % extent + 1); };
}

template <int Dim, class Mask, class Keys>
void measure_both(program& to, shape const& s, Mask const& m, Keys const& keys) {
  tensors<Dim> const t(s);
  auto const pairs = t.pairs(keys);
  auto const median = [&](auto const& run) { return median_milliseconds(run, to.spend); };
  to.say(s, Dim, "forward", median([&] { t.forward(m); }), pairs);
  to.say(s, Dim, "forward, block each", median([&] { t.forward(m, false); }), pairs);
  to.say(s,
         Dim,
         "backward, kept",
         median([&] { t.template backward<at::query_order::kept>(m); }),
         pairs);
  to.say(s,
         Dim,
         "backward, free",
         median([&] { t.template backward<at::query_order::free>(m); }),
         pairs);
}

//! Time of the host for one call, of many that are enqueued at once.
template <int Dim>
void measure_calls(program& to, shape const& s) {
  tensors<Dim> t(s);
  auto const each = [&](char const* what, auto const& call) {
    constexpr int calls = 100;
    call();
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    auto const begin = std::chrono::steady_clock::now();
    for (int n = 0; n < calls; ++n) {
      call();
    }
    std::chrono::duration<double, std::milli> const time = std::chrono::steady_clock::now() - begin;
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    to.say(s, Dim, what, time.count() / calls, 0);
  };
  auto const both = [&](char const* forward, char const* backward) {
    each(forward, [&] { t.forward(at::causal{}); });
    each(backward, [&] { t.template backward<at::query_order::kept>(at::causal{}); });
  };
  both("host, forward", "host, backward");
  at::launch_memory memory;
  t.memory = &memory;
  both("host, forward known", "host, backward known");
}

//! Forward while a kernel holds multiprocessors, of another stream.
template <int Dim>
void measure_held(program& to, shape const& s, int held) {
  tensors<Dim> const t(s);
  cudaStream_t other = nullptr;
  cudaStream_t own = nullptr;
  cuda::check(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "cudaStreamCreate");
  cuda::check(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking), "cudaStreamCreate");
  constexpr int room = 200 * 1024; // a block for each multiprocessor, next to which no other fits
  cuda::check(cudaFuncSetAttribute(hold, cudaFuncAttributeMaxDynamicSharedMemorySize, room),
              "cudaFuncSetAttribute");
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  cuda::check(cudaEventCreate(&begin), "cudaEventCreate");
  cuda::check(cudaEventCreate(&end), "cudaEventCreate");
  t.forward(at::causal{}, true, own);
  cuda::check(cudaStreamSynchronize(own), "cudaStreamSynchronize");
  std::vector<float> times;
  for (int run = 0; run < 7; ++run) {
    if (held > 0) {
      hold<<<static_cast<unsigned>(held), 32, room, other>>>(10'000'000);
      cuda::check(cudaGetLastError(), "hold");
    }
    cuda::check(cudaEventRecord(begin, own), "cudaEventRecord");
    t.forward(at::causal{}, true, own);
    cuda::check(cudaEventRecord(end, own), "cudaEventRecord");
    cuda::check(cudaEventSynchronize(end), "cudaEventSynchronize");
    cuda::check(cudaStreamSynchronize(other), "cudaStreamSynchronize");
    float time = 0;
    cuda::check(cudaEventElapsedTime(&time, begin, end), "cudaEventElapsedTime");
    times.push_back(time);
  }
  std::sort(times.begin(), times.end());
  auto const name = "forward, " + std::to_string(held) + " held";
  to.say(s, Dim, name.c_str(), static_cast<double>(times[3]), t.pairs(causal_keys()));
  cuda::check(cudaEventDestroy(begin), "cudaEventDestroy");
  cuda::check(cudaEventDestroy(end), "cudaEventDestroy");
  cuda::check(cudaStreamDestroy(own), "cudaStreamDestroy");
  cuda::check(cudaStreamDestroy(other), "cudaStreamDestroy");
}

template <int Dim>
void measure_documents(program& to, shape const& s) {
  std::vector<std::int32_t> first;
  for (std::int64_t i = 0; i < s.tokens; ++i) {
    first.push_back(static_cast<std::int32_t>(i / s.extent * s.extent));
  }
  buffer<std::int32_t> on_gpu(s.tokens);
  cuda::check(
    cudaMemcpy(
      on_gpu.data(), first.data(), first.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice),
    "cudaMemcpy");
  at::both<at::causal, at::document> const m{{}, {on_gpu.data(), 0}};
  measure_both<Dim>(to, s, m, document_keys(s.extent));
}

void measure_all(program& to) {
  for (shape const& s : {shape{"square", 1, 16, 16, 2048, 2048},
                         shape{"square", 1, 16, 16, 8192, 8192},
                         shape{"square", 1, 16, 16, 16384, 16384},
                         shape{"Llama-3 8B", 1, 32, 8, 2048, 2048},
                         shape{"Llama-3 8B", 1, 32, 8, 8192, 8192},
                         shape{"few key heads", 1, 8, 1, 2048, 2048},
                         shape{"few key heads", 1, 8, 1, 8192, 8192},
                         shape{"few key heads, chunk", 1, 8, 1, 2048, 8192},
                         shape{"few key heads, chunk", 1, 16, 2, 2048, 2048},
                         shape{"many heads", 4, 32, 32, 2048, 2048},
                         shape{"many heads", 4, 32, 32, 8192, 8192},
                         shape{"many heads, shared", 4, 32, 8, 8192, 8192},
                         shape{"FlashAttention-3's", 8, 16, 16, 2048, 2048},
                         shape{"chunk", 1, 16, 16, 2048, 32768},
                         shape{"chunk", 1, 32, 8, 2048, 32768},
                         shape{"chunk, 1.2 rounds", 1, 10, 10, 2048, 32768},
                         shape{"chunk, 1.5 rounds", 1, 12, 12, 2048, 32768}}) {
    measure_both<128>(to, s, at::causal{}, causal_keys());
  }
  for (shape const& s :
       {shape{"square", 1, 16, 16, 8192, 8192}, shape{"chunk", 1, 16, 16, 2048, 32768}}) {
    measure_both<64>(to, s, at::causal{}, causal_keys());
    measure_both<80>(to, s, at::causal{}, causal_keys());
    measure_both<96>(to, s, at::causal{}, causal_keys());
    measure_both<112>(to, s, at::causal{}, causal_keys());
    measure_both<256>(to, s, at::causal{}, causal_keys());
    measure_both<at::head_dims(192, 128)>(to, s, at::causal{}, causal_keys());
  }
  for (shape const& s : {shape{"window of 1k", 1, 16, 16, 32768, 32768, 1024},
                         shape{"window of 4k", 1, 16, 16, 32768, 32768, 4096}}) {
    at::sliding_window const m{static_cast<std::int32_t>(s.extent - 1), 0};
    measure_both<128>(to, s, m, window_keys(s.extent));
  }
  for (shape const& s : {shape{"documents of 2k", 1, 16, 16, 32768, 32768, 2048},
                         shape{"documents of 8k", 1, 16, 16, 32768, 32768, 8192}}) {
    measure_documents<128>(to, s);
  }
  measure_calls<128>(to, {"calls", 1, 1, 1, 128, 128});
  for (int const held : {0, 1, 4, 16}) {
    measure_held<128>(to, {"held", 1, 32, 32, 8192, 8192}, held);
    measure_held<128>(to, {"held, chunk", 1, 32, 8, 2048, 32768}, held);
  }
}

} // namespace

int main(int count, char** words) {
  try {
    program to;
    for (int i = 1; i < count; i += 2) {
      std::string_view const word = words[i];
      auto const* const value = i + 1 < count ? words[i + 1] : "";
      if (word == "--json") {
        to.json.open(value);
      } else if (word == "--milliseconds") {
        to.spend.milliseconds = static_cast<float>(std::atof(value));
      }
      bool const is_known = word == "--json" || word == "--milliseconds";
      if (!is_known || i + 1 == count || (word == "--json" && !to.json)) {
        throw std::invalid_argument(
          "'" + std::string(word) + ' ' + value +
          "' cannot be; usage: attention_shapes [--json FILE] [--milliseconds N]");
      }
    }
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      std::printf("attention_shapes: skipped, there is no GPU here\n");
      return 77;
    }
    measure_all(to);
    return 0;
  } catch (std::exception const& e) {
    std::fprintf(stderr, "attention_shapes: %s\n", e.what());
    return 1;
  }
}
