#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Asks every verb for --json, and holds keys against the page that documents them, figures against the tables.

usage: json_test.py TIMETABLE PAGE
"""
import json
import pathlib
import re
import subprocess
import sys
import unittest

PROGRAM, PAGE = sys.argv[1], pathlib.Path(sys.argv[2]).read_text(encoding="utf-8")
SIZE = ["--devices", "4", "--microbatches", "8"]
SMALL = ["--devices", "3", "--microbatches", "4"]
MODEL = ["--model", "gpt-1.3b", "--sequence", "2048", "--gpu", "a100", *SIZE]
# Whole sequences and chunks, and nothing that is searched: choose searches for seconds.
SOME = ["--schedules", "gpipe,1f1b,eager-1f1b,seq1f1b,zb-h1,zb-h2,breadth-first"]


def printed(*words):
    return subprocess.run([PROGRAM, *words], check=True, capture_output=True, text=True, timeout=300).stdout


def keys(value):
    """All keys of an object, at any depth, but those of rows whose columns are a paper's."""
    if isinstance(value, list):
        return set().union(*map(keys, value))
    if isinstance(value, dict):
        return set(value) | set().union(*(keys(each) for name, each in value.items() if name != "rows"))
    return set()


def documented(verb):
    """The keys in the block of the page that follows the verb's line."""
    block = re.search(rf"^### JSON of `{verb}`\n.*?```text\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)
    assert block, verb
    return set(re.findall(r'"([a-z_0-9]+)"', block[1]))


def table(text):
    lines = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [dict(zip(lines[0], line)) for line in lines[2:]]


def leading(text):
    return float(re.search(r"-?[0-9.]+", text)[0])


class Json(unittest.TestCase):
    def hold(self, verb, *words):
        text = printed(*words, "--json")
        self.assertEqual(text, printed(*words, "--format", "json"))
        made = json.loads(text)
        self.assertLessEqual(keys(made), documented(verb))
        return made

    def test_timetable(self):
        made = self.hold("timetable", "v-half", *SIZE)
        self.assertEqual((made["devices"], made["microbatches"]), (4, 8))

    def test_search(self):
        self.hold("timetable", "search", *SIZE, "--memory", "2", "--moves", "500")

    def test_compare(self):
        made = self.hold("compare", "compare", *SIZE)
        self.assertGreater(len(made), 30)

    def test_gaps(self):
        made = self.hold("gaps", "gaps", *SMALL)
        self.assertEqual(set(made[0]), documented("gaps"))
        shown = table(printed("gaps", *SMALL))
        self.assertEqual([f"`{each['schedule']}`" for each in made], [each["schedule"] for each in shown])
        for each, row in zip(made, shown):
            self.assertAlmostEqual(each["makespan"], leading(row["makespan"]), delta=1e-3)
            self.assertAlmostEqual(each["least_makespan"], leading(row["least makespan"]), delta=1e-3)
            self.assertEqual(each["proven"], "at least" not in row["least makespan"])

    def test_choose(self):
        every = json.loads(printed("choose", *MODEL, "--json"))
        self.assertLessEqual(keys(every), documented("choose"))
        for made in (every, self.hold("choose", "choose", *MODEL, *SOME)):
            self.assertLess(made["pick"], len(made["candidates"]))

    def test_choose_says_how_sure_its_pick_is(self):
        # Where the upper end of the band of the pick is beyond the memory, the fastest one is named whose is not.
        def most(each):  # on one GPU per layer: 1 / 0.85 of the count, with chunks 1 / 0.57
            return each["memory_gb"] / (0.57 if len(each["chunk_lengths"]) > 1 else 0.85)

        doubts = 0
        for memory in (8, 12, 80):
            words = ["choose", *MODEL, *SOME, "--memory", f"{memory}GB"]
            made = json.loads(printed(*words, "--json"))
            pick = made["candidates"][made["pick"]]
            sure = [each for each in made["candidates"] if "cannot" not in each and most(each) <= memory]
            for each in made["candidates"]:
                self.assertAlmostEqual(each.get("memory_most_gb", most(each)), most(each))
            said = re.search(r"^memory: .*?(?:; not sure to fit \((?:sure: (.*), [0-9.]+ GB, .*|(nothing is))\))?$", printed(*words),
                             re.MULTILINE)
            if most(pick) <= memory:
                self.assertIsNone(said[1] or said[2], said[0])
                continue
            doubts += 1
            if sure:
                fastest = min(each["ranked"] for each in sure)
                self.assertIn(said[1], [each["schedule"] for each in sure if each["ranked"] == fastest], said[0])
            else:
                self.assertEqual(said[2], "nothing is", said[0])
        self.assertTrue(0 < doubts < 3, doubts)

    def test_systems(self):
        made = self.hold("systems", "systems", *MODEL)
        self.assertEqual(set(made), {"systems", "refused"})
        self.assertEqual(set(made["systems"][0]) | {"systems", "refused", "problem"}, documented("systems"))
        shown = table(printed("systems", *MODEL))
        self.assertEqual([f"`{each['schedule']}`" for each in made["systems"]], [each["schedule"] for each in shown])
        for each, row in zip(made["systems"], shown):
            self.assertAlmostEqual(each["seconds"], leading(row["time s"]), delta=0.00501)
            self.assertAlmostEqual(100 * each["bubble_rate"], leading(row["bubble"]), delta=0.0501)
            self.assertAlmostEqual(each["sent_gb"], leading(row["GB sent"]), delta=0.00501)

    def test_blocks(self):
        made = self.hold("blocks", "blocks", "--devices", "4", "--legs", "2", "--chunks", "1,2")
        self.assertEqual(set(made[0]), documented("blocks"))
        for row in table(printed("blocks", "--devices", "4", "--legs", "2")):
            share = row["memory"].split("/")
            for legs in ("1", "2"):
                within = [each["bubble_rate"] for each in made if each["chunks"] == 1 and each["legs"] == int(legs) and
                          each["memory"] <= 4 * float(share[0]) / float((share + ["1"])[1]) + 1e-9]
                self.assertEqual(bool(within), row[legs] != "")
                if within:
                    self.assertAlmostEqual(100 * min(within), leading(row[legs]), delta=0.0501)

    def test_reproduce(self):
        for name in ("zero-bubble", "closed-forms"):
            made = self.hold("reproduce", "reproduce", name)
            shown = table(printed("reproduce", name))
            self.assertEqual(len(made["rows"]), len(shown))
            for each, row in zip(made["rows"], shown):
                self.assertEqual(set(each), set(row))
                for column, cell in row.items():
                    try:
                        self.assertEqual(each[column], float(cell))
                    except ValueError:
                        self.assertEqual(each[column], cell)

    def test_both_spellings_at_once_are_refused(self):
        for words in (["1f1b", *SIZE], ["gaps", *SMALL], ["blocks"], ["choose", *MODEL], ["reproduce", "zero-bubble"]):
            said = subprocess.run([PROGRAM, *words, "--json", "--format", "text"], capture_output=True, text=True, check=False)
            self.assertEqual((said.returncode, said.stdout), (2, ""), words)
            self.assertIn("--json is --format json", said.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
