// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Sends, receives, groups and lanes. The rules are NCCL 2.28.9's; each test says which.
#include <doctest/doctest.h>

#include "ranks.hpp"

namespace {

using standin::finding;

// Peers are connected, as they are after a first exchange.
standin::configuration rendezvous() {
  standin::configuration c;
  c.lazy_connect = false;
  return c;
}
standin::configuration buffered() {
  standin::configuration c = rendezvous();
  c.buffered_bytes = 1 << 20;
  return c;
}

} // namespace

TEST_CASE("a message arrives, on every machine") {
  standin::for_each_machine(
    {}, 5, [](standin::configuration const& how, std::string const& machine) {
      CAPTURE(machine);
      on_ranks(how, 2, 1, [](rank_resources& r) {
        if (r.rank == 0)
          CHECK(r.send(1, 1) == ncclSuccess);
        if (r.rank == 1) {
          CHECK(r.receive(2, 0) == ncclSuccess);
          CHECK(cudaStreamSynchronize(r.on[0]) == cudaSuccess);
          CHECK(int{r.buffer[2][255]} == 1);
        }
      });
      CHECK(standin::summary() == "");
      CHECK(standin::counters().messages == 1);
      CHECK(standin::counters().stolen_turns == 0);
    });
}

TEST_CASE("a message arrives with a changed bit, or as an earlier one, if the machine is made so") {
  for (std::size_t const buffer : {0U, 4096U})
    for (bool const earlier : {false, true}) {
      standin::configuration how = rendezvous();
      how.buffered_bytes = buffer;
      how.corrupted = {{.from = 0, .to = 1, .message = 3, .byte = 255}};
      if (earlier)
        how.corrupted.front().instead = 1;
      on_ranks(how, 2, 1, [&](rank_resources& r) {
        for (std::size_t i = 0; i < 4; ++i)
          CHECK((r.rank == 0 ? r.send(i, 1) : r.receive(i, 0)) == ncclSuccess);
        CHECK(cudaStreamSynchronize(r.on[0]) == cudaSuccess);
        for (int i = 0; i < 4; ++i) {
          unsigned char const* const held = r.buffer[static_cast<std::size_t>(i)];
          int const expected = r.rank == 1 && earlier && i == 2 ? 0 : i;
          CHECK(int{held[0]} == expected);
          CHECK(int{held[255]} == (r.rank == 1 && !earlier && i == 2 ? i ^ 4 : expected));
        }
      });
      CHECK(standin::summary() == "");
    }
}

// Both ends that send first hang with large messages and work with small ones.
TEST_CASE("send before receive on both ends: hangs in rendezvous, passes when buffered") {
  auto const both = [](rank_resources& r) {
    (void)r.send(0, 1 - r.rank);
    (void)r.receive(1, 1 - r.rank);
    cudaStreamSynchronize(r.on[0]);
  };
  on_ranks(rendezvous(), 2, 1, both);
  REQUIRE(standin::found(finding::deadlock));
  CAPTURE(standin::summary());
  CHECK(somebody_waits({"ncclSend to 1",
                        "rank 0",
                        "waits for ncclRecv from 0",
                        "rank 1",
                        "stands after ncclSend to 0"}));
  CHECK(somebody_waits({"rank 0 waits in cudaStreamSynchronize"}));
  on_ranks(buffered(), 2, 1, both);
  CHECK(standin::summary() == "");
}

TEST_CASE("buffering ends where the window ends") {
  for (std::size_t window : {256, 511, 512}) {
    standin::configuration how = rendezvous();
    how.buffered_bytes = window;
    on_ranks(how, 2, 1, [](rank_resources& r) {
      (void)r.send(0, 1 - r.rank);
      (void)r.send(1, 1 - r.rank);
      (void)r.receive(2, 1 - r.rank);
      (void)r.receive(3, 1 - r.rank);
      cudaStreamSynchronize(r.on[0]);
    });
    CHECK(standin::found(finding::deadlock) == (window < 512));
  }
}

TEST_CASE("a group exchanges in both directions") {
  on_ranks(rendezvous(), 2, 1, [](rank_resources& r) {
    ncclGroupStart();
    (void)r.send(0, 1 - r.rank);
    (void)r.receive(1, 1 - r.rank);
    CHECK(ncclGroupEnd() == ncclSuccess);
    cudaStreamSynchronize(r.on[0]);
    CHECK(int{r.buffer[1][0]} == 16 * (1 - r.rank));
  });
  CHECK(standin::summary() == "");
}

// Groups must mirror each other: grouping on one side only is undefined.
TEST_CASE("a group on one side only is reported") {
  for (bool mirrored : {false, true}) {
    on_ranks(rendezvous(), 2, 1, [&](rank_resources& r) {
      if (r.rank == 0 || mirrored)
        ncclGroupStart();
      (void)r.receive(1, 1 - r.rank);
      (void)r.send(0, 1 - r.rank);
      if (r.rank == 0 || mirrored)
        ncclGroupEnd();
      cudaStreamSynchronize(r.on[0]);
    });
    CHECK(standin::found(finding::unmirrored_group) == !mirrored);
    CHECK(!standin::found(finding::deadlock));
  }
}

// Matching is FIFO per communicator and ordered pair of ranks; there are no tags.
TEST_CASE("messages of one pair match in order, and in order inside a group") {
  on_ranks(rendezvous(), 2, 1, [](rank_resources& r) {
    if (r.rank == 0) {
      (void)r.send(3, 1);
      ncclGroupStart();
      (void)r.send(1, 1);
      (void)r.send(2, 1);
      ncclGroupEnd();
      return;
    }
    (void)r.receive(0, 0);
    ncclGroupStart();
    (void)r.receive(1, 0);
    (void)r.receive(2, 0);
    ncclGroupEnd();
    cudaStreamSynchronize(r.on[0]);
    CHECK(int{r.buffer[0][0]} == 3);
    CHECK(int{r.buffer[1][0]} == 1);
    CHECK(int{r.buffer[2][0]} == 2);
  });
  CHECK(standin::summary() == "");
}

TEST_CASE("sizes and types of the two ends must agree") {
  for (int planted = 0; planted < 3; ++planted) {
    on_ranks(rendezvous(), 2, 1, [&](rank_resources& r) {
      if (r.rank == 0)
        ncclSend(r.buffer[0], planted == 1 ? 60 : 64, ncclFloat, 1, r.comm[0], r.on[0]);
      if (r.rank == 1)
        ncclRecv(r.buffer[1], 64, planted == 2 ? ncclInt32 : ncclFloat, 0, r.comm[0], r.on[0]);
      cudaStreamSynchronize(r.on[0]);
    });
    CHECK(standin::found(finding::mismatch) == (planted != 0));
    CHECK(standin::found(finding::deadlock) == (planted == 1));
  }
}

// One communicator is one lane: its kernels follow each other whatever their streams are.
TEST_CASE("a receive posted early blocks a later send of the same communicator on another stream") {
  auto const early = [](int lanes) {
    return [lanes](rank_resources& r) {
      std::size_t const other = lanes == 2 ? 1 : 0;
      // Rank 0 posts its receive first; rank 1 answers only what it has received.
      if (r.rank == 0) {
        (void)r.receive(1, 1, 1, other);
        (void)r.send(0, 1, 0, 0);
      } else {
        (void)r.receive(1, 0, 0, 0);
        cudaEvent_t arrived{};
        cudaEventCreate(&arrived);
        cudaEventRecord(arrived, r.on[0]);
        cudaStreamWaitEvent(r.on[1], arrived, 0);
        (void)r.send(1, 0, 1, other);
      }
      cudaDeviceSynchronize();
    };
  };
  standin::configuration how = rendezvous();
  on_ranks(how, 2, 1, early(1));
  CHECK(standin::found(finding::deadlock));
  CHECK(somebody_waits({"ncclRecv from 1", "rank 0", "waits for ncclSend to 0"}));
  on_ranks(how, 2, 2, early(2));
  CHECK(standin::summary() == "");
  how.resident_nccl_kernels = 1; // and where only one NCCL kernel fits, lanes are no help
  on_ranks(how, 2, 2, early(2));
  CHECK(standin::found(finding::deadlock));
  CHECK(somebody_waits({"waits for room on device 0"}));
}

// The first use of a peer is a handshake of the two hosts.
TEST_CASE("connecting a peer blocks the host until the peer connects too") {
  for (bool first_use : {false, true}) {
    standin::configuration how = buffered();
    how.lazy_connect = first_use;
    on_ranks(how, 2, 1, [](rank_resources& r) {
      (void)r.send(0, 1 - r.rank); // if it is the first use, this call needs the peer's receive
      (void)r.receive(1, 1 - r.rank);
      cudaStreamSynchronize(r.on[0]);
    });
    CHECK(standin::found(finding::deadlock) == first_use);
    CHECK(somebody_waits({"rank 0", "first use of a peer", "waits for rank 1 to receive"}) ==
          first_use);
  }
}

TEST_CASE("a peer's first use after freeze() is reported") {
  for (bool connected : {false, true}) {
    on_ranks({}, 2, 1, [&](rank_resources& r) {
      for (int round = 0; round < 2; ++round) {
        if (round == 0 && !connected)
          continue;
        if (round == 1 && r.rank == 0)
          standin::freeze();
        if (r.rank == 0)
          (void)r.send(0, 1);
        if (r.rank == 1)
          (void)r.receive(0, 0);
        cudaStreamSynchronize(r.on[0]);
      }
    });
    CHECK(standin::found(finding::late_setup) == !connected);
  }
}

TEST_CASE("a message to oneself needs both halves in one group") {
  on_ranks(rendezvous(), 1, 1, [](rank_resources& r) {
    CHECK(r.send(0, 0) == ncclInvalidUsage);
    CHECK(standin::found(finding::misuse));
    ncclGroupStart();
    CHECK(r.send(3, 0) == ncclSuccess);
    CHECK(r.receive(1, 0) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclSuccess);
    cudaStreamSynchronize(r.on[0]);
    CHECK(int{r.buffer[1][17]} == 3);
  });
}

TEST_CASE("messages of no bytes are legal and match") {
  on_ranks(rendezvous(), 2, 1, [](rank_resources& r) {
    if (r.rank == 0)
      CHECK(ncclSend(r.buffer[0], 0, ncclFloat, 1, r.comm[0], r.on[0]) == ncclSuccess);
    if (r.rank == 1)
      CHECK(ncclRecv(r.buffer[0], 0, ncclFloat, 0, r.comm[0], r.on[0]) == ncclSuccess);
    cudaStreamSynchronize(r.on[0]);
  });
  CHECK(standin::summary() == "");
  CHECK(standin::counters().messages == 1);
}

TEST_CASE("send buffers are read and receive buffers written until the kernel ends") {
  for (int planted = 0; planted < 3; ++planted) {
    CAPTURE(planted);
    on_ranks(rendezvous(), 2, 1, [&](rank_resources& r) {
      cudaEvent_t finished{};
      cudaEventCreate(&finished);
      if (r.rank == 0) {
        (void)r.send(0, 1);
        cudaEventRecord(finished, r.on[0]);
        if (planted != 1)
          cudaStreamWaitEvent(r.on[1], finished, 0);
        cudaMemsetAsync(r.buffer[0], 5, r.bytes, r.on[1]);
      } else {
        (void)r.receive(1, 0);
        cudaEventRecord(finished, r.on[0]);
        if (planted != 2)
          cudaStreamWaitEvent(r.on[1], finished, 0);
        cudaMemcpyAsync(r.buffer[2], r.buffer[1], r.bytes, cudaMemcpyDeviceToDevice, r.on[1]);
      }
      cudaDeviceSynchronize();
    });
    CHECK(standin::summary().empty() == (planted == 0));
    bool const overwrite =
      standin::found(finding::overwrite_in_use) || standin::found(finding::use_before_ready);
    CHECK(overwrite == (planted != 0));
  }
}

// A message orders its receiver after its sender and, as it may be buffered, not its sender after
// its receiver.
TEST_CASE("an empty message is a token that hands memory over, in one direction") {
  for (bool backwards : {false, true}) {
    unsigned char* shared = nullptr;
    on_ranks(rendezvous(), 2, 1, [&](rank_resources& r) {
      if (r.rank == 0) {
        shared = r.buffer[0];
        if (!backwards)
          cudaMemsetAsync(shared, 77, r.bytes, r.on[0]);
        (void)ncclSend(r.buffer[1], 0, ncclUint8, 1, r.comm[0], r.on[0]);
        if (backwards)
          cudaMemsetAsync(shared, 77, r.bytes, r.on[0]);
        cudaStreamSynchronize(r.on[0]);
      } else {
        standin::wait_until([&] { return shared != nullptr; }, "the address");
        (void)ncclRecv(r.buffer[1], 0, ncclUint8, 0, r.comm[0], r.on[0]);
        cudaMemcpyPeerAsync(r.buffer[2], 1, shared, 0, r.bytes, r.on[0]);
        cudaStreamSynchronize(r.on[0]);
      }
    });
    CHECK(standin::summary().empty() == !backwards);
  }
}

TEST_CASE("members of one group must not share memory") {
  on_ranks(rendezvous(), 2, 1, [](rank_resources& r) {
    ncclGroupStart();
    (void)r.send(0, 1 - r.rank);
    (void)r.receive(0, 1 - r.rank);
    ncclGroupEnd();
    cudaDeviceSynchronize();
  });
  CHECK(standin::found(finding::overwrite_in_use));
}

// A group orders all its streams.
TEST_CASE("a group over two streams waits for both and both wait for it") {
  on_ranks(rendezvous(), 2, 1, [](rank_resources& r) {
    cudaMemsetAsync(r.buffer[0], 40 + r.rank, r.bytes, r.on[0]);
    ncclGroupStart();
    (void)r.send(0, 1 - r.rank, 0);
    (void)r.receive(1, 1 - r.rank, 1);
    ncclGroupEnd();
    cudaMemcpyAsync(r.buffer[2], r.buffer[1], r.bytes, cudaMemcpyDeviceToDevice, r.on[0]);
    cudaMemsetAsync(r.buffer[0], 0, r.bytes, r.on[1]);
    cudaDeviceSynchronize();
    CHECK(int{r.buffer[2][0]} == 41 - r.rank);
  });
  CHECK(standin::summary() == "");
}

TEST_CASE("a bad call spoils its whole group, and an extra end is refused") {
  on_ranks(rendezvous(), 1, 1, [](rank_resources& r) {
    ncclGroupStart();
    CHECK(ncclSend(r.buffer[0], 1, ncclFloat, 0, nullptr, r.on[0]) == ncclInvalidArgument);
    CHECK(ncclGroupEnd() == ncclInvalidArgument);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    CHECK(ncclSend(r.buffer[0], 1, ncclFloat, 3, r.comm[0], r.on[0]) == ncclInvalidArgument);
  });
}

TEST_CASE("two runs with one seed make the same choices, two seeds do not") {
  auto const run = [](std::uint64_t seed) {
    standin::configuration how;
    how.execution = standin::order::random;
    how.seed = seed;
    on_ranks(how, 4, 1, [](rank_resources& r) {
      for (int i = 0; i < 3; ++i) {
        if (r.rank > 0)
          (void)r.receive(1, r.rank - 1);
        if (r.rank < 3)
          (void)r.send(1, r.rank + 1);
      }
      cudaDeviceSynchronize();
    });
    CHECK(standin::summary() == "");
    CHECK(standin::counters().stolen_turns == 0);
    return standin::order_hash();
  };
  CHECK(run(3) == run(3));
  CHECK(run(3) != run(4));
}
