#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks that the code shown in Markdown files stands in examples, which the tests build and run.

A fence after the line `<!-- snippet FILE NAME -->` must be the text between two lines `// [snippet NAME]` of FILE.

The figures of a table after `<!-- lines FILE... -->` must be lines of code in those files, of the regions that
`// [lines FEATURE: COLUMN]` begins and the next such line or `// [lines]` ends. A feature is the first cell of a row, and a
column the last word of its head.

usage: check_snippets.py ROOT [--write]
"""
import collections
import pathlib
import re
import sys
import textwrap

FENCE = re.compile(r"(<!-- snippet (\S+) (\S+) -->\n```cpp\n)(.*?)(```\n)", re.DOTALL)
TABLE = re.compile(r"<!-- lines ([^>]+) -->\n\n?(\|.*\|)\n\|[-:| ]+\|\n((?:\|.*\|\n)+)")


def region(root, file, name):
    parts = re.split(rf"^ *// \[snippet {re.escape(name)}\]\n", (root / file).read_text(encoding="utf-8"),
                     flags=re.MULTILINE)
    return textwrap.dedent(parts[1]) if len(parts) == 3 else None


def lines_of(text):
    """How many lines of code each feature has in each column."""
    counts, now = collections.Counter(), None
    for line in map(str.strip, text.splitlines()):
        if mark := re.fullmatch(r"// \[lines(?: (.*))?\]", line):
            now = mark[1]
        elif now and line and not line.startswith("//"):
            counts[now] += 1
    return counts


def wrong_counts(root, page, text):
    """What is wrong with the tables of lines on a page."""
    for files, head, rows in TABLE.findall(text):
        counts = sum((lines_of((root / file).read_text(encoding="utf-8")) for file in files.split()), collections.Counter())
        columns = [cell.split()[-1] for cell in head.strip("|").split("|")]
        for row in rows.splitlines():
            feature, *cells = (cell.strip() for cell in row.strip("|").split("|"))
            for column, cell in zip(columns[1:], cells):
                counted = counts.pop(f"{feature}: {column}", 0)
                if cell.isdigit() and int(cell) != counted:
                    yield f"{page.name}: {feature} has {counted} lines of {column}, not {cell}"
        yield from (f"{page.name}: no row has the lines of '{name}'" for name in counts)


def main(root, write):
    problems = []
    found = 0
    for page in sorted([root / "README.md", *root.glob("docs/**/*.md")]):
        text = page.read_text(encoding="utf-8")
        for _, file, name, shown, _ in FENCE.findall(text):
            found += 1
            expected = region(root, file, name)
            if expected is None:
                problems.append(f"{page.name}: {file} has no region [snippet {name}]")
            elif expected != shown:
                problems.append(f"{page.name}: the code differs from {file} [snippet {name}]; run with --write")
        problems += wrong_counts(root, page, text)
        if write:
            page.write_text(FENCE.sub(lambda m: m[1] + (region(root, m[2], m[3]) or m[4]) + m[5], text),
                            encoding="utf-8")
    if found == 0:
        problems.append("no snippet found: README.md must show one")
    return problems


if __name__ == "__main__":
    found_problems = main(pathlib.Path(sys.argv[1]), "--write" in sys.argv)
    print("\n".join(found_problems))
    sys.exit(1 if found_problems and "--write" not in sys.argv else 0)
