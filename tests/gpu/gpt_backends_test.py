#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs the GPT with its backends on GPUs, small, on the stand-in: what they print, write and refuse.

usage: gpt_backends_test.py PROGRAM
"""
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

PROGRAM = sys.argv[1]
SMALL = ["--layers", "2", "--width", "64", "--heads", "1", "--sequence", "4", "--devices", "2", "--microbatches", "2"]


def run(*arguments, ranks=2):
    # A heap for every thread: the stand-in sees no order between ranks that get the same memory of the host in turn.
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "WORLD_SIZE": str(ranks),
                               "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=256"})


def train(backend, schedule, *options, passes, ranks=2, page=True):
    """The report of a run that must end well. passes: of the whole timetable. page: with planned times next to measured ones."""
    with tempfile.TemporaryDirectory() as folder:
        ended = run("--backend", backend, *SMALL, "--schedule", schedule, *options, "--output", folder, ranks=ranks)
        assert ended.returncode == 0 and ended.stderr == "", (ended.stdout, ended.stderr)
        for word in ("GPT of ", "predicted with unit costs", "tokens/s", "unigram entropy", "measured:", *["a GPU for every device"] * page):
            assert ended.stdout.count(word) >= 1, (word, ended.stdout)
        assert ended.stdout.count("GPT of ") == 1, ended.stdout  # of all ranks, one reports
        events = json.loads(pathlib.Path(folder, "trace.json").read_text())["traceEvents"]
        assert sum(event["ph"] == "X" for event in events) == (1 + page) * passes, len(events)  # planned and measured
        assert {"timetable.svg", "loss.svg", *["timeline.html"] * page} <= {path.name for path in pathlib.Path(folder).iterdir()}
    return ended.stdout


def losses(report):
    return re.findall(r"step \d+/\d+   loss ([\d.]+)", report)


def between_norms(expected, *chosen):
    """A limit that clips one of two steps on threads, and is not near the norm of either: what counts twice, or not at all, is seen.
    expected: is asked first."""
    def steps_clipped(limit):
        with tempfile.TemporaryDirectory() as folder:
            words = ["--schedule", "1f1b", "--steps", "2", "--clip", str(limit), "--output", folder]
            return int(clipped(run(*SMALL, *chosen, *words).stdout)[0])
    low, middle, high = 1, expected, 30
    for _ in range(11):
        if steps_clipped(middle / 1.04) == 2:
            low = middle
        elif steps_clipped(middle * 1.04) == 0:
            high = middle
        else:
            return middle
        middle = (low * high) ** 0.5
    raise AssertionError(("the norms of both steps are too near to each other", low, high))


def clipped(report):
    """How many steps, and a hash of the weights after them."""
    return re.search(r"in (\d+) of \d+ steps, left out in 0; weights (\w{16})", report).groups()


def check_reports():
    """The same report of both backends, with the same losses, and each with its own check."""
    chosen = ["seq1f1b", "--layers", "4", "--chunks", "2", "--steps", "3", "--graph"]
    alone, ranks = (train(backend, *chosen, passes=2 * 2 * 2 * 2) for backend in ("cuda", "nccl"))
    assert losses(alone) and losses(alone) == losses(ranks), (alone, ranks)
    rows = re.findall(r"^  ([\w-]+) +\d+ +[\d.]+ +([\d.]+) %  (.*)$", alone, re.MULTILINE)
    assert [name for name, _, _ in rows] == ["1f1b", "interleaved", "zb-h1", "v-half", "seq1f1b"], alone
    assert all(float(error) < 2 for _, error, _ in rows), alone
    assert sum(same == "0" for _, _, same in rows) == 3, alone
    half = train("nccl", "zb-h1", "--steps", "1", "--bf16", "--with", "recompute",
                 passes=2 * 2 * 4 - 2)  # the last stage recomputes nothing, for it would free nothing
    for report in (ranks, half):
        assert re.search(r"over NCCL: 2 ranks, held against virtual devices on one GPU: 0 of \d+ gradients differ", report), report


def check_copies():
    """Two copies of every stage, over NCCL on two ranks: the bits of virtual devices, and gradients that count once in the norm."""
    chosen = ["--layers", "4", "--microbatches", "4"]
    report = train("nccl", "dualpipe", *chosen, "--steps", "2", "--clip", str(between_norms(4.8, *chosen)), passes=18)
    assert re.search(r"of dualpipe over NCCL: 2 ranks, held against virtual devices on one GPU: 0 of \d+ gradients differ", report), report
    assert clipped(report)[0] == "1", report


def check_helix():
    """Attention on other devices than its layer, clipped: the bits of whole layers, and on both backends the same weights."""
    chosen = ["helix", "--layers", "4", "--steps", "2", "--clip", "6"]
    alone, ranks = (train(backend, *chosen, *graph, passes=2 * 9 * 2) for backend, *graph in (["cuda"], ["nccl", "--graph"]))
    rows = re.findall(r"^  (breadth-first|helix) +1 .* %  (.*)$", alone, re.MULTILINE)
    assert rows == [("breadth-first", "(the first)"), ("helix", "0")], alone
    assert re.search(r"of helix over NCCL: 2 ranks, held against virtual devices on one GPU: 0 of \d+ gradients differ", ranks), ranks
    assert losses(alone) == losses(ranks) and clipped(alone) == clipped(ranks) and int(clipped(alone)[0]) > 0, (alone, ranks)


def check_exchange():
    """Devices that take over attention of each other: the bits of one that splits it alike, and the same losses on both backends."""
    chosen = ["slimpipe", "--with", "attention-exchange", "--chunks", "4", "--steps", "2"]
    alone, ranks = (train(backend, *chosen, *graph, passes=4 * 4 * 2 * 2 * 2, page=False)
                    for backend, *graph in (["cuda"], ["nccl", "--graph"]))
    assert re.search(r"2 virtual devices, held against one that splits attention alike: 0 of \d+ gradients differ", alone), alone
    assert re.search(r"attention-exchange over NCCL: 2 ranks, held against virtual devices on one GPU: 0 of \d+ gradients differ", ranks), ranks
    assert len(losses(alone)) == 2 and losses(alone) == losses(ranks), (alone, ranks)


def check_clipping():
    """Clipped steps: the same weights on both backends, as a graph, and where steps are validated in the next iteration."""
    chosen = ["--layers", "4", "--clip", "6", "--steps", "2"]  # more than the norm of the first stage alone
    reports = [train("cuda", "1f1b", *chosen, passes=2 * 2 * 2),
               train("nccl", "1f1b", *chosen, "--graph", passes=2 * 2 * 2),
               train("nccl", "zb-h1", *chosen, "--post-validation", passes=2 * 2 * 3)]
    found = [clipped(each) for each in reports]
    assert found[0] == found[1] == found[2] and int(found[0][0]) > 0, found
    assert re.search(r"^[1-9]\d* early steps were wrong: stages rolled back [1-9]", reports[2], re.MULTILINE), reports[2]


def check_sizes():
    """Iterations of two sizes, each with the gradients of a model of its own, and the same losses on both backends; measured costs."""
    chosen = ["chunkflow", "--sequence", "8", "--chunk-counts", "2,1:1,2", "--steps", "3"]
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "costs.json")
        alone = train("cuda", *chosen, "--costs", str(file), passes=2 * 2 * 3)
        costs = json.loads(file.read_text())
        assert costs, costs
    assert re.search(r"iterations of 2 sizes: .* held against a model for each: 0 gradients differ", alone), alone
    ranks = train("nccl", *chosen, "--graph", passes=2 * 2 * 3)
    assert len(re.findall(r"over NCCL: 2 ranks, held against virtual devices on one GPU: 0 of \d+ gradients differ", ranks)) == 2, ranks
    assert losses(alone) == losses(ranks), (alone, ranks)


def check_checkpoints():
    """A run that goes on after step 2 writes the checkpoints of step 4 that it wrote the first time."""
    for backend, schedule, options, passes, files in [
            ("nccl", "1f1b", ["--clip", "1", "--post-validation"], {"passes": 2 * 2 * 2}, 2),
            ("cuda", "zb-h1", ["--with", "vocabulary-2", "--graph"], {"passes": 2 * 2 * (4 + 3), "page": False}, 2)]:
        with tempfile.TemporaryDirectory() as folder:
            reports, written = [], []
            for _ in range(2):
                reports.append(train(backend, schedule, *options, "--steps", "4", "--checkpoint", folder, "--every", "2", **passes))
                last = sorted(pathlib.Path(folder).glob("*.step-4.*"))
                written.append([path.read_bytes() for path in last])
                assert len(last) == len(list(pathlib.Path(folder).glob("*.step-2.*"))) == 2 * files, last  # each with an index
                for path in last:
                    path.unlink()
            assert written[0] == written[1]
        assert "goes on after" not in reports[0] and "goes on after step 2\n" in reports[1], reports
        assert losses(reports[0])[-1:] == losses(reports[1])[-1:], reports


def tensors(folder, step):
    """All tensors of a checkpoint, whichever rank has them: {name: bytes}. Of those in boxes, the boxes in their order."""
    found = {}
    for path in sorted(pathlib.Path(folder).glob(f"*.step-{step}.safetensors")):
        text = path.read_bytes()
        start = 8 + struct.unpack("<Q", text[:8])[0]
        for name, one in json.loads(text[8:start]).items():
            if name != "__metadata__":
                begin, end = one["data_offsets"]
                found[name] = found.get(name, b"") + text[start + begin:start + end]
    return found


def check_other_cuts():
    """What two ranks save, one device and other stages go on from, to the same bits; and another model does not."""
    ways = [("nccl", ["--schedule", "1f1b"], {"passes": 2 * 2 * 2}), ("cuda", ["--schedule", "1f1b", "--devices", "1"], {"passes": 2 * 2}),
            ("nccl", ["--schedule", "zb-h1"], {"passes": 2 * 2 * 3}), ("cuda", ["--schedule", "v-half"], {"passes": 2 * 4 * 3})]
    common = ["--steps", "4", "--every", "2"]
    with tempfile.TemporaryDirectory() as folder:
        train(*ways[0][:1], ways[0][1][1], *common, "--checkpoint", folder, **ways[0][2])
        expected = tensors(folder, 4)
        assert "layers.0.mlp.up.value" in expected and "head.out.square" in expected, list(expected)
        for backend, (_, schedule, *more), passes in ways[1:]:
            for path in pathlib.Path(folder).glob("*.step-4.*"):
                path.unlink()
            report = train(backend, schedule, *more, *common, "--checkpoint", folder, **passes)
            assert "goes on after step 2\n" in report, report
            assert tensors(folder, 4) == expected, (backend, schedule)
        other = run("--backend", "cuda", *SMALL, "--width", "128", "--heads", "2", "--schedule", "1f1b", *common, "--checkpoint", folder)
        assert other.returncode != 0 and "width" in other.stderr, (other.stdout, other.stderr)


def check_shards():
    """Stages in two shards, whose braided passes run at once, over NCCL and on threads: rounding apart, the same losses, and the
    norm of whole stages, in several replicas, too."""
    wide = ["--layers", "4", "--width", "128", "--heads", "2"]
    short = [*wide, "--sequence", "2", "--tensor", "2"]
    braided = ["--microbatches", "6"]
    ranks = train("nccl", "stp", *short, *braided, "--steps", "2", "--graph", passes=53, ranks=4)
    assert re.search(r"over NCCL: 4 ranks, 2 shards of every stage, held against all shards on the host", ranks), ranks
    with tempfile.TemporaryDirectory() as folder:
        threads = run(*SMALL, *short, *braided, "--steps", "2", "--schedule", "stp", "--output", folder).stdout
    pairs = list(zip(losses(ranks), losses(threads), strict=True))
    assert len(pairs) == 2 and all(abs(float(a) - float(b)) < 0.01 for a, b in pairs), (ranks, threads)
    limit = between_norms(7.5, *wide, "--microbatches", "4")
    report = train("nccl", "1f1b", *wide, "--tensor", "2", "--steps", "2", "--clip", str(limit), passes=2 * 2 * 2, ranks=8)
    assert re.search(r"over NCCL: 8 ranks, 2 shards of every stage, held against all shards on the host", report), report
    assert clipped(report)[0] == "1", report


def check_vocabulary():
    """Embedding and output layer in shards: near those of the host on both backends, with the losses of threads."""
    for backend, schedule, way, options, ranks, units in [
            ("cuda", "1f1b", "vocabulary-2", ["--graph"], 2, 2), ("nccl", "1f1b", "vocabulary-1", [], 2, 2),
            ("nccl", "seq1f1b", "vocabulary-interlaced", ["--chunks", "2", "--graph", "--bf16"], 4, 4)]:
        chosen = ["--with", way, "--steps", "2"]
        report = train(backend, schedule, *chosen, *options, passes=units * 2 * (4 + 2), ranks=ranks, page=False)
        held = (r"2 virtual devices, held against all shards on the host" if backend == "cuda" else
                rf"over NCCL: {ranks} ranks, held against virtual devices on one GPU: 0 of \d+ gradients differ")
        assert re.search(held, report), report
        if ranks == 2:
            with tempfile.TemporaryDirectory() as folder:
                threads = run(*SMALL, "--schedule", schedule, *chosen, "--output", folder).stdout
            pairs = list(zip(losses(report), losses(threads), strict=True))
            assert len(pairs) == 2 and all(abs(float(a) - float(b)) < 0.01 for a, b in pairs), (report, threads)


def check_gathered():
    """Weights that are gathered, from replicas or from the host: the bits of virtual devices, and as many bytes as planned."""
    for schedule, chosen, ranks, passes in [
            ("1f1b", ["sharded-weights", "--sequence", "2", "--bf16", "--steps", "1"], 4, 2 * (2 * 2 + 5)),
            ("interleaved", ["weights-on-host", "--layers", "4", "--graph", "--steps", "2"], 2, 2 * (2 * 2 * 2 + 6))]:
        report = train("nccl", schedule, "--with", *chosen, passes=passes, ranks=ranks)
        assert re.search(rf"over NCCL: {ranks} ranks, held against virtual devices on one GPU: 0 of \d+ gradients differ", report), report
        pools = re.findall(r"^    (weights|gradients), (planned|measured) +(.*)$", report, re.MULTILINE)
        assert len(pools) == 4 and pools[0][2] == pools[1][2] and pools[2][2] == pools[3][2], report


def check_replicas():
    """Two pipelines whose gradients are added up: the bits of both shares on one GPU, one after the other."""
    report = train("nccl", "1f1b", "--steps", "2", "--graph", passes=2 * 2 * 2, ranks=4)
    assert re.search(r"over NCCL: 4 ranks, held against virtual devices on one GPU: 0 of \d+ gradients differ", report), report


def check_refusals():
    for words, status, sentence in [
            (["--backend", "cuda", "--clip", "1", "--post-validation", "--graph"], 2, "leave out --graph"),
            (["--backend", "cuda", "--schedule", "dualpipe", "--clip", "1", "--post-validation"], 2, "wants one copy of every stage and no shards"),
            (["--backend", "cuda", "--with", "weights-on-host", "--clip", "1"], 2, "with weights-on-host the host steps on what lies there"),
            (["--backend", "nccl", "--schedule", "wei-pipe"], 2, "on GPUs every stage has a device, where it goes forward and back; --backend threads has wei-pipe"),
            (["--backend", "cuda", "--schedule", "slimpipe", "--with", "attention-exchange", "--clip", "1"], 2, "goes with none of --clip"),
            (["--backend", "cuda", "--tensor", "2"], 2, "shards of a stage want a GPU each: --backend nccl has --tensor"),
            (["--backend", "mpi"], 2, "this gpt was built without the backend mpi; it has it where CMake finds MPI"),
            (["--backend", "tpu"], 2, "--backend wants threads, mpi, cuda or nccl, not 'tpu'"),
            (["--backend"], 2, "--backend wants threads, mpi, cuda or nccl")]:
        ended = run(*words)
        assert ended.returncode == status and sentence in ended.stderr, (words, ended)
        assert ended.stderr.startswith("gpt: ") and ended.stderr.count("\n") == 1, ended


check_refusals()
check_reports()
check_checkpoints()
check_other_cuts()
check_clipping()
check_copies()
check_exchange()
check_helix()
check_sizes()
check_replicas()
check_gathered()
check_shards()
check_vocabulary()
