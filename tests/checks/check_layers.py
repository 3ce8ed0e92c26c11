#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks that a room includes rooms before it only, and a wing the rooms and the wings that it stands on.

usage: check_layers.py include/pipe
"""
import pathlib
import re
import sys

# The rooms in the order of the data: each includes itself and those before it.
ROOMS = ["flow", "schedule", "timetable", "plan", "run"]
# A wing includes itself, the rooms, and the wings that stand here.
WINGS = {"view": [], "planner": [], "cluster": [], "mpi": ["cluster"], "cuda": ["cluster"]}
# The neighbour shares config.hpp with the house; its kernels take the error type of cuda/, too.
NEIGHBOUR, SHARED = "attention", "cuda/error.cuh"
# Corners of a folder: each includes itself and those before it.
CORNERS = {"plan": ["lower", "prove"], "planner": ["model", "cut", "search"], "attention": ["host", "kernel", "portable", "hopper"]}
BASE = ["version.hpp", "config.hpp"]


def may_include(name, target):
    """Whether a header may include one of another folder."""
    folder, area = name.split("/")[0], target.split("/")[0]
    if folder == NEIGHBOUR:
        return target == SHARED and name.endswith(".cuh")
    if folder in ROOMS:
        return area in ROOMS and ROOMS.index(area) < ROOMS.index(folder)
    return area in ROOMS or area in WINGS[folder]


def corner_of(name):
    """The place of a header's corner among those of its folder, or None outside of them."""
    folder, *rest = name.split("/")
    corners = CORNERS.get(folder, [])
    return corners.index(rest[0]) if len(rest) > 1 and rest[0] in corners else None


def problems(root):
    headers = sorted([*root.rglob("*.hpp"), *root.rglob("*.cuh")])
    if not headers:
        yield f"no header in {root}"
    doors = [path.name for path in root.iterdir() if path.is_file() and path.name not in BASE]
    for path in headers:
        name = path.relative_to(root).as_posix()
        folder = name.split("/")[0]
        if folder not in [*ROOMS, *WINGS, NEIGHBOUR, *BASE, *doors]:
            yield f"{name} stands in no room, no wing and not with the neighbour"
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            if re.match(r'\s*#\s*include\s*"', line):
                yield f"{name}: {line.strip()}: own headers are included as <pipe/...>"
            match = re.match(r"\s*#\s*include\s*<pipe/([^>]+)>", line)
            if not match:
                continue
            target = match.group(1)
            area = target.split("/")[0]
            if not (root / target).is_file():
                yield f"{name} includes {target}, which is not there"
            elif target in doors:
                yield f"{name} includes the door {target}"
            elif name == "pipe.hpp" and area not in [*ROOMS, *BASE]:
                yield f"{name} includes {target}, which is in no room"
            elif folder in BASE and target not in BASE:
                yield f"{name} includes {target}, but it is below every folder"
            elif folder not in [*BASE, *doors] and target not in BASE and area != folder and not may_include(name, target):
                yield f"{name} includes {target}, but {folder} does not stand on {area}"
            corners = corner_of(name), corner_of(target)
            if area == folder and None not in corners and corners[1] > corners[0]:
                yield f"{name} includes {target}, which is in a later corner"
            if path.suffix == ".hpp" and target.endswith(".cuh"):
                yield f"{name} includes {target}, but a .hpp needs no CUDA"


if __name__ == "__main__":
    found = list(problems(pathlib.Path(sys.argv[1])))
    print(*found, sep="\n")
    sys.exit(1 if found else 0)
