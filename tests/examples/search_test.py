#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs `timetable search` as users do, and holds what it finds against the schedules that `timetable compare` makes.

usage: search_test.py PROGRAM COMPILER INCLUDE [unittest argument ...]
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAM = COMPILER = INCLUDE = ""
SMALL = ("--devices", 4, "--microbatches", 8, "--cost", "10,12,8,1")


def run(*words):
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=240, check=False)


def output(*words):
    result = run(*words)
    said = [line for line in result.stderr.splitlines() if not re.match(r"\d+\.\d s: ", line)]  # on slow machines
    if result.returncode != 0 or said:
        raise AssertionError(f"{words}: exit status {result.returncode}, {result.stderr}")
    return result.stdout


class Search(unittest.TestCase):
    def test_nothing_that_fits_is_shorter(self):
        made = json.loads(output("compare", *SMALL, "--memory-limit", 2, "--format", "json"))
        found = json.loads(output("search", *SMALL, "--memory", 2.5, "--moves", 50000, "--format", "json"))
        fits = [line for line in made if line.get("peak_activations", 1e9) <= 2.5]
        self.assertTrue(fits)
        self.assertLessEqual(found["makespan"], min(line["makespan"] for line in fits) * (1 + 1e-9))

    def test_moves_give_one_order(self):
        words = ("search", *SMALL, "--memory", 2, "--moves", 50000, "--like", "v-half", "--format", "csv")
        first = output(*words)
        self.assertEqual(first, output(*words))

    def test_report(self):
        text = output("search", *SMALL, "--memory", 3, "--moves", 50000, "--like", "v-half", "--width", 80)
        row = re.search(r"2 stages in a V +([\w-]+) +([\d.]+) +([\d.]+) +([\d.]+)\n", text)
        best, found, bound = (float(row.group(i)) for i in (2, 3, 4))
        self.assertLessEqual(bound, found)
        self.assertLessEqual(found, best)
        self.assertIn(f"found: 2 stages in a V, {row.group(3)}", text)
        self.assertIn("search: devices 4, stages 8, microbatches 8", text)
        self.assertRegex(text, r"peak activations (6|5) ")

    def test_it_begins_anew_where_it_stands_still(self):
        # CP-SAT finds 401 in 2 s. From the best order only, searches stay at 418, with four times the moves, too.
        length = (4, 1, 2, 2, 4, 1, 3, 3)
        times = dict(zip(("forward", "backward_input", "backward_weight"), ((4, 2, 6, 3), (7, 2, 3, 8), (7, 8, 3, 8))))
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "costs.json"
            file.write_text(json.dumps({"pipelining_costs": 1, "microbatches": 8, "communication": 2,
                                        **{kind: [[each * of for of in length] for each in row] for kind, row in times.items()}}))
            text = output("search", "--devices", 4, "--microbatches", 8, "--cost", file, "--memory", 3, "--like", "zb-h1",
                          "--moves", 500000)
        self.assertLessEqual(float(re.search(r"found: 1 stage, ([\d.]+)", text)[1]), 401)

    def test_small_pipelines_are_proven(self):
        # Least makespans of `gaps`, and one below every schedule.
        for size, cost, memory, like, least in (((4, 8), "10,12,8,1", 3, "1f1b", 342), ((4, 8), "1,1,1,0", 2, "1f1b", 41),
                                                ((4, 6), "10,12,8,1", 2, "1f1b", 342), ((3, 4), "1,1,1,0", 2, "v-half", None)):
            words = ("search", "--devices", size[0], "--microbatches", size[1], "--cost", cost, "--memory", memory, "--like", like,
                     "--moves", 20000)
            text = output(*words)
            found, bound = map(float, re.search(r"\n[^\n]*? ([\d.]+) +([\d.]+)\n\nfound: ", text).groups())
            self.assertIn("; proven, no order on any of these pipelines takes less", text)
            self.assertEqual((found, bound), (least or bound, bound), words)
            self.assertEqual(json.loads(output(*words, "--format", "json"))["makespan"], found)
            self.assertNotEqual(output(*words, "--format", "calls"), "")

    def test_header_compiles_to_the_same_order(self):
        words = ("search", *SMALL, "--memory", 2, "--moves", 20000, "--like", "v-half")
        header = output(*words, "--format", "header")
        wanted = output(*words, "--format", "csv")
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "found.hpp").write_text(header, encoding="utf-8")
            (root / "main.cpp").write_text(
                '#include "found.hpp"\n#include <pipe/view/json.hpp>\n#include <cstdio>\n#include <string>\n'
                "static_assert(pipelining::verify(pipelining::timetable<found::schedule, 4, 8>));\n"
                "int main() {\n  std::string text;\n  pipelining::write_csv(text, found::timetable());\n"
                "  (void)found::plan({.message = 8, .activation = 8});\n"
                "  std::fputs(text.c_str(), stdout);\n}\n", encoding="utf-8")
            subprocess.run([COMPILER, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-I", INCLUDE, "-I", folder,
                            str(root / "main.cpp"), "-o", str(root / "main")], check=True, timeout=240)
            made = subprocess.run([str(root / "main")], check=True, capture_output=True, text=True).stdout
        self.assertEqual(made, wanted)

    def test_no_device_holds_more_bytes_than_it_may(self):
        costs = {"pipelining_costs": 1, "unit": "ms", "microbatches": 4, "communication": 0.5,
                 "forward": [[10, 20, 10, 40]] * 2, "backward_input": [[10, 20, 10, 40]] * 2, "backward_weight": [[5, 10, 5, 20]] * 2,
                 "activation_bytes": [[4e9], [6e9]], "weight_input_bytes": [[1e9], [2e9]], "resident_bytes": [[20e9], [30e9]]}
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "costs.json"
            file.write_text(json.dumps(costs), encoding="utf-8")
            sizes = ("--devices", 2, "--microbatches", 4, "--cost", file)
            words = ("search", *sizes, "--like", "zb-h1", "--moves", 20000)
            rooms = (24.5, 42), (28, 36.5), (33, 50)
            for made, rooms in ((words, rooms), (("zb-auto", *sizes), rooms), (("v-auto", *sizes), ((33, 42), (33, 36.5), (36, 50)))):
                spans = []
                for room in rooms:
                    limit = ",".join(f"{each}GB" for each in room)
                    rows = [line.split(",") for line in output(*made, "--memory", limit, "--format", "csv").splitlines()]
                    rows = [dict(zip(rows[0], row)) for row in rows[1:]]
                    parts = (1 + max(int(row["stage"]) for row in rows)) // 2  # of a stage of the file
                    for device in (0, 1):
                        own = [row for row in rows if int(row["device"]) == device]
                        whole, late, resident = ({stage: costs[name][stage // parts][0] / parts for stage in range(2 * parts)}
                                                 for name in ("activation_bytes", "weight_input_bytes", "resident_bytes"))
                        held = most = sum(resident[stage] for stage in {int(row["stage"]) for row in own})
                        for row in own:
                            stage = int(row["stage"])
                            held += whole[stage] if row["kind"] == "F" else 0
                            most = max(most, held)
                            held -= {"F": 0, "B": whole[stage], "I": whole[stage] - late[stage], "W": late[stage]}[row["kind"]]
                        self.assertLessEqual(most, room[device] * 1e9)
                    spans.append(max(float(row["end"]) for row in rows))
                self.assertGreaterEqual(spans[0], spans[2])
                self.assertGreaterEqual(spans[1], spans[2])
                self.assertGreater(spans[0], spans[2])  # what is not there is felt
            self.assertIn(f"a device holds at most {limit}\n", output(*words, "--memory", limit))
            # With room for as many on each device, all of which waits for the weights, the limit is a number.
            plain = pathlib.Path(folder) / "plain.json"
            plain.write_text(json.dumps({**costs, "weight_input_bytes": costs["activation_bytes"]}), encoding="utf-8")
            limits = [output("zb-auto", *sizes[:-1], plain, *limit, "--format", "csv")
                      for limit in (("--memory", "28GB,42GB"), ("--memory-limit", 2), ("--memory-limit", 3))]
            self.assertEqual(limits[0], limits[1])
            self.assertNotEqual(limits[0], limits[2])
            for more, wanted in ((("zb-auto", *sizes, "--memory", "23GB,50GB"), "device 0 has no room for one microbatch"),
                                 (("v-auto", *sizes, "--memory", "26GB,50GB"), "--memory: device 0 would hold "),
                                 (("zb-auto", *sizes, "--memory", "30GB", "--memory-limit", 2), "of zb-auto give one of the two"),
                                 (("1f1b", *sizes, "--memory", "50GB"), "of 1f1b neither is an option"),
                                 (("zb-auto", *sizes, "--memory", 3), "--memory is in bytes")):
                result = run(*more)
                self.assertEqual((result.returncode, result.stdout, len(result.stderr.splitlines())), (2, "", 1))
                self.assertIn(wanted, result.stderr)
            for more, wanted in (("22GB", "no order keeps the limit of device 1"), ("30GB,40GB,50GB", "--memory names 3 amounts"),
                                 ("30GB,", "--memory wants an amount")):
                result = run(*words, "--memory", more)
                self.assertEqual((result.returncode, result.stdout, len(result.stderr.splitlines())), (2, "", 1))
                self.assertIn(wanted, result.stderr)
            result = run("search", *SMALL, "--memory", "30GB")
            self.assertIn("needs --cost FILE with activation_bytes", result.stderr)
            result = run("1f1b", "--devices", 2, "--microbatches", 5, "--cost", file)
            self.assertIn("the file has the times of 4 microbatches one by one, and this pipeline has 5", result.stderr)

    def test_refusals(self):
        for words, reason in (
                ((*SMALL,), "--memory is missing"),
                ((*SMALL, "--memory", 0), "above 0"),
                ((*SMALL, "--memory", 2, "--seconds", 0), "--seconds must be above 0"),
                ((*SMALL, "--memory", 2, "--moves", 0), "at least 1"),
                ((*SMALL, "--memory", 2, "--goal", "speed"), "makespan or span"),
                ((*SMALL, "--memory", 2, "--like", "v-hal"), "did you mean v-half"),
                ((*SMALL, "--memory", 2, "--eager"), "search does not have the option --eager"),
                ((*SMALL, "--memory", 0.5, "--like", "v-half"), "no order keeps the memory limit"),
                # A header has neither placements of their own nor unequal numbers of chunks.
                ((*SMALL, "--memory", 2, "--like", "helix", "--format", "header"), "no schedule has these extents"),
                ((*SMALL, "--memory", 2, "--chunk-counts", "2,1"), "does not have the option --chunk-counts")):
            result = run("search", *words)
            self.assertEqual((result.returncode, result.stdout), (2, ""), words)
            self.assertRegex(result.stderr, r"timetable: [^\n]+\n\Z")
            self.assertIn(reason, result.stderr)
        result = run("1f1b", *SMALL, "--seed", 3)
        self.assertIn("only search has the option --seed", result.stderr)
        result = run("1f1b", *SMALL, "--format", "header")
        self.assertIn("or memory, not 'header'", result.stderr)

    def test_time_ends_it(self):
        result = run("search", "--devices", 8, "--microbatches", 32, "--memory", 5, "--cost", "10,12,8,1",
                     "--seconds", 0.2, "--like", "zb-h1", "--format", "csv")
        self.assertEqual(result.returncode, 0)
        self.assertGreater(len(result.stdout.splitlines()), 8 * 32 * 3)

    def test_what_there_was_no_time_for_is_said(self):
        words = ("search", "--devices", 32, "--microbatches", 128, "--memory", 16, "--seconds", 0.001)
        found = output(*words)  # before the first pipeline is searched
        rows = re.findall(r"^\S.*? {2,}(none fits|[\w-]+) +([\d.]*) +no time to search +unknown$", found, re.MULTILINE)
        self.assertGreater(len(rows), 5)
        least = min(float(makespan) for _, makespan in rows if makespan)
        self.assertIn(f", {least:g}\n", found)  # a schedule that is there already
        self.assertNotIn("%", found.split("found: ")[1].split("\n")[0])


if __name__ == "__main__":
    PROGRAM, COMPILER, INCLUDE = sys.argv[1:4]
    del sys.argv[1:4]
    unittest.main()
