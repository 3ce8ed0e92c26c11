#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Predicts the runs of results/published_runs.csv by `timetable choose` and holds them against what was measured.

usage: published_runs.py TIMETABLE [--rows]    --rows: each run as well
"""
import collections
import csv
import itertools
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

RUNS = pathlib.Path(__file__).resolve().parent / "results/published_runs.csv"


def runs():
    with RUNS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def predict(tool, run, folder):
    """Seconds of an iteration with the defaults of the tool for an A100, whatever memory it takes. Where the optimizer's step is
    validated in the next iteration, that is the span: devices do not wait for each other."""
    model = pathlib.Path(folder) / "model.json"
    model.write_text(json.dumps({"layers": int(run["layers"]), "hidden": int(run["hidden"]), "heads": int(run["heads"]),
                                 "vocabulary": int(run["vocabulary"])}), encoding="utf-8")
    words = [tool, "choose", "--model", str(model), "--gpu", "a100", "--memory", "9TB", "--json",
             "--schedules", f"1f1b,{run['schedule'].split()[0]}" if run["step"] == "next" else run["schedule"].split()[0]]
    for name in ("sequence", "sequences", "tensor", "devices", "microbatches", "layout"):
        words += [f"--{name}", run[name]] if run[name] else []
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        sys.exit(f"{run}: {found.stderr}")
    rows = {row["schedule"]: row for row in json.loads(found.stdout)["candidates"]}
    if run["schedule"] not in rows:
        sys.exit(f"{run['schedule']} is not among {list(rows)}")
    row = rows[run["schedule"]]
    if run["step"] != "next":
        return row["seconds"]
    busy = rows["1f1b"]["seconds"] * (1 - rows["1f1b"]["bubble_rate"])  # the span of 1f1b is its makespan
    return busy / (1 - row["bubble_rate"])


def table(tool):
    """The runs, each with what is predicted and the error in percent."""
    with tempfile.TemporaryDirectory() as folder:
        result = []
        for run in runs():
            seconds = predict(tool, run, folder)
            result.append({**run, "predicted": seconds, "error": 100 * (seconds / float(run["seconds"]) - 1)})
        return result


def tokens_per_second(run, seconds):
    """Of a GPU."""
    tokens = int(run["sequence"]) * int(run["sequences"]) * int(run["microbatches"])
    return tokens / seconds / int(run["devices"]) / int(run["tensor"])


def ranked(rows, band):
    """Pairs of runs of one model that differ in throughput by more than a band in percent, and how many are ranked right."""
    pairs = right = 0
    for one, other in itertools.combinations(rows, 2):
        if any(one[name] != other[name] for name in ("source", "layers", "hidden", "vocabulary", "sequence")):
            continue
        measured = tokens_per_second(one, float(one["seconds"])) / tokens_per_second(other, float(other["seconds"]))
        if max(measured, 1 / measured) < 1 + band / 100:
            continue
        pairs += 1
        ours = tokens_per_second(one, one["predicted"]) / tokens_per_second(other, other["predicted"])
        right += (ours > 1) == (measured > 1) and ours != 1
    return pairs, right


def median_error(rows):
    return statistics.median(abs(row["error"]) for row in rows)


def share_within(rows, band):
    return sum(abs(row["error"]) <= band for row in rows) / len(rows)


def page(rows):
    """The table of docs/reproduction.md."""
    by_source = collections.defaultdict(list)
    for row in rows:
        by_source[row["source"]].append(row["error"])
    lines = ["| source | runs | error %, median | least | most |", "| --- | --- | --- | --- | --- |"]
    for source, errors in by_source.items():
        figures = (statistics.median(errors), min(errors), max(errors))
        lines.append(f"| {source} | {len(errors)} | " + " | ".join(f"{each:.1f}" for each in figures) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    all_rows = table(sys.argv[1])
    if "--rows" in sys.argv:
        for each in all_rows:
            print(f"{each['source']:26} {each['layers']:>4} {each['sequence']:>7} {each['devices']:>3} {each['microbatches']:>4}  "
                  f"{each['schedule']:52} {float(each['seconds']):8.3f} {each['predicted']:8.3f} {each['error']:7.1f}")
    print(page(all_rows))
    print(f"median of the absolute errors of {len(all_rows)} runs: {median_error(all_rows):.1f} %, "
          f"{100 * share_within(all_rows, 15):.0f} % of the runs within 15 %")
    for width in (5, 10, 15):
        count, good = ranked(all_rows, width)
        print(f"pairs of one model that differ by more than {width} %: {count}, ranked right {good}")
