// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Stages on the host as the library and trainers call them, with their parameters; these
//! may be in shards.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "../clipped_stage.hpp"
#include "../stage.hpp"
#include "machine.hpp"

namespace gpt {

//! A stage as the library calls it, whose weights are parameters of the host. These may be in
//! pieces, as many of each as there are shards, with their gradients and the averages of the
//! optimizer. A real group has each shard on a device of its own; here all lie in this process, and
//! whole weights exist while they are gathered alone.
template <class Stage>
class trained_on_host : public Stage {
public:
  using number = typename Stage::number;
  using Stage::Stage;

  void run_half(pp::pass_kind kind, pp::composite_half const& given, int half = 0) {
    gpt::run_half(static_cast<Stage&>(*this), kind, given, half);
  }

  void set_batch(batch const& pieces) { this->set_text(pieces.bytes, {}); }
  [[nodiscard]] double loss() const {
    return this->loss_sum() / static_cast<double>(this->cut_.tokens());
  }
  //! Calls visit(parameter) for each parameter, in the order of the layers; where they are in
  //! shards, for each piece.
  template <class Visit>
  void for_each_parameter(Visit visit) {
    auto& all = pieces_.empty() ? this->weights_ : pieces_;
    std::for_each(all.begin(), all.end(), visit);
  }
  //! What these are in the whole model. A piece of a shard is a run of numbers, under a name of
  //! its own.
  [[nodiscard]] std::vector<tensor_part> parts() const {
    if (pieces_.empty())
      return this->parts_;
    auto const shards = static_cast<std::int64_t>(pieces_.size() / this->parts_.size());
    return pieces_of(this->parts_, shards, {0, shards});
  }
  //! Calls with(bytes) of what the next step depends on, tensor by tensor; it may write there.
  template <class Visit>
  void exchange(Visit const& with) {
    for_each_parameter([&](parameter<number>& p) {
      for (auto* const numbers : {&p.value, &p.mean, &p.square})
        with(std::as_writable_bytes(std::span(*numbers)));
    });
    refresh();
  }
  void update(adamw const& optimizer, std::int64_t step) {
    for_each_parameter([&](parameter<number>& p) { optimizer.update(p, step); });
    refresh();
  }
  // With clipping as part of the plan.
  void set_clipping(clipping const& chosen) { optimizer_.how = &chosen; }
  void contribute(pp::context const&, pp::output out) { out.as<gradient_row>()[0] = row_of(*this); }
  void optimizer_step(pp::context const&, pp::totals const& all) { optimizer_.step(*this, all); }
  void roll_back(pp::context const&) { optimizer_.roll_back(*this); }
  [[nodiscard]] step_counts counts() const { return optimizer_.counts; }
  [[nodiscard]] std::int64_t rolled_back() const { return optimizer_.rolled_back; }
  //! @pre no step is still to be validated
  void set_counts(step_counts const& counts) { optimizer_.counts = counts; }

  void refresh() {
    if (pieces_.empty())
      refresh_matrices(); // else when they have been gathered
  }
  //! To be called before backward passes, when others than these weights have been used.
  void refresh_matrices() {
    for (auto& each : this->weights_)
      each.refresh();
  }

  //! Takes the parameters apart. From now on passes need weights that have been gathered, and
  //! memory for gradients. No shards: the parameters are elsewhere.
  void shard(std::int64_t shards) {
    for (auto& whole : this->weights_) {
      for (std::int64_t shard = 0; shard < shards; ++shard) {
        auto const part = piece_of(whole.numbers, shard, shards);
        auto& piece = pieces_.emplace_back(part.count(), number{0}, whole.decays);
        std::copy_n(whole.value.begin() + part.begin, part.count(), piece.value.begin());
      }
      whole.leave_numbers();
    }
  }
  //! Numbers of whole gradients, and of whole weights with transposed matrices.
  [[nodiscard]] std::int64_t gradient_numbers() const {
    std::int64_t sum = 0;
    for (auto const& each : this->weights_)
      sum += each.numbers;
    return sum;
  }
  [[nodiscard]] std::int64_t weight_numbers() const {
    auto sum = gradient_numbers();
    for (auto const& each : this->weights_)
      sum += each.decays ? each.numbers : 0;
    return sum;
  }
  //! Passes read weights from here, and transposed matrices after them.
  void use(number* weights) { use(weights, weights + gradient_numbers()); }
  //! The same with the transposed matrices elsewhere.
  void use(number* weights, number* transposes) {
    for (auto& each : this->weights_) {
      each.value_elsewhere = std::exchange(weights, weights + each.numbers);
      if (each.decays)
        each.across_elsewhere = std::exchange(transposes, transposes + each.numbers);
    }
  }
  //! Passes add their gradients to what is here, [gradient_numbers].
  void add_gradients_to(number* to) {
    for (auto& each : this->weights_)
      each.gradient_elsewhere = std::exchange(to, to + each.numbers);
  }

  // With weights in shards.
  void gather_weights(pp::context const&, pp::output out) {
    auto* to = out.as<number>().data();
    use(to);
    for (auto const& piece : pieces_)
      to = std::copy(piece.value.begin(), piece.value.end(), to);
    refresh_matrices();
  }
  void use_weights(pp::context const&, pp::input in) {
    use(reinterpret_cast<number*>(only_read(in)));
  }
  void collect_gradients(pp::context const&, pp::output out) { collect(out.as<number>().data()); }
  void collect(number* to) {
    std::fill_n(to, gradient_numbers(), number{0});
    add_gradients_to(to);
  }
  void scatter_gradients(pp::context const&, pp::input in) {
    auto const* from = in.as<number>().data();
    for (auto& piece : pieces_)
      for (auto& x : piece.gradient)
        x += *from++;
  }

private:
  //! Parameter by parameter, shard by shard; empty: parameters are whole, or elsewhere.
  std::vector<parameter<number>> pieces_;
  clipped_optimizer<number> optimizer_{};
};

//! A stage of layers, or of parts of them.
template <class Number>
class host_stage : public trained_on_host<stage<host_machine<Number>>> {
public:
  host_stage(model_size const& size,
             layer_range layers,
             step_cut cut,
             std::uint64_t seed,
             host::device_work<Number>& work)
      : trained_on_host<stage<host_machine<Number>>>(
          parts_of(size, layers), seed, {size, layers, std::move(cut), &work}) {
    check(size);
  }
};

// Messages between stages that no plan moves.

template <class Number>
[[nodiscard]] pp::output message_in(std::vector<Number>& numbers) {
  return {0,
          reinterpret_cast<std::byte*>(numbers.data()),
          static_cast<std::int64_t>(numbers.size() * sizeof(Number))};
}
[[nodiscard]] inline pp::input read(pp::buffer const& of) {
  return {of.slot, of.data, of.bytes};
}

//! Slots of a stage that no plan has, of the units of one microbatch at once.
class own_slots {
public:
  //! For a pass of a unit. @param stage tells its cut, and its bytes
  template <class Stage>
  [[nodiscard]] pp::context at(Stage const& stage, unit u) {
    using enum pp::slot_class;
    auto const chunks = static_cast<std::size_t>(stage.cut().chunks(u.microbatch));
    units_.resize(std::max(units_.size(), chunks));
    auto& of_unit = units_[static_cast<std::size_t>(u.chunk)];
    pp::context where;
    where.microbatch = static_cast<int>(u.microbatch);
    where.chunk = static_cast<int>(u.chunk);
    auto const put = [&](pp::slot_class of, std::vector<std::byte>& memory, pp::buffer& to) {
      memory.resize(std::max(memory.size(), static_cast<std::size_t>(stage.bytes(of, u))));
      to = {0, memory.data(), static_cast<std::int64_t>(memory.size())};
    };
    put(activation, of_unit.kept, where.activation);
    put(weight_input, of_unit.between, where.weight_input);
    put(sequence, state_, where.state);
    put(sequence_gradient, state_gradient_, where.state_gradient);
    return where;
  }

private:
  struct unit_slots {
    std::vector<std::byte> kept, between;
  };
  std::vector<unit_slots> units_{}; // chunks
  std::vector<std::byte> state_{}, state_gradient_{};
};

//! Adds up the gradients of two copies of a stage: both have the sum then.
template <class Stage>
void add_copies(Stage& stage, Stage& copy) {
  using number = typename Stage::number;
  std::vector<parameter<number>*> mine;
  stage.for_each_parameter([&](parameter<number>& p) { mine.push_back(&p); });
  std::size_t next = 0;
  copy.for_each_parameter([&](parameter<number>& theirs) {
    auto& sum = mine[next++]->gradient;
    for (std::size_t i = 0; i < sum.size(); ++i)
      sum[i] += theirs.gradient[i];
    theirs.gradient = sum;
  });
}

} // namespace gpt
