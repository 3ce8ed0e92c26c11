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
        names = {line.split()[0] for line in output("--list").split("\n\n")[0].splitlines()}
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
            "slice-v --chunks 4": 4 * wave, "gpipe --chunks 4": 4 * chain,
        }.items():
            self.assertEqual(float(self.table[name][4]), wanted, name)

    def row(self, begins):
        return next([float(c.rstrip(" %")) for c in cells] for label, cells in self.table.items() if label.startswith(begins))

    def test_what_papers_put_together_has_rows(self):
        for label in ["interleaved with offload", "chronos with recompute-first", "zb-h1 with vocabulary-2",
                      "slimpipe --stages-per-device 8 with attention-exchange", "helix --stages-per-device 16 with recompute"]:
            self.assertIn(label, self.table)
        shared = rows(output("systems", *WORDS, "--data", "2"))
        for label in ["breadth-first with sharded-weights", "breadth-first with gathered-once"]:
            self.assertIn(label, shared)

    def test_all_do_the_same_work(self):
        # Seconds that devices are busy: the model's, however it is cut, sent and placed.
        busy = {label: float(cells[0]) * (1 - float(cells[1].rstrip(" %")) / 100) for label, cells in self.table.items()}
        for label in ["helix --stages-per-device 16", "wei-pipe", "slimpipe --stages-per-device 8 with attention-exchange"]:
            self.assertAlmostEqual(busy[label], busy["1f1b"], delta=0.002 * busy["1f1b"], msg=label)
        # RoundPipe runs the forward passes of nearly all layers twice.
        again = next(value for label, value in busy.items() if label.startswith("round-pipe"))
        # So does recomputation, but for the last chunk of the last stage, whose backward pass follows at once.
        self.assertTrue(0.97 * again < busy["seq1f1b --chunks 4 with recompute"] < again, busy)
        self.assertLess(busy["1f1b with recompute"], 0.97 * again)

    def test_messages_of_parts_of_layers(self):
        # Queries, keys, values and residual, 4 widths; output and residual, 2; back as much. One in P is local.
        layers, width = 32, 65536 * 4096 * 2 / 8 / 1e9
        helix = self.row("helix")
        self.assertEqual(helix[4], 2 * 2 * layers * (P - 1) / P)
        self.assertAlmostEqual(helix[5], 2 * 6 * width * layers * (P - 1) / P, delta=0.006)

    def test_messages_of_weights(self):
        # All weights in bf16 on, weights and gradients in single precision back, but for the first microbatch.
        parameters = (32 * 12 * 4096 ** 2 + 2 * 51200 * 4096) / 8
        wei = self.row("wei-pipe")
        self.assertAlmostEqual(wei[4], 2 * P * (M - 1) / M, delta=0.06)
        self.assertAlmostEqual(wei[5], 8 * parameters / 1e9 * (M - 1) / M, delta=0.006)
        label = next(each for each in self.table if each.startswith("round-pipe"))
        forward, backward = map(int, re.findall(r"stages (\d+)", label))
        self.assertEqual(self.row("round-pipe")[4], forward + backward - 1)

    def test_memory_of_weights_that_move(self):
        # Of RoundPipe a device has the weights of two stages, the host all 18 bytes of a parameter, and inputs.
        round_pipe, parameters = self.row("round-pipe"), (32 * 12 * 4096 ** 2 + 2 * 51200 * 4096) / 8
        inputs = 31 * M * 65536 * 4096 * 2 / 8
        self.assertAlmostEqual(round_pipe[3], (18 * parameters + inputs) / P / 1e9, delta=0.06)
        self.assertLess(round_pipe[2], self.row("1f1b with recompute")[2])
        # Of WeiPipe it has the activations of one microbatch in all layers, as a device of 1F1B has of P in its own.
        one = 32 * 65536 * (32 * 4096 + 4 * 32) / 8 / 1e9
        self.assertGreater(self.row("wei-pipe")[2], one)
        self.assertLess(self.row("wei-pipe")[2], one + 30)

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
        self.assertTrue(all(value == 0 for label, value in host.items()
                            if "offload" not in label and "host" not in label and "round-pipe" not in label))
        # Of two stages on every device, the state of one.
        moved = held["chronos"] - held["chronos with weights-on-host"]
        self.assertGreater(moved, 0)
        self.assertGreater(host["chronos with weights-on-host"], moved)
        self.assertEqual(self.table["chronos with weights-on-host"][0], self.table["chronos"][0])

    def test_choose_has_the_same_figures(self):
        chosen = {each["schedule"]: each for each in json.loads(output("choose", *WORDS, "--format", "json"))["candidates"]}
        common = set(chosen) & set(self.table)
        self.assertGreater(len(common), 15)
        apart = {label for label in self.table if re.match("helix|wei-pipe|round-pipe|.*attention-exchange", label)}
        self.assertEqual(len(apart), 5)
        self.assertLessEqual(apart | {"gpipe --chunks 4"}, common)
        for label in common:
            shown = float(self.table[label][0])
            if chosen[label]["seconds"] < shown - 0.0051:  # its fastest rows have moved single layers between stages
                self.assertGreater(chosen[label]["seconds"], 0.99 * shown, label)
            else:
                self.assertAlmostEqual(shown, chosen[label]["seconds"], delta=0.0051, msg=label)
                self.assertAlmostEqual(float(self.table[label][2]), chosen[label]["memory_gb"], delta=0.051, msg=label)

    def test_terapipe_idles_for_slices_and_keeps_what_gpipe_keeps(self):
        sliced, whole = self.row("gpipe --chunks 4"), self.row("gpipe")
        idle = [row[0] * row[1] / 100 for row in (sliced, whole)]
        # A quarter of what waits for whole sequences, and as much as stages that are not equal cost either way.
        self.assertTrue(idle[1] / 4 < idle[0] < idle[1] / 2, idle)
        self.assertAlmostEqual(sliced[0] - idle[0], whole[0] - idle[1], delta=0.006)
        self.assertAlmostEqual(sliced[2], whole[2], delta=0.01 * whole[2])

    def test_wrong_words_are_refused(self):
        made = subprocess.run([TOOL, "systems", "--modle", "gpt-7b"], capture_output=True, text=True)
        self.assertEqual(made.returncode, 2)
        self.assertIn("did you mean --model", made.stderr)
        made = subprocess.run([TOOL, "systems", "--model", "gpt-7b"], capture_output=True, text=True)
        self.assertEqual(made.stderr, "timetable: systems: --sequence is missing; see systems --help\n")
        made = subprocess.run([TOOL, "systems", "--model", "gpt-7b", "--search"], capture_output=True, text=True)
        self.assertEqual(made.stderr, "timetable: only choose has the option --search\n")

    def test_the_page_is_what_its_commands_print(self):
        text = PAGE.read_text(encoding="utf-8")
        commands = re.findall(r"```sh\nscripts/timetable (systems [^\n]*)\n```\n\n(.*?)(?=\n```sh|\n##+ |\Z)", text, re.DOTALL)
        self.assertEqual(len(commands), 2)
        # The page has the rows that no other one beats, and some to compare them with.
        for command, part in commands:
            printed, shown = rows(output(*command.split())), rows(part)
            self.assertEqual(shown, {label: printed.get(label) for label in shown})
            needs = {label: (float(cells[0]), float(cells[2])) for label, cells in printed.items()}
            best = {label for label, (time, held) in needs.items()
                    if not any(other != (time, held) and other[0] <= time and other[1] <= held for other in needs.values())}
            self.assertLessEqual(best, set(shown), command)


if __name__ == "__main__":
    TOOL, PAGE = sys.argv[1], pathlib.Path(sys.argv[2])
    unittest.main(argv=sys.argv[:1])
