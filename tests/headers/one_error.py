#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compiles headers as C++17 and wants one error that says what to do, and nothing below it.

usage: one_error.py COMPILER INCLUDE HEADER...
"""
import re
import subprocess
import sys


def main(compiler, include, headers):
    for header in headers:
        run = subprocess.run([compiler, "-x", "c++", "-std=c++17", "-fsyntax-only", "-I", include, "-"],
                             input=f"#include <{header}>\n", capture_output=True, text=True)
        errors = re.findall(r"^.*\berror: .*$", run.stderr, re.MULTILINE)
        if run.returncode == 0 or len(errors) != 1 or "needs C++20: compile with -std=c++20" not in errors[0]:
            sys.exit(f"{header}: expected one error that asks for C++20, found {len(errors)}:\n{run.stderr[:2000]}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
