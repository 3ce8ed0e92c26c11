// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/helix_pipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/stp.hpp>
#include <pipe/schedule/wei_pipe.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/adapt/with_sharded_weights.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/view/pytorch/write_csv.hpp>

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace pp = pipelining;

namespace {

std::string written(pp::device_orders const& orders,
                    pp::pytorch_content content,
                    pp::pytorch_release release = pp::pytorch_release::v2_15) {
  std::string text;
  pp::timetable_view const view{
    .over = orders.over, .passes = orders.passes.data(), .offsets = orders.offsets.data()};
  pp::write_pytorch_csv(text, view, content, release);
  return text;
}

} // namespace

TEST_CASE("passes alone, and with each message as soon as its pass has run") {
  auto const orders = pp::make_orders(pp::OneFOneB{}, {2, 2});
  CHECK(written(orders, pp::pytorch_content::passes) == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  // A hand calculation, one pass per device and round. Device 1 can run F0 in the round in which
  // device 0 has, so 1RECV_F1 comes after it.
  CHECK(written(orders, pp::pytorch_content::passes_and_messages, pp::pytorch_release::v2_10) ==
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD\n"
        "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD\n");
  CHECK(written(orders, pp::pytorch_content::passes_and_messages) ==
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0WAIT_SEND_F0,0RECV_B1,0B1,0WAIT_SEND_F1,"
        "0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n"
        "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,"
        "1WAIT_SEND_B0,1WAIT_SEND_B1\n");
}

TEST_CASE("overlapped pairs are one cell") {
  auto const orders = pp::make_orders(pp::DualPipeV<>{}, {1, 4});
  std::string const text = written(orders, pp::pytorch_content::passes);
  CHECK(text.find(",(0F3;1B2)OVERLAP_F_B,") != text.npos);
}

TEST_CASE("what the format cannot say is refused") {
  CHECK_THROWS_WITH_AS(
    written(pp::make_orders(pp::Seq1F1B<2>{}, {2, 2}), pp::pytorch_content::passes),
    "write_pytorch_csv: PyTorch's format has no chunks of sequences",
    std::invalid_argument);
  CHECK_THROWS_AS(written(pp::make_orders(pp::DualPipe<>{}, {2, 4}), pp::pytorch_content::passes),
                  std::invalid_argument);
  CHECK_THROWS_WITH_AS(
    written(pp::make_orders(pp::HelixPipe<>{}, {2, 4}), pp::pytorch_content::passes),
    "write_pytorch_csv: PyTorch's format has one device for every stage, but "
    "here it depends on the microbatch",
    std::invalid_argument);
  CHECK_THROWS_WITH_AS(written(pp::make_orders(pp::STP<>{}, {2, 5}), pp::pytorch_content::passes),
                       "write_pytorch_csv: PyTorch's pairs are of a forward pass and a backward "
                       "pass, not 0F4 and 3W0; "
                       "run such pairs in turn",
                       std::invalid_argument);
  CHECK_NOTHROW(written(pp::make_orders(pp::STP<pp::pairs::in_turn>{}, {2, 5}),
                        pp::pytorch_content::passes_and_messages));
  auto const table = pp::make_timetable(pp::OneFOneB{}, {2, 1});
  pp::flow own = pp::training;
  own.kinds[static_cast<std::size_t>(pp::pass_kind::backward)].calls = pp::stage_call::perform;
  pp::timetable_view view = table;
  view.over.declared = &own;
  std::string text;
  CHECK_THROWS_WITH_AS(
    pp::write_pytorch_csv(text, view),
    "write_pytorch_csv: PyTorch's format has no action for kind backward; it has "
    "forward and backward passes alone",
    std::invalid_argument);
  char const* const hands_on = "write_pytorch_csv: PyTorch's stages go forward and back: they hand "
                               "activations to the stage after them and gradients to the one "
                               "before, which this flow does not";
  CHECK_THROWS_WITH_AS(written(pp::make_orders(pp::WeiPipe{}, {1, 2}), pp::pytorch_content::passes),
                       hands_on,
                       std::invalid_argument);
  for (pp::pass_kind const kind : {pp::pass_kind::backward, pp::pass_kind::backward_input})
    own.kinds[static_cast<std::size_t>(kind)].calls = pp::stage_call::copy; // nothing goes back
  CHECK_THROWS_WITH_AS(pp::write_pytorch_csv(text, view), hands_on, std::invalid_argument);
  auto orders = pp::make_orders(pp::OneFOneB{}, {2, 1});
  std::swap(orders.passes[2], orders.passes[3]);
  CHECK_THROWS_WITH_AS(written(orders, pp::pytorch_content::passes_and_messages),
                       "write_pytorch_csv: the order of passes is circular; verify names the pass",
                       std::invalid_argument);
}

TEST_CASE("weights in shards are gathered and released by the file; the rest is as without") {
  auto const plain = pp::make_orders(pp::Interleaved<2>{}, {2, 4});
  auto const sharded = pp::make_orders(pp::with_sharded_weights<pp::Interleaved<2>>{}, {2, 4});
  CHECK(written(sharded, pp::pytorch_content::passes) ==
        written(plain, pp::pytorch_content::passes));
  auto const small = pp::make_orders(pp::with_sharded_weights<pp::OneFOneB>{}, {2, 1});
  CHECK(written(small, pp::pytorch_content::passes_and_messages, pp::pytorch_release::v2_10) ==
        "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n"
        "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1RESHARD\n");
}

TEST_CASE("recomputation and copies to the host are within the passes of torch") {
  using pp::pytorch_content;
  for (pytorch_content const content :
       {pytorch_content::passes, pytorch_content::passes_and_messages}) {
    std::string const plain = written(pp::make_orders(pp::OneFOneB{}, {3, 4}), content);
    CHECK(written(pp::make_orders(pp::with_recompute<pp::OneFOneB>{}, {3, 4}), content) == plain);
    CHECK(written(pp::make_orders(pp::with_offload<pp::OneFOneB>{}, {3, 4}), content) == plain);
    std::string copied;
    pp::uniform_cost const cost{.copy_out = 0.5, .copy_in = 0.5};
    pp::write_pytorch_csv(
      copied, pp::make_timetable(pp::with_offload<pp::OneFOneB>{}, {3, 4}, cost), content);
    CHECK(copied == plain);
  }
}
