#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What torch.distributed.pipelining takes for what our benchmarks measure, as JSON lines: making the orders of a schedule
with their sends and receives (processor time; nothing is verified or proven), how long steps of stages that sleep take
beside their plan, and what a pass costs where stages do nothing.

usage: torch_peers.py making DEVICES MICROBATCHES
       torch_peers.py arithmetic    products and attention on one thread, in GFLOP/s of processor time
       torch_peers.py reality
       torch_peers.py overhead DEVICES MICROBATCHES
"""
import json
import logging
import sys
import tempfile
import time

import torch
import torch.distributed
from torch.distributed.pipelining import PipelineStage, schedules

# torch's class, our name, the stages of the first device
MADE = [("ScheduleInterleaved1F1B", "interleaved, V = 2", lambda devices: [0, devices]),
        ("ScheduleInterleavedZeroBubble", "zb-interleaved, V = 2", lambda devices: [0, devices]),
        ("ScheduleZBVZeroBubble", "zb-v, unit costs", lambda devices: [0, 2 * devices - 1]),
        ("ScheduleDualPipeV", "dualpipe-v", lambda devices: [0, 2 * devices - 1])]
DEVICES, MICROBATCHES, PASS_SECONDS, STEPS = 4, 16, 0.02, 5
OVERHEAD_STEPS = 21


def loss_of(output, _target):
    return output.sum()


def passes_of(schedule):
    """F, I, W and whole B, each as one of our passes; a pair is two."""
    count = 0
    for row in schedule.pipeline_order.values():
        for action in row:
            if action is not None:
                count += len(action.sub_actions) if getattr(action, "sub_actions", None) else 1
    return count


def making(devices, microbatches):
    from torch.testing._internal.distributed.fake_pg import FakeStore
    torch.distributed.init_process_group("fake", rank=0, world_size=devices, store=FakeStore())
    for word, name, own in MADE:
        stages = [PipelineStage(torch.nn.Identity(), index, 2 * devices, torch.device("cpu")) for index in own(devices)]
        least = float("inf")
        for _ in range(3 if microbatches < 100 else 1):  # the large ones take seconds
            start = time.process_time()
            schedule = getattr(schedules, word)(stages, n_microbatches=microbatches, loss_fn=loss_of)
            least = min(least, time.process_time() - start)
        if not getattr(schedule, "pipeline_order_with_comms", None):
            raise SystemExit(f"torch_peers: {word} of torch {torch.__version__} has no sends and receives yet")
        print(json.dumps({"torch": torch.__version__, "schedule": name, "devices": devices, "microbatches": microbatches,
                          "passes": passes_of(schedule), "seconds": least}))


class Sleep(torch.autograd.Function):
    """Takes a pass forwards and two backwards; wakes early and watches the clock, as plan_and_reality does."""

    @staticmethod
    def wait(seconds):
        end = time.perf_counter() + seconds
        time.sleep(max(0, seconds - 0.0002))
        while time.perf_counter() < end:
            time.sleep(0)

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        Sleep.wait(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        Sleep.wait(2 * ctx.seconds)
        return gradient.clone(), None


class Stage(torch.nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        return Sleep.apply(x * self.weight, self.seconds)


def reality_of(rank, folder):
    logging.getLogger("torch.distributed.pipelining").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=DEVICES)
    for word, name, held in [("Schedule1F1B", "1f1b", 1), ("ScheduleInterleaved1F1B", "interleaved, V = 2", 2)]:
        seconds = PASS_SECONDS / held
        stages = [PipelineStage(Stage(seconds), rank + DEVICES * i, DEVICES * held, torch.device("cpu")) for i in range(held)]
        schedule = getattr(schedules, word)(stages if held > 1 else stages[0], n_microbatches=MICROBATCHES, loss_fn=loss_of)
        inputs = torch.ones(MICROBATCHES, 4)
        times = []
        for _ in range(STEPS + 1):
            torch.distributed.barrier()
            start = time.perf_counter()
            schedule.step(*([inputs] if rank == 0 else []), **({"target": inputs} if rank == DEVICES - 1 else {}))
            torch.distributed.barrier()
            times.append(time.perf_counter() - start)
        if rank == 0:
            planned = 3 * PASS_SECONDS * (MICROBATCHES + (DEVICES - 1) / held)
            median = sorted(times[1:])[STEPS // 2]
            print(json.dumps({"torch": torch.__version__, "schedule": name, "planned": planned, "measured": median,
                              "ratio": median / planned}), flush=True)
    torch.distributed.destroy_process_group()


class Idle(torch.autograd.Function):
    """Does nothing, forwards and backwards."""

    @staticmethod
    def forward(_ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(_ctx, gradient):
        return gradient.contiguous()  # that of a sum is not


class IdleStage(torch.nn.Module):
    def forward(self, x):
        return Idle.apply(x)


def overhead_of(rank, folder, devices, microbatches):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=devices)
    stage = PipelineStage(IdleStage(), rank, devices, torch.device("cpu"))
    schedule = schedules.Schedule1F1B(stage, n_microbatches=microbatches, loss_fn=loss_of)
    inputs = torch.arange(microbatches * 16.0).reshape(microbatches, 16).requires_grad_()
    times = []
    for step in range(OVERHEAD_STEPS + 1):
        losses = []
        torch.distributed.barrier()
        start = time.perf_counter()
        schedule.step(*([inputs] if rank == 0 else []),
                      **({"target": inputs, "losses": losses} if rank == devices - 1 else {}))
        torch.distributed.barrier()
        times.append((time.perf_counter() - start) / (2 * microbatches) * 1e6)
        if step == 0 and rank == devices - 1:  # what has gone through all stages is what went in
            expected = [float(row.sum()) for row in inputs.detach()]
            if [float(loss.detach()) for loss in losses] != expected:
                raise SystemExit("torch_peers: the stages have changed what goes through them")
    if rank == 0:
        times = sorted(times[1:])
        print(json.dumps({"runner": f"PyTorch {torch.__version__}, gloo", "devices": devices, "microbatches": microbatches,
                          "least": times[0], "median": times[len(times) // 2]}), flush=True)
    torch.distributed.destroy_process_group()


def best_seconds(runs, work):
    seconds = []
    for _ in range(runs):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


def arithmetic():
    torch.set_num_threads(1)
    for tokens, inner, columns in ((128, 64, 256), (128, 256, 256), (128, 256, 1024), (256, 512, 2048), (256, 2048, 512)):
        x, w, y = torch.randn(tokens, inner), torch.randn(inner, columns), torch.randn(tokens, columns)
        gradient, work = torch.zeros(inner, columns), 2e-9 * tokens * inner * columns
        print(json.dumps({"what": "product", "shape": f"{tokens} x {inner} x {columns}", "torch": torch.__version__,
                          "forward": work / best_seconds(15, lambda: y.addmm_(x, w)),
                          "backward": work / best_seconds(15, lambda: gradient.addmm_(x.T, y))}), flush=True)
    for dim in (64, 128):
        for length in (512, 1024, 2048, 4096):
            query, key, value = (torch.randn(1, 2, length, dim).requires_grad_() for _ in range(3))
            attend = lambda: torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            forward = best_seconds(3, attend)
            outputs = [attend() for _ in range(3)]
            backward = best_seconds(3, lambda: outputs.pop().backward(query.detach()))
            work = 2e-9 * length * length * dim
            print(json.dumps({"what": "attention", "shape": f"D {dim}, T {length}", "torch": torch.__version__,
                              "forward": 2 * work / forward, "backward": 5 * work / backward}), flush=True)


def main(words):
    if len(words) == 3 and words[0] == "making":
        making(int(words[1]), int(words[2]))
    elif words == ["arithmetic"]:
        arithmetic()
    elif words == ["reality"]:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(reality_of, (folder,), nprocs=DEVICES)
    elif len(words) == 3 and words[0] == "overhead":
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(overhead_of, (folder, int(words[1]), int(words[2])), nprocs=int(words[1]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
