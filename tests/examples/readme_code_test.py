#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks that the first code of README.md is a whole program, and that its output stands below it.

usage: readme_code_test.py README SOURCE PROGRAM
"""
import pathlib
import re
import subprocess
import sys

SHOWN = re.compile(r"```cpp\n(.*?)```\n.*?```text\n(.*?)```\n", re.DOTALL)


def main(readme, source, program):
    shown = SHOWN.search(readme.read_text(encoding="utf-8"))
    if not shown:
        return f"{readme.name}: no code with its output below it"
    code, output = shown.groups()
    # All of the source but the comments before its first line of code, and the marks of the snippet.
    lines = source.read_text(encoding="utf-8").splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if not line.startswith("//"))
    whole = "".join(line for line in lines[first:] if "// [snippet" not in line)
    if code != whole:
        return f"{readme.name}: the first code is not all of {source.name}"
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    if (done.returncode, done.stdout, done.stderr) != (0, output, ""):
        return f"{source.name} ended with {done.returncode} and printed\n{done.stdout}{done.stderr}but {readme.name} says\n{output}"
    return ""


if __name__ == "__main__":
    said = main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3])
    sys.exit(said or 0)
