#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What torch.distributed.pipelining takes for what our benchmarks measure, as JSON lines: making the orders of a schedule
with their sends and receives (processor time; nothing is verified or proven), how long steps of stages that sleep take
beside their plan, and what a pass costs where stages do nothing.

usage: torch_peers.py making DEVICES MICROBATCHES
       torch_peers.py arithmetic    products and attention on one thread, in GFLOP/s of processor time
       torch_peers.py reality
       torch_peers.py overhead DEVICES MICROBATCHES
       torch_peers.py training DEVICES LAYERS WIDTH HEADS SEQUENCE MICROBATCHES
                                    steps of the GPT of examples/gpt, tokens a second of the best; 1 device or 2
"""
import itertools
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
OVERHEAD_STEPS, TRAINING_STEPS = 21, 7
SIZES = ("layers", "width", "heads", "sequence", "microbatches")


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
    for dim, length in itertools.product((64, 128), (512, 1024, 2048, 4096)):
        for elements, name in ((torch.float32, ""), (torch.bfloat16, ", bfloat16")):
            query, key, value = (torch.randn(1, 2, length, dim, dtype=elements).requires_grad_() for _ in range(3))
            attend = lambda: torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            forward = best_seconds(3, attend)
            outputs = [attend() for _ in range(3)]
            backward = best_seconds(3, lambda: outputs.pop().backward(query.detach()))
            work = 2e-9 * length * length * dim
            print(json.dumps({"what": "attention", "shape": f"D {dim}, T {length}{name}", "torch": torch.__version__,
                              "forward": 2 * work / forward, "backward": 5 * work / backward}), flush=True)


class Block(torch.nn.Module):
    """A layer of examples/gpt: normalised attention and a GELU network, both added to what comes in, no biases."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        linear = lambda inner, outer: torch.nn.Linear(inner, outer, bias=False)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width, bias=False) for _ in range(2))
        self.query, self.key_value, self.mix = linear(width, width), linear(width, 2 * width), linear(width, width)
        self.network = torch.nn.Sequential(linear(width, 4 * width), torch.nn.GELU("tanh"), linear(4 * width, width))

    def forward(self, x):
        batch, tokens, width = x.shape
        split = lambda y: y.view(batch, tokens, self.heads, -1).transpose(1, 2)
        normed = self.norms[0](x)
        key, value = self.key_value(normed).chunk(2, -1)
        mixed = torch.nn.functional.scaled_dot_product_attention(split(self.query(normed)), split(key), split(value),
                                                                 is_causal=True)
        x = x + self.mix(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.network(self.norms[1](x))


class Embedding(torch.nn.Module):
    def __init__(self, width, tokens):
        super().__init__()
        self.byte, self.place = torch.nn.Embedding(256, width), torch.nn.Embedding(tokens, width)

    def forward(self, x):
        return self.byte(x) + self.place.weight


def gpt_part(size, first, last, layers):
    """Some layers of the model, with the embedding or the output layer where it begins or ends."""
    width, heads, tokens = size["width"], size["heads"], size["sequence"]
    parts = [Embedding(width, tokens)] if first else []
    parts += [Block(width, heads) for _ in range(layers)]
    parts += [torch.nn.LayerNorm(width, bias=False), torch.nn.Linear(width, 256, bias=False)] if last else []
    return torch.nn.Sequential(*parts)


def next_byte_loss(output, target):
    return torch.nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def gpt_batch(size):
    torch.manual_seed(1)
    text = torch.randint(32, 122, (size["microbatches"], size["sequence"] + 1))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def report_training(schedule, devices, size, times):
    tokens = size["microbatches"] * size["sequence"]
    print(json.dumps({"torch": torch.__version__, "schedule": schedule, "devices": devices, **size,
                      "tokens": tokens / min(times)}), flush=True)


def training(size):
    """A step on one thread, microbatch by microbatch as in a pipeline."""
    torch.set_num_threads(1)
    model = gpt_part(size, True, True, size["layers"])
    optimizer = torch.optim.AdamW(model.parameters())
    inputs, targets = gpt_batch(size)
    times = []
    for _ in range(TRAINING_STEPS):
        start = time.perf_counter()
        optimizer.zero_grad()
        for x, y in zip(inputs.split(1), targets.split(1)):
            (next_byte_loss(model(x), y) / size["microbatches"]).backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    report_training("", 1, size, times)


def training_of(rank, folder, size):
    logging.getLogger("torch.distributed.pipelining").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    inputs, targets = gpt_batch(size)
    for word, name, held in [("Schedule1F1B", "1f1b", 1), ("ScheduleInterleaved1F1B", "interleaved, V = 2", 2),
                             ("ScheduleInterleavedZeroBubble", "zb-interleaved, V = 2", 2)]:
        count = 2 * held
        numbers = [rank + 2 * i for i in range(held)]
        parts = [gpt_part(size, n == 0, n == count - 1, size["layers"] // count) for n in numbers]
        stages = [PipelineStage(part, n, count, torch.device("cpu")) for part, n in zip(parts, numbers)]
        optimizer = torch.optim.AdamW(parameter for part in parts for parameter in part.parameters())
        schedule = getattr(schedules, word)(stages if held > 1 else stages[0], n_microbatches=size["microbatches"],
                                            loss_fn=next_byte_loss)
        times = []
        for _ in range(TRAINING_STEPS):
            torch.distributed.barrier()
            start = time.perf_counter()
            optimizer.zero_grad()
            schedule.step(*([inputs] if rank == 0 else []), **({"target": targets} if rank == 1 else {}))
            optimizer.step()
            torch.distributed.barrier()
            times.append(time.perf_counter() - start)
        if rank == 0:
            report_training(name, 2, size, times)
    torch.distributed.destroy_process_group()


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
    elif len(words) == 7 and words[0] == "training":
        size = dict(zip(SIZES, map(int, words[2:])))
        if words[1] == "1":
            training(size)
        else:
            with tempfile.TemporaryDirectory() as folder:
                torch.multiprocessing.spawn(training_of, (folder, size), nprocs=2)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
