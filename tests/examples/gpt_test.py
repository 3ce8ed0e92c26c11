#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs the gpt example on a small model: what it prints, what it writes, how it refuses.

usage: gpt_test.py PROGRAM
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

PROGRAM = sys.argv[1]
SMALL = ["--layers", "8", "--width", "32", "--sequence", "32", "--devices", "4", "--microbatches", "8"]
# schedule, chunks that it is run with, passes of a unit on a stage, most of its peak against 1F1B's
SCHEDULES = [("seq1f1b", 4, 2, 0.6), ("gpipe", 1, 2, 2.2)]


def run(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=120)


def rows(output):
    """The lines of the comparison: name -> (chunks, planned peak, its share, bytes, their share, gradients that differ)."""
    number = r"([\d.]+)"
    found = re.findall(rf"^  ([\w-]+) +(\d+) +{number} +{number} % +{number} MB +{number} % +(\d+)$", output, re.MULTILINE)
    return {name: tuple(map(float, values)) for name, *values in found}


def check_run(schedule, chunks, passes, most, text):
    with tempfile.TemporaryDirectory() as folder:
        result = run(*SMALL, "--schedule", schedule, "--steps", "12", "--text", text, "--output", folder)
        assert result.returncode == 0, result.stderr
        compared = rows(result.stdout)
        assert {"gpipe", "1f1b", "seq1f1b", "v-min", "v-half", "v-zb", schedule} <= set(compared), result.stdout
        assert all(values[-1] == 0 for values in compared.values()), result.stdout
        assert compared["1f1b"][2] == compared["1f1b"][4] == 100, result.stdout
        assert compared[schedule][4] <= 100 * most, result.stdout
        assert compared["seq1f1b"][4] < compared["v-half"][4] < 100, result.stdout
        assert compared["v-min"][4] <= compared["v-half"][4], result.stdout
        losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)   \d+ tokens/s", result.stdout)]
        assert losses[-1] < losses[0] - 1, result.stdout
        for word in ("predicted", "measured", "idle share", "unigram entropy", "bubble", "tokens/s"):
            assert word in result.stdout, word
        for picture in ("timetable.svg", "loss.svg"):
            root = xml.etree.ElementTree.parse(pathlib.Path(folder, picture)).getroot()
            assert root.tag.endswith("svg"), picture
        events = json.loads(pathlib.Path(folder, "trace.json").read_text())["traceEvents"]
        drawn = [event for event in events if event["ph"] == "X"]
        stages = 4
        assert len(drawn) == 2 * stages * 8 * chunks * passes, len(drawn)  # planned and measured


def check_refusal(status, sentence, *arguments):
    result = run(*arguments)
    assert result.returncode == status, result
    assert result.stdout == "" and result.stderr == f"gpt: {sentence}\n", result.stderr


with tempfile.TemporaryDirectory() as temporary:
    text = pathlib.Path(temporary, "text")
    text.write_text("it was the best of times, it was the worst of times; " * 40)
    for each in SCHEDULES:
        check_run(*each, str(text))
    short = pathlib.Path(temporary, "short")
    short.write_text("too short")
    check_refusal(2, "the text has 9 bytes, but one sequence and the byte after it need 33",
                  *SMALL, "--text", str(short), "--output", temporary)
    check_refusal(1, f"cannot make the folder {text}", *SMALL, "--text", str(text), "--output", str(text))
check_refusal(1, "cannot read any text from /no/such/file", "--text", "/no/such/file")
check_refusal(2, "--steps wants a whole number from 1 to 1000000, not '0'", "--steps", "0")
check_refusal(2, "--steps wants a whole number from 1 to 1000000, not '5x'", "--steps", "5x")
check_refusal(2, "--steps wants a value", "--steps")
check_refusal(2, "no such option: '--step'; --help names them all", "--step", "5")
check_refusal(2, "a sequence of 128 tokens cannot be cut into 300 chunks", "--chunks", "300")
check_refusal(2, "width must be a multiple of heads, and heads of key heads", "--heads", "7")
assert run("--schedule", "nonsense").returncode == 2
assert run("--help").stdout.startswith("usage: gpt")
