#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks that docs/schedules.md shows every schedule, with the picture that the timetable tool draws of it today, and the
example of an interactive page.

usage: pictures_test.py TIMETABLE DOCS [--write]
"""
import pathlib
import re
import subprocess
import sys

OPTIONS = {"chunkflow": ["--chunk-counts", "1,1,1,4", "--keep", "2"],
           "helix": ["--cost", str(pathlib.Path(__file__).parent / "helix_costs.json")],
           "stp": ["--all-reduce", "0.25"],
           "zb-auto": ["--memory-limit", "3", "--cost", "10,12,8,1"], "v-auto": ["--memory-limit", "5"],
           "v-continuous": ["--memory-limit", "5", "--cost", "10,12,8,1"]}
# Pictures of schedules in adapters.
ADAPTED = {"recompute": ["chronos", "--with", "recompute-first"],
           "offload": ["seq1f1b", "--with", "offload-chunks", "--copy-cost", "0.75"],
           "vocabulary": ["1f1b", "--with", "vocabulary-2", "--vocabulary-cost", "0.25,0.25,0.25,0.25"],
           "interlaced": ["1f1b", "--with", "vocabulary-interlaced", "--vocabulary-cost", "0.25,0.25,0.25,0.25"],
           "weights_on_host": ["chronos", "--with", "weights-on-host", "--gather", "4", "--scatter", "8"],
           "attention_exchange": ["slimpipe", "--with", "attention-exchange", "--tokens", "8192", "--attention-ratio", "2",
                                  "--stages-per-device", "1"],
           "sharded_weights": ["breadth-first", "--stages-per-device", "3", "--with", "sharded-weights", "--gather", "3", "--scatter", "3"]}

#: Microbatches of schedules that are not drawn with eight.
MICROBATCHES = {"stp": "12"}


def picture(tool, name, further=()):
    command = [tool, name, *further, "--devices", "4", "--microbatches", MICROBATCHES.get(name, "8"), "--format", "svg", *OPTIONS.get(name, [])]
    if name.startswith("seq1f1b") or name in ("slice-v", "svpp"):
        command += ["--chunks", "2"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main(tool, docs, write):
    listed = subprocess.run([tool, "--list"], check=True, capture_output=True, text=True).stdout.split("\n\n")[0].splitlines()
    names = [line.split()[0] for line in listed if line.split()[0] != "csv"]
    page = (docs / "schedules.md").read_text(encoding="utf-8")
    problems = [f"docs/schedules.md has no heading for {name}" for name in names if f"\n## {name}\n" not in page]
    problems += [f"docs/schedules.md describes {name}, which the tool does not know"
                 for name in re.findall(r"^## (\S+)$", page, re.MULTILINE) if name not in names]
    drawings = {name: (name, []) for name in names} | {name: (words[0], words[1:]) for name, words in ADAPTED.items()}
    for name, (schedule, further) in drawings.items():
        if f"](images/{name}.svg)" not in page:
            problems.append(f"docs/schedules.md does not show images/{name}.svg")
        file = docs / "images" / f"{name}.svg"
        drawn = picture(tool, schedule, further)
        if write:
            file.write_text(drawn, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != drawn:
            problems.append(f"docs/images/{name}.svg is not what the tool draws; run this test with --write")
    file = docs / "images" / "blocks.svg"
    drawn = subprocess.run([tool, "blocks", "--devices", "8", "--chunks", "1,2,4", "--format", "svg"],
                           check=True, capture_output=True, text=True).stdout
    if write:
        file.write_text(drawn, encoding="utf-8")
    elif not file.exists() or file.read_text(encoding="utf-8") != drawn:
        problems.append("docs/images/blocks.svg is not what the tool draws; run this test with --write")
    page = subprocess.run([tool, "v-half", "--devices", "4", "--microbatches", "8", "--format", "html", "--against", "1f1b"],
                          check=True, capture_output=True, text=True).stdout
    file = docs / "images" / "timeline.html"
    if write:
        file.write_text(page, encoding="utf-8")
    elif not file.exists() or file.read_text(encoding="utf-8") != page:
        problems.append("docs/images/timeline.html is not what the tool writes; run this test with --write")
    return problems


if __name__ == "__main__":
    found = main(sys.argv[1], pathlib.Path(sys.argv[2]), "--write" in sys.argv)
    print("\n".join(found))
    sys.exit(1 if found else 0)
