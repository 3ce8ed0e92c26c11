#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tests `timetable systems`: laws of its figures, the figures of `timetable choose`, and the page that shows its tables.

usage: systems_test.py TIMETABLE PAGE
"""
import json
import pathlib
import re
import subprocess
import sys
import unittest

TOOL = PAGE = None
P, M = 4, 12
WORDS = ["--model", "gpt-7b", "--sequence", "65536", "--gpu", "h100", "--tensor", "8", "--devices", str(P),
         "--microbatches", str(M)]


def output(*words):
    return subprocess.run([TOOL, *words], check=True, capture_output=True, text=True).stdout


def rows(text):
    """The cells of every row, by what stands in its first one."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): cells[1:] for cells in ([c.strip() for c in line.strip("|").split("|")] for line in lines)}


class Systems(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.text = output("systems", *WORDS)
        cls.table = rows(cls.text)

    def test_every_schedule_has_a_row(self):
        names = {line.split()[0] for line in output("--list").splitlines()} - {"helix", "wei-pipe"}  # parts of layers; weights that travel
        self.assertEqual({label.split()[0] for label in self.table}, names, self.text)

    def test_adapters_have_rows(self):
        for name in ["1f1b", "seq1f1b --chunks 4", "v-half"]:
            for adapter in ["recompute", "offload", "vocabulary-1", "vocabulary-2", "vocabulary-interlaced"]:
                self.assertIn(f"{name} with {adapter}", self.table)

    def test_messages_of_a_microbatch(self):
        chain, looped, wave = 2 * (P - 1), 2 * (2 * P - 1), 2 * (2 * P - 2)
        for name, wanted in {
            "gpipe": chain, "1f1b": chain, "1f1b with recompute": chain, "1f1b with offload": chain, "zb-h1": chain,
            "chimera": chain, "dualpipe": chain, "interleaved": looped, "breadth-first": looped, "v-half": wave,
            "zb-v": wave, "seq1f1b --chunks 4": 4 * chain, "seq1f1b-interleaved --chunks 4": 4 * looped,
            "slice-v --chunks 4": 4 * wave,
        }.items():
            self.assertEqual(float(self.table[name][4]), wanted, name)

    def test_chunks_do_not_change_the_bytes_sent(self):
        self.assertEqual(self.table["1f1b"][5], self.table["seq1f1b --chunks 4"][5])

    def test_exchanges_are_those_of_the_shards(self):
        # What the first stage embeds, what the last one gives, and the gradients of both; statistics.
        for label, cells in self.table.items():
            chunks = 4 if "--chunks 4" in label else 1
            self.assertEqual(float(cells[6]), 5 * chunks if "vocabulary" in label else 0, label)

    def test_memory_follows_what_is_kept(self):
        held = {label: float(cells[2]) for label, cells in self.table.items()}
        self.assertLess(held["seq1f1b --chunks 4"], held["1f1b"])
        self.assertLess(held["1f1b"], held["gpipe"])
        self.assertLess(held["1f1b with recompute"], held["1f1b"])
        host = {label: float(cells[3]) for label, cells in self.table.items()}
        self.assertGreater(host["1f1b with offload"], 0)
        self.assertTrue(all(value == 0 for label, value in host.items() if "offload" not in label and "host" not in label))
        # Of two stages on every device, the state of one.
        moved = held["chronos"] - held["chronos with weights-on-host"]
        self.assertGreater(moved, 0)
        self.assertGreater(host["chronos with weights-on-host"], moved)
        self.assertEqual(self.table["chronos with weights-on-host"][0], self.table["chronos"][0])

    def test_choose_has_the_same_figures(self):
        chosen = {each["schedule"]: each for each in json.loads(output("choose", *WORDS, "--format", "json"))["candidates"]}
        common = set(chosen) & set(self.table)
        self.assertGreater(len(common), 15)
        for label in common:
            self.assertAlmostEqual(float(self.table[label][0]), chosen[label]["seconds"], delta=0.0051, msg=label)

    def test_wrong_words_are_refused(self):
        made = subprocess.run([TOOL, "systems", "--modle", "gpt-7b"], capture_output=True, text=True)
        self.assertEqual(made.returncode, 2)
        self.assertIn("did you mean --model", made.stderr)

    def test_the_page_is_what_its_commands_print(self):
        text = PAGE.read_text(encoding="utf-8")
        commands = re.findall(r"```sh\nscripts/timetable (systems [^\n]*)\n```\n\n(.*?)(?=\n```sh|\n##+ |\Z)", text, re.DOTALL)
        self.assertEqual(len(commands), 2)
        for command, shown in commands:
            self.assertEqual(output(*command.split()), shown, f"{PAGE}: optimality_test.py TIMETABLE PAGE --write updates it")


if __name__ == "__main__":
    TOOL, PAGE = sys.argv[1], pathlib.Path(sys.argv[2])
    unittest.main(argv=sys.argv[:1])
