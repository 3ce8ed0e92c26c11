// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Random problems for kernels in the PTX interpreter, and their answers in double.

#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/query_sums.hpp>
#include <pipe/attention/work_order.hpp>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <tests/support/attention_reference.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "functors.hpp"
#include "simulators/ptx/launch.hpp"

namespace kernel_tests {

namespace at = pipelining::attention;

//! Largest relative error of one rounding to an element.
template <class Element>
inline constexpr double rounding = std::is_same_v<Element, __half> ? 1.0 / 2048 : 1.0 / 256;

//! The PTX file of a build, made by nvcc.
inline std::string text_of(std::string const& file) {
  std::ifstream in(std::string(PIPELINING_PTX_DIRECTORY) + "/" + file + ".ptx");
  REQUIRE_MESSAGE(in.good(), "no PTX ", file);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct sizes {
  std::int64_t batch = 1, queries = 1, query_offset = 0, keys = 1, key_offset = 0, heads = 1,
               key_heads = 1, dim = 64, value_dim = 0; //!< 0 stands for dim
  friend auto operator<=>(sizes const&, sizes const&) = default;
};

//! Whether kernels may write a tensor; what they only read cannot race.
enum access_of_kernels { reads, writes };

//! A tensor [batch, length, heads, dim] with gaps between heads, tokens and sequences that kernels
//! may not touch: each row of a head is an allocation of the interpreter's memory for itself.
template <class Element>
class tensor {
public:
  tensor(ptx::memory& where,
         std::int64_t b,
         std::int64_t l,
         std::int64_t h,
         std::int64_t d,
         access_of_kernels access = writes)
      : where_(where), numbers_(static_cast<std::size_t>((b * l * h + 1) * (d + gap))) {
    auto const first = (16 - reinterpret_cast<std::uintptr_t>(numbers_.data()) % 16) % 16;
    view = {numbers_.data() + first / sizeof(Element),
            b,
            l,
            h,
            d,
            h * l * (d + gap),
            d + gap,
            l * (d + gap)};
    each_row([&](Element* row) {
      where_.add(
        row, static_cast<std::size_t>(d) * sizeof(Element), false, "tensor", access == writes);
    });
  }
  tensor(tensor const&) = delete;
  tensor& operator=(tensor const&) = delete;
  ~tensor() {
    each_row([&](Element* row) { where_.remove(row); });
  }

  //! Normally distributed numbers.
  template <class Random>
  void fill(Random& random) {
    std::normal_distribution<float> normal;
    each_row([&](Element* row) {
      for (std::int64_t x = 0; x < view.dim; ++x) {
        row[x] = static_cast<Element>(normal(random));
      }
    });
    mark();
  }
  void fill_zero() {
    each_row([&](Element* row) { std::fill_n(row, view.dim, static_cast<Element>(0.0f)); });
    mark();
  }
  //! Numbers as numbers() gives them, rounded to elements.
  void set(std::vector<double> const& from) {
    std::size_t n = 0;
    each_row([&](Element* row) {
      for (std::int64_t x = 0; x < view.dim; ++x) {
        row[x] = static_cast<Element>(static_cast<float>(from[n++]));
      }
    });
    mark();
  }
  //! The host has written everything.
  void mark() {
    each_row([&](Element* row) {
      where_.mark(row, static_cast<std::size_t>(view.dim) * sizeof(Element), true);
    });
  }
  //! All numbers, [batch, length, heads, dim] dense.
  std::vector<double> numbers() const {
    std::vector<double> all;
    each_row([&](Element* row) {
      for (std::int64_t x = 0; x < view.dim; ++x) {
        all.push_back(static_cast<double>(static_cast<float>(row[x])));
      }
    });
    return all;
  }

  static constexpr std::int64_t gap = 8;
  at::tensor_view<Element> view;

private:
  template <class Visit>
  void each_row(Visit const& visit) const {
    for (std::int64_t b = 0; b < view.batch; ++b) {
      for (std::int64_t i = 0; i < view.length; ++i) {
        for (std::int64_t h = 0; h < view.heads; ++h) {
          visit(view.row(b, i, h));
        }
      }
    }
  }

  ptx::memory& where_;
  std::vector<Element> numbers_;
};

//! One number per query and head.
class rows {
public:
  rows(ptx::memory& where, std::int64_t b, std::int64_t h, std::int64_t l)
      : where_(where), numbers_(static_cast<std::size_t>(b * h * l + 1)) {
    view = at::dense_rows(numbers_.data(), b, h, l);
    where_.add(numbers_.data(), static_cast<std::size_t>(b * h * l) * sizeof(float));
  }
  rows(rows const&) = delete;
  rows& operator=(rows const&) = delete;
  ~rows() { where_.remove(numbers_.data()); }
  void mark() { where_.mark(numbers_.data(), numbers_.size() * sizeof(float), true); }
  std::vector<double> numbers() const { return {numbers_.begin(), numbers_.end() - 1}; }
  std::vector<float>& memory() { return numbers_; }

  at::row_view<float> view;

private:
  ptx::memory& where_;
  std::vector<float> numbers_;
};

//! A table that a mask or score reads on the device.
template <class Number>
class table {
public:
  table(ptx::memory& where, std::vector<Number> numbers)
      : where_(where), numbers_(std::move(numbers)) {
    where_.add(numbers_.data(), numbers_.size() * sizeof(Number), true, "table", false);
  }
  table(table const&) = delete;
  table& operator=(table const&) = delete;
  ~table() { where_.remove(numbers_.data()); }
  Number const* data() const { return numbers_.data(); }

private:
  ptx::memory& where_;
  std::vector<Number> numbers_;
};

//! A dense tensor of doubles.
struct exact {
  std::int64_t batch, length, heads, dim;
  std::vector<double> numbers;
  at::tensor_view<double> view() {
    return at::dense_tensor(numbers.data(), batch, length, heads, dim);
  }
};

template <class Element>
exact exact_of(tensor<Element> const& t) {
  return {t.view.batch, t.view.length, t.view.heads, t.view.dim, t.numbers()};
}

//! |a - b| / |b| in the Euclidean norm; infinite where a has a NaN or an infinity.
inline double relative_error(std::vector<double> const& a, std::vector<double> const& b) {
  REQUIRE(a.size() == b.size());
  double difference = 0;
  double size = 0;
  for (std::size_t n = 0; n < a.size(); ++n) {
    difference += (a[n] - b[n]) * (a[n] - b[n]);
    size += b[n] * b[n];
  }
  if (!std::isfinite(difference)) {
    return std::numeric_limits<double>::infinity();
  }
  return difference == 0 ? 0 : std::sqrt(difference / size);
}

//! Largest difference, where a NaN or an infinity that is not the other's counts as infinite.
inline double apart(std::vector<double> const& a, std::vector<double> const& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t n = 0; n < a.size(); ++n) {
    if (a[n] == b[n]) { // also -inf
      continue;
    }
    auto const d = std::abs(a[n] - b[n]);
    most = std::isfinite(d) ? std::max(most, d) : std::numeric_limits<double>::infinity();
  }
  return most;
}

inline double largest(std::vector<double> const& a) {
  double most = 0;
  for (double const x : a) {
    most = std::isfinite(x) ? std::max(most, std::abs(x)) : most;
  }
  return most;
}

inline at::parameters parameters_of(sizes const& s) {
  at::parameters p;
  p.batch = s.batch;
  p.query_length = s.queries;
  p.query_offset = s.query_offset;
  p.key_length = s.keys;
  p.key_offset = s.key_offset;
  p.heads = s.heads;
  p.key_heads = s.key_heads;
  p.head_dim = s.dim;
  p.value_dim = s.value_dim;
  return p;
}

//! Tensors of one forward call.
template <class Element>
struct forward_problem {
  forward_problem(ptx::memory& where, sizes const& s, unsigned seed)
      : p(parameters_of(s)), query(where, s.batch, s.queries, s.heads, s.dim, reads),
        key(where, s.batch, s.keys, s.key_heads, s.dim, reads),
        value(where, s.batch, s.keys, s.key_heads, p.dim_of_values(), reads),
        output(where, s.batch, s.queries, s.heads, p.dim_of_values()),
        lse(where, s.batch, s.heads, s.queries) {
    std::mt19937 random(seed);
    query.fill(random);
    key.fill(random);
    value.fill(random);
  }

  template <class Mask, class Score>
  at::detail::forward_call<Element, Mask, Score> call(Mask const& m, Score const& f) const {
    return {p,
            {query.view, key.view, value.view, output.view, lse.view},
            m,
            f,
            static_cast<float>(p.effective_scale())};
  }

  at::parameters p;
  tensor<Element> query, key, value, output;
  rows lse;
};

//! O and the log-sum-exp in double.
struct forward_answers {
  std::vector<double> output, lse;
};

template <class Element, class Mask, class Score>
forward_answers answers_of(forward_problem<Element> const& problem, Mask const& m, Score const& f) {
  auto const& p = problem.p;
  auto q = exact_of(problem.query);
  auto k = exact_of(problem.key);
  auto v = exact_of(problem.value);
  exact o = exact_of(problem.output);
  std::vector<double> lse(static_cast<std::size_t>(p.batch * p.heads * p.query_length));
  auto const rows = at::dense_rows(lse.data(), p.batch, p.heads, p.query_length);
  at::reference_forward(p, {q.view(), k.view(), v.view(), o.view(), rows}, m, f);
  return {std::move(o.numbers), std::move(lse)};
}

//! Inputs and results of one backward call; O and the log-sum-exp come from the double reference.
template <class Element>
struct backward_problem : forward_problem<Element> {
  backward_problem(ptx::memory& where, sizes const& s, unsigned seed)
      : forward_problem<Element>(where, s, seed),
        output_gradient(where, s.batch, s.queries, s.heads, this->p.dim_of_values(), reads),
        query_gradient(where, s.batch, s.queries, s.heads, s.dim),
        key_gradient(where, s.batch, s.keys, s.key_heads, s.dim),
        value_gradient(where, s.batch, s.keys, s.key_heads, this->p.dim_of_values()),
        mean(where, s.batch, s.heads, s.queries) {
    std::mt19937 random(seed + 1000);
    output_gradient.fill(random);
    key_gradient.fill(random); // the running sums hold something already
    value_gradient.fill(random);
  }

  template <class Mask, class Score>
  at::detail::backward_call<Element, Mask, Score> backward_call(Mask const& m,
                                                                Score const& f) const {
    return {this->p,
            {this->query.view,
             this->key.view,
             this->value.view,
             this->output.view,
             this->lse.view,
             output_gradient.view,
             query_gradient.view,
             key_gradient.view,
             value_gradient.view},
            mean.view,
            m,
            f,
            static_cast<float>(this->p.effective_scale())};
  }

  tensor<Element> output_gradient, query_gradient;
  tensor<float> key_gradient, value_gradient;
  rows mean;
};

//! Gradients in double of what a problem holds; its O and log-sum-exp are set on the way.
struct gradients {
  exact query, key, value;
};

//! Sets what backward reads of forward.
template <class Element>
void set_outputs(backward_problem<Element>& problem, forward_answers const& of) {
  problem.output.set(of.output);
  std::transform(of.lse.begin(), of.lse.end(), problem.lse.memory().begin(), [](double x) {
    return static_cast<float>(x);
  });
  problem.lse.mark();
}

template <class Element, class Mask, class Score>
gradients reference_of(backward_problem<Element>& problem, Mask const& m, Score const& f) {
  auto const& p = problem.p;
  auto q = exact_of(problem.query);
  auto k = exact_of(problem.key);
  auto v = exact_of(problem.value);
  auto forward = answers_of(problem, m, f);
  set_outputs(problem, forward);
  exact o = exact_of(problem.output); // rounded: the kernel's dO . O is that of what it reads
  auto g = exact_of(problem.output_gradient);
  gradients result{q, exact_of(problem.key_gradient), exact_of(problem.value_gradient)};
  at::reference_backward(p,
                         {q.view(),
                          k.view(),
                          v.view(),
                          o.view(),
                          at::dense_rows(forward.lse.data(), p.batch, p.heads, p.query_length),
                          g.view(),
                          result.query.view(),
                          result.key.view(),
                          result.value.view()},
                         m,
                         f);
  return result;
}

//! Gradients in double, and what backward reads of forward.
struct backward_answers {
  gradients exactly;
  forward_answers forward;
};

//! reference_of, which is asked once for all problems of a key.
template <class Key, class Element, class Mask, class Score>
gradients const& known_reference_of(std::map<Key, backward_answers>& known,
                                    Key const& key,
                                    backward_problem<Element>& problem,
                                    Mask const& m,
                                    Score const& f) {
  auto const [found, is_new] = known.try_emplace(key);
  auto& [exactly, forward] = found->second;
  if (is_new) {
    exactly = reference_of(problem, m, f);
    forward = {problem.output.numbers(), problem.lse.numbers()};
  } else {
    set_outputs(problem, forward);
  }
  return exactly;
}

//! Largest error of a gradient over the error allowed.
//!
//! Every number is a sum of terms that were rounded to an element once, half a unit of 2^-8 (bf16)
//! or 2^-11 (fp16) at most, and dQ once more. Terms of a sum err independently, so the norm of the
//! error stays below one rounding of the norm of the sum unless the sum cancels; twice that is
//! allowed for what does.
template <class Element, class Number>
double gradient_error(tensor<Number> const& mine, exact const& other) {
  auto const allowed = 2 * rounding<Element>;
  auto const numbers = mine.numbers();
  return std::max(relative_error(numbers, other.numbers) / allowed,
                  apart(numbers, other.numbers) / (2 * allowed * largest(other.numbers) + 1e-6));
}

//! The largest of all gradients that a problem holds.
template <class Element>
double gradient_error(backward_problem<Element> const& problem, gradients const& exactly) {
  return std::max({gradient_error<Element>(problem.query_gradient, exactly.query),
                   gradient_error<Element>(problem.key_gradient, exactly.key),
                   gradient_error<Element>(problem.value_gradient, exactly.value)});
}

//! All numbers of the gradients that a problem holds.
template <class Element>
std::vector<double> all_gradients(backward_problem<Element> const& problem) {
  auto all = problem.query_gradient.numbers();
  for (auto const* more : {&problem.key_gradient, &problem.value_gradient}) {
    auto const numbers = more->numbers();
    all.insert(all.end(), numbers.begin(), numbers.end());
  }
  return all;
}

//! Makes all logits about -98, whose powers are no float once the sign is turned: what a tile holds
//! beyond the last key may not count as a logit of 0.
template <class Element>
void push_logits_down(backward_problem<Element>& problem) {
  auto const set = [](tensor<Element>& of, float first) {
    auto numbers = of.numbers();
    for (std::size_t n = 0; n < numbers.size(); n += static_cast<std::size_t>(of.view.dim)) {
      numbers[n] = first;
    }
    of.set(numbers);
  };
  set(problem.query, 784);
  set(problem.key, -1); // small, since dQ sums it with weights whose roundings do not cancel
}

//! Tile sizes of a backward kernel.
struct backward_tile {
  int keys;
  unsigned threads, shared;
};

//! Blocks that round the sums of a step of so many numbers, and their threads: 16 to a thread.
inline std::pair<unsigned, unsigned> finishing_of(std::int64_t numbers) {
  auto const blocks = numbers % 4096 == 0 ? numbers / 4096 : (numbers + 8191) / 8192;
  return {static_cast<unsigned>(blocks), static_cast<unsigned>(numbers / blocks / 16)};
}

//! How blocks share the work of a backward call, as query_sums has it; a section of 0: all heads.
//! At most so many blocks, which stay; 0: one for each piece, as in the portable kernels.
struct backward_shares {
  std::int32_t parts = 1, section = 0, cut = 0, cut_tiles = at::detail::query_sums{}.cut_tiles;
  unsigned blocks = 0;
};

//! Launches backward: the kernels before and after the sums have the names without "_free".
//! @param sums of dQ, afterwards: rounding hides in which order they were made
//! @param maps what comes before the call as an argument
template <class Call>
ptx::result launch_backward(ptx::memory& where,
                            ptx::module& code,
                            at::kernel_family family,
                            std::string const& name,
                            backward_tile const& tile,
                            Call const& call,
                            ptx::options const& how,
                            std::vector<float>& sums,
                            void* maps = nullptr,
                            backward_shares const& shares = {}) {
  auto const& p = call.p;
  Call argument = call;
  std::vector<float> scratch(static_cast<std::size_t>(at::detail::query_sums::scratch(p, family)) +
                             4);
  where.add(scratch.data(), scratch.size() * 4);
  auto of_call = at::detail::query_sums::in(scratch.data(), p, family);
  of_call.parts = shares.parts;
  of_call.cut_to(shares.cut);
  of_call.cut_tiles = shares.cut_tiles;
  bool const is_free = name.find("_free") != std::string::npos;
  bool const takes_turns = !is_free || at::band_mask<decltype(call.m)>;
  of_call.starts_at_0 = family == at::kernel_family::portable || !takes_turns;
  of_call.is_rounded = family == at::kernel_family::hopper && at::detail::rounds_sums(p, call.m);
  if (shares.section != 0) {
    of_call.section = shares.section;
  }
  std::vector<void*> arguments{&argument, &of_call};
  auto const steps = static_cast<unsigned>(p.batch * p.heads * of_call.steps);
  auto const pieces = static_cast<unsigned>(of_call.blocks(p, tile.keys, family));
  auto const blocks = shares.blocks == 0 ? pieces : std::min(pieces, shares.blocks);
  of_call.pieces = static_cast<std::int32_t>(pieces);
  auto const rounding = finishing_of(at::detail::queries_of_step(family, p.head_dim) * p.head_dim);
  auto const plain = name.substr(0, name.find("_free"));
  auto result = ptx::launch(code, "start_sums_" + plain, {steps}, {128}, 0, arguments.data(), how);
  if (result.clean() && pieces > 0) {
    auto of_kernel = arguments;
    if (maps != nullptr) {
      of_kernel.insert(of_kernel.begin(), maps);
    }
    result = ptx::launch(
      code, "backward_" + name, {blocks}, {tile.threads}, tile.shared, of_kernel.data(), how);
  }
  auto const kernel = result;
  if (result.clean() && !of_call.is_rounded) {
    result = ptx::launch(code,
                         "finish_sums_" + plain,
                         {rounding.first * steps},
                         {rounding.second},
                         0,
                         arguments.data(),
                         how);
  }
  where.remove(scratch.data());
  scratch.resize(static_cast<std::size_t>(of_call.numbers - scratch.data()));
  sums = std::move(scratch);
  return result.clean() ? kernel : result;
}

//! Blocks of a forward launch with tiles of so many queries.
inline unsigned forward_blocks(at::parameters const& p, int queries) {
  return static_cast<unsigned>((p.query_length + queries - 1) / queries * p.heads * p.batch);
}

//! How far O and the log-sum-exp may be from the double reference.
//!
//! A weight is rounded to an element once and so is an output; the sum of weights is not. With
//! |sum w_j v_j| <= max |v|, both errors stay below one rounding of max |v|. The kernel sums and
//! takes powers in float: 2^-20 covers chains of a few hundred terms.
template <class Element>
struct forward_tolerance {
  double output = 0;
  double lse = 0;
  explicit forward_tolerance(std::vector<double> const& value, double largest_logit)
      : output(2 * rounding<Element> * largest(value) + 1e-5), lse(1e-5 + largest_logit * 1e-6) {}
};

//! Errors of O and of the log-sum-exp, over those allowed.
struct forward_errors {
  double output = 0;
  double lse = 0;
};

//! Holds what a forward launch wrote against its answers.
template <class Element>
forward_errors errors_of(forward_problem<Element> const& problem, forward_answers const& right) {
  forward_tolerance<Element> const allowed(problem.value.numbers(), largest(right.lse));
  return {apart(problem.output.numbers(), right.output) / allowed.output,
          apart(problem.lse.numbers(), right.lse) / allowed.lse};
}

//! Holds what a forward launch wrote against the double reference.
template <class Element, class Mask, class Score = at::plain>
forward_errors
errors_of(forward_problem<Element> const& problem, Mask const& m, Score const& f = {}) {
  return errors_of(problem, answers_of(problem, m, f));
}

//! Lengths of chunks and of what comes before them, at random.
inline std::vector<std::pair<std::int64_t, std::int64_t>>
random_chunks(unsigned seed, int count, int most_queries, int most_before) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<std::int64_t> queries(1, most_queries);
  std::uniform_int_distribution<std::int64_t> before(0, most_before);
  std::vector<std::pair<std::int64_t, std::int64_t>> chunks;
  for (int n = 0; n < count; ++n) {
    auto const length = queries(random);
    chunks.emplace_back(length, before(random));
  }
  return chunks;
}

//! 200 positions of three documents, as at::document wants them.
inline std::vector<std::int32_t> three_documents() {
  std::vector<std::int32_t> first(200, 90);
  std::fill_n(first.begin(), 90, 33);
  std::fill_n(first.begin(), 33, 0);
  return first;
}

} // namespace kernel_tests
