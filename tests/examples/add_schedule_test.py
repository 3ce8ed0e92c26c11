#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Follows docs/how_to/add_a_schedule.md in a copy of the tree: what the page writes compiles, and the schedule is listed, drawn,
proven, shown in the docs, and in the tests of all schedules.

usage: add_schedule_test.py ROOT COMPILER FILE
FILE has three lines: objects of the timetable tool, of the tests over the registry, and of main() of tests, divided by semicolons.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

NAME, HEADER = "rounded-gpipe", "rounded_gpipe"
STEP = re.compile(r"<!-- (write|add to) (\S+?)(?: before: (.*?))? -->\n```\w*\n(.*?)```\n", re.DOTALL)
COPIED = ["include/pipe", "docs", "tests/golden", "tests/checks", "tests/examples", "tests/support"]
MOST_FILES = 6


def run(*words, cwd=None, status=0):
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != status:
        raise RuntimeError(f"{' '.join(str(word) for word in words)[:200]} ended with {done.returncode}, not {status}:\n"
                           f"{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def follow(page, tree):
    """Does what the page says; returns the files that it writes or changes."""
    files = set()
    for action, name, anchor, text in STEP.findall(page):
        path = tree / name
        files.add(name)
        if action == "write":
            if path.exists():
                raise RuntimeError(f"{name} is there already")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            continue
        before = path.read_text(encoding="utf-8")
        if before.count(f"\n{anchor}") != 1:
            raise RuntimeError(f"{name} has not one line that begins with: {anchor}")
        path.write_text(before.replace(f"\n{anchor}", f"\n{text}{anchor}"), encoding="utf-8")
    return files


def main(root, compiler, lists):
    tool, suite, tests_main = (line.split(";") for line in lists.read_text(encoding="utf-8").splitlines())
    page = (root / "docs/how_to/add_a_schedule.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder)
        for name in COPIED:
            shutil.copytree(root / name, tree / name)
        for name in ("CHANGELOG.md", "README.md"):
            shutil.copy(root / name, tree)
        files = follow(page, tree)
        if len(files) > MOST_FILES:
            yield f"the page changes {len(files)} files by hand, more than {MOST_FILES}: {sorted(files)}"
        flags = ["-std=c++20", "-O0", f"-I{tree}/include", f"-I{tree}", f"-I{root}"]
        run(compiler, *flags, "-c", root / "tools/support/compiled_registry.cpp", "-o", tree / "registry.o")

        check_headers = [sys.executable, tree / "tests/checks/check_headers.py", tree / "include/pipe"]
        run(*check_headers, status=1)  # complains
        run(*check_headers, "--write")
        if f"#include <pipe/schedule/{HEADER}.hpp>" not in (tree / "include/pipe/pipe.hpp").read_text(encoding="utf-8"):
            yield "the door lacks the header"

        run(compiler, *tool, tree / "registry.o", "-o", tree / "timetable", "-pthread")
        if not re.search(rf"^{NAME} ", run(tree / "timetable", "--list"), re.MULTILINE):
            yield "--list lacks the schedule"
        size = [NAME, "--devices", "2", "--microbatches", "3"]
        drawn = run(tree / "timetable", *size)
        if "device 0 |F0 F1 " not in drawn:
            yield f"the schedule is not drawn:\n{drawn}"
        run(tree / "timetable", *size, "--format", "calls")  # of plans, which throw where they are not proven

        run(sys.executable, tree / "tests/examples/pictures_test.py", tree / "timetable", tree / "docs", "--write")
        if not (tree / f"docs/images/{NAME}.svg").exists():
            yield "the schedule has no picture"
        table = [sys.executable, tree / "tests/examples/schedule_table_test.py", tree / "timetable", tree / "docs/schedules.md"]
        run(*table, status=1)  # complains
        run(*table, "--write")
        if f"| `{NAME}` | `RoundedGPipe` |" not in (tree / "docs/schedules.md").read_text(encoding="utf-8"):
            yield "the table of schedules lacks the schedule"

        run(compiler, *flags, tree / f"tests/unit/schedule/{HEADER}.test.cpp", *tests_main, "-o", tree / "law")
        run(tree / "law", cwd=tree / "tests")
        run(compiler, *suite, tree / "registry.o", "-o", tree / "suite")
        told = run(tree / "suite", cwd=tree / "tests")
        if f"{NAME}: " not in told or f"golden/schedules/{NAME}.txt: 3 lines" not in told:
            yield "the tests of all schedules lack it, or its golden file"


if __name__ == "__main__":
    problems = list(main(pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])))
    print(*problems, sep="\n")
    sys.exit(1 if problems else 0)
