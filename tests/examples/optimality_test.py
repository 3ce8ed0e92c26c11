#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks the tables of a page against what the commands above them print: `timetable blocks`, `gaps`, `reproduce`, `systems`.
A table after the line `<!-- excerpt -->` has some of the rows and columns that the command prints, in their order. After
`<!-- excerpt without COLUMN = CELL -->` it has all rows but those with that cell, which the section names before.

usage: optimality_test.py TIMETABLE PAGE... [--write]
"""
import functools
import pathlib
import re
import subprocess
import sys

BLOCK = re.compile(r"(```sh\nscripts/timetable ((?:blocks|gaps|reproduce|systems) [^\n]*)\n```\n\n)(.*?)(?=\n```sh|\n##+ |\Z)", re.DOTALL)

EXCERPT = re.compile(r"<!-- excerpt(?: without (.+?) = (.+?))? -->\n")


@functools.cache
def output(tool, words):
    return subprocess.run([tool, *words.split()], check=True, capture_output=True, text=True).stdout


def cells(text):
    """The rows of a table without the line below its head."""
    lines = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if line.startswith("|")]
    return lines[:1] + lines[2:]


def within(words, all_words):
    """The positions of words, in their order, in all_words; none where one is missing."""
    at = []
    for word in words:
        place = next((i for i, each in enumerate(all_words) if each == word and (not at or i > at[-1])), None)
        if place is None:
            return []
        at.append(place)
    return at


def is_excerpt(shown, printed, before):
    column, cell = EXCERPT.match(shown).groups()
    shown, printed = cells(shown), cells(printed)
    columns = within(shown[0], printed[0]) if len(shown) > 1 else []
    if not columns or not within(shown[1:], [[row[at] for at in columns] for row in printed[1:]]):
        return False
    if column is None:
        return True
    left_out = [row[0] for row in printed[1:] if row[printed[0].index(column)] == cell]
    return len(shown) + len(left_out) == len(printed) and all(name in before for name in left_out)


def main(tool, page, write):
    text = page.read_text(encoding="utf-8")
    commands = 0

    def fresh(match):
        nonlocal commands
        commands += 1
        made = output(tool, match.group(2))
        if EXCERPT.match(match.group(3)):
            if not is_excerpt(match.group(3), made, text[text.rindex("\n## ", 0, match.start()):match.start()]):
                sys.exit(f"{page}: the excerpt of `{match.group(2)}` is none of what the command prints:\n{made}")
            return match.group(0)
        return match.group(1) + made

    wanted = BLOCK.sub(fresh, text)
    if commands == 0:
        sys.exit(f"{page}: there is no command in it")
    if write:
        page.write_text(wanted, encoding="utf-8")
    elif wanted != text:
        sys.exit(f"{page} differs from what its commands print; tests/examples/optimality_test.py ... --write updates it")


if __name__ == "__main__":
    for each in sys.argv[2:]:
        if each != "--write":
            main(sys.argv[1], pathlib.Path(each), "--write" in sys.argv)
