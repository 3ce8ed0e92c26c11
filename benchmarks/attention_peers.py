#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Times the attention of PyTorch on the shapes of the attention benchmark, and compares.

usage: attention_peers.py [--quick] [--ours FILE] [--report FILE.md] [--json FILE] [--peers FILE]
       attention_peers.py --shapes FILE --json FILE

--ours FILE     what `bin/attention --json FILE` wrote; its shapes are timed. Without: those of bin/attention itself
--quick         fewer repetitions, and without --ours fewer shapes
--report FILE   writes the comparison as Markdown; without: to the terminal
--json FILE     writes the times of the peers, one JSON object per line
--peers FILE    reads such times instead of taking them
--shapes FILE   what `bin/attention_shapes --json FILE` wrote; causal squares are timed

Peers: torch-flash is FlashAttention-2, the operator that torch calls for SDPBackend.FLASH_ATTENTION; its causal mask is
aligned at the last key, so it takes chunks as they are. cuDNN's causal mask in torch starts at the first key, so the
peer of a chunk is the dense part before it and the causal square, without the merge of the two. Backward adds nothing to
running gradients there. Ratios are time of the peer over our time: above 1 we are faster.

Exit status: 0; 1 on a mistake; 77 where torch or a GPU is missing (a report of our times alone is written all the same).
"""
import argparse
import json
import math
import statistics
import sys

SHAPE = ("dim", "mask", "tokens", "heads", "key_heads", "chunks")
PEERS = ("torch-flash", "cudnn")
# Kernel, direction, what is compared, least (or for the tax of chunking most) of it.
TARGETS = [
    ("portable", "forward", "torch-flash", 0.80), ("portable", "backward", "torch-flash", 0.70),
    ("hopper", "forward", "torch-flash", 1.50), ("hopper", "backward", "torch-flash", 1.35),
    ("hopper", "forward", "cudnn", 0.92), ("hopper", "backward", "cudnn", 0.90),
    ("portable", "forward", "tax", 1.08), ("portable", "backward", "tax", 1.12),
    ("hopper", "forward", "tax", 1.08), ("hopper", "backward", "tax", 1.12),
]


class Unavailable(Exception):
    """There is nothing to time on; the text says why."""


def default_shapes(quick):
    for tokens in [4096, 16384] if quick else [2048, 4096, 8192, 16384, 32768]:
        for key_heads in [16, 8] if quick else [16, 8, 1]:
            for dim in [64, 128]:
                for mask, chunks in [("causal", 1), ("causal", 4), ("causal", 8), ("full", 1)]:
                    yield dim, mask, tokens, 16, key_heads, chunks


def read_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def shape_of(line):
    return tuple(line[name] for name in SHAPE)


class Clock:
    """Median times on the GPU, after one run that is not counted; clocks are warmed up once. Short runs are timed some at
    a time, a millisecond together: else the host's time for the first launch counts."""

    def __init__(self, torch, quick):
        self.torch, self.is_warm = torch, False
        self.least, self.most, self.enough, self.warm_up = (5, 11, 30, 300) if quick else (5, 21, 60, 500)

    def once(self, run, count=1):
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / count

    def median(self, run):
        passed = self.once(run)
        while not self.is_warm and passed < self.warm_up:
            passed += self.once(run)
        self.is_warm = True
        count = max(1, min(32, int(1 / self.once(run))))
        times = []
        while len(times) < self.least or (len(times) < self.most and sum(times) * count < self.enough):
            times.append(self.once(run, count))
        return statistics.median(times)


class Flash:
    """torch's FlashAttention-2: forward and backward of queries against keys, causal from the last key."""

    def __init__(self, torch):
        self.torch = torch
        self.forward_of = torch.ops.aten._scaled_dot_product_flash_attention
        self.backward_of = torch.ops.aten._scaled_dot_product_flash_attention_backward

    def forward(self, q, k, v, causal):
        return self.forward_of(q, k, v, 0.0, causal, False)

    def backward(self, gradient, q, k, v, causal, saved):
        out, lse, begins_q, begins_k, most_q, most_k, random, unused = saved[:8]
        with self.torch.no_grad():
            return self.backward_of(gradient, q, k, v, out, lse, begins_q, begins_k, most_q, most_k, 0.0, causal, random,
                                    unused)

    def parts(self, begin, end, causal):  # (keys from, keys to, causal) of the calls for queries [begin, end)
        return [(0, end, causal)]


class Cudnn:
    """torch's cuDNN attention, causal from the first key."""

    def __init__(self, torch):
        self.torch = torch
        self.forward_of = torch.ops.aten._scaled_dot_product_cudnn_attention

    def forward(self, q, k, v, causal):
        return self.forward_of(q, k, v, None, True, 0.0, causal, False)

    def backward(self, gradient, q, k, v, causal, saved):  # the operator wants a bias that Python cannot leave out
        return self.torch.autograd.grad(saved[0], (q, k, v), gradient, retain_graph=True)

    def parts(self, begin, end, causal):
        if not causal:
            return [(0, end, False)]
        return ([(0, begin, False)] if begin > 0 else []) + [(begin, end, True)]


class Problem:
    """Random tensors of a shape, in the layout of our kernels: [batch, tokens, heads, dim]."""

    def __init__(self, torch, shape):
        self.dim, mask, self.tokens, self.heads, self.key_heads, self.chunks = shape
        self.causal, self.torch = mask == "causal", torch
        self.q, self.gradient = self.tensor(self.heads), self.tensor(self.heads)
        self.k, self.v = self.tensor(self.key_heads), self.tensor(self.key_heads)

    def tensor(self, heads):
        made = self.torch.randn(1, self.tokens, heads, self.dim, device="cuda", dtype=self.torch.bfloat16)
        return made.transpose(1, 2)  # torch wants [batch, heads, tokens, dim]

    def calls(self, peer, repeat):
        """The calls of all chunks: query, key, value, dO and whether the mask is causal."""
        k, v = self.k, self.v
        if repeat:
            k, v = (x.repeat_interleave(self.heads // self.key_heads, 1) for x in (k, v))
        cut = [self.tokens * c // self.chunks for c in range(self.chunks + 1)]
        found = []
        for begin, end in zip(cut, cut[1:]):
            for first, last, causal in peer.parts(begin, end if self.causal else self.tokens, self.causal):
                found.append([x.detach().requires_grad_() for x in
                              (self.q[:, :, begin:end], k[:, :, first:last], v[:, :, first:last])]
                             + [self.gradient[:, :, begin:end], causal])
        return found

    def check_last_chunk(self, outputs):
        """The last query sees all keys, so its output is that of one softmax over all of them."""
        q = self.q[:, :, -1:].float()
        k, v = (x.repeat_interleave(self.heads // self.key_heads, 1).float() for x in (self.k, self.v))
        expected = self.torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(self.dim), -1) @ v
        error = float((outputs[-1][0][:, :, -1:].float() - expected).norm() / expected.norm())
        if not error < 0.02:
            raise RuntimeError(f"the last query is off by {error:.2g}: the mask is not aligned at the last key")


def time_peer(torch, clock, peer, shape):
    """Times of forward and backward in milliseconds, and a remark."""
    problem = Problem(torch, shape)
    remark = ""
    calls = problem.calls(peer, False)
    try:
        saved = [peer.forward(q, k, v, causal) for q, k, v, _, causal in calls]
    except RuntimeError:
        if problem.heads == problem.key_heads:
            raise
        remark = "keys repeated per head"
        calls = problem.calls(peer, True)
        saved = [peer.forward(q, k, v, causal) for q, k, v, _, causal in calls]
    if isinstance(peer, Flash):
        problem.check_last_chunk(saved)

    def forward():
        with torch.no_grad():
            for q, k, v, _, causal in calls:
                peer.forward(q, k, v, causal)

    def backward():
        for (q, k, v, gradient, causal), kept in zip(reversed(calls), reversed(saved)):
            peer.backward(gradient, q, k, v, causal, kept)

    return clock.median(forward), clock.median(backward), remark


def time_peers(shapes, quick):
    try:
        import torch
    except ImportError:
        raise Unavailable("torch is not installed") from None
    if not torch.cuda.is_available():
        raise Unavailable("there is no GPU here that torch can use")
    torch.manual_seed(1)
    clock = Clock(torch, quick)
    size = 8192
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    time = clock.median(lambda: a @ b.T)
    found = [{"kind": "gemm", "size": size, "milliseconds": time, "tflops": 2 * size ** 3 / time / 1e9,
              "torch": torch.__version__, "device": torch.cuda.get_device_name(0)}]
    said = set()
    for shape in shapes:
        for name, kind in zip(PEERS, (Flash, Cudnn)):
            try:
                *times, remark = time_peer(torch, clock, kind(torch), shape)
            except Exception as e:  # whatever a peer cannot do is no mistake of ours, but is said
                why = f"{name}: {str(e).splitlines()[0] if str(e) else type(e).__name__}"
                if why not in said:
                    print(f"attention_peers: {why}", file=sys.stderr)
                    said.add(why)
                continue
            for direction, time in zip(("forward", "backward"), times):
                found.append({"kind": "peer", "peer": name, "direction": direction, **dict(zip(SHAPE, shape)),
                              "milliseconds": time, "remark": remark})
    return found


def time_shapes(lines):
    """Times of the causal squares among the lines of bin/attention_shapes."""
    try:
        import torch
    except ImportError:
        raise Unavailable("torch is not installed") from None
    from torch.nn.attention import SDPBackend, sdpa_kernel
    clock = Clock(torch, True)
    shapes = dict.fromkeys((line["dim"], line["batch"], line["heads"], line["key_heads"], line["tokens"]) for line in lines
                           if line["queries"] == line["tokens"] and line["extent"] == 0)
    for dim, batch, heads, key_heads, tokens in shapes:
        for name, backend in zip(PEERS, (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)):
            def tensor(count):
                made = torch.randn(batch, tokens, count, dim, device="cuda", dtype=torch.bfloat16)
                return made.transpose(1, 2).detach().requires_grad_()
            q, k, v, gradient = tensor(heads), tensor(key_heads), tensor(key_heads), tensor(heads).detach()

            def forward():
                with sdpa_kernel(backend):
                    return torch.nn.functional.scaled_dot_product_attention(
                        q, k, v, is_causal=True, enable_gqa=heads != key_heads)
            try:
                out = forward()
                times = (clock.median(forward),
                         clock.median(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)))
            except Exception as e:
                print(f"attention_peers: {name}: {str(e).splitlines()[0]}", file=sys.stderr)
                continue
            for direction, time in zip(("forward", "backward"), times):
                pairs = batch * heads * tokens * (tokens + 1) / 2
                yield {"kind": "peer", "peer": name, "direction": direction, "dim": dim, "batch": batch, "heads": heads,
                       "key_heads": key_heads, "tokens": tokens, "milliseconds": time,
                       "tflops": (4 if direction == "forward" else 10) * pairs * dim / time / 1e9}


def compare(ours, peers):
    """Our lines, each with the ratios of what there is to compare."""
    times = {(line["peer"], line["direction"], shape_of(line)): line["milliseconds"]
             for line in peers if line["kind"] == "peer"}
    rates = [line["tflops"] for line in ours + peers if line["kind"] == "gemm"]
    for line in ours:
        if line["kind"] != "attention":
            continue
        row = dict(line)
        for peer in PEERS:
            time = times.get((peer, line["direction"], shape_of(line)))
            row[f"{peer} ms"] = time
            row[peer] = time / line["milliseconds"] if time else None
        row["of gemm"] = line["tflops"] / rates[0] if rates else None
        row["tax"] = line["tax"] if line["chunks"] > 1 else None
        yield row


def misses(target, value):
    return value > target[3] if target[2] == "tax" else value < target[3]


def number(value, form):
    return "" if value is None else format(value, form)


def summary_lines(rows):
    yield "| kernel | direction | | target | met by | mean | worst | worst case |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for target in TARGETS:
        kernel, direction, what, bound = target
        found = [row for row in rows if row["kernel"] == kernel and row["direction"] == direction and row[what]]
        if not found:
            continue
        worst = (max if what == "tax" else min)(found, key=lambda row: row[what])
        mean = math.exp(statistics.fmean(math.log(row[what]) for row in found))
        met = sum(not misses(target, row[what]) for row in found)
        case = f"dim {worst['dim']}, {worst['mask']}, {worst['tokens']} tokens, {worst['key_heads']} key heads, " \
               f"{worst['chunks']} chunks"
        name = "tax of chunking" if what == "tax" else f"speed of {what}"
        yield f"| {kernel} | {direction} | {name} | {'at most' if what == 'tax' else 'at least'} {bound:.2f} | " \
              f"{met} of {len(found)} | {mean:.2f} | {worst[what]:.2f} | {case} |"


def table_lines(rows):
    yield "| direction | kernel | dim | mask | tokens | heads | chunks | ms | TFLOP/s | of GEMM | torch-flash ms | " \
          "ratio | cuDNN ms | ratio | tax | error |"
    yield "| --- | --- " + "| ---: " * 14 + "|"
    for row in rows:
        cells = [row["direction"], row["kernel"], row["dim"], row["mask"], row["tokens"],
                 f"{row['heads']}/{row['key_heads']}", row["chunks"], f"{row['milliseconds']:.3f}",
                 f"{row['tflops']:.0f}", number(row["of gemm"], ".2f")]
        for what in [*PEERS, "tax"]:
            if what != "tax":
                cells.append(number(row[f"{what} ms"], ".3f"))
            text = number(row[what], ".2f")
            target = [t for t in TARGETS if t[:3] == (row["kernel"], row["direction"], what)]
            cells.append(f"**{text}**" if text and target and misses(target[0], row[what]) else text)
        cells.append(f"{row['error']:.1e}" + ("" if row["right"] else " WRONG"))
        yield "| " + " | ".join(map(str, cells)) + " |"


def report(ours, peers, remark):
    rows = list(compare(ours, peers))
    yield "# Attention kernels against torch-flash and cuDNN"
    yield ""
    for line in ours:
        if line["kind"] == "machine":
            yield f"{line['device']}, compute capability {line['capability']}, driver {line['driver']}, runtime " \
                  f"{line['runtime']}; bf16."
            yield from (f"- {choice}" for choice in line["choices"])
    for line in ours + peers:
        if line["kind"] == "gemm":
            where = f"torch {line['torch']}" if "torch" in line else "cuBLAS"
            yield f"- GEMM {line['size']}^3 by {where}: {line['milliseconds']:.3f} ms, {line['tflops']:.0f} TFLOP/s"
    yield from ([f"- {remark}"] if remark else [])
    yield from (f"- {peer}: {said}" for peer, said in sorted(
        {(line["peer"], line["remark"]) for line in peers if line.get("remark")}))
    yield ""
    yield "Ratios are time of the peer over our time; bold ones miss their target."
    yield ""
    yield from summary_lines(rows)
    yield ""
    yield from table_lines(rows)


def main(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    for name in ("--ours", "--report", "--json", "--peers", "--shapes"):
        parser.add_argument(name, metavar="FILE")
    wanted = parser.parse_args(words)
    if wanted.shapes:
        try:
            with open(wanted.json, "w", encoding="utf-8") as file:
                for line in time_shapes(read_lines(wanted.shapes)):
                    print(json.dumps(line), file=file, flush=True)
        except Unavailable as e:
            print(f"attention_peers: skipped, {e}")
            return 77
        return 0
    ours = read_lines(wanted.ours) if wanted.ours else []
    shapes = list(dict.fromkeys(shape_of(line) for line in ours if line["kind"] == "attention"))
    status, remark, peers = 0, "", []
    try:
        peers = read_lines(wanted.peers) if wanted.peers else \
            time_peers(shapes or list(default_shapes(wanted.quick)), wanted.quick)
    except Unavailable as e:
        status, remark = 77, f"peers were not timed: {e}"
        print(f"attention_peers: skipped, {e}")
    if wanted.json and peers:
        with open(wanted.json, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in peers)
    if ours:
        text = "\n".join(report(ours, peers, remark)) + "\n"
        if wanted.report:
            with open(wanted.report, "w", encoding="utf-8") as file:
                file.write(text)
        else:
            print(text, end="")
    elif not wanted.json:
        for line in peers:
            print(json.dumps(line))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
