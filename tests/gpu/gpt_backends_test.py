#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs the GPT with its backends on GPUs, small, on the stand-in: what they print, write and refuse.

usage: gpt_backends_test.py PROGRAM
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

PROGRAM = sys.argv[1]
SMALL = ["--layers", "4", "--width", "64", "--heads", "1", "--sequence", "4", "--devices", "2", "--microbatches", "2"]


def run(*arguments, ranks=2):
    # A heap for every thread: the stand-in sees no order between ranks that get the same memory of the host in turn.
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "WORLD_SIZE": str(ranks),
                               "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=256"})


def train(backend, schedule, *options, passes, ranks=2):
    """The report of a run that must end well. passes: of the whole timetable."""
    with tempfile.TemporaryDirectory() as folder:
        ended = run("--backend", backend, *SMALL, "--schedule", schedule, *options, "--output", folder, ranks=ranks)
        assert ended.returncode == 0 and ended.stderr == "", (ended.stdout, ended.stderr)
        for word in ("GPT of ", "predicted with unit costs", "tokens/s", "unigram entropy", "measured: step"):
            assert ended.stdout.count(word) >= 1, (word, ended.stdout)
        assert ended.stdout.count("GPT of ") == 1, ended.stdout  # of all ranks, one reports
        events = json.loads(pathlib.Path(folder, "trace.json").read_text())["traceEvents"]
        assert sum(event["ph"] == "X" for event in events) == passes, len(events)
        assert {"timetable.svg", "loss.svg"} <= {path.name for path in pathlib.Path(folder).iterdir()}
    return ended.stdout


def losses(report):
    return re.findall(r"step \d+/\d+   loss ([\d.]+)", report)


def check_reports():
    """The same report of both backends, with the same losses, and each with its own check."""
    chosen = ["seq1f1b", "--chunks", "2", "--steps", "3", "--graph"]
    alone, ranks = (train(backend, *chosen, passes=2 * 2 * 2 * 2) for backend in ("cuda", "nccl"))
    assert losses(alone) and losses(alone) == losses(ranks), (alone, ranks)
    rows = re.findall(r"^  ([\w-]+) +\d+ +[\d.]+ +([\d.]+) %  (.*)$", alone, re.MULTILINE)
    assert [name for name, _, _ in rows] == ["1f1b", "interleaved", "zb-h1", "v-half", "seq1f1b"], alone
    assert all(float(error) < 2 for _, error, _ in rows), alone
    assert sum(same == "0" for _, _, same in rows) == 3, alone
    half = train("nccl", "zb-h1", "--steps", "1", "--bf16", "--with", "recompute", passes=2 * 2 * 4)
    for report in (ranks, half):
        assert re.search(r"over NCCL: 2 ranks, held against virtual devices on one GPU: 0 of \d+ gradients differ", report), report


def check_copies():
    """Two copies of every stage, over NCCL on two ranks: the bits of virtual devices, where they lie side by side."""
    report = train("nccl", "dualpipe", "--microbatches", "4", "--steps", "2", passes=18)
    assert re.search(r"of dualpipe over NCCL: 2 ranks, held against virtual devices on one GPU: 0 of \d+ gradients differ", report), report


def check_shards():
    """Stages in two shards, over NCCL and on threads: rounding apart, the same losses."""
    wide = ["--width", "128", "--heads", "2", "--tensor", "2"]
    ranks = train("nccl", "zb-h1", *wide, "--steps", "3", "--graph", passes=2 * 2 * 3, ranks=4)
    assert re.search(r"over NCCL: 4 ranks, 2 shards of every stage, held against all shards on the host", ranks), ranks
    with tempfile.TemporaryDirectory() as folder:
        threads = run(*SMALL, *wide, "--schedule", "zb-h1", "--steps", "3", "--output", folder).stdout
    pairs = list(zip(losses(ranks), losses(threads), strict=True))
    assert len(pairs) == 2 and all(abs(float(a) - float(b)) < 0.01 for a, b in pairs), (ranks, threads)


def check_replicas():
    """Two pipelines whose gradients are added up: the bits of both shares on one GPU, one after the other."""
    report = train("nccl", "1f1b", "--steps", "2", "--graph", passes=2 * 2 * 2, ranks=4)
    assert re.search(r"over NCCL: 4 ranks, held against virtual devices on one GPU: 0 of \d+ gradients differ", report), report


def check_refusals():
    for words, status, sentence in [
            (["--backend", "cuda", "--clip", "1"], 2, "the backends on GPUs have no --clip; --backend threads has it"),
            (["--backend", "cuda", "--with", "vocabulary-1"], 2, "no shards of weights or vocabulary"),
            (["--backend", "cuda", "--chunk-counts", "2,2:4,1"], 2, "give --chunk-counts once; --backend threads has several"),
            (["--backend", "cuda", "--tensor", "2"], 2, "shards of a stage want a GPU each: --backend nccl has --tensor"),
            (["--backend", "mpi"], 2, "this gpt was built without the backend mpi; it has it where CMake finds MPI"),
            (["--backend", "tpu"], 2, "--backend wants threads, mpi, cuda or nccl, not 'tpu'"),
            (["--backend"], 2, "--backend wants threads, mpi, cuda or nccl")]:
        ended = run(*words)
        assert ended.returncode == status and sentence in ended.stderr, (words, ended)
        assert ended.stderr.startswith("gpt: ") and ended.stderr.count("\n") == 1, ended


check_refusals()
check_reports()
check_copies()
check_replicas()
check_shards()
