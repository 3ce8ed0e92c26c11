#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Steps on streams and over NCCL: one that is stopped and continued goes on, and one that hangs ends on time.

usage: liveness_test.py PROGRAM
"""
import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import time

PROGRAM = sys.argv[1]
HUNG = 86  # pipelining::run_error::hung_status


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
    """The nth call of a stage never returns. One rank alone has no communicator to end, and so it ends on time."""
    deadline = 1.0
    out, error, code = end(start(runner, int(1000 * deadline), stage, call), 15)
    ended = time.monotonic()
    hangs = re.search(r"^hangs (\d+) ", out, re.MULTILINE)
    assert hangs, (out, error)
    late = ended - int(hangs[1]) / 1e9 - deadline
    assert runner == "nccl" or late < 1.5, late  # it says so within a second, and leaves others half of one to hear it
    sentence = (rf"\w+: no progress before the deadline: {who} is not back from the {name} \(item \d+ of \d+\); "
                rf"this process ends with status {HUNG}\n")
    assert re.search(sentence, error), error
    assert code == HUNG, (code, error)
    if runner == "nccl":  # the other rank has ended before, and names it
        other = re.search(r"rank (?!" + str(stage) + r")\d: nccl: (.*(\n  rank .*)*)", error)
        assert other and re.search(rf"\n  {who} (is where it began: it )?is still in the {name} ", other[1]), error


# How the sentence names what a member is called for; the number of the stage follows.
WORDS = {"forward": "forward of stage", "recompute": "recompute of stage", "backward": "backward of stage",
         "copied_gradient": "gradient of a copy of stage",
         "add_copies": "addition of the gradients of all copies of stage", "tied_gradient": "tied gradient of stage",
         "add_tied": "addition of the tied gradients on stage", "contribute": "totals of stage",
         "optimizer_step": "optimizer step of stage", "accepts": "optimizer step of stage",
         "roll_back": "validation of the optimizer step of stage",
         "begin_iteration": "validation of the optimizer step of stage"}
NAMELESS = {"backward_input", "backward_weight", "forward_backward", "gather_weights", "use_weights", "collect_gradients",
            "scatter_gradients", "gradients_ready"}


def members_of(runner, plans, device):
    out, error, code = end(start(runner, 5000, plans, device, "none"), 30)
    assert code == 0, (out, error)
    return re.findall(r"calls \d (\w+)", out)


def check_member(runner, plans, device, member):
    """A member never returns: it is named within the deadline and a second, and the process ends.

    Over NCCL the other rank names it. Its own process waits until communicators would have been aborted, which may end
    a call of a stage that is in the driver.
    """
    call = (runner, plans, device, member)
    deadline = 1.0
    process = start(runner, int(1000 * deadline), plans, device, member)
    hangs = re.search(r"hangs (\d+) (\d+)\n", process.stdout.readline())
    assert hangs, (call, process.communicate())
    who = "rank" if runner == "nccl" else "device"
    words = WORDS.get(member, "of stage") + " " + hangs[2]
    named = re.compile(rf"\b{who} {device} [^\n]*is (still in|not back from) the [^\n]*{words}\b")
    said = line = ""
    while not named.search(line):
        line = process.stderr.readline()
        assert line, (call, said)
        said += line
    late = time.monotonic() - int(hangs[1]) / 1e9 - deadline  # both are the steady clock of the machine
    said += end(process, 15)[1]
    sentence = rf"no progress before the deadline: {who} {device} is not back from the [^\n]*{words}\b"
    assert re.search(sentence, said), (call, said)
    assert process.returncode == HUNG, (call, process.returncode, said)
    assert late < 1, (call, late)


def checks_of_members():
    """Each member of five schedules hangs once on each runner; on both devices where everything is asked for."""
    asked = [(plans, runner, device) for plans in ["recompute", "validated", "v_shape", "copies", "sharded"]
             for runner in ["streams", "nccl", *([] if plans == "validated" else ["graph"])] for device in (0, 1)]
    with concurrent.futures.ThreadPoolExecutor(4) as runs:
        told = dict(zip(asked, runs.map(lambda each: members_of(each[1], each[0], each[2]), asked)))
    hangs = []
    for plans, runner in dict.fromkeys(each[:2] for each in asked):
        calls = {str(device): told[plans, runner, device] for device in (0, 1)}
        for turn, member in enumerate(sorted({*calls["0"], *calls["1"]})):
            devices = [device for device in calls if member in calls[device]]
            if not os.environ.get("PIPELINING_TEST_EVERYTHING"):
                devices = [devices[turn % len(devices)]]
            hangs += [(check_member, runner, plans, device, member) for device in devices]
    assert {call[-1] for call in hangs} == {*WORDS} | NAMELESS, hangs
    return hangs


def failure_of(check, *words):
    try:
        check(*words)
    except (AssertionError, subprocess.TimeoutExpired) as failure:
        return f"{words}: {failure!r}"


CHECKS = [(check_goes_on, "streams"), (check_goes_on, "graph"), (check_goes_on, "nccl"),
          (check_hang, "streams", 0, 0, "device 0", "forward of stage 0, microbatch 0"),
          (check_hang, "streams", 1, 7, "device 1", "backward of stage 1, microbatch 3"),
          (check_hang, "graph", 1, 9, "device 1", "backward of stage 1, microbatch 0"),
          (check_hang, "alone", 0, 0, "rank 0", "forward of stage 0, microbatch 0"),
          (check_hang, "alone", 0, 9, "rank 0", "backward of stage 0, microbatch 0"),
          (check_hang, "nccl", 0, 0, "rank 0", "forward of stage 0, microbatch 0"),
          (check_hang, "nccl", 1, 7, "rank 1", "backward of stage 1, microbatch 3")]
with concurrent.futures.ThreadPoolExecutor(24) as pool:  # they sleep
    FAILED = list(filter(None, pool.map(lambda check: failure_of(*check), [*CHECKS, *checks_of_members()])))
assert not FAILED, "\n".join(FAILED)
