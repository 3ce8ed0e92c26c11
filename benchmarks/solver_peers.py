#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Searches orders of random pipelines by `timetable search` and by CP-SAT (OR-Tools), the same seconds for both on one core each,
and keeps the figures in results/solver_peers.json. Backward passes are split, devices hold a number of activations at most, messages
take time, and passes take unlike times by device and, in half of the pipelines, by microbatch.

usage: solver_peers.py TIMETABLE [--instances N] [--seconds S] [--write]    --write: keep the figures
"""
import argparse
import json
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import ortools
    from ortools.sat.python import cp_model
except ImportError:
    sys.exit("solver_peers: OR-Tools is not here; install ortools from PyPI")

RESULTS = pathlib.Path(__file__).resolve().parent / "results/solver_peers.json"
FOUND = re.compile(r"\nfound: [^\n]*?, ([0-9.]+)[,;]")
KINDS = ("forward", "backward_input", "backward_weight")


def draw(number):
    """A pipeline whose times are whole numbers: [kind][device][microbatch]."""
    of = random.Random(number)
    devices, microbatches = of.randint(3, 8), of.randint(4, 16)
    length = [of.randint(1, 4) if number % 2 else 1 for _ in range(microbatches)]
    times = [[[of_device * each for each in length] for of_device in (of.randint(2, 9) for _ in range(devices))] for _ in KINDS]
    return {"devices": devices, "microbatches": microbatches, "times": times, "message": of.randint(0, 3),
            "limit": of.randint(2, devices)}


def search(tool, one, seconds, folder):
    """Makespan, whether it is proven, and the seconds it took."""
    file = pathlib.Path(folder) / "costs.json"
    costs = {"pipelining_costs": 1, "microbatches": one["microbatches"], "communication": one["message"]}
    file.write_text(json.dumps({**costs, **dict(zip(KINDS, one["times"]))}), encoding="utf-8")
    words = [tool, "search", "--devices", one["devices"], "--microbatches", one["microbatches"], "--cost", file,
             "--memory", one["limit"], "--like", "zb-h1", "--seconds", seconds]
    begin = time.perf_counter()
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=True)
    return float(FOUND.search(done.stdout)[1]), "; proven, no order" in done.stdout, time.perf_counter() - begin


def solve(one, seconds):
    """The same of CP-SAT: intervals that do not overlap on a device, activations as a cumulative resource."""
    model = cp_model.CpModel()
    devices, microbatches = range(one["devices"]), range(one["microbatches"])
    horizon = sum(max(row[m] for row in kind) for kind in one["times"] for m in microbatches) * one["devices"] + \
        2 * one["message"] * one["devices"] * one["microbatches"]
    start, end, interval = {}, {}, {}
    for kind in range(3):
        for d in devices:
            for m in microbatches:
                key = kind, d, m
                start[key], end[key] = (model.new_int_var(0, horizon, "") for _ in range(2))
                interval[key] = model.new_interval_var(start[key], one["times"][kind][d][m], end[key], "")
    makespan = model.new_int_var(0, horizon, "")
    for d in devices:
        model.add_no_overlap([interval[kind, d, m] for kind in range(3) for m in microbatches])
        held = []
        for m in microbatches:
            model.add(start[1, d, m] >= end[0, d, m])
            model.add(start[2, d, m] >= end[1, d, m])
            model.add(makespan >= end[2, d, m])
            if d > 0:
                model.add(start[0, d, m] >= end[0, d - 1, m] + one["message"])
                model.add(start[1, d - 1, m] >= end[1, d, m] + one["message"])
            stay = model.new_int_var(0, horizon, "")
            held.append(model.new_interval_var(start[0, d, m], stay, end[2, d, m], ""))
        model.add_cumulative(held, [1] * one["microbatches"], one["limit"])
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    begin = time.perf_counter()
    status = solver.solve(model)
    took = time.perf_counter() - begin
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return solver.objective_value if found else float("inf"), status == cp_model.OPTIMAL, took


def compare(tool, instances, seconds):
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(instances):
            one = draw(number)
            row = {"devices": one["devices"], "microbatches": one["microbatches"], "limit": one["limit"], "unlike": number % 2}
            for name, (makespan, proven, took) in (("ours", search(tool, one, seconds, folder)), ("cp_sat", solve(one, seconds))):
                row[name] = {"makespan": makespan, "proven": proven, "seconds": round(took, 3)}
            rows.append(row)
            print(number, json.dumps(row), file=sys.stderr, flush=True)
    return rows


def figures(rows, seconds):
    both = [row for row in rows if row["ours"]["proven"] and row["cp_sat"]["proven"]]
    ratios = [row["cp_sat"]["makespan"] / row["ours"]["makespan"] for row in rows if row["cp_sat"]["makespan"] < float("inf")]
    return {"seconds": seconds, "version": ortools.__version__, "instances": len(rows),
            "none": len(rows) - len(ratios),
            "worse": sum(row["ours"]["makespan"] > row["cp_sat"]["makespan"] * (1 + 1e-9) for row in rows),
            "better": sum(row["ours"]["makespan"] < row["cp_sat"]["makespan"] * (1 - 1e-9) for row in rows),
            "longer": round(100 * (statistics.median(ratios) - 1), 1), "longest": round(100 * (max(ratios) - 1), 1),
            "both": len(both), "unequal": sum(row["ours"]["makespan"] != row["cp_sat"]["makespan"] for row in both),
            "proven": [sum(row[name]["proven"] for row in rows) for name in ("ours", "cp_sat")],
            "proof_seconds": [round(statistics.median([row[name]["seconds"] for row in rows if row[name]["proven"]] or [0]), 2)
                              for name in ("ours", "cp_sat")]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("timetable")
    parser.add_argument("--instances", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    result = figures(compare(asked.timetable, asked.instances, asked.seconds), asked.seconds)
    print(json.dumps(result))
    if asked.write:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
