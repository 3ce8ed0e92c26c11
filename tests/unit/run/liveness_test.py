#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs that are stopped with SIGSTOP and continued go on; what never returns ends its run on time, and is named.

usage: liveness_test.py THREADS [RANKS MPIRUN...]
"""
import os
import re
import signal
import subprocess
import sys
import time

THREADS, *REST = sys.argv[1:]
RANKS, MPIRUN = REST[0] if REST else None, REST[1:]
HUNG = 86  # pipelining::hung_status


def start(command):
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process, timeout=30):
    out, error = process.communicate(timeout=timeout)
    return out, error, process.returncode


def stop(processes, seconds):
    for one in processes:
        os.kill(one, signal.SIGSTOP)
    time.sleep(seconds)
    for one in processes:
        os.kill(one, signal.SIGCONT)


def check_threads_go_on():
    process = start([THREADS])
    assert process.stdout.readline() == "begun\n"
    stop([process.pid], 1.0)  # the deadline is 0.4
    out, error, code = end(process)
    assert (out, error, code) == ("ended\n", "", 0), (out, error, code)


def start_ranks(ranks, *arguments):
    """The run, and the processes of its ranks in order, which have all begun."""
    process = start([*MPIRUN, "-n", str(ranks), RANKS, *map(str, arguments)])
    lines = [re.fullmatch(r"begun (\d+) (\d+)\n", process.stdout.readline()) for _ in range(ranks)]
    assert all(lines), process.communicate()
    begun = dict(line.groups() for line in lines)
    return process, [int(begun[str(rank)]) for rank in range(ranks)]


def check_ranks_go_on():
    run, processes = start_ranks(2, 400)
    stop(processes, 1.0)
    out, error, code = end(run)
    assert (out, error, code) == ("ended\n" * 2, "", 0), (out, error, code)


def check_one_rank_goes_on():
    run, processes = start_ranks(2, 2000)
    stop(processes[1:], 0.9)  # less than half the deadline
    out, error, code = end(run)
    assert (out, error, code) == ("ended\n" * 2, "", 0), (out, error, code)


def check_one_rank_is_named():
    run, processes = start_ranks(2, 400)
    os.kill(processes[1], signal.SIGSTOP)
    while "rank 0: " not in (line := run.stderr.readline()):
        assert line, "no report"
    said = line + run.stderr.readline()
    os.kill(processes[1], signal.SIGKILL)
    end(run)
    assert "rank 0: run: no progress before the deadline: " in said, said
    assert "rank 1 is where it began: it does not answer; its process is stopped or hung" in said, said


def check_hang(rank, call, name):
    """The nth call of a rank never returns."""
    deadline = 0.5
    run, _ = start_ranks(2, int(1000 * deadline), rank, call)
    out, error, code = end(run)
    sentence = (rf"run: no progress before the deadline: rank {rank} is not back from the {name} \(item \d+ of \d+\); "
                rf"this process ends with status {HUNG}\n")
    assert re.search(sentence, error), error
    assert code == HUNG, (code, error)
    other = re.search(rf"rank {1 - rank}: run: (.*(\n  rank .*)?)", error)
    assert other, error
    assert re.search(rf"rank {rank} (is where it began: it )?is (not back from|still in) the {name} ", other[1]), error


check_threads_go_on()
if RANKS:
    check_ranks_go_on()
    check_one_rank_goes_on()
    check_one_rank_is_named()
    check_hang(0, 0, "forward of stage 0, microbatch 0")
    check_hang(0, 8, "optimizer step of stage 0")
    check_hang(1, 0, "forward of stage 1, microbatch 0")
    check_hang(1, 7, "backward of stage 1, microbatch 3")
    check_hang(1, 8, "optimizer step of stage 1")
