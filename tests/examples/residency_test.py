#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Holds the gathers and releases of --with sharded-weights against the rule of PyTorch 2.15, which is written here in other words.

PyTorch goes through the passes of a rank. Before each of them it releases the stages that are not among the next K different ones
and gathers those among the next N + 1 that are not there.

usage: residency_test.py TIMETABLE
"""
import re
import subprocess
import sys

ACTION = re.compile(r"(\d+)(UNSHARD|RESHARD|F\d+|B\d+)")


def rows_of(tool, call, *further):
    """Gathers, releases and passes of every rank, as a file for PyTorch has them."""
    words = [tool, *call, *further, "--format", "pytorch-comms"]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    cells = [line.split(",") for line in text.splitlines()]
    return [[found[0] for found in map(ACTION.fullmatch, row) if found] for row in cells]


def next_stages(passes, count):
    """The first so many different stages of a list of passes, in their order."""
    return list(dict.fromkeys(re.match(r"\d+", one)[0] for one in passes))[:count]


def as_pytorch(passes, resident, prefetch):
    there, row = [], []
    for number, one in enumerate(passes):
        stays = next_stages(passes[number:], resident)
        row += [stage + "RESHARD" for stage in there if stage not in stays]
        there = [stage for stage in there if stage in stays]
        comes = [stage for stage in next_stages(passes[number:], prefetch + 1) if stage not in there]
        row += [stage + "UNSHARD" for stage in comes]
        there += comes
        row.append(one)
    return row


def groups_of(row):
    """Passes, and between them the sets of stages that are released and gathered: their order means nothing."""
    groups = [[]]
    for one in row:
        if one.endswith("SHARD"):
            groups[-1].append(one)
        else:
            groups[-1] = tuple(sorted(groups[-1]))
            groups += [one, []]
    return groups[:-1]  # at the end all is released


def main(tool):
    wrong, compared = [], 0
    for name, held, rounds in (("interleaved", 2, 2), ("interleaved", 3, 1), ("interleaved", 4, 4), ("breadth-first", 4, 2)):
        for devices in (2, 4):
            call = [name, "--devices", str(devices), "--stages-per-device", str(held), "--microbatches", str(rounds * devices)]
            plain = rows_of(tool, call)
            for resident in range(2, held + 1):
                for prefetch in range(1, resident):
                    options = ["--with", "sharded-weights", "--resident", str(resident), "--prefetch", str(prefetch)]
                    for rank, row in enumerate(rows_of(tool, call, *options)):
                        compared += 1
                        right = as_pytorch([one for one in plain[rank] if not one.endswith("SHARD")], resident, prefetch)
                        if groups_of(row) != groups_of(right):
                            wrong.append(f"{' '.join(call + options)}, rank {rank}:\n  {','.join(row)}\nand PyTorch's\n"
                                         f"  {','.join(right)}")
    print(*wrong, f"{compared} rows, {len(wrong)} differ from PyTorch's", sep="\n")
    return 1 if wrong or compared < 50 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
