#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Layouts of stages as Megatron-LM writes them, in all commands of the timetable tool that have stages.

usage: layout_test.py TIMETABLE
"""
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

PROGRAM = ""
PARTS = {"E": 0.25, "t": 1, "m": 1.5, "L": 0.75}
SIZE = ("--devices", 4, "--microbatches", 8)
WEIGHTS = ("--parts", "0.25,1.5,0.75")
MODEL = ("--model", "gpt-1.3b", "--sequence", 2048, "--gpu", "a100", "--devices", 2, "--microbatches", 4)
# Layout, devices, microbatches and the makespan of Megatron's order with these parts, where a backward pass takes 2.
KNOWN = (("Et*3|(tt|)*29,m|L", 16, 32, 524.5), ("E|t|t|L", 4, 8, 29.25), ("E||t|L", 4, 8, 26.25),
         ("Et|tt|tt|t|t|tm|t|L", 4, 8, 111.75), ("Ett|(ttt|)*6tmL", 4, 16, 324.75), ("E|(t|)*10m|m|m|LL|LL", 8, 16, 144.75))


def run(*words, cwd=None):
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=240, check=False, cwd=cwd)


def output(*words, cwd=None):
    result = run(*words, cwd=cwd)
    if result.returncode != 0:
        raise AssertionError(f"{words}: exit status {result.returncode}, {result.stderr}")
    return result.stdout


def stages_of(layout):
    """By replacement of text, as Megatron-Core expands it."""
    layout = layout.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        layout = re.sub(pattern, lambda found: found[1] * int(found[2]), layout)
    return layout.split("|")


class Layouts(unittest.TestCase):
    def test_timetables_take_what_megatron_takes(self):
        for layout, devices, microbatches, wanted in KNOWN:
            name = "1f1b" if len(stages_of(layout)) == devices else "interleaved"
            words = (name, "--devices", devices, "--microbatches", microbatches, "--layout", layout, *WEIGHTS)
            self.assertEqual(json.loads(output(*words, "--format", "json"))["makespan"], wanted, layout)
            self.assertNotEqual(output(*words, "--format", "calls"), "")  # lowered, and proven free of deadlock

    def test_passes_take_what_their_parts_take(self):
        layout = "Ett||(tm|)*5L"
        call = ("zb-v", *SIZE, "--layout", layout, *WEIGHTS, "--cost", "3,2,1,0.5", "--format", "csv")
        work = [sum(PARTS[part] for part in stage) for stage in stages_of(layout)]
        rows = [line.split(",") for line in output(*call).splitlines()]
        head = rows[0]
        times = {"F": 3, "B": 3, "I": 2, "W": 1}
        for row in rows[1:]:
            row = dict(zip(head, row))
            self.assertAlmostEqual(float(row["end"]) - float(row["start"]), times[row["kind"]] * work[int(row["stage"])], places=6)
        self.assertGreater(len(rows), 100)

    def test_a_file_has_the_times_of_its_stages(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "order.csv"
            file.write_text(output("1f1b", *SIZE, "--format", "pytorch"), encoding="utf-8")
            made = json.loads(output("csv", file, "--layout", "E|t|t|L", *WEIGHTS, "--format", "json"))
            self.assertEqual(made["makespan"], 29.25)
            self.assertIn("this pipeline has 4 stages, the layout has 2", run("csv", file, "--layout", "E|L").stderr)

    def test_compare_and_search_keep_to_the_stages(self):
        rows = {row["schedule"]: row for row in json.loads(output("compare", *SIZE, "--layout", "Et|tt|tt|t|t|tm|t|L", *WEIGHTS, "--format", "json"))}
        self.assertEqual(rows["interleaved"]["makespan"], 111.75)
        self.assertEqual(rows["1f1b"]["problem"], "this pipeline has 4 stages, the layout has 8")
        self.assertTrue(all(row.get("stages", 8) == 8 for row in rows.values()))
        words = ("search", *SIZE, "--memory", 4, "--layout", "E|t,|(t|)*1L", *WEIGHTS, "--moves", 20000)
        text = output(*words)
        self.assertIn("layout E|t|t|L, ", text)
        found = float(re.search(r"found: .*?, ([\d.]+)[,;]", text)[1])
        self.assertLessEqual(found, json.loads(output("1f1b", *SIZE, "--layout", "E|t|t|L", *WEIGHTS, "--format", "json"))["makespan"])
        call = re.search(r"timetable (search .*)\.\n", output(*words, "--format", "header"))[1]
        self.assertEqual(float(re.search(r"found: .*?, ([\d.]+)[,;]", output(*shlex.split(call)))[1]), found)

    def test_choose_and_systems_take_the_cut(self):
        layout = "Et*3|(t*7|)*2t*7L"
        found = json.loads(output("choose", *MODEL, "--layout", layout, "--format", "json"))
        self.assertGreater(len(found["candidates"]), 50)
        for row in found["candidates"]:
            self.assertEqual((row["layers"], stages_of(row["layout"])), ([3, 7, 7, 7], stages_of(layout)))
        self.assertIn("as a layout Et*3|t*7|t*7|t*7L", output("choose", *MODEL, "--layout", layout))
        # A cut that `choose` makes is read back, and gives the same times.
        def row_of(*words):
            rows = json.loads(output("choose", *MODEL, *words, "--format", "json"))["candidates"]
            return {row["schedule"]: row for row in rows}["zb-v"]
        row = row_of()
        self.assertEqual(row, row_of("--layout", row["layout"]))
        table = output("systems", *MODEL, "--layout", layout)
        self.assertIn("| `interleaved --stages-per-device 2` |", table)
        self.assertIn("`1f1b` is not in the table: it has 2 stages, the layout has 4.", table)

    def test_bad_layouts_get_one_sentence(self):
        for words, wanted in ((("1f1b", *SIZE, "--layout", "E|x|t|L"), "--layout: layout, character 3: E, e, t, m, L, a bar"),
                              (("1f1b", *SIZE, "--layout", "E|(t|*2L"), "--layout: layout, character 3: this parenthesis is not closed"),
                              (("1f1b", *SIZE, "--layout", "E|t|L"), "this pipeline has 4 stages, the layout has 3"),
                              (("1f1b", *SIZE, "--layout", "E|t|t|L", "--parts", "1,2"), "--parts wants 3 numbers, E,m,L, not '1,2'"),
                              (("1f1b", *SIZE, "--parts", "1,2,3"), "--parts is for --layout only"),
                              (("1f1b", *SIZE, "--layout", "E|t|t|L", "--tokens", 9, "--attention-ratio", 1), "a file of costs or a layout"),
                              (("gaps", *SIZE, "--layout", "E|t|t|L"), "--layout"),
                              (("choose", *MODEL, "--layout", "Et*24|t*0L"), "layout, character 8: a number from 1 must follow"),
                              (("choose", *MODEL, "--layout", "Et*24|mL"), "--layout has 1 modules for further tokens m, the model 0"),
                              (("choose", *MODEL, "--layout", "Et*24L|L"), "the output layer L, the only one"),
                              (("choose", *MODEL, "--layout="), "the first stage must have the embedding E"),
                              (("choose", *MODEL, "--layout", "Et*23|L"), "--layout has 23 layers t, the model 24"),
                              (("choose", *MODEL, "--layout", "Et*24||L"), "no schedule takes these sizes")):
            with self.subTest(words=words):
                result = run(*words)
                self.assertEqual((result.returncode, result.stdout, len(result.stderr.splitlines())), (2, "", 1))
                self.assertIn(wanted, result.stderr)


if __name__ == "__main__":
    PROGRAM = sys.argv[1]
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
