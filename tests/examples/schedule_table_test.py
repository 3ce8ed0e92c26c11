#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks the table of schedules in docs/schedules.md, and their number in README.md, against what the timetable tool says.
`--write` renews both, takes rows out that the tool does not know, and writes rows that are missing, with the words of their sections.

usage: schedule_table_test.py TIMETABLE PAGE [--write]
"""
import json
import pathlib
import re
import subprocess
import sys

NEEDS_LIMIT = {"zb-auto": "8", "v-auto": "12", "v-continuous": "12"}
LAYERS_PER_DEVICE = {"round-pipe": 3}  # each of which is a stage that goes back; others go forward
HEAD = "| --- | --- | --- | --- | --- | --- | --- |\n"


def shown_rows(table):
    """Type and words of each schedule that the table shows, by name."""
    cells = [[cell.strip() for cell in line.split("|")] for line in table.splitlines()]
    return {row[1].strip("`"): (row[2], row[7]) for row in cells}


def described(text, name):
    """Type and words of a schedule from its section in docs/schedules.md: what the section begins with, and the sentence after it."""
    section = re.search(rf"^## {re.escape(name)}\n\n(`[^`]+`)\. (.+?)\.\s", text, re.MULTILINE | re.DOTALL)
    if not section:
        raise ValueError(f"docs/schedules.md has no section {name} that begins with the type in code, a full stop and a sentence")
    words = " ".join(section[2].split())
    return section[1], words[0].lower() + words[1:]


def row(tool, name, kind, words):
    command = [tool, name, "--devices", "8", "--microbatches", "32", "--format", "json"]
    if name in NEEDS_LIMIT:
        command += ["--memory-limit", NEEDS_LIMIT[name]]
    table = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    share = LAYERS_PER_DEVICE.get(name, table["stages"] / table["devices"])
    kept, inputs = (f"{max(table[key]) / share:.2f}".rstrip("0").rstrip(".")
                    for key in ("peak_activations", "peak_weight_inputs"))
    return (f"| `{name}` | {kind} | {100 * table['bubble_rate']:.1f} % | {100 * table['makespan_bubble_rate']:.1f} % "
            f"| {kept} | {inputs} | {words} |")


def main(tool, page, write):
    listed = subprocess.run([tool, "--list"], check=True, capture_output=True, text=True).stdout.split("\n\n")[0].splitlines()
    names = [line.split()[0] for line in listed]
    text = page.read_text(encoding="utf-8")
    head, rest = text.split(HEAD, 1)
    shown, tail = rest.split("<!-- end of table -->", 1)
    known = shown_rows(shown)
    if write:
        known = {name: what for name, what in known.items() if name in names}
        known |= {name: described(text, name) for name in names if name not in known}
    missing, unknown = sorted(set(names) - set(known)), sorted(set(known) - set(names))
    door = page.parents[1] / "README.md"
    readme = door.read_text(encoding="utf-8")
    counted = re.sub(r"^\d+ schedules, ", f"{len(names)} schedules, ", readme, count=1, flags=re.MULTILINE)
    if write:
        door.write_text(counted, encoding="utf-8")
    elif readme != counted or f"\n{len(names)} schedules, " not in readme:
        return [f"README.md does not say that there are {len(names)} schedules, as --list does; run this test with --write"]
    if missing or unknown or not names:
        return [f"the table of schedules lacks {missing}, and has {unknown}, which --list does not name; run this test with --write"]
    expected = "".join(row(tool, name, *what) + "\n" for name, what in known.items())
    if write:
        page.write_text(f"{head}{HEAD}{expected}<!-- end of table -->{tail}", encoding="utf-8")
        return []
    return [] if shown == expected else ["the table of schedules differs; run this test with --write:\n" + expected]


if __name__ == "__main__":
    problems = main(sys.argv[1], pathlib.Path(sys.argv[2]), "--write" in sys.argv)
    print("\n".join(problems))
    sys.exit(1 if problems else 0)
