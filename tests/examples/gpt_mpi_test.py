#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs the example gpt_mpi with four processes: the bits of one process, ranks with other options, and every survivor's
report after one is killed or stopped.

usage: gpt_mpi_test.py train|agree|kill|stop|term PROGRAM MPIRUN...
"""
import concurrent.futures
import functools
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

RANKS = 4
KILLS = 20
STOPS = 20 if os.environ.get("PIPELINING_TEST_EVERYTHING") else 6
DEADLINE = 2  # seconds that a rank waits for one that was stopped
MOST_SECONDS = 5  # beyond the deadline, where one has to pass
KIND, PROGRAM, *MPIRUN = sys.argv[1:]
SMALL = ["--layers", "8", "--width", "32", "--sequence", "32", "--microbatches", "8"]
LARGE = ["--layers", "8", "--width", "64", "--sequence", "128", "--microbatches", "8"]  # messages of 32 kB


def command(*arguments):
    return [*MPIRUN, "-n", str(RANKS), PROGRAM, *arguments]


def run(*arguments):
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=100)


def side_by_side(checks):
    """What each returns. A run of mpirun waits for most of its time."""
    with concurrent.futures.ThreadPoolExecutor(4) as runs:
        return list(runs.map(lambda check: check(), checks))


def check_training():
    schedules, adapters, *_ = side_by_side([
        check_schedules, check_adapters, check_two_copies, check_clipping, check_clipped_copies, check_sizes,
        check_schedules_of_others, check_output, check_travelling, check_shards, check_vocabulary])
    curves = [*schedules, *adapters]
    assert all(curve == curves[0] for curve in curves) and float(curves[0][-1]) < float(curves[0][0]) - 0.5, curves


def check_schedules():
    curves = []
    for schedule in ("1f1b", "seq1f1b", "v-half", "helix", "breadth-first"):
        result = run(*SMALL, "--schedule", schedule, "--steps", "11", "--check")
        assert result.returncode == 0, result
        assert re.search(r"^\d{6} gradients and weights after 11 steps, held against one process: 0 values differ$",
                         result.stdout, re.MULTILINE), result.stdout
        assert len(set(re.findall(r"^rank (\d) of 4 is process \d+ on ", result.stdout, re.MULTILINE))) == RANKS
        if schedule not in ("helix", "breadth-first"):  # which add gradients up from the last microbatch on
            curves.append(re.findall(r"loss ([\d.]+)", result.stdout))
    return curves


def check_adapters():
    curves = []
    for adapter in ("offload", "recompute", "sharded-weights"):
        result = run(*SMALL, "--schedule", "1f1b", "--with", adapter, "--steps", "11", "--check")
        assert result.returncode == 0, result
        assert "held against one process: 0 values differ\n" in result.stdout, result.stdout
        curves.append(re.findall(r"loss ([\d.]+)", result.stdout))
        slots = {where: list(map(float, numbers.split())) for where, numbers in
                 re.findall(r"^    (on the .*?, (?:planned|measured))((?: +[\d.]+){4})$", result.stdout, re.MULTILINE)}
        assert len(slots) == (4 if adapter == "offload" else 0), result.stdout
        for where in ("device", "host") if slots else ():
            planned, measured = slots[f"on the {where}, planned"], slots[f"on the {where}, measured"]
            assert measured[0] > 0 and all(most <= room for most, room in zip(measured, planned)), slots
    return curves


def check_output():
    result = run("--output", "folder")
    assert result.returncode == 2 and "--output is not for gpt_mpi" in result.stderr, result


ADVICE = "; start all ranks with the same program and options"


def check_difference(one, others, difference):
    process = subprocess.run([*MPIRUN, "-n", "2", PROGRAM, *one, ":", "-n", "1", PROGRAM, *one, *others, ":",
                              "-n", "1", PROGRAM, *one], capture_output=True, text=True, timeout=60)
    assert process.returncode != 0 and "step " not in process.stdout, process
    assert re.search(rf"^gpt_mpi: rank 2[^\n]*: {difference}{ADVICE}$", process.stderr, re.MULTILINE), process


def check_agreement():
    """Rank 2 was started with other options, or another text: nobody makes a step, and the first difference is named."""
    with tempfile.TemporaryDirectory() as folder:
        texts = [pathlib.Path(folder, name) for name in ("one", "other")]
        for path, word in zip(texts, ("best", "last")):
            path.write_text(f"it was the {word} of times; " * 40)
        one = [*SMALL, "--steps", "5", "--deadline", "20", "--text", str(texts[0])]
        side_by_side(functools.partial(check_difference, one, *each) for each in (
                (["--seed", "7"], "rank 0 has seed=1, rank 2 has seed=7"),
                (["--layers", "9"], "rank 0 has layers=8, rank 2 has layers=9"),
                (["--steps", "9"], "rank 0 has steps=5, rank 2 has steps=9"),
                (["--microbatches", "4"], "rank 0 has sequences-of-step=8, rank 2 has sequences-of-step=4"),
                (["--microbatches", "4", "--seed", "7"], "rank 0 has seed=1, rank 2 has seed=7"),  # what is learnt comes first
                (["--schedule", "1f1b"], "rank 0 has schedule=seq1f1b, rank 2 has schedule=1f1b"),
                (["--clip", "0.5"], "rank 0 has clip=0, rank 2 has clip=0.5"),
                (["--devices", "2"], "rank 0 has sequences-of-step=8, rank 2 has sequences-of-step=16"),
                (["--text", str(texts[1])], r"rank 0 has digest-of-text=\d+, rank 2 has digest-of-text=\d+"),
                (["--checkpoint", folder], "rank 0 has checkpoints=no, rank 2 has checkpoints=yes"),
                (["--every", "3"], "rank 0 has every=10, rank 2 has every=3"),
                (["--steps", "0"], r"rank 0 has options=read, rank 2 has options=refused \(--steps wants a whole number [^\n]*\)")))
        assert sorted(path.name for path in pathlib.Path(folder).iterdir()) == ["one", "other"]
        # A rank on another version of the vector loops would round in another way.
        if "avx2" in pathlib.Path("/proc/cpuinfo").read_text():
            process = subprocess.run([*MPIRUN, "-n", "3", PROGRAM, *one, ":", "-n", "1", "env", "PIPELINING_VECTORS=plain", PROGRAM, *one],
                                     capture_output=True, text=True, timeout=60)
            assert process.returncode != 0 and "step " not in process.stdout, process
            assert re.search(r"rank 0 has PIPELINING_VECTORS=x86-64-v\d, rank 3 has PIPELINING_VECTORS=plain" + ADVICE, process.stderr), process
        check_other_launchers()
        # Folders, patience and reports may be a rank's own.
        process = subprocess.run([*MPIRUN, "-n", "3", PROGRAM, *one, ":", "-n", "1", PROGRAM, *one, "--deadline", "21",
                                  "--reports", folder], capture_output=True, text=True, timeout=60)
        assert process.returncode == 0 and "step 5/5 " in process.stdout, process


def check_other_launchers():
    """A launcher that MPI does not know would make four runs of one rank; each process says so, and writes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        for variables, who in (({"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "2"}, "rank 2 of 4, as torchrun says"),
                               ({"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "4"}, "rank 1 of 4, as Flux says")):
            result = subprocess.run([PROGRAM, *SMALL, "--steps", "1", "--checkpoint", folder], capture_output=True, text=True,
                                    timeout=60, env={**os.environ, **variables})
            assert result.returncode == 2 and result.stdout == "", result
            assert result.stderr == (f"gpt_mpi: launch: this is {who}, but MPI has started this process alone; start the "
                                     "program with the mpirun of the MPI that it was built with\n"), result.stderr
        assert not list(pathlib.Path(folder).iterdir())
        # Without any launcher it is one process, whatever variables MPI has set by then.
        result = subprocess.run([PROGRAM, "--microbatches", "2", "--steps", "1"], capture_output=True, text=True, timeout=60)
        assert result.returncode == 0 and "step 1/1 " in result.stdout, result


def check_two_copies():
    """Pipelines that enter at both ends: two ranks add up the gradients of a stage, and keep what the plan says, to the byte."""
    for schedule in ("chimera", "bitpipe", "dualpipe"):
        result = run(*SMALL, "--schedule", schedule, "--steps", "5", "--check")
        assert result.returncode == 0, result
        assert "held against one process: 0 values differ\n" in result.stdout, result.stdout
        losses = re.findall(r"^step (\d+)/5   loss ([\d.]+)", result.stdout, re.MULTILINE)
        assert [step for step, _ in losses] == ["1", "5"] and losses[1][1] < losses[0][1] < "5.9", losses
        planned, measured = (re.search(rf"^    {what} +((?: +[\d.]+){{4}})$", result.stdout, re.MULTILINE)[1].split()
                             for what in ("planned", "measured"))
        assert planned == measured, result.stdout
    # Two such pipelines of two ranks: the sum of the copies, then the mean of the pipelines.
    result = run(*SMALL, "--devices", "2", "--schedule", "chimera", "--steps", "5", "--check")
    assert result.returncode == 0 and "held against one process: 0 values differ\n" in result.stdout, result


def check_travelling():
    """Weights as messages: what is sent is what was planned, to the byte."""
    result = run(*SMALL, "--schedule", "wei-pipe", "--steps", "5", "--check")
    assert result.returncode == 0 and "held against one process: 0 values differ\n" in result.stdout, result
    losses = re.findall(r"^step \d/5   loss ([\d.]+)", result.stdout, re.MULTILINE)
    assert len(losses) == 2 and losses[1] < losses[0] < "5.9", losses
    sent = re.findall(r"^    weights sent, (?:planned|measured)((?: +[\d.]+){4})$", result.stdout, re.MULTILINE)
    assert len(sent) == 2 and sent[0].split() == sent[1].split() and all(float(bytes) > 0 for bytes in sent[0].split()), result.stdout
    held("--schedule", "wei-pipe", "--devices", "2")
    for words in (["--clip", "1"], ["--microbatches", "6"]):
        result = run(*SMALL, "--schedule", "wei-pipe", *words)
        assert result.returncode == 2 and result.stderr.count("gpt_mpi: ") == 1, result


def held(*words):
    """What a run prints that has the bits of one process; its rows of bytes and counts by device."""
    result = run(*SMALL, *words, "--steps", "3", "--check")
    assert result.returncode == 0, result
    assert re.search(r"^\d{6} gradients and weights after 3 steps, held against one process: 0 values differ$", result.stdout,
                     re.MULTILINE), result.stdout
    return {what: list(map(float, numbers.split()))
            for what, numbers in re.findall(r"^    ([a-z, ]+?)((?: +[\d.]+)+)$", result.stdout, re.MULTILINE)}


def refused(sentence, *words):
    result = run(*SMALL, *words)
    assert result.returncode == 2 and f"gpt_mpi: {sentence}\n" in result.stderr, result


def check_shards():
    """A process for each shard of a stage: braids hide the sums that they hide on threads."""
    found = held("--schedule", "stp")
    assert found["passes alone, measured"] == found["passes alone, planned"] == [5, 4], found
    assert found["sums"] == [128, 128] and found["exposed"] == [20, 16], found
    for what in ("activations", "for weights"):
        assert all(0 < most <= room for most, room in zip(found[what + ", measured"], found[what + ", planned"])), found
    held("--schedule", "1f1b", "--tensor", "4")  # whose sums depend on the order of their parts
    held("--schedule", "v-half", "--tensor", "2", "--devices", "1")  # in two pipelines
    refused("layout: 4 ranks cannot be replicas of a pipeline of 3 devices with 2 shards each; start a multiple of 6 ranks",
            "--tensor", "2", "--devices", "3")


def check_vocabulary():
    """Embedding and output layer in shards on all ranks: slots hold as many microbatches as the schedule says."""
    for adapter, schedule, microbatches in (("1", "1f1b", [5, 4, 3]), ("2", "v-half", None), ("interlaced", "seq1f1b", None)):
        found = held("--schedule", schedule, "--with", "vocabulary-" + adapter)
        for what in ("activations", "logits"):
            assert all(0 < most <= room for most, room in zip(found[what + ", measured"], found[what + ", planned"])), found
        if microbatches:  # on the devices before the last, whose stage has the norm, too
            unit = found["activations, measured"][0] / microbatches[0]
            assert [round(bytes / unit, 2) for bytes in found["activations, measured"][:3]] == microbatches, found
            assert found["activations, measured"][:3] == found["activations, planned"][:3], found
    held("--schedule", "1f1b", "--with", "vocabulary-1", "--devices", "2")  # two pipelines


def check_clipping():
    """Clipped gradients, or means of them: early steps that are rolled back where they were wrong leave the weights of steps that wait."""
    ends = []
    for early in ([], ["--post-validation"], ["--post-validation", "--devices", "2"]):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder, "text")
            text.write_text("it was the best of times, it was the worst of times; " * 40)
            result = run(*SMALL, "--schedule", "zb-h1", "--steps", "11", "--clip", "2", *early, "--check", "--text", str(text))
        assert result.returncode == 0 and "held against one process: 0 values differ\n" in result.stdout, result
        ends.append(re.search(r"gradients clipped to a norm of 2 in (\d+) of 11 steps, left out in 0; weights [0-9a-f]{16}\n", result.stdout))
        clipped = int(ends[-1][1])
        assert 0 < clipped < 11, ends
        if early:
            found = re.search(r"(\d+) early steps were wrong: stages rolled back (\d+) times, (\d+) iterations began again\n", result.stdout)
            assert int(found[1]) == clipped and clipped - 1 <= int(found[3]) <= clipped, found[0]
            assert int(found[2]) >= (clipped if len(early) == 1 else 1), found[0]  # of two devices the second knows all rows at once
    # Two pipelines have other microbatches.
    assert ends[0][0] == ends[1][0] != ends[2][0], ends


def check_clipped_copies():
    # Copies of a stage add up their gradients before the norm is known, and so do replicas; attention has none.
    copied = []
    for where in (["chimera"], ["chimera", "--devices", "2"], ["dualpipe"], ["helix"], ["helix", "--devices", "2"]):
        result = run(*SMALL, "--steps", "5", "--clip", "0.5", "--check", "--schedule", *where)
        assert result.returncode == 0 and re.search(r" weights after 5 steps, held against one process: 0 values differ\n", result.stdout), result
        copied.append(re.search(r"gradients clipped to a norm of 0.5 in [1-5] of 5 steps, left out in 0; weights ([0-9a-f]{16})\n", result.stdout)[1])
    assert copied[0] == copied[2], copied
    for schedule in ("helix", "dualpipe"):
        refused("--post-validation validates steps that are part of the plan, which wants one copy of every stage and no shards; "
                "leave it out", "--schedule", schedule, "--clip", "1", "--post-validation")


def check_sizes():
    """Chunk counts that change from iteration to iteration: ranks make a plan for each once."""
    result = run(*SMALL, "--schedule", "chunkflow", "--chunk-counts", "1,1,4,2:3,1", "--steps", "6", "--check")
    assert result.returncode == 0 and "held against one process: 0 values differ\n" in result.stdout, result
    assert "\niterations of 2 sizes: 2 plans made, 5 times one was there\n" in result.stdout, result.stdout


def check_schedules_of_others():
    """Schedules that only another backend runs: the sentence names one that does, and no backend where none does."""
    for words in (["round-pipe"], ["slimpipe", "--with", "attention-exchange"]):
        refused(" ".join(words).replace("--", "") + " wants --backend threads: its stages are not layers that go forward and back on "
                "one device", "--schedule", *words)
    refused("attention-exchange is for slimpipe alone, whose devices run as many chunks at the same time as there are devices, and not "
            "for 1f1b", "--schedule", "1f1b", "--with", "attention-exchange")
    refused("round-pipe goes into sharded-weights and gathered-once alone, which load weights from the host: its devices keep no "
            "activations, and the vocabulary is in its stages", "--schedule", "round-pipe", "--with", "recompute")


def parent_of(process):
    """The process that has started another: mpirun, whatever has started that."""
    with open(f"/proc/{process}/stat", encoding="ascii") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def strike(dice, what, victim, number, folder):
    """Sends one rank, or mpirun for None, a signal at a random moment; returns what happened, and when the last process had ended."""
    schedule = dice.choice(["1f1b", "seq1f1b", "v-half"])
    size = dice.choice([SMALL, LARGE])
    wait = dice.uniform(0, 0.4)
    stops = what == signal.SIGSTOP
    arguments = [*size, "--schedule", schedule, "--steps", "1000000", "--reports", folder]
    arguments += ["--deadline", str(DEADLINE)] if stops else []
    story = f"{what.name} {number}: rank {victim}, {schedule}, {size[3]} wide, {wait:.3f} s after the first step"
    process = subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    processes = {}
    lines = []
    for line in process.stdout:
        lines.append(line)
        if found := re.match(r"rank (\d) of 4 is process (\d+) on", line):
            processes[int(found[1])] = int(found[2])
        if line.startswith("step ") and len(processes) == RANKS:
            break
    assert len(processes) == RANKS, story + "\n" + "".join(lines)
    time.sleep(wait)
    os.kill(parent_of(processes[0]) if victim is None else processes[victim], what)
    start = time.monotonic()
    rest, _ = process.communicate(timeout=60)
    took = time.monotonic() - start
    story += f": over after {took:.2f} s\n" + rest
    assert took < MOST_SECONDS + DEADLINE * stops and process.returncode != 0, story
    return story


def report_of(rank, folder, story):
    # mpirun shows most reports, but drops some of what its processes say while it ends them.
    path = pathlib.Path(folder, f"rank-{rank}.txt")
    assert path.is_file(), f"no report of rank {rank} after " + story
    return path.read_text()


def check_stop(number):
    """A process that is stopped closes nothing: only deadlines end the others' waits. All must name it."""
    victim = number % RANKS
    with tempfile.TemporaryDirectory() as folder:
        story = strike(random.Random(600 + number), signal.SIGSTOP, victim, number, folder)
        for rank in set(range(RANKS)) - {victim}:
            report = report_of(rank, folder, story)
            assert re.match(rf"gpt_mpi: rank {rank}, step \d+: run: no progress before the deadline: rank \d was at ", report) \
                and f"\n  rank {victim} is where it began: " in report, report + story
    print(story.split("\n")[0], flush=True)


def check_stops():
    side_by_side(functools.partial(check_stop, number) for number in range(STOPS))


def check_termination(victim):
    with tempfile.TemporaryDirectory() as folder:
        story = strike(random.Random(7), signal.SIGTERM, victim, 0, folder)
        for rank in range(RANKS):
            who = victim if victim is not None else r"\d"
            report = report_of(rank, folder, story)
            assert re.match(rf"gpt_mpi: rank {rank}, step \d+: run: rank {who} was told to end \(SIGTERM\)", report), \
                report + story
    print(story.split("\n")[0], flush=True)


def check_terminations():
    """SIGTERM to one process, and to mpirun, which passes it on: all ranks say that they were told to end."""
    side_by_side(functools.partial(check_termination, victim) for victim in (2, 0, None))


def check_kill(number):
    """Kills one rank; returns how many survivors named whom they waited for."""
    dice = random.Random(500 + number)
    victim = dice.randrange(RANKS)
    with tempfile.TemporaryDirectory() as folder:
        what = strike(dice, signal.SIGKILL, victim, number, folder)
        reports = {rank: report_of(rank, folder, what) for rank in set(range(RANKS)) - {victim}}
    waiting = 0
    for rank, report in reports.items():
        found = re.search(rf"^gpt_mpi: rank {rank}, step \d+: run: the process of rank {victim} has ended\n"
                          rf"  rank {rank} was at (?:item \d+ of \d+|the (?:start|end) of its program), "
                          r"(?:its last pass was the \w+ of stage \d+, microbatch \d+|before its first pass)[^\n]*",
                          report, re.MULTILINE)
        assert found, report + what
        waiting += bool(re.search(r"and it waited for rank \d to complete item \d+ of \d+: (send|receive) what comes of "
                                  r"the \w+ of stage \d+, microbatch \d+", found[0]))
    print(what.split("\n")[0], f"{waiting} of {RANKS - 1} survivors were waiting", flush=True)
    return waiting


def check_kills():
    waiting = sum(side_by_side(functools.partial(check_kill, number) for number in range(KILLS)))
    # With one process gone, the others come to a stop; only one that is busy learns it before it has to wait.
    assert waiting > KILLS, waiting


if __name__ == "__main__":
    {"train": check_training, "agree": check_agreement, "kill": check_kills, "stop": check_stops, "term": check_terminations}[KIND]()
