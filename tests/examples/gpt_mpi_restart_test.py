#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs the example gpt_mpi with checkpoints: killed again and again, or with a stage that throws, it ends with the bits of
a run that nobody has disturbed. And with pipelines side by side, which share the batch.

usage: gpt_mpi_restart_test.py replicas|kill|again|layouts|threads|files|pages PROGRAM MPIRUN...
"""
import os
import pathlib
import random
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time

RANKS = 4
EVERYTHING = os.environ.get("PIPELINING_TEST_EVERYTHING")
KILLS = {4: 20, 2: 20} if EVERYTHING else {4: 2, 2: 1}  # by the number of devices of a pipeline
EVERY = 3  # steps between checkpoints
KEPT = 4  # files of a rank: two checkpoints, each tensors and their index
KIND, PROGRAM, *MPIRUN = sys.argv[1:]
SMALL = ["--layers", "8", "--width", "32", "--sequence", "32", "--microbatches", "4"]


def command(*arguments, ranks=RANKS):
    return [*MPIRUN, "-n", str(ranks), PROGRAM, *SMALL, *arguments]


def run(*arguments, ranks=RANKS, environment=None):
    return subprocess.run(command(*arguments, ranks=ranks), capture_output=True, text=True, timeout=200,
                          env={**os.environ, **(environment or {})})


def check_trained(output, steps):
    """The program itself has compared: all replicas with the first, and that with a process that has trained alone."""
    assert re.search(rf"^\d{{5,6}} (gradients and )?weights after {steps} steps, held against one process: 0 values differ$",
                     output, re.MULTILINE), output


def check_replicas():
    curves = {}
    # 2 x 2 ranks, 2 x 3, 4 pipelines of one device, and an order of passes of its own.
    for ranks, devices, schedule in ((4, 2, "1f1b"), (6, 2, "v-half"), (4, 1, "gpipe"), (4, 4, "zb-h1")):
        result = run("--devices", str(devices), "--schedule", schedule, "--steps", "7", "--check", ranks=ranks)
        assert result.returncode == 0, result
        check_trained(result.stdout, 7)
        seen = re.findall(r"^rank (\d) of (\d) is process \d+ on \S+, pipeline (\d)$", result.stdout, re.MULTILINE)
        replicas = ranks // devices
        assert sorted(seen) == [(str(r), str(ranks), str(r % replicas)) for r in range(ranks)], result.stdout
        curves[ranks, devices] = float(re.findall(r"step 7/7   loss ([\d.]+)", result.stdout)[0])
    # Other replicas have other microbatches, so the number of them changes what is learnt.
    assert len(set(curves.values())) > 1, curves
    # A port is rank 0's of the whole run; pipelines take others.
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 10000)}
    result = run("--devices", "2", "--steps", "2", "--check", environment=where)
    assert result.returncode == 0, result
    check_trained(result.stdout, 2)
    result = run("--devices", "3")
    assert result.returncode == 2 and "4 ranks cannot be replicas of a pipeline of 3 devices; start a multiple of 3" \
        in result.stderr, result
    result = run("--restarts", "1")
    assert result.returncode == 2 and "--restarts wants a --checkpoint to go on from" in result.stderr, result


def files(folder, inside="."):
    return {path.name: path.read_bytes() for path in pathlib.Path(inside, folder).iterdir()}


def disturbed(dice, arguments):
    """Starts the run, and kills one rank a moment after one of the next checkpoints. Returns what it said."""
    victim = dice.randrange(RANKS)
    saves = dice.randint(2, 4)
    wait = dice.uniform(0, 0.03)  # about a step and a checkpoint
    process = subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    processes = {}
    lines = []
    for line in process.stdout:
        lines.append(line)
        if found := re.match(r"rank (\d) of 4 is process (\d+) on", line):
            processes[int(found[1])] = int(found[2])
        saves -= line.startswith("saved step ")
        if saves == 0:
            break
    assert saves == 0 and len(processes) == RANKS, "".join(lines)
    time.sleep(wait)
    os.kill(processes[victim], signal.SIGKILL)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode != 0, rest
    return victim, "".join(lines) + rest


def went_on_after(output):
    found = re.findall(r"^goes on after step (\d+)$", output, re.MULTILINE)
    return int(found[0]) if found else 0


def check_kills():
    dice = random.Random(15)
    for devices, kills in KILLS.items():
        steps = 5 * EVERY * (kills + 1)
        layout = ["--devices", str(devices), "--steps", str(steps), "--every", str(EVERY), "--schedule", "seq1f1b"]
        with tempfile.TemporaryDirectory() as calm, tempfile.TemporaryDirectory() as rough:
            result = run(*layout, "--checkpoint", calm)
            assert result.returncode == 0, result
            before = 0
            for number in range(kills):
                victim, story = disturbed(dice, [*layout, "--checkpoint", rough])
                after = went_on_after(story)
                print(f"{devices} devices x {RANKS // devices}: kill {number + 1} of {kills}, rank {victim}, which had gone on "
                      f"after step {after}", flush=True)
                # Where rank 0 has saved twice, all ranks have saved once: every attempt is of use.
                assert after % EVERY == 0 and (number == 0 or before < after), story
                before = after
            result = run(*layout, "--checkpoint", rough, "--check")
            assert result.returncode == 0, result
            assert before < went_on_after(result.stdout) < steps, result
            check_trained(result.stdout, steps)
            # Weights, both averages of the optimizer and the position in the data.
            expected = files(calm)
            assert len(expected) == KEPT * RANKS and files(rough) == expected, (sorted(expected), sorted(files(rough)))
    check_kills_of_shards(dice)


def check_kills_of_shards(dice):
    """Shards of stages go on from checkpoints, too."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--schedule", "1f1b", "--tensor", "2", "--steps", "30", "--every", str(EVERY), "--checkpoint", folder]
        victim, _ = disturbed(dice, arguments)
        result = run(*arguments, "--check")
        assert result.returncode == 0, result
        after = went_on_after(result.stdout)
        assert after > 0 and after % EVERY == 0, result
        check_trained(result.stdout, 30)
        print(f"shards of stages: went on after step {after} and the death of rank {victim}", flush=True)


def check_again():
    """A stage throws: the same processes go on, with a new runner, and other options are refused."""
    for devices in (4, 2):
        with tempfile.TemporaryDirectory() as folder:
            arguments = ["--devices", str(devices), "--steps", "20", "--every", "4", "--checkpoint", folder, "--check"]
            result = run(*arguments, "--fail-at", "11")
            assert result.returncode != 0 and "it was told to, by --fail-at" in result.stderr, result
            assert "goes on after" not in result.stdout, result
            for path in pathlib.Path(folder).iterdir():
                path.unlink()
            result = run(*arguments, "--fail-at", "11", "--restarts", "1")
            assert result.returncode == 0, result
            check_trained(result.stdout, 20)
            assert went_on_after(result.stdout) == 8, result
            assert len(re.findall(r"^gpt_mpi: rank \d, step 11: run: .* failed in the forward of stage \d, microbatch 1\b.*: "
                                  "it was told to, by --fail-at", result.stderr, re.MULTILINE)) == RANKS, result.stderr
            before = files(folder)
            result = run(*arguments, "--seed", "2")
            assert result.returncode != 0 and "belongs elsewhere: the file has seed=1, this run has seed=2" in result.stderr, result
            assert files(folder) == before
    check_shards_again()
    check_clipping_again()


def check_shards_again():
    """Shards of stages and of the vocabulary, and weights that travel."""
    for words in (["1f1b", "--tensor", "2"], ["1f1b", "--with", "vocabulary-1", "--devices", "2"], ["wei-pipe"]):
        with tempfile.TemporaryDirectory() as folder:
            result = run("--schedule", *words, "--steps", "12", "--every", "4", "--checkpoint", folder, "--fail-at", "7", "--restarts", "1",
                         "--check")
            assert result.returncode == 0, result
            check_trained(result.stdout, 12)
            assert went_on_after(result.stdout) == 4, result
            # Who comes a step late hears of it there.
            assert len(re.findall(r"^gpt_mpi: rank \d, step [67]: run: .*it was told to, by --fail-at", result.stderr, re.MULTILINE)) \
                == RANKS, result.stderr


def check_clipping_again():
    """A checkpoint has the steps that the optimizer has taken; those that came early are validated before it is written."""
    arguments = ["--devices", "2", "--schedule", "zb-h1", "--clip", "0.5", "--post-validation", "--steps", "20", "--check"]
    ends = []
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder, "text")
        text.write_text("it was the best of times, it was the worst of times; " * 40)
        for words in ([], ["--fail-at", "11", "--restarts", "1", "--every", "4", "--checkpoint", folder]):
            result = run(*arguments, "--text", str(text), *words)
            assert result.returncode == 0, result
            check_trained(result.stdout, 20)
            ends.append(re.search(r"gradients clipped to a norm of 0.5 in (\d+) of 20 steps, left out in 0; weights [0-9a-f]{16}\n", result.stdout))
    assert went_on_after(result.stdout) == 8 and ends[0][0] == ends[1][0] and int(ends[0][1]) > 10, ends  # so steps were early at checkpoints, too


def check_threads():
    """Threads and processes go on from each other's checkpoints, to the bits of one process; both copies of a stage as well."""
    threads = [str(pathlib.Path(PROGRAM).with_name("gpt")), *SMALL, "--steps", "8", "--every", "4"]
    for schedule in ("1f1b", "chimera"):
        with tempfile.TemporaryDirectory() as folder:
            common = ["--schedule", schedule, "--checkpoint", f"{folder}/saved"]
            alone = subprocess.run([*threads, "--devices", "4", *common, "--output", folder], capture_output=True, text=True, timeout=100)
            assert alone.returncode == 0, alone
            for path in pathlib.Path(folder, "saved").glob("*.step-8.*"):
                path.unlink()
            result = run("--steps", "8", "--every", "4", *common, "--check", ranks=2)
            assert result.returncode == 0, result
            check_trained(result.stdout, 8)
            assert went_on_after(result.stdout) == 4, result
            again = subprocess.run([*threads, "--devices", "2", *common, "--output", folder], capture_output=True, text=True, timeout=100)
            assert again.returncode == 0 and again.stdout.endswith("goes on after step 8\nnothing is left to train\n"), again


def check_layouts():
    """Saved by four devices with a stage each, a run goes on with any number of devices, stages on each, and shards, and ends
    with the bits of one process; so does one that four shards have saved."""
    arguments = ["--layers", "12", "--microbatches", "12", "--steps", "6", "--every", "3"]
    one = ["--schedule", "1f1b"]
    two = ["--schedule", "interleaved", "--stages-per-device", "2"]
    shards = ["--schedule", "1f1b", "--tensor", "2"]
    vocabulary = ["--schedule", "1f1b", "--with", "vocabulary-1"]
    # Shards add up what one device adds up in another order: there the unit tests of the example compare what was loaded.
    others = [(3, one), (3, two), (6, one), (6, two), (4, ["--schedule", "v-half"]), (1, one), (3, ["--schedule", "wei-pipe"]),
              (4, shards), (2, vocabulary)]
    for before, goes_on in ((one, others), (shards, [(3, two), (3, vocabulary)])):
        with tempfile.TemporaryDirectory() as saved:
            result = run(*arguments, *before, "--checkpoint", saved, "--fail-at", "5")
            assert result.returncode != 0 and "saved step 3" in result.stdout, result
            for ranks, words in goes_on:
                held = ["--check"] if before == one and words not in (shards, vocabulary) else []
                with tempfile.TemporaryDirectory() as folder:
                    for path in pathlib.Path(saved).iterdir():
                        pathlib.Path(folder, path.name).write_bytes(path.read_bytes())
                    result = run(*arguments, *words, "--checkpoint", folder, *held, ranks=ranks)
                    assert result.returncode == 0 and went_on_after(result.stdout) == 3, (ranks, words, result)
                    if held:
                        check_trained(result.stdout, 6)
                    print(f"from four ranks of {before} to {ranks} of {words}", flush=True)
            result = run(*arguments, "--width", "64", *before, "--checkpoint", saved)
            assert result.returncode != 0 and "belongs elsewhere: the file has width=32, this run has width=64" in result.stderr, result


def check_files():
    """What is no file, or another rank's, ends all ranks with a sentence, and so does a limit of the size of files."""
    with tempfile.TemporaryDirectory() as folder:
        there = pathlib.Path(folder)
        arguments = ["--steps", "20", "--every", "4", "--checkpoint", folder]
        for make, what in ((os.mkfifo, "a FIFO"), (os.mkdir, "a folder"), (lambda path: os.symlink("/dev/full", path), "a device")):
            path = there / "rank-0.step-25.index.json"
            make(path)
            result = run(*arguments)
            assert result.returncode != 0 and f"checkpoint: {path} is {what}, not a file; remove it, or name another folder" \
                in result.stderr, result
            (path.rmdir if what == "a folder" else path.unlink)()
        assert files(folder) == {}
        result = run(*arguments, "--deadline", "20")
        assert result.returncode == 0, result
        one, other = there / "rank-1.step-20.safetensors", there / "rank-2.step-20.safetensors"
        one.rename(there / "kept")
        other.rename(one)
        (there / "kept").rename(other)
        before = files(folder)
        result = run(*arguments)
        assert result.returncode != 0 and re.search(r"checkpoint: \S+ belongs elsewhere: the file has owner=rank-(1|2), "
                                                    r"this run has owner=rank-(?!\1)[12]; ", result.stderr), result
        assert files(folder) == before
    check_limit()


def check_limit():
    """A rank whose files may grow no more: all say why, what was saved is there, and the run goes on later."""
    arguments = ["--devices", "2", "--steps", "120", "--every", "2"]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(command(*arguments, "--checkpoint", folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes = {}
        for line in process.stdout:
            if found := re.match(r"rank (\d) of 4 is process (\d+) on", line):
                processes[int(found[1])] = int(found[2])
            if line.startswith("saved step ") and len(processes) == RANKS:
                break
        resource.prlimit(processes[2], resource.RLIMIT_FSIZE, (10000, 10000))
        _, said = process.communicate(timeout=100)
        assert process.returncode != 0, said
        sentence = r"could not save its state: checkpoint: cannot write \S+/rank-2.step-\d+.safetensors: File too large; the earlier ones are as they were"
        assert re.search(r"^gpt_mpi: rank 2, step \d+: run: rank \d " + sentence, said, re.MULTILINE), said
        assert all(re.search(rf"^gpt_mpi: rank {rank}, [^\n]*{sentence}", said, re.MULTILINE) for rank in range(RANKS)), said
        assert not [name for name in files(folder) if "draft" in name] and len(files(folder)) >= RANKS
        # What rank 2 has not written, its replica has.
        after = {int(found[1]) for name in files(folder) if (found := re.fullmatch(r"rank-[23]\.step-(\d+)\.index\.json", name))}
        result = run(*arguments, "--checkpoint", folder)
        assert result.returncode == 0 and went_on_after(result.stdout) in after, (result, after)


def check_pages():
    """The commands of the pages, as they stand there, with an mpirun that works on this machine."""
    root = pathlib.Path(__file__).resolve().parents[2]
    count = 0
    for page in ("checkpoint_and_restart", "data_and_tensor_parallel", "vocabulary"):
        text = (root / f"docs/how_to/{page}.md").read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            there = pathlib.Path(folder)
            (there / "build/gcc").mkdir(parents=True)
            (there / "build/gcc/bin").symlink_to(pathlib.Path(PROGRAM).parent)
            (there / "mpirun").write_text(f'#!/bin/sh\nexec {shlex.join(MPIRUN)} "$@"\n', encoding="utf-8")
            (there / "mpirun").chmod(0o755)
            for fence in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
                for line in fence.splitlines():
                    if line.startswith("scripts/"):
                        continue  # commands_test.py runs it
                    result = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=200, cwd=folder,
                                            env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})
                    assert result.returncode == 0, (line, result)
                    if "--check" in line.split():
                        check_trained(result.stdout, int(re.findall(r"--steps (\d+)", line)[0]))
                    if "--checkpoint" in line:
                        assert len(files(re.findall(r"--checkpoint (\S+)", line)[0], folder)) == KEPT * int(re.findall(r"-n (\d+)", line)[0]), result
                    count += 1
    assert count == 12, count


if __name__ == "__main__":
    {"replicas": check_replicas, "kill": check_kills, "again": check_again, "layouts": check_layouts, "threads": check_threads, "files": check_files, "pages": check_pages}[KIND]()
