#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compiles the headers that no other header includes as C++17, and wants one error that says what to do, and nothing
below it. These are the doors: pipe/pipe.hpp and pipe/cuda.cuh, and those that want MPI, NCCL or a GPU.

usage: one_error.py COMPILER INCLUDE
"""
import os
import re
import subprocess
import sys


def doors(include):
    headers, included = set(), set()
    for folder, _, files in os.walk(os.path.join(include, "pipe")):
        for name in sorted(set(files) - {"README.md"}):
            path = os.path.join(folder, name)
            headers.add(os.path.relpath(path, include))
            with open(path, encoding="utf-8") as file:
                included |= set(re.findall(r"^#\s*include <(pipe/.*)>", file.read(), re.MULTILINE))
    return sorted(headers - included)


def main(compiler, include):
    found = doors(include)
    if not {"pipe/pipe.hpp", "pipe/cuda.cuh", "pipe/cuda/nccl.cuh", "pipe/mpi.hpp"} <= set(found):
        sys.exit(f"these are not the headers that users begin with: {found}")
    for header in found:
        run = subprocess.run([compiler, "-x", "c++", "-std=c++17", "-fsyntax-only", "-I", include, "-"],
                             input=f"#include <{header}>\n", capture_output=True, text=True)
        errors = re.findall(r"^.*\berror: .*$", run.stderr, re.MULTILINE)
        if run.returncode == 0 or len(errors) != 1 or "needs C++20: compile with -std=c++20" not in errors[0]:
            sys.exit(f"{header}: expected one error that asks for C++20, found {len(errors)}:\n{run.stderr[:2000]}")
    print("one error each:", *found)


if __name__ == "__main__":
    main(*sys.argv[1:])
