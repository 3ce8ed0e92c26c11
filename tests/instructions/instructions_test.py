#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Counts the instructions of planning and of steps with valgrind, and fails where they are more than 3 % above figures.json.

Figures are of one compiler and processor each: what compilers inline changes a count by more than what this test looks for,
so a ratio to some other work would not hold either. Where a compiler has no figures, the test is skipped and prints its
own. Instructions of other libraries do not count: memset has a version for each processor.

usage: instructions_test.py PROGRAM           PROGRAM is planning.cpp; exits with 1 and names what takes more
       instructions_test.py PROGRAM --write   writes the figures of this compiler anew
"""
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

FILE = pathlib.Path(__file__).resolve().parent / "figures.json"
CASES = ["one stage", "two stages", "halves", "v of halves", "pairs", "with copies", "graph", "steps", "steps of pairs"]
MOST = 1.03


def own_instructions(text, program):
    """The instructions of one object in a file of callgrind. The line after `calls=` is about the function that is called."""
    names, own, called, count = {}, False, False, 0
    for line in text.splitlines():
        if line.startswith("ob="):
            number, name = re.fullmatch(r"ob=\((\d+)\)(?: (.*))?", line).groups()
            own = names.setdefault(number, name) == program
        elif line.startswith("cob=") and ") " in line:
            number, name = re.fullmatch(r"cob=\((\d+)\) (.*)", line).groups()
            names[number] = name
        elif line.startswith("calls="):
            called = True
        elif re.match(r"[\d+*-]", line):
            count += int(line.split()[1]) if own and not called else 0
            called = False
    return count


def count(program, case, folder):
    out = pathlib.Path(folder) / case
    subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", program, case], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
    return own_instructions(out.read_text(encoding="utf-8"), program)


def main():
    if shutil.which("valgrind") is None:
        print("skipped: valgrind is not installed (Debian: valgrind)")
        return 0
    program = os.path.realpath(sys.argv[1])
    compiler = subprocess.run([program, "--compiler"], capture_output=True, text=True, check=True).stdout.strip()
    key = f"{compiler}, {platform.machine()}"
    with tempfile.TemporaryDirectory() as folder:
        found = {case: count(program, case, folder) for case in CASES}
    figures = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    if sys.argv[2:] == ["--write"]:
        figures[key] = found
        FILE.write_text(json.dumps(figures, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        return 0
    if key not in figures:
        print(f"skipped: figures.json has none of {key}, which --write adds: {found}")
        return 0
    more = [case for case in CASES if found[case] > MOST * figures[key].get(case, 0)]
    for case in CASES:
        print(f"{case:14} {found[case]:12,} instructions, kept {figures[key].get(case, 0):12,}")
    if more:
        print("Planning or steps take over 3 % more instructions: " + ", ".join(more) + ". Look with valgrind --tool=callgrind "
              "and callgrind_annotate; figures that must be larger are written with --write, and the commit says why.")
    return 1 if more else 0


if __name__ == "__main__":
    sys.exit(main())
