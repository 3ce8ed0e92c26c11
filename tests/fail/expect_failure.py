#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks that the numbered cases of one source fail to compile, each with the message that the source promises.

The source says `// case N: expected-error {{regex}}` and has the code under `#if FAIL_CASE == N`. Case 0 is the
positive control: everything but the mistake, and it must compile. A case with several such lines must match them all,
in any order: g++ prints where it is before what is wrong, clang after. A regex that spans lines may use (?s).

usage: expect_failure.py SOURCE COMPILER ARGUMENT...
"""
import os
import re
import subprocess
import sys


def compile_case(source, command, case):
    # nvcc cannot stop after the syntax; errors come from its first stages, before it generates anything.
    goal = ["-cuda", "-o", os.devnull] if os.path.basename(command[0]).startswith("nvcc") else ["-fsyntax-only"]
    run = subprocess.run([*command, *goal, f"-DFAIL_CASE={case}", source], text=True, timeout=300,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "LC_ALL": "C"})
    return run.returncode, run.stdout


def main(source, *command):
    with open(source, encoding="utf-8") as file:
        text = file.read()
    expected = {}
    for case, regex in re.findall(r"^// case (\d+): expected-error \{\{(.*)\}\}$", text, re.MULTILINE):
        expected.setdefault(case, []).append(regex)
    used = set(re.findall(r"FAIL_CASE == (\d+)", text)) - {"0"}
    if not expected or set(expected) != used:
        return [f"cases with a message: {sorted(expected)}, cases in the code: {sorted(used)}; they must be the same"]
    code, output = compile_case(source, command, "0")
    problems = [f"case 0, the positive control, does not compile:\n{output}"] if code != 0 else []
    for case, regexes in sorted(expected.items()):
        code, output = compile_case(source, command, case)
        unmatched = [regex for regex in regexes if not re.search(regex, output)]
        if code == 0:
            problems.append(f"case {case} compiles, but it must not")
        elif code not in (1, 2):  # compilers exit 1 after a diagnosed error, nvcc also 2; anything else is a crash
            problems.append(f"case {case}: the compiler ended with status {code}:\n{output}")
        elif unmatched:
            problems.append(f"case {case} fails without a match of {unmatched}:\n{output}")
        else:
            print(f"case {case} fails as promised: {regexes}")
    return problems


if __name__ == "__main__":
    found = main(*sys.argv[1:])
    print(*found, sep="\n")
    sys.exit(1 if found else 0)
