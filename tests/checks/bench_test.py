#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""scripts/bench --check: ratios that are worse by more than a tenth fail, and peers that are missing are said.

usage: bench_test.py REPOSITORY
"""
import copy
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])
KEPT = json.loads((ROOT / "benchmarks/results/performance.json").read_text(encoding="utf-8"))


def check(change, only=None):
    """Exit status, output and complaint where an earlier run found other figures."""
    found = copy.deepcopy(KEPT)
    change(found)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(found, file)
        file.flush()
        command = [sys.executable, ROOT / "benchmarks/bench.py", "--check", "--figures", file.name]
        done = subprocess.run(command + (["--only", only] if only else []), capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def runner(found, name, devices):
    return next(row for row in found["overhead"] if (row["runner"], row["devices"]) == (name, devices))


def multiply(row, key, factor):
    row[key] *= factor


def expect(what, found, status, words="", complaint=""):
    if found[0] != status or words not in found[1] or complaint not in found[2]:
        sys.exit(f"bench_test: {what}: status {found[0]}, {found[1][-2000:]}\n{found[2][-2000:]}")


NOTHING = lambda found: None  # noqa: E731
expect("the kept figures", check(NOTHING), 0, "holds     a pass of 2 devices, threads to oneTBB")
for factor, status in ((1.09, 0), (1.11, 1), (0.5, 0)):
    # Less is better.
    slower = lambda found, f=factor: multiply(runner(found, "threads", 4), "least", f)  # noqa: E731
    expect(f"threads x {factor}", check(slower), status, "a pass of 4 devices, threads to oneTBB",
           "a pass of 4 devices, threads to oneTBB" if status else "")
    # More is better.
    adamw = lambda found, f=factor: multiply(  # noqa: E731
        next(row for row in found["arithmetic"]["ours"] if row["what"] == "adamw"), "memory", f)
    expect(f"AdamW / {factor}", check(adamw), status, "AdamW, share of bandwidth", "AdamW, share" if status else "")
    torch = lambda found, f=factor: [multiply(row, "seconds", 1 / f)  # noqa: E731
                                     for row in found["making"]["32 256"]["torch"][:1]]
    expect(f"PyTorch / {factor}", check(torch), status, "making ", "PyTorch's time to ours" if status else "")
    gpt = lambda found, f=factor: [multiply(row, "tokens", f) for row in found["training"]["torch"][:1]]  # noqa: E731
    expect(f"PyTorch's GPT x {factor}", check(gpt), status, "GPT 16 x 64", "GPT 16 x 64" if status else "")
    fat = lambda found, f=factor: multiply(found["making"]["32 256"]["ours"][1], "plan_bytes", f)  # noqa: E731
    expect(f"bytes x {factor}", check(fat), status, "bytes of a pass, 1f1b", "bytes of a pass, 1f1b" if status else "")

expect("a part that was not asked for", check(lambda found: multiply(runner(found, "threads", 4), "least", 2), "arithmetic"), 0)


def without_peers(found):
    found["overhead"] = [row for row in found["overhead"] if row["runner"] == "threads"]
    for part in (found["making"]["8 32"], found["making"]["32 256"], found["arithmetic"], found["training"]):
        part["torch"] = []


expect("no peers", check(without_peers), 0, "skipped   a pass of 2 devices, threads to oneTBB")
# The speed of the machine is in no ratio.
faster = check(lambda found: [multiply(row, "least", 0.3) for row in found["overhead"]])
expect("a faster machine", faster, 0)
