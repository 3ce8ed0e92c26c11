#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs the corpus of a reader and then fuzzes it, with a fixed seed.

usage: fuzz_test.py PROGRAM READER CORPUS RUNS

RUNS is how many inputs are tried by default. In the environment PIPELINING_TEST_EVERYTHING=1 asks for 30 seconds, and
PIPELINING_FUZZ_SECONDS=N for N seconds with a seed of their own, which is printed. What was found is kept in the folder
`fuzz-READER` of the current folder, and `PROGRAM READER FILE` runs it again.
"""
import os
import pathlib
import random
import subprocess
import sys
import tempfile

PROGRAM, READER, CORPUS, RUNS = sys.argv[1:]
LONGEST = 10  # seconds of the default; it takes a few where nothing else runs


def length():
    seconds = os.environ.get("PIPELINING_FUZZ_SECONDS")
    if seconds:
        return [f"-max_total_time={int(seconds)}", f"-seed={random.randrange(1, 2**31)}"]
    if os.environ.get("PIPELINING_TEST_EVERYTHING"):
        return ["-max_total_time=30", "-seed=1"]
    return [f"-runs={RUNS}", f"-max_total_time={LONGEST}", "-seed=1"]


corpus = pathlib.Path(CORPUS)
assert any(corpus.iterdir()), f"{corpus} is empty"
found = pathlib.Path(f"fuzz-{READER}")
with tempfile.TemporaryDirectory() as grown:
    options = [*length(), "-timeout=10", "-max_len=4096", "-rss_limit_mb=1024", "-malloc_limit_mb=128",
               f"-artifact_prefix={found}/", "-reduce_inputs=0", "-entropic=0", "-print_final_stats=1"]
    found.mkdir(exist_ok=True)
    memory = pathlib.Path("/dev/shm")  # files of checkpoints
    environment = {**os.environ, **({"TMPDIR": str(memory)} if os.access(memory, os.W_OK) else {})}
    run = subprocess.run([PROGRAM, READER, *options, grown, str(corpus)], stdin=subprocess.DEVNULL, env=environment,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    print(" ".join([PROGRAM, READER, *options, "FOLDER", str(corpus)]))
    print(run.stdout[-6000:])
sys.exit(run.returncode)
