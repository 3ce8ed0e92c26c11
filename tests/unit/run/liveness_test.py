#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs that are stopped with SIGSTOP and continued go on; what never returns ends its run on time, and is named.

usage: liveness_test.py THREADS [RANKS MPIRUN...]
"""
import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import time

THREADS, *REST = sys.argv[1:]
RANKS, MPIRUN = REST[0] if REST else None, REST[1:]
HUNG = 86  # pipelining::run_error::hung_status


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


# How the sentence names what a member is called for; the number of the stage follows.
WORDS = {"forward": "forward of stage", "recompute": "recompute of stage", "backward": "backward of stage",
         "copied_gradient": "gradient of a copy of stage",
         "add_copies": "addition of the gradients of all copies of stage", "tied_gradient": "tied gradient of stage",
         "add_tied": "addition of the tied gradients on stage", "contribute": "totals of stage",
         "optimizer_step": "optimizer step of stage", "accepts": "optimizer step of stage",
         "roll_back": "validation of the optimizer step of stage",
         "begin_iteration": "validation of the optimizer step of stage"}
PLANS = ["recompute", "validated", "v_shape", "copies", "sharded"]


def members_of(plans):
    """The members that two ranks call, each with the ranks that call it."""
    out, error, code = end(start([*MPIRUN, "-n", "2", RANKS, "2000", plans, "0", "none"]))
    assert code == 0, (out, error)
    calls = sorted(re.findall(r"calls (\d) (\w+)", out))
    return {member: [rank for rank, other in calls if other == member] for _, member in calls}


def check_member(plans, rank, member):
    """A member never returns on one rank: the sentence comes within the deadline and a second, and the process ends."""
    deadline = 0.7
    run = start([*MPIRUN, "-n", "2", RANKS, str(int(1000 * deadline)), plans, rank, member])
    hangs = re.fullmatch(r"hangs (\d+) (\d+)\n", run.stdout.readline())
    assert hangs, (plans, rank, member, run.communicate())
    said = ""
    while "; this process ends with status" not in said:
        line = run.stderr.readline()
        assert line, (plans, rank, member, said)
        said += line
    late = time.monotonic() - int(hangs[1]) / 1e9 - deadline  # both are the steady clock of the machine
    out, error, code = end(run)
    error = said + error
    words = WORDS.get(member, "of stage") + " " + hangs[2]
    sentence = rf"run: no progress before the deadline: rank {rank} is not back from the [^\n]*{words}\b"
    assert re.search(sentence, error), (plans, rank, member, error)
    assert code == HUNG, (plans, rank, member, code, error)
    assert f"rank {1 - int(rank)}: run: " in error, (plans, rank, member, error)
    return late


def check_all():
    """Each member of five schedules hangs once on one of two ranks; on both where everything is asked for. Next to them what
    goes on, and what hangs elsewhere."""
    everything = os.environ.get("PIPELINING_TEST_EVERYTHING")
    with concurrent.futures.ThreadPoolExecutor(16) as runs:  # they sleep
        others = [runs.submit(*call) for call in (
            (check_threads_go_on,), (check_ranks_go_on,), (check_one_rank_goes_on,), (check_one_rank_is_named,),
            (check_hang, 0, 0, "forward of stage 0, microbatch 0"), (check_hang, 0, 8, "optimizer step of stage 0"),
            (check_hang, 1, 0, "forward of stage 1, microbatch 0"), (check_hang, 1, 7, "backward of stage 1, microbatch 3"),
            (check_hang, 1, 8, "optimizer step of stage 1"))]
        hangs = []
        for plans, members in zip(PLANS, runs.map(members_of, PLANS)):
            for turn, (member, ranks) in enumerate(members.items()):
                chosen = ranks if everything else [ranks[turn % len(ranks)]]
                hangs += [(plans, rank, member) for rank in chosen]
        nameless = {"backward_input", "backward_weight", "forward_backward", "gather_weights", "use_weights",
                    "collect_gradients", "scatter_gradients", "gradients_ready"}
        assert {member for _, _, member in hangs} == {*WORDS} | nameless, hangs
        late = list(runs.map(lambda call: check_member(*call), hangs))
        for each in others:
            each.result()
    assert max(late) < 1, sorted(zip(late, hangs))[-5:]


if RANKS:
    check_all()
else:
    check_threads_go_on()
