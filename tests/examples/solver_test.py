#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Holds orders of `timetable search` against CP-SAT on small pipelines: never shorter than a proven optimum, as short where it is
proven by both or microbatches are alike, and at most 1 % longer where they are not; 77, skipped, where OR-Tools is not installed.

usage: solver_test.py TIMETABLE ROOT
"""
import importlib.util
import pathlib
import sys
import tempfile

if importlib.util.find_spec("ortools") is None:
    print("skipped: OR-Tools is not installed, so no solver is next to timetable search")
    sys.exit(77)
sys.path.insert(0, str(pathlib.Path(sys.argv[2]) / "benchmarks"))
import solver_peers  # noqa: E402

proven = 0
for number in range(12):
    one = solver_peers.draw(number)
    one["devices"], one["microbatches"], one["limit"] = 3, 4, min(one["limit"], 3)
    one["times"] = [[row[:4] for row in kind[:3]] for kind in one["times"]]
    with tempfile.TemporaryDirectory() as folder:
        ours, sure, _ = solver_peers.search(sys.argv[1], one, 1, folder)
    theirs, optimal, _ = solver_peers.solve(one, 30)
    proven += optimal
    most = theirs * (1 + (1e-9 if sure or number % 2 == 0 else 0.01))
    if ours < theirs * (1 - 1e-9) and optimal or ours > most:
        sys.exit(f"pipeline {number}: timetable search finds {ours}, CP-SAT {theirs}, optimal: {optimal}")
if proven < 6:
    sys.exit(f"CP-SAT proves {proven} of 12 small pipelines only")
