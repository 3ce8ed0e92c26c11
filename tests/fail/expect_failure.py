#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks that the numbered cases of one source fail to compile, each with the message that the source promises.

The source says `// case N: expected-error {{regex}}` and has the code under `#if FAIL_CASE == N`. Case 0 is the
positive control: everything but the mistake, and it must compile. A case with several such lines must match them all,
in any order: g++ prints where it is before what is wrong, clang after. A regex that spans lines may use (?s).

usage: expect_failure.py SOURCE COMPILER ARGUMENT...
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

MANY = 5  # cases: fewer take less time than a precompiled header


def is_nvcc(command):
    return os.path.basename(command[0]).startswith("nvcc")


def compile_case(source, command, case):
    # nvcc cannot stop after the syntax; errors come from its first stages, before it generates anything.
    goal = ["-cuda", "-o", os.devnull] if is_nvcc(command) else ["-fsyntax-only"]
    run = subprocess.run([*command, *goal, f"-DFAIL_CASE={case}", source], text=True, timeout=300,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "LC_ALL": "C"})
    return run.returncode, run.stdout


def precompile(text, command, folder):
    """The headers that a source includes before all else, parsed once for all of its cases: arguments of the compiler."""
    header = folder / "first.hpp"
    header.write_text("".join(re.findall(r"^#include .*\n", re.match(r"(//.*\n|#include .*\n|\n)*", text)[0], re.MULTILINE)),
                      encoding="utf-8")
    made, use = (f"{header}.pch", "-include-pch") if "clang" in os.path.basename(command[0]) else (f"{header}.gch", "-include")
    done = subprocess.run([*command, "-x", "c++-header", header, "-o", made], capture_output=True, check=False)
    return [use, made if use == "-include-pch" else header] if done.returncode == 0 else []  # the cases say what is wrong


def main(source, *command):
    with open(source, encoding="utf-8") as file:
        text = file.read()
    expected = {}
    for case, regex in re.findall(r"^// case (\d+): expected-error \{\{(.*)\}\}$", text, re.MULTILINE):
        expected.setdefault(case, []).append(regex)
    used = set(re.findall(r"FAIL_CASE == (\d+)", text)) - {"0"}
    if not expected or set(expected) != used:
        return [f"cases with a message: {sorted(expected)}, cases in the code: {sorted(used)}; they must be the same"]
    with tempfile.TemporaryDirectory() as folder:
        if len(expected) >= MANY and not is_nvcc(command):
            command = [*command, *precompile(text, command, pathlib.Path(folder))]
        return compare_cases(source, command, expected)


def compare_cases(source, command, expected):
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
