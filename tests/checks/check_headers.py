#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks that a folder has headers only, that none is over 600 lines, and that none calls what newer compilers warn of in
an older standard library, which would be an error in the programs of some users. Every family of schedules is in pipe.hpp;
`--write` adds those that are missing.

usage: check_headers.py include/pipe [--write]
"""
import pathlib
import re
import sys

MAXIMUM_LINES = 600
# They take their buffer from std::get_temporary_buffer, which clang 17 and newer call deprecated in GCC 12's library.
WITH_BUFFERS = re.compile(r"std::(stable_sort|stable_partition|inplace_merge)\(")


def lacking(folder):
    """Headers of schedules that the door does not include."""
    door = (folder / "pipe.hpp").read_text(encoding="utf-8")
    return [line for line in (f"#include <pipe/schedule/{path.name}>\n" for path in sorted((folder / "schedule").glob("*.hpp")))
            if line not in door]


def write(folder):
    door = (folder / "pipe.hpp").read_text(encoding="utf-8").splitlines(keepends=True)
    includes = [i for i, line in enumerate(door) if line.startswith("#include <pipe/") and "config" not in line]
    door[includes[0]:includes[-1] + 1] = sorted(door[includes[0]:includes[-1] + 1] + lacking(folder))
    (folder / "pipe.hpp").write_text("".join(door), encoding="utf-8")


def problems(folder):
    for line in lacking(folder):
        yield f"pipe.hpp lacks {line.strip()}; run this check with --write"
    present = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    for name in sorted(name for name in present if not name.endswith((".hpp", ".cuh", "README.md"))):
        yield f"{folder}/{name} is no header, so it is not installed"
    for name, path in sorted(present.items()):
        text = path.read_text(encoding="utf-8")
        lines = len(text.splitlines())
        for call in sorted(set(WITH_BUFFERS.findall(text))):
            yield f"{folder}/{name} calls std::{call}, of which newer compilers warn: sort with detail::sort_stably"
        if lines > MAXIMUM_LINES:
            yield f"{folder}/{name} has {lines} lines, more than {MAXIMUM_LINES}: split it by responsibility"
    if not present:
        yield f"{folder} has no header"


if __name__ == "__main__":
    if "--write" in sys.argv:
        write(pathlib.Path(sys.argv[1]))
    found = list(problems(pathlib.Path(sys.argv[1])))
    print(*found, sep="\n")
    sys.exit(1 if found else 0)
