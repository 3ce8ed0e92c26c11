# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The benchmark of the stream runner in virtual time, where figures are exact.

usage: pipeline_test.py PROGRAM
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree


def run(program, *options, folder=None):
    """Figures of a small run."""
    command = [program, "--devices", "2,4", "--microbatches", "5", "--repeats", "1", *options]
    if folder:
        command += ["--pictures", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(command)}: ended with {ended.returncode}\n{ended.stdout}{ended.stderr}")
    return json.loads(ended.stdout)


def expect(condition, *what):
    if not condition:
        sys.exit("pipeline_test: " + " ".join(str(each) for each in what))


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        figures = run(program, "--message", "0", folder=folder)
        cases = figures["cases"]
        expect(figures["tick_ns"] == 32, "the clock of the model ticks in 32 ns, not", figures["tick_ns"])
        expect(len(cases) == 16, "four schedules, two sizes, two modes, not", len(cases))
        for case in cases:
            # The executor waits for nothing that the plan does not wait for.
            expect(1 <= case["span_ratio"] < 1.001, "the span is not the planned one:", case)
            expect(case["delay_message_us"] < 0.1, "messages of no bytes take time:", case)
            file = f"{case['schedule'].lower()}-{case['devices']}-{case['mode']}"
            xml.etree.ElementTree.parse(folder / (file + ".svg"))
            xml.etree.ElementTree.parse(folder / f"{case['schedule'].lower()}-{case['devices']}-planned.svg")
            events = json.loads((folder / (file + ".trace.json")).read_text(encoding="utf-8"))["traceEvents"]
            passes = [event for event in events if event["ph"] == "X"]
            expect(len(passes) == 2 * case["passes"], "planned and measured passes, not", len(passes))
        # A graph is one call; without one every pass is a handful.
        for eager, graph in zip(cases[::2], cases[1::2]):
            expect((eager["mode"], graph["mode"]) == ("eager", "graph"), eager, graph)
            expect(graph["host_us_per_pass"] < figures["floor_us"] / 10, graph)
            expect(figures["floor_us"] < eager["host_us_per_pass"] < 6 * figures["floor_us"], eager)
    for case in run(program, "--message", "4096")["cases"]:
        # 5 us and the bytes, which the plan did not know of and which explain the whole difference.
        expect(5 < case["delay_message_us"] < 5.2, case)
        expect(case["measured_span_us"] > case["planned_span_us"], case)
        expect(abs(case["measured_span_us"] / case["span_with_messages_us"] - 1) < 0.01, case)
    for options in (["--devices"], ["--devices", "0"], ["--swim", "1"]):
        ended = subprocess.run([program, *options], capture_output=True, text=True, check=False)
        expect(ended.returncode == 1 and ended.stderr.startswith("pipeline: "), options, ended)


if __name__ == "__main__":
    main()
