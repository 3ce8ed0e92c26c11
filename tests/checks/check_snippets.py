#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks that the code shown in Markdown files stands in examples, which the tests build and run.

A fence after the line `<!-- snippet FILE NAME -->` must be the text between two lines `// [snippet NAME]` of FILE.

usage: check_snippets.py ROOT [--write]
"""
import pathlib
import re
import sys
import textwrap

FENCE = re.compile(r"(<!-- snippet (\S+) (\S+) -->\n```cpp\n)(.*?)(```\n)", re.DOTALL)


def region(root, file, name):
    parts = re.split(rf"^ *// \[snippet {re.escape(name)}\]\n", (root / file).read_text(encoding="utf-8"),
                     flags=re.MULTILINE)
    return textwrap.dedent(parts[1]) if len(parts) == 3 else None


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
