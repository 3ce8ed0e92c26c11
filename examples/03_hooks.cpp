// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What you learn: a whole training step in the plan: a weight that first and last stage share, a
// scale of the loss, clipping by the global norm, steps that are skipped on overflow. How to run:
// build/release/bin/03_hooks. Expected output: 3 steps skipped, loss 0.2812 -> 0.0000
#include <pipe/pipe.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <vector>

namespace pp = pipelining;

namespace {

// [snippet sizes]
struct numbers { // what every stage tells all stages at the end of an iteration
  float loss;
  float squared_norm;
  float overflow;
};

// The weight that first and last stage share has one element here.
constexpr pp::uniform_sizes sizes{.message = sizeof(float),
                                  .activation = sizeof(float),
                                  .tied_bytes = sizeof(float),
                                  .totals_bytes = sizeof(numbers)};
// [snippet sizes]

class stage {
public:
  void forward(pp::context const& at, pp::input x, pp::output y);
  void backward(pp::context const& at, pp::input dy, pp::output dx);

  // [snippet tied]
  // First and last stage only: hand over the gradient of the shared weight, then add both, in the
  // order in which they are given. The two copies of the weight stay equal, bit for bit.
  void tied_gradient(pp::context const&, pp::output out) { out.as<float>()[0] = shared_gradient; }
  void add_tied(pp::context const&, pp::input first, pp::input last) {
    shared_gradient = first.as<float>()[0] + last.as<float>()[0];
  }
  // [snippet tied]

  // [snippet contribute]
  // All gradients of this stage are complete. The shared weight counts once, on the first stage.
  void contribute(pp::context const& at, pp::output row) {
    float const own = gradient / scale;
    float const shared = at.stage == 0 ? shared_gradient / scale : 0;
    float const squared = own * own + shared * shared;
    row.as<numbers>()[0] = {loss, squared, std::isfinite(gradient + shared_gradient) ? 0.0F : 1.0F};
  }
  // [snippet contribute]

  // [snippet step]
  // All stages read the same rows in the same order, so all come to the same decision.
  void optimizer_step(pp::context const&, pp::totals const& all) {
    numbers sum{};
    for (int s = 0; s < all.rows; ++s) {
      numbers const& row = all.row<numbers>(s)[0];
      sum.loss += row.loss;
      sum.squared_norm += row.squared_norm;
      sum.overflow += row.overflow;
    }
    loss_of_all = sum.loss;
    if (sum.overflow == 0) {
      float const norm = std::sqrt(sum.squared_norm);
      float const rate = 0.05F / scale * (norm > 1 ? 1 / norm : 1);
      weight -= rate * gradient;
      shared_weight -= rate * shared_gradient;
    } else {
      scale /= 2;
      ++skipped;
    }
    gradient = shared_gradient = loss = 0;
  }
  // [snippet step]

  float loss_of_all = 0;
  float shared_weight = 1;
  int skipped = 0;

private:
  [[nodiscard]] float error(float y) const { return y * shared_weight - 0.25F; }

  float weight = 1;
  float gradient = 0;
  float shared_gradient = 0;
  float scale = 0x1p127F; // as a stage of half precision would choose it: too large at first
  float loss = 0;
};

// The model: y = shared * w3 * w2 * w1 * w0 * shared * x, which should be 1 / 4 for every x = 1.
void stage::forward(pp::context const& at, pp::input x, pp::output y) {
  float const in = x.data == nullptr ? shared_weight : x.as<float>()[0];
  at.activation.as<float>()[0] = in;
  if (y.data != nullptr)
    y.as<float>()[0] = weight * in;
  else // the loss is where it is made, and nowhere else
    loss += error(weight * in) * error(weight * in) / 2;
}

void stage::backward(pp::context const& at, pp::input dy, pp::output dx) {
  float const in = at.activation.as<float>()[0];
  float from_behind = 0;
  if (dy.data != nullptr) {
    from_behind = dy.as<float>()[0];
  } else {
    // [snippet scale]
    float const loss_gradient = error(weight * in) * scale; // the loss stage alone scales
    // [snippet scale]
    shared_gradient += loss_gradient * weight * in;
    from_behind = loss_gradient * shared_weight;
  }
  gradient += from_behind * in;
  if (dx.data != nullptr)
    dx.as<float>()[0] = from_behind * weight;
  else
    shared_gradient += from_behind * weight;
}

} // namespace

int main() {
  std::vector<stage> stages(4);
  pp::plan const plan = pp::lower(pp::timetable<pp::OneFOneB, 4, 4>, sizes);
  pp::thread_runner runner(plan, stages);
  runner.step();
  float const first = stages.front().loss_of_all / 4;
  for (int step = 1; step < 200; ++step)
    runner.step();
  float const last = stages.front().loss_of_all / 4;
  std::printf("%d steps skipped, loss %.4f -> %.4f\n",
              stages.front().skipped,
              static_cast<double>(first),
              static_cast<double>(last));
  bool const tied = stages.front().shared_weight == stages.back().shared_weight;
  return tied && stages.front().skipped > 0 && last < 0.001F * first ? 0 : 1;
}
