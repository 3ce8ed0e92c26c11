#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks that no header includes a higher layer or room, and that x/detail is included only from x.

usage: check_layers.py include/pipe
"""
import pathlib
import re
import sys

# A folder includes itself and folders of a lower number. version.hpp and config.hpp are below them all.
LAYERS = {"core": 0, "schedule": 1, "timetable": 2, "attention": 2, "model": 3, "search": 3, "plan": 3, "io": 3, "run": 4, "cuda": 5}
KERNELS = 6  # attention/*.cuh: kernels and their launches stand on cuda/, the host's attention does not
# Rooms of a folder: each includes itself and those before it.
ROOMS = {"plan": ["lower", "prove", "report"], "attention": ["host", "kernel", "portable", "hopper"]}
BASE = ["version.hpp", "config.hpp"]
UMBRELLAS = ["pipe.hpp", "cuda.cuh"]


def layer_of(name):
    area = name.split("/")[0]
    return KERNELS if area == "attention" and name.endswith(".cuh") else LAYERS[area]


def room_of(name):
    """The place of a header's room among those of its folder, or None beside them."""
    folder, *rest = name.split("/")
    rooms = ROOMS.get(folder, [])
    return rooms.index(rest[0]) if len(rest) > 1 and rest[0] in rooms else None


def problems(root):
    headers = sorted([*root.rglob("*.hpp"), *root.rglob("*.cuh")])
    if not headers:
        yield f"no header in {root}"
    for path in headers:
        name = path.relative_to(root).as_posix()
        folder = name.split("/")[0]
        if folder not in [*LAYERS, *BASE, *UMBRELLAS]:
            yield f"{name} belongs to no layer"
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            if re.match(r'\s*#\s*include\s*"', line):
                yield f"{name}: {line.strip()}: own headers are included as <pipe/...>"
            match = re.match(r"\s*#\s*include\s*<pipe/([^>]+)>", line)
            if not match or folder in UMBRELLAS:
                continue
            target = match.group(1)
            area = target.split("/")[0]
            if area not in [*LAYERS, *BASE, *UMBRELLAS]:
                yield f"{name} includes {target}, which belongs to no layer"
                continue
            if target in UMBRELLAS:
                yield f"{name} includes the umbrella {target}"
            elif folder in BASE and target not in BASE:
                yield f"{name} includes {target}, but it is below every folder"
            elif target not in BASE and area != folder and layer_of(target) >= layer_of(name):
                yield f"{name} includes {target}, but {folder} is not above {area}"
            rooms = room_of(name), room_of(target)
            if area == folder and None not in rooms and rooms[1] > rooms[0]:
                yield f"{name} includes {target}, which is in a higher room"
            if "/detail/" in target and area != folder:
                yield f"{name} includes {target}, which is private to {area}"
            if path.suffix == ".hpp" and target.endswith(".cuh"):
                yield f"{name} includes {target}, but a .hpp needs no CUDA"


if __name__ == "__main__":
    found = list(problems(pathlib.Path(sys.argv[1])))
    print(*found, sep="\n")
    sys.exit(1 if found else 0)
