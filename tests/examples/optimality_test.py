#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks the tables of a page against what the commands above them print: `timetable blocks`, `gaps`, `reproduce`, `systems`.

usage: optimality_test.py TIMETABLE PAGE [--write]
"""
import pathlib
import re
import subprocess
import sys

BLOCK = re.compile(r"(```sh\nscripts/timetable ((?:blocks|gaps|reproduce|systems) [^\n]*)\n```\n\n)(.*?)(?=\n```sh|\n##+ |\Z)", re.DOTALL)


def main(tool, page, write):
    text = page.read_text(encoding="utf-8")
    commands = 0

    def fresh(match):
        nonlocal commands
        commands += 1
        made = subprocess.run([tool, *match.group(2).split()], check=True, capture_output=True, text=True).stdout
        return match.group(1) + made

    wanted = BLOCK.sub(fresh, text)
    if commands == 0:
        sys.exit(f"{page}: there is no command in it")
    if write:
        page.write_text(wanted, encoding="utf-8")
    elif wanted != text:
        sys.exit(f"{page} differs from what its commands print; tests/examples/optimality_test.py ... --write updates it")


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:] == ["--write"])
