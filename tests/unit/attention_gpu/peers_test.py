#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs benchmarks/attention_peers.py: without torch, with recorded times, and with a model of torch that knows shapes.

usage: peers_test.py FOLDER_OF_BENCHMARKS
"""
import contextlib
import importlib
import io
import json
import pathlib
import sys
import tempfile
import types
import unittest

sys.dont_write_bytecode = True
attention_peers = None


def ours_line(direction, kernel, chunks, milliseconds, tax, key_heads=2):
    return {"kind": "attention", "direction": direction, "kernel": kernel, "dim": 64, "mask": "causal", "tokens": 100,
            "heads": 2, "key_heads": key_heads, "chunks": chunks, "milliseconds": milliseconds, "tflops": 400, "tax": tax,
            "error": 0.001, "right": True}


OURS = [{"kind": "machine", "device": "a GPU", "capability": "9.0", "multiprocessors": 132, "driver": 13000,
         "runtime": 13000, "choices": ["head dim 64, forward: hopper: because"]},
        {"kind": "gemm", "size": 8192, "milliseconds": 1.4, "tflops": 800},
        ours_line("forward", "hopper", 1, 1.0, 1), ours_line("forward", "hopper", 4, 1.2, 1.2),
        ours_line("backward", "portable", 1, 4.0, 1)]


class Tensor:
    """Sizes without numbers. Differences are nothing, so that every check of numbers passes."""

    def __init__(self, *shape, length=1.0):
        self.shape, self.length = shape, length

    def transpose(self, a, b):
        shape = list(self.shape)
        shape[a], shape[b] = shape[b], shape[a]
        return Tensor(*shape)

    T = property(lambda self: self.transpose(0, 1))

    def __getitem__(self, places):
        return Tensor(*(len(range(n)[place]) for n, place in zip(self.shape, places)), *self.shape[len(places):])

    def repeat_interleave(self, count, axis):
        return Tensor(*(n * count if i == axis else n for i, n in enumerate(self.shape)))

    def __matmul__(self, other):
        assert self.shape[-1] == other.shape[-2], (self.shape, other.shape)
        return Tensor(*self.shape[:-1], other.shape[-1])

    def __sub__(self, other):
        assert self.shape == other.shape, (self.shape, other.shape)
        return Tensor(*self.shape, length=0.0)

    def norm(self):
        return self.length

    detach = requires_grad_ = float = lambda self: self
    __truediv__ = lambda self, _: self


class Torch(types.ModuleType):
    """A GPU whose time is the number of pairs of queries and keys; flash takes no grouped heads."""

    def __init__(self):
        super().__init__("torch")
        self.now, self.calls, self.__version__, self.bfloat16 = 0, [], "model", None
        torch = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at = torch.now

            def synchronize(self):
                pass

            def elapsed_time(self, other):
                return max((other.at - self.at) / 1000, 1)

        self.cuda = types.SimpleNamespace(is_available=lambda: True, get_device_name=lambda _: "model", Event=Event)
        self.ops = types.SimpleNamespace(aten=types.SimpleNamespace(
            _scaled_dot_product_flash_attention=self.flash, _scaled_dot_product_cudnn_attention=self.cudnn,
            _scaled_dot_product_flash_attention_backward=self.flash_backward))
        self.autograd = types.SimpleNamespace(grad=self.grad)
        self.no_grad = contextlib.nullcontext
        self.manual_seed = lambda seed: None
        self.randn = lambda *shape, device, dtype: Tensor(*shape)
        self.softmax = lambda x, axis: x

    def work(self, name, q, k, causal):
        self.calls.append((name, q.shape[2], k.shape[2], causal))
        self.now += q.shape[2] * k.shape[2]

    def flash(self, q, k, v, dropout, causal, debug):
        if q.shape[1] != k.shape[1]:
            raise RuntimeError("heads differ")
        self.work("flash", q, k, causal)
        return [Tensor(*q.shape), *range(8)]

    def flash_backward(self, gradient, q, k, v, out, lse, cq, ck, mq, mk, dropout, causal, random, unused):
        assert gradient.shape == q.shape == out.shape and (lse, unused) == (0, 6)
        self.work("flash backward", q, k, causal)

    def cudnn(self, q, k, v, bias, want_lse, dropout, causal, debug):
        assert bias is None and want_lse and (not causal or q.shape[2] == k.shape[2])
        self.work("cudnn", q, k, causal)
        return [Tensor(*q.shape), 0]

    def grad(self, out, inputs, gradient, retain_graph):
        assert retain_graph and out.shape == gradient.shape
        self.work("cudnn backward", *inputs[:2], None)


class Peers(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name, lines=None):
        path = pathlib.Path(self.folder.name, name)
        if lines is not None:
            path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return str(path)

    def run_peers(self, *words, torch=None):
        said = io.StringIO()
        before = sys.modules.get("torch")
        sys.modules["torch"] = torch  # None: import fails
        try:
            with contextlib.redirect_stdout(said):
                status = attention_peers.main(list(words))
        finally:
            sys.modules.pop("torch")
            if before is not None:
                sys.modules["torch"] = before
        return status, said.getvalue()

    def test_says_that_torch_is_missing_and_still_reports(self):
        self.assertEqual(self.run_peers(), (77, "attention_peers: skipped, torch is not installed\n"))
        status, said = self.run_peers("--ours", self.path("ours", OURS), "--report", self.path("r.md"))
        self.assertEqual((status, said), (77, "attention_peers: skipped, torch is not installed\n"))
        text = pathlib.Path(self.path("r.md")).read_text(encoding="utf-8")
        self.assertIn("peers were not timed", text)
        self.assertIn("| forward | hopper | 64 | causal | 100 | 2/2 | 1 | 1.000 | 400 | 0.50 |  |  |  |  |  |", text)

    def test_says_that_there_is_no_gpu(self):
        torch = Torch()
        torch.cuda.is_available = lambda: False
        self.assertEqual(self.run_peers(torch=torch)[0], 77)

    def test_ratios_and_targets(self):
        shape = {name: OURS[2][name] for name in attention_peers.SHAPE}
        peers = [{"kind": "peer", "peer": peer, "direction": direction, **shape, "chunks": chunks, "milliseconds": time,
                  "remark": ""} for peer, direction, chunks, time in
                 [("torch-flash", "forward", 1, 2.0), ("torch-flash", "forward", 4, 1.2), ("cudnn", "forward", 1, 0.9),
                  ("torch-flash", "backward", 1, 3.0)]]
        status, said = self.run_peers("--ours", self.path("ours", OURS), "--peers", self.path("peers", peers))
        self.assertEqual(status, 0)
        self.assertIn("| 1 | 1.000 | 400 | 0.50 | 2.000 | 2.00 | 0.900 | **0.90** |  | 1.0e-03 |", said)
        self.assertIn("| 4 | 1.200 | 400 | 0.50 | 1.200 | **1.00** |  |  | **1.20** | 1.0e-03 |", said)
        self.assertIn("| hopper | forward | speed of torch-flash | at least 1.50 | 1 of 2 | 1.41 | 1.00 | dim 64, causal, "
                      "100 tokens, 2 key heads, 4 chunks |", said)
        self.assertIn("| portable | backward | speed of torch-flash | at least 0.70 | 1 of 1 | 0.75 |", said)
        self.assertIn("| hopper | forward | tax of chunking | at most 1.08 | 0 of 1 | 1.20 | 1.20 |", said)

    def test_calls_of_torch(self):
        torch = Torch()
        ours = [ours_line("forward", "hopper", 4, 1.0, 1, key_heads=1)]
        status, _ = self.run_peers("--ours", self.path("ours", ours), "--json", self.path("peers"), "--quick", torch=torch)
        self.assertEqual(status, 0)
        calls = set(torch.calls)
        self.assertEqual(calls, {
            *(("flash" + way, 25, keys, True) for way in ("", " backward") for keys in (25, 50, 75, 100)),
            *(("cudnn", 25, 25 * c, False) for c in (1, 2, 3)), ("cudnn", 25, 25, True),
            *(("cudnn backward", 25, 25 * c, None) for c in (1, 2, 3))})
        lines = attention_peers.read_lines(self.path("peers"))
        times = {(line.get("peer"), line.get("direction")): line["milliseconds"] for line in lines}
        self.assertAlmostEqual(times["torch-flash", "forward"], 25 * 250 / 1000)
        self.assertAlmostEqual(times["cudnn", "backward"], 25 * 250 / 1000)
        self.assertEqual({line.get("remark") for line in lines if line.get("peer") == "torch-flash"},
                         {"keys repeated per head"})

    def test_a_peer_that_fails_is_left_out(self):
        torch = Torch()
        torch.ops.aten._scaled_dot_product_cudnn_attention = None
        with contextlib.redirect_stderr(io.StringIO()) as said:
            status, _ = self.run_peers("--ours", self.path("ours", OURS), "--json", self.path("peers"), torch=torch)
        self.assertEqual(status, 0)
        self.assertEqual(said.getvalue().count("attention_peers: cudnn:"), 1)
        self.assertEqual({line.get("peer") for line in attention_peers.read_lines(self.path("peers"))},
                         {None, "torch-flash"})


if __name__ == "__main__":
    sys.path.insert(0, sys.argv.pop(1))
    attention_peers = importlib.import_module("attention_peers")
    unittest.main()
