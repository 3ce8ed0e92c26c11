#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Steps on streams and over NCCL: one that is stopped and continued goes on, and one that hangs ends on time.

usage: liveness_test.py PROGRAM
"""
import os
import re
import signal
import subprocess
import sys
import time

PROGRAM = sys.argv[1]
HUNG = 86  # pipelining::hung_status


def start(*arguments):
    return subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process, seconds):
    try:
        out, error = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return out, error, process.returncode


def check_goes_on(runner):
    process = start(runner, 1000)
    assert process.stdout.readline() == "begun\n", process.communicate()
    time.sleep(0.03)  # now it is in the middle of a step
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(2.5)
    os.kill(process.pid, signal.SIGCONT)
    out, error, code = end(process, 30)
    assert (out, error, code) == ("ended\n", "", 0), (out, error, code)


def check_hang(runner, stage, call, who, name):
    """The nth call of a stage never returns."""
    out, error, code = end(start(runner, 1000, stage, call), 15)
    sentence = (rf"\w+: no progress before the deadline: {who} is not back from the {name} \(item \d+ of \d+\); "
                rf"this process ends with status {HUNG}\n")
    assert re.search(sentence, error), error
    assert code == HUNG, (code, error)
    if runner == "nccl":  # the other rank has ended before, and names it
        other = re.search(r"rank (?!" + str(stage) + r")\d: nccl: (.*(\n  rank .*)*)", error)
        assert other and re.search(rf"\n  {who} (is where it began: it )?is still in the {name} ", other[1]), error


FAILED = []
for check in [(check_goes_on, "streams"), (check_goes_on, "graph"), (check_goes_on, "nccl"),
              (check_hang, "streams", 0, 0, "device 0", "forward of stage 0, microbatch 0"),
              (check_hang, "streams", 1, 7, "device 1", "backward of stage 1, microbatch 3"),
              (check_hang, "graph", 1, 9, "device 1", "backward of stage 1, microbatch 0"),
              (check_hang, "nccl", 0, 0, "rank 0", "forward of stage 0, microbatch 0"),
              (check_hang, "nccl", 1, 7, "rank 1", "backward of stage 1, microbatch 3")]:
    try:
        check[0](*check[1:])
    except (AssertionError, subprocess.TimeoutExpired) as failure:
        FAILED.append(f"{check[1:]}: {failure!r}")
assert not FAILED, "\n".join(FAILED)
