#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks what no compiler checks: marks of unfinished work, paths of one machine, vague file names, header habits.

usage: check_text.py REPOSITORY
"""
import pathlib
import re
import sys

LICENCE = "SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception"
NOT_OURS = {".git", ".cache", "build", "__pycache__"}
SOURCES = {".hpp", ".cuh", ".cpp", ".cu", ".cmake", ".py"}
# Classes of one letter keep the rules from finding themselves.
EVERYWHERE = {
    r"\b(TO[D]O|FIX[M]E|XX[X]|HA[C]K)\b": "a mark of unfinished work; finish it or open an issue",
    r"not[ ]implemented|un[i]mplemented": "a stub",
    r"(?<![\w.>}])/(home|root|work|farm)/|\.\./shared\b": "a path of one machine",
}
IN_HEADERS = {
    r"^\s*using namespace\b": "a using-directive in a header",
    r"\bnamespace pipe\b": "collides with POSIX pipe(); see docs/decisions/0001-namespace-pipelining.md",
    r"\bPIPE_[A-Z]": "macros begin with PIPELINING_",
    r"^\s*#\s*define (?!PIPELINING_)": "a macro without the prefix PIPELINING_",
    r"#\s*include\s*<(iostream|ranges|format|expected)>": "too heavy for a header here, or missing in g++ 12",
}
# Candidates of choose are judged by several threads, which ask for the same orders.
WITH_THREADS = ("include/pipe/run/", "include/pipe/cluster/", "include/pipe/mpi/", "include/pipe/planner/registry/named_schedules.hpp")
OUTSIDE_RUN = {
    r"#\s*include\s*<(thread|mutex|condition_variable|future|barrier|latch|semaphore|stop_token)>": "threads are for run/, cluster/ and mpi/",
}
# Outside of tests, whose stand-ins for C libraries fill arrays of C.
OUTSIDE_TESTS = {
    r"\bv?s[n]?printf\b": "its result is not the length of the text; write numbers by <pipe/view/append.hpp>",
}
VAGUE = re.compile(r"(^|_)(util|utils|helper|helpers|common|misc|manager|fast|stuff)(_|$|\.)")


def files(root):
    for path in sorted(root.iterdir()):
        if path.name not in NOT_OURS:
            yield from files(path) if path.is_dir() else [path]


def problems(root):
    for path in files(root):
        name = path.relative_to(root).as_posix()
        if VAGUE.search(path.name):
            yield f"{name}: the name does not say what the file is for"
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        is_header = name.startswith("include/") and path.suffix != ".md"
        rules = {**EVERYWHERE, **(IN_HEADERS if is_header else {})}
        if is_header and not name.startswith(WITH_THREADS):
            rules.update(OUTSIDE_RUN)
        if not name.startswith(("tests/", "simulators/")):
            rules.update(OUTSIDE_TESTS)
        for number, line in enumerate(text.splitlines(), 1):
            for rule, why in rules.items():
                if re.search(rule, line):
                    yield f"{name}:{number}: {why}: {line.strip()}"
        if (path.suffix in SOURCES or path.name == "CMakeLists.txt") and LICENCE not in text[:200]:
            yield f"{name}: the first lines must have '{LICENCE}'"
        if is_header and "#pragma once" not in text:
            yield f"{name}: no #pragma once"
        if is_header and any(ord(letter) > 127 for letter in text):
            yield f"{name}: only ASCII in headers"


if __name__ == "__main__":
    found = list(problems(pathlib.Path(sys.argv[1]).resolve()))
    print(*found, sep="\n")
    sys.exit(1 if found else 0)
