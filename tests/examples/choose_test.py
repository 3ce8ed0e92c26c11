#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs `timetable choose` as users do, and holds its choice against its own table and against the timetable tool.

Orders of V shapes are searched, which takes nine tenths of the time of a run. Where a test does not need them, it names
the other schedules: `unsearched()`; where it needs one, that one alone: `only(row)`.

usage: choose_test.py PROGRAM COMPILER INCLUDE [unittest argument ...]
"""
import functools
import itertools
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

PROGRESS = re.compile(r"^[0-9.]+ s: ([0-9]+ of [0-9]+, |[0-9]+ so far, |searching: [0-9]+ pipelines, best ).*\n", re.MULTILINE)  # of what takes longer than 2 s
PROGRAM = COMPILER = INCLUDE = ""
SMALL = ("--model", "gpt-1.3b", "--sequence", 2048, "--gpu", "a100", "--devices", 2, "--microbatches", 4)


def is_apart(row):
    """Layers do not stay whole on a device."""
    return row["schedule"].split()[0] in ("helix", "wei-pipe", "round-pipe") or "attention-exchange" in row["schedule"]


def run(*words):
    return subprocess.run([PROGRAM, "choose", *map(str, words)], capture_output=True, text=True, timeout=240,
                          check=False)


def output(*words):
    result = run(*words)
    if result.returncode != 0 or re.sub(PROGRESS, "", result.stderr):
        raise AssertionError(f"{words}: exit status {result.returncode}, {result.stderr}")
    return result.stdout


@functools.cache
def choice(*words):
    """What it says as JSON, asked once. Nobody may change it."""
    return json.loads(output(*words, "--format", "json"))


@functools.cache
def schedules():
    listed = subprocess.run([PROGRAM, "--list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.split("\n\n")[0].splitlines()]  # the rest are adapters


@functools.cache
def unsearched(*more):
    """Words for all schedules but those whose orders are searched at any costs, and for some of these."""
    return "--schedules", ",".join(name for name in schedules() if name in more or not re.match("v-|zb-v$|chronos", name))


def only(row):
    """Words for the schedule of a row alone."""
    return "--schedules", re.split("[ ,]", row["schedule"])[0]


def write_equal_costs(folder):
    """A file in which all passes of two stages take one second, and messages nothing."""
    file = pathlib.Path(folder) / "costs.json"
    equal = [[1], [1]]
    file.write_text(json.dumps({"pipelining_costs": 1, "communication": 0, "forward": equal,
                                "backward_input": equal, "backward_weight": equal}), encoding="utf-8")
    return file


def row_of(rows, schedule):
    return next(row for row in rows if row["schedule"] == schedule)


class Choice(unittest.TestCase):
    headers = []  # and the times that they must have

    @property
    def found(self):
        return choice(*SMALL)

    @property
    def rows(self):
        return self.found["candidates"]

    @property
    def fewer(self):
        return *SMALL, *unsearched()

    @property
    def found_fewer(self):
        return choice(*self.fewer)

    def test_pick_and_frontier_follow_from_the_table(self):
        fit = [row for row in self.rows if row["memory_gb"] <= self.found["memory_gb"]]
        self.check_pick(self.found)
        front = [self.rows[i] for i in self.found["frontier"]]
        for row in self.rows:
            beaten = [f for f in front if f["memory_gb"] <= row["memory_gb"] and f["seconds"] <= row["seconds"]]
            self.assertTrue(beaten, row)
        for before, after in zip(front, front[1:]):
            self.assertLess(before["memory_gb"], after["memory_gb"])
            self.assertGreater(before["seconds"], after["seconds"])
        for row in self.rows:
            self.assertLessEqual(row["bound"], row["seconds"] * (1 + 1e-9), row)
            if not is_apart(row):
                self.assertEqual(sum(row["layers"]), 24)
            self.assertEqual(sum(row["chunk_lengths"]), 2048)

    @staticmethod
    def pick_of(rows, memory):
        """Of those at most 0.1 % slower than the fastest, the least memory; then no adapter, then the fewest options."""
        fit = [row for row in rows if row["memory_gb"] <= memory and "cannot" not in row]
        equal = [row for row in fit if row["ranked"] <= 1.001 * min(other["ranked"] for other in fit)]
        least = min(row["memory_gb"] for row in equal) * (1 + 1e-9)
        return min((row for row in equal if row["memory_gb"] <= least),
                   key=lambda row: (" with " in row["schedule"], row["schedule"].count(" --"), row["ranked"]))

    def check_pick(self, found):
        self.assertEqual(found["candidates"][found["pick"]], self.pick_of(found["candidates"], found["memory_gb"]))

    def test_any_number_of_threads_prints_the_same(self):
        for words in ((*self.fewer, "--json"), (*SMALL, "--schedules", "1f1b,v-half,zb-v,v-auto,seq1f1b")):
            printed = {output(*words, "--threads", threads) for threads in (1, 2, 5)}
            self.assertEqual(len(printed), 1)

    def test_every_schedule_and_several_chunk_counts_are_there(self):
        names = set(schedules())
        names.remove("chunkflow")  # sequences here are of one length, for which it is seq1f1b
        names.remove("stp")  # wants 3 P - 1 microbatches
        self.assertEqual(names, {row["schedule"].split()[0] for row in self.rows})
        self.assertLessEqual({1, 2, 4, 8}, {len(row["chunk_lengths"]) for row in self.rows})

    def test_schedules_that_are_named_are_the_only_ones(self):
        names = {"1f1b", "zb-v", "zb-h1"}
        rows = json.loads(output(*SMALL, "--schedules", ",".join(names), "--format", "json"))["candidates"]
        of_all = [row for row in self.rows if row["schedule"].split()[0] in names]
        self.assertEqual([row["schedule"] for row in rows], [row["schedule"] for row in of_all])
        for row, other in zip(rows, of_all):
            self.assertLessEqual(row["seconds"], other["seconds"] * (1 + 1e-9))  # their cuts are looked at for longer
        words = (*SMALL[:2], "--gpu", "a100", "--devices", 2, "--lengths", "512x3,1024", "--schedules", "chunkflow,1f1b")
        rows = json.loads(output(*words, "--format", "json"))["candidates"]
        self.assertEqual({re.split("[ ,]", row["schedule"])[0] for row in rows}, {"chunkflow", "1f1b", "sequence"})  # groups
        for name, wanted in (("1f1", "--schedules: there is no schedule '1f1'; did you mean 1f1b?"),
                             ("1f1b,,gpipe", "--schedules has no name at the beginning, at the end or between two commas"),
                             ("stp", "no schedule takes these sizes; the first refusal is stp")):
            self.check_refusal((*SMALL, "--schedules", name), wanted)

    def test_what_does_not_stay_on_a_device_is_offered_where_its_size_fits(self):
        apart = [row for row in self.rows if is_apart(row)]
        self.assertEqual([row["schedule"].split()[0] + row["schedule"].partition(" with")[2] for row in apart],
                         ["helix", "helix recompute", "wei-pipe", "round-pipe sharded-weights", "slimpipe attention-exchange"])
        for row in apart:
            self.assertTrue(0 < row["bound"] <= row["seconds"], row)
        # The first of the 7 stages that go back has layers that no forward stage has, and all go back once.
        layers = apart[3]["layers"]
        self.assertEqual((len(layers), sum(layers[2:]), sum(layers[:3])), (9, 24, 24))
        uneven = json.loads(output("--model", "gpt-1.3b", "--sequence", 2047, *SMALL[4:6], "--devices", 5, "--microbatches", 4,
                                   *unsearched(), "--format", "json"))["candidates"]  # 24 layers on 5 devices, 4 microbatches
        self.assertEqual({row["schedule"].split()[0] for row in uneven if is_apart(row)}, {"round-pipe"})
        text = output("--model", "gpt-1.3b", "--sequence", 65536, *SMALL[4:], "--memory", "30GB", *unsearched())
        self.assertIn("pick: round-pipe --forward-stages 4 --backward-stages 24 with sharded-weights, the fastest of 1 that fit", text)
        self.assertIn("of runs of its kind no memory is published; not sure to fit (nothing is)\n", text)
        self.assertRegex(text, r"on the host: [\d.]+ GB for each GPU\n")

    def test_predictions_of_1f1b_by_hand(self):
        row = row_of(self.rows, "1f1b")
        hidden, sequence, vocabulary = 2048, 2048, 51200
        held_layers = row["layers"]
        self.check_time_of_1f1b(row, 1)
        held = lambda parameters: 18 * parameters
        embedding = hidden * vocabulary
        stages = [held(count * 12 * hidden ** 2 + embedding) for count in held_layers]
        activations = [count * sequence * (32 * hidden + 4 * 16) for count in held_layers]
        first = stages[0] + 2 * activations[0]
        second = stages[1] + activations[1] + 6 * sequence * vocabulary
        self.assertAlmostEqual(row["memory_gb"], max(first, second) / 1e9, places=9)

    def check_time_of_1f1b(self, row, tensor):
        hidden, sequence, vocabulary = 2048, 2048, 51200
        held_layers = row["layers"]
        linear = 2 * sequence * 12 * hidden ** 2
        attention = 2 * hidden * sequence ** 2
        rate = 312e12 * tensor
        output_layer = 2 * sequence * hidden * vocabulary / (0.40 * rate)
        forward = [count * (linear + attention) / (0.62 * rate) for count in held_layers]
        weights = [count * linear / (0.62 * rate) for count in held_layers]
        backward = [count * (2 * linear + 2.5 * attention) / (0.62 * rate) for count in held_layers]
        forward[1] += output_layer
        weights[1] += output_layer
        backward[1] += 2 * output_layer
        message = 2 * sequence * hidden / 300e9
        # Two gathers and two scatters a layer, of all but the own share; backward after the gradient of the weights.
        exchange = [count * 4 * (tensor - 1) / tensor * message for count in held_layers]
        forward = [own + more for own, more in zip(forward, exchange)]
        backward = [own + max(0, more - hides) for own, more, hides in zip(backward, exchange, weights)]
        message /= tensor
        orders = ("F0 F1 B0 F2 B1 F3 B2 B3".split(), "F0 B0 F1 B1 F2 B2 F3 B3".split())
        ends, free, at = {}, [0, 0], [0, 0]
        while at != [8, 8]:
            for device in (0, 1):
                while at[device] < 8:
                    name = orders[device][at[device]]
                    needed = (name, 0) if name[0] == "F" and device == 1 else (name, 1) if device == 0 else None
                    if name[0] == "F" and device == 0:
                        needed = None
                    if needed and needed not in ends:
                        break
                    ready = ends[needed] + message if needed else 0
                    length = (forward if name[0] == "F" else backward)[device]
                    free[device] = ends[name, device] = max(free[device], ready) + length
                    at[device] += 1
        self.assertAlmostEqual(row["seconds"], max(free), delta=1e-9)

    def test_exchanges_of_a_tensor_parallel_group_hide_in_pairs(self):
        common = ("--model", "gpt-1.3b", "--sequence", 2048, "--gpu", "a100", "--devices", 2, "--microbatches", 8)
        seconds = []
        for tensor in (1, 4):
            rows = json.loads(output(*common, "--tensor", tensor, *unsearched("zb-v", "v-half"), "--format", "json"))["candidates"]
            for row in rows:
                self.assertLessEqual(row["bound"], row["seconds"] * (1 + 1e-9), row)
            seconds.append({row["schedule"]: row["seconds"] for row in rows})
        alone, shared = seconds
        for other in ("zb-v", "1f1b", "v-half"):  # nothing of which is a pair
            self.assertLess(shared["stp"] / shared[other], 0.97 * alone["stp"] / alone[other])
        row = row_of(json.loads(output(*SMALL, "--tensor", 4, "--schedules", "1f1b", "--format", "json"))["candidates"], "1f1b")
        self.check_time_of_1f1b(row, 4)

    def test_text_names_the_pick_and_what_memory_buys(self):
        rows, frontier = self.found_fewer["candidates"], self.found_fewer["frontier"]
        pick = rows[self.found_fewer["pick"]]["schedule"]
        text = output(*self.fewer)
        self.assertIn(f"pick: {pick}, the fastest of", text)
        self.assertNotIn("the frontier, least memory first", text)
        self.assertLessEqual(len(text.splitlines()), 24)  # one screen
        head, *table = text[text.index("  schedule "):text.index("> the pick, *")].splitlines()
        self.assertEqual([line[0] for line in table].count(">"), 1)
        self.assertEqual(len(table), 4)
        self.assertIn("published", text)
        least = rows[frontier[0]]
        self.assertIn(f"least memory: {round(least['memory_gb'], 1):g} GB, with {least['schedule']}", text)
        if len(frontier) > 1:
            after = rows[frontier[1]]
            tight = output(*self.fewer, "--memory", f"{(least['memory_gb'] + after['memory_gb']) / 2:.6f}GB")
            self.assertIn(f"pick: {least['schedule']},", tight)
            self.assertIn(f"with {after['schedule']}: ", tight)

    def test_one_screen_says_of_what_it_leaves_out_what_all_rows_say(self):
        """What is too large whatever its times is simulated only with --all."""
        wide = ("--model", "gpt-7b", "--sequence", 16384, "--gpu", "h100", "--devices", 4, "--microbatches", 12, *unsearched())
        moved = ("--model", "qwen3-30b-a3b", "--sequence", 4096, "--gpu", "h100", "--devices", 6, "--microbatches", 24,
                 *unsearched())  # layers move, and the pick is faster than some that are too large then
        for words, memories in ((self.fewer, (24, 26.5, 30)), (wide, (46, 52, 60, 80)),
                                ((*wide, "--tied", "--clip"), (52,)), ((*wide, "--data", 4), (40, 46)), (moved, (80,)),
                                ((*wide, "--modules", 1), (60,))):  # whose rows of refused shards are counted, too
            for memory in memories:
                few, every = (output(*words, "--memory", f"{memory}GB", *more) for more in ((), ("--all",)))
                reasons = few[few.index("\npick: "):]
                self.assertEqual(reasons, every[every.index("\npick: "):])
                self.assertIn("more memory", reasons)
                counted = [re.findall(r"\n\d+ of \d+ do not fit\n", text) for text in (few, every)]
                self.assertEqual(counted[0], counted[1])

    def test_one_screen_shows_the_same_as_all_orders_searched(self):
        """Where few rows are shown, orders that cannot be among them are not searched."""
        gemma = {"num_hidden_layers": 9, "hidden_size": 2048, "num_attention_heads": 8, "vocab_size": 256000, "intermediate_size": 16384}
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "wide.json"
            file.write_text(json.dumps(gemma), encoding="utf-8")
            wide = ("--model", file, "--sequence", 1024, "--gpu", "h100", "--devices", 3, "--microbatches", 5,
                    "--schedules", "1f1b,zb-h1,v-min,v-half,v-auto")
            for words, found in ((SMALL, self.found), (wide, json.loads(output(*wide, "--format", "json")))):
                rows = found["candidates"]
                best = sorted({row["seconds"] for row in rows if row["memory_gb"] <= found["memory_gb"]})
                text = output(*words)
                shown = [line.split() for line in text[text.index("  schedule "):text.index("> the pick")].splitlines()[1:]]
                self.assertEqual(len(shown), 4)
                for line, seconds in zip(shown, best):
                    self.assertLessEqual(float(line[-5]), seconds * 1.001 + 5e-4)
                pick = next(row for row in rows if row["schedule"] == re.search("pick: (.*?), the", text)[1])
                self.assertLessEqual(pick["seconds"], rows[found["pick"]]["seconds"] * 1.001)
                whole = [row["seconds"] for row in rows if len(row["chunk_lengths"]) == 1 and row["memory_gb"] <= found["memory_gb"]]
                if said := re.search(r"with whole sequences: .*, ([\d.]+) % slower", text):
                    self.assertLessEqual(pick["seconds"] * (1 + float(said[1]) / 100), min(whole) * 1.001)
                searched = [row for row in rows if row["schedule"].startswith("v-")]
                for each in (rows[i] for i in found["frontier"]):  # nothing of the frontier is lost
                    if each in searched:
                        tight = output(*words, "--memory", f"{each['memory_gb'] * 1.0001:.6f}GB")
                        self.assertIn("pick: " + each["schedule"], tight)

    def test_orders_that_are_the_same_stand_in_one_row(self):
        words = (*SMALL, "--schedules", "1f1b,seq1f1b,v-zb,zb-v")
        listed = json.loads(output(*words, "--format", "json"))["candidates"]
        text = output(*words, "--all")
        self.assertIn("the frontier, least memory first", text)
        names = [re.split("  +", line[2:])[0].split(" = ") for line in text[:text.index("> the pick, *")].splitlines()[6:]]
        self.assertEqual(sorted(name for row in names for name in row), sorted(row["schedule"] for row in listed))
        rows = {row["schedule"]: row for row in listed}
        self.assertIn({"v-zb --chunks 4", "zb-v --chunks 4"}, [set(row) & {"v-zb --chunks 4", "zb-v --chunks 4"} for row in names])
        for row in names:
            for name in row[1:]:
                for figure in ("seconds", "memory_gb", "layers", "chunk_lengths"):
                    self.assertEqual(rows[name][figure], rows[row[0]][figure], row)

    def check_layouts(self, rows, layers):
        for row in rows:
            if is_apart(row):
                self.assertNotIn("layout", row)
                continue
            plain = "vocabulary" not in row["schedule"]
            layout = row["layout"]
            for repeated in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
                layout = re.sub(repeated, lambda match: match[1] * int(match[2]), layout)
            parts = layout.split("|")
            self.assertEqual([part.count("t") for part in parts], row["layers"])
            self.assertEqual(sum(row["layers"]), layers)
            self.assertEqual((parts[0].count("E"), parts[-1].count("L")), (plain, plain))
            self.assertEqual("".join(parts), "E" * plain + "t" * layers + "L" * plain)

    @staticmethod
    def write_model(folder, layers, hidden, vocabulary, heads=8, ffn=None):
        file = pathlib.Path(folder) / "model.json"
        file.write_text(json.dumps({"model_type": "gpt_neox", "num_hidden_layers": layers, "hidden_size": hidden,
                                    "num_attention_heads": heads, "intermediate_size": ffn or 4 * hidden,
                                    "vocab_size": vocabulary}), encoding="utf-8")
        return file

    def test_a_large_output_layer_has_a_stage_of_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            # The shape of gemma-2B but for its gate: the output layer is as much work as 7.4 layers.
            model = pathlib.Path(folder) / "gemma.json"
            model.write_text(json.dumps({"model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384,
                                         "num_hidden_layers": 18, "num_attention_heads": 8, "num_key_value_heads": 1,
                                         "head_dim": 256, "vocab_size": 256000, "hidden_act": "gelu", "gated": False}),
                             encoding="utf-8")
            words = ("--model", model, "--sequence", 4096, "--gpu", "a100", "--devices", 8, "--microbatches", 32, *unsearched())
            rows = json.loads(output(*words, "--format", "json"))["candidates"]
            self.check_layouts(rows, 18)
            row = row_of(rows, "1f1b")
            self.assertEqual(row["layers"][-1], 0)
            self.assertRegex(row["layout"], r"\|(\)\*\d+)?L$")
            self.assertLessEqual(round(row["seconds"], 3), 3.502)  # of a table with three decimals
            for row in rows:
                self.assertLessEqual(row["bound"], row["seconds"] * (1 + 1e-9), row)

    def test_the_slowest_device_is_as_fast_as_it_can_be(self):
        with tempfile.TemporaryDirectory() as folder:
            # An output layer of 3 layers' work (12 h^2 s / 0.62 = v h s / 0.40 at v = 23.2 h), and little attention.
            model = self.write_model(folder, 13, 1024, 23226)
            words = ("--model", model, "--sequence", 64, "--gpu", "a100", "--devices", 4, "--microbatches", 16,
                     *unsearched("zb-v", "v-half"))
            rows = json.loads(output(*words, "--format", "json"))["candidates"]
            rows = {row["schedule"]: row for row in rows}
            self.check_layouts(rows.values(), 13)
            for name, device_of in (("interleaved --stages-per-device 2", lambda stage: stage % 4),
                                    ("zb-v", lambda stage: min(stage, 7 - stage)),
                                    ("v-half", lambda stage: min(stage, 7 - stage))):
                work = [0] * 4
                for stage, layers in enumerate(rows[name]["layers"]):
                    work[device_of(stage)] += layers + (3 if stage == 7 else 0)
                self.assertEqual(work, [4] * 4, rows[name])
            model = self.write_model(folder, 6, 512, 1000)
            rows = json.loads(output("--model", model, *SMALL[2:], *unsearched(), "--format", "json"))["candidates"]
            # 8 stages for 6 layers and two ends.
            self.assertIn("interleaved --stages-per-device 4", {row["schedule"] for row in rows})

    def test_cuts_see_what_a_device_has_to_do(self):
        """61 layers of 1 and an output layer of 2.8 on 16 devices with two stages: makespans of cuts made by hand for each schedule."""
        with tempfile.TemporaryDirectory() as folder:
            model, file = self.write_model(folder, 61, 256, 1000), pathlib.Path(folder) / "costs.json"
            file.write_text(json.dumps({"pipelining_costs": 1, "communication": 0, **{kind: [[0], *([1] for _ in range(61)), [2.8]] for kind in
                                        ("forward", "backward_input", "backward_weight")}}), encoding="utf-8")
            rows = json.loads(output("--model", model, "--sequence", 64, "--gpu", "a100", "--devices", 16, "--microbatches", 64, "--cost", file,
                                     "--schedules", "zb-v,v-half,zb-interleaved,interleaved", "--json", "--all"))["candidates"]
            for name, most in (("zb-v", 802.2), ("v-half", 850.2), ("zb-interleaved --stages-per-device 2", 849.8),
                               ("interleaved --stages-per-device 2", 993.6)):
                self.assertLessEqual(row_of(rows, name)["seconds"], most + 1e-9, name)

    def test_more_devices_than_layers(self):
        with tempfile.TemporaryDirectory() as folder:
            model = self.write_model(folder, 3, 512, 1000)
            words = ("--model", model, "--sequence", 256, "--gpu", "a100", "--devices", 5, "--microbatches", 10)
            found = json.loads(output(*words, "--format", "json"))
            self.check_layouts(found["candidates"], 3)
            self.assertLessEqual({"1f1b", "zb-v", "zb-auto --memory-limit 5"}, {row["schedule"] for row in found["candidates"]})
            for row in found["candidates"]:
                self.assertTrue(0 < row["bound"] <= row["seconds"] * (1 + 1e-9), row)
            pick = found["candidates"][found["pick"]]
            self.assertIn(f", as a layout {pick['layout']}", output(*words, *only(pick)))
            self.check_header(pick, *words, *only(pick))
            self.assertIn(f'layout[] = "{pick["layout"]}";', self.headers[-1][0])
            searched = json.loads(output(*words, *unsearched(), "--search", "--rounds", 1, "--format", "json"))["candidates"]
            for row in searched:
                self.assertLessEqual(row.get("any_bound", 0), row["seconds"] * (1 + 1e-9), row)

    def test_what_cannot_be_gets_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            self.check_refusal((*SMALL[:-3], 99, *SMALL[-2:], "--cost", write_equal_costs(folder)), "leave --cost out")
        for words, wanted in (((*SMALL, *unsearched(), "--memory", "1GB"), "the least is 2.9 GB, with round-pipe --forward-stages 9 "
                                                             "--backward-stages 10 with sharded-weights: take that much"),
                              (("--model", "gpt-7b"), "--sequence is missing"),
                              ((*SMALL, "--tensor", 3), "heads"),
                              (("--model", "gpt-9b"), "gpt-7b"),
                              ((*SMALL, "--gpu", "a100"), "twice"),
                              ((*SMALL[:5], "a100,a100,h100", *SMALL[6:]), "names 3 GPUs"),
                              ((*SMALL, "--jittr", 1), "did you mean --jitter"),
                              ((*SMALL, *unsearched(), "--memory", "2MB"), "nothing fits 0.002 GB per GPU"),
                              ((*SMALL, "--memory", 0), "between 1e-6 and 1e9 GB, such as 80GB, 80GiB, 500MB or 2TB, not '0'"),
                              ((*SMALL, "--memory", "nan"), "such as 80GB, 80GiB, 500MB or 2TB, not 'nan'"),
                              ((*SMALL, "--memory", "80 GB"), "such as 80GB, 80GiB, 500MB or 2TB, not '80 GB'"),
                              ((*SMALL, "--tensor", 32), "but 16 is none of 32"),
                              ((*SMALL, "--expert", 2), "the model has no experts"),
                              ((*SMALL, "--efficiency", "nan,1,1"), "between 0 and 1, not 'nan'"),
                              ((*SMALL, "--efficiency", "1,1e-300,1"), "a share must be between 1e-6 and 1, not '1e-300'"),
                              ((*SMALL, "--search", "--rounds", 2, "--seconds", 1), "leave one of them out"),
                              ((*SMALL, "--search", "--seconds", "nan"), "not 'nan'"),
                              ((*SMALL[:5], "a100,", *SMALL[6:]), "has no name at the beginning, at the end"),
                              ((*SMALL[:5], "", *SMALL[6:]), "has no name at the beginning, at the end"),
                              ((*SMALL[:5], "v100", *SMALL[6:]), "the known ones are a100, h100, h200, h20, b200, gb200, l40s, mi300x; as a file: cannot read"),
                              ((*SMALL[:3], 0, *SMALL[4:]), "--sequence wants a whole number from 1 to 16777216, not '0'"),
                              ((*SMALL[:-1], 10 ** 30), "--microbatches wants a whole number from 1 to 4096"),
                              ((SMALL[0], "/", *SMALL[2:]), "as a file: cannot read '/': Is a directory"),
                              ((SMALL[0], "/dev/null", *SMALL[2:]), "--model: cannot read '/dev/null': JSON: an object in braces")):
            self.check_refusal(words, wanted)

    def check_refusal(self, words, wanted):
        with self.subTest(words=words):
            result = run(*words)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertEqual(len(re.sub(PROGRESS, "", result.stderr).splitlines()), 1)
            self.assertIn(wanted, result.stderr)

    def test_mistakes_in_files_are_said_of_the_file(self):
        shape = {"num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "vocab_size": 51200}
        card = {"peak_tflops": 312, "memory_gb": 80, "link_gb_per_s": 300, "network_gb_per_s": 25, "host_gb_per_s": 24}
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "file.json"
            for change, wanted in (({"num_hidden_layers": "24"}, "'num_hidden_layers' must be a whole number"),
                                   ({"num_hidden_layers": 1e30}, "'num_hidden_layers' must be a whole number"),
                                   ({"num_hidden_layers": 0}, "must be at least 1"),
                                   ({"num_hidden_layers": -3}, "line 1: 'num_hidden_layers' must be a whole number from 0 to 2^24"),
                                   ({"hidden_size": 4 << 20, "num_hidden_layers": 99}, "more than 1e15 parameters"),
                                   ({"hidden_size": 2050}, "but 2050 is none of 16"),
                                   ({"num_key_value_heads": 5}, "but 16 is none of 5")):
                file.write_text(json.dumps({**shape, **change}), encoding="utf-8")
                self.check_refusal((SMALL[0], file, *SMALL[2:]), wanted)
                self.check_refusal((SMALL[0], file, *SMALL[2:]), f"--model: cannot read '{file}': ")
            for change, wanted in (({"peak_tflops": 0}, "line 1: 'peak_tflops' must be a number between 1e-6 and 1e9"),
                                   ({"peak_tflops": 1e308}, "line 1: 'peak_tflops' must be a number between"),
                                   ({"memory_gb": 1e-290}, "line 1: 'memory_gb' must be a number between"),
                                   ({"gpus_per_machine": 2.5}, "GPU file, line 1: 'gpus_per_machine' must be a whole number"),
                                   ({"memory_gb": "80"}, "'memory_gb' must be a number"),
                                   ({"peak_tflops": float("nan")}, "a number is wanted, at line 1"),
                                   ({"peak_tflops": float("inf")}, "a number is wanted, at line 1")):
                file.write_text(json.dumps({**card, **change}), encoding="utf-8")
                self.check_refusal((*SMALL[:5], file, *SMALL[6:]), wanted)
                self.check_refusal((*SMALL[:5], file, *SMALL[6:]), f"--gpu: cannot read '{file}': ")

    def test_costs_as_long_as_they_may_be_are_read_back(self):
        def refuse(name):
            raise AssertionError(f"{name} is no number of JSON")
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "costs.json"
            for time, reason in ((1e12, ""), (1e-12, ""), (1e290, "'forward' has a time for stage 0, chunk 0")):
                costs = {"pipelining_costs": 1, "communication": 0, "forward": [[time]], "backward_input": [[time]],
                         "backward_weight": [[time]]}
                file.write_text(json.dumps(costs), encoding="utf-8")
                if reason:
                    self.check_refusal((*SMALL, "--cost", file), reason)
                    continue
                rows = json.loads(output(*SMALL, "--cost", file, "--format", "json"), parse_constant=refuse)["candidates"]
                self.assertTrue(all(0 < row["seconds"] < 1e15 for row in rows))
                for line in output(*SMALL, "--cost", file).splitlines():
                    self.assertTrue(line.isprintable(), line)
                xml.etree.ElementTree.fromstring(output(*SMALL, "--cost", file, "--format", "svg"))

    def test_models_and_gpus_from_files(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "config.json"
            model.write_text(json.dumps({
                "architectures": ["A"], "num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 16,
                "intermediate_size": 8192, "vocab_size": 51200, "hidden_act": "gelu", "rope_scaling": {"a": [1]},
                "tie_word_embeddings": False, "initializer_range": 0.02, "bos_token_id": None}), encoding="utf-8")
            card = pathlib.Path(folder) / "gpu.json"
            card.write_text(json.dumps({"peak_tflops": 312, "memory_gb": 80, "link_gb_per_s": 300,
                                        "network_gb_per_s": 25, "host_gb_per_s": 24}), encoding="utf-8")
            words = list(self.fewer)
            words[1], words[5] = model, card
            found = json.loads(output(*words, "--format", "json"))
            self.assertEqual(found["candidates"], self.found_fewer["candidates"])
            model.write_text('{"hidden_size": 2048}', encoding="utf-8")
            self.assertIn("num_hidden_layers", run(*words).stderr)
            model.write_text('{"hidden_size" 2048}', encoding="utf-8")
            self.assertIn("':' is wanted", run(*words).stderr)

    def test_measured_costs_take_the_place_of_predicted_ones(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "costs.json"
            # All on the first half of the model: the devices of a schedule are as unlike as can be.
            file.write_text(json.dumps({"pipelining_costs": 1, "communication": 0.01, "forward": [[0.2, 0.4], [0, 0]],
                                        "backward_input": [[0.3, 0.5], [0, 0]],
                                        "backward_weight": [[0.1, 0.1], [0, 0]]}), encoding="utf-8")
            found = json.loads(output(*SMALL, "--cost", file, "--format", "json"))
            rows = {row["schedule"]: row for row in found["candidates"]}
            for name, words in (("1f1b", ("1f1b",)), ("seq1f1b --chunks 4", ("seq1f1b", "--chunks", "4")),
                                ("interleaved --stages-per-device 2", ("interleaved",))):
                made = subprocess.run([PROGRAM, *words, *map(str, SMALL[6:]), "--cost", str(file), "--format", "json"],
                                      capture_output=True, text=True, check=True).stdout
                self.assertEqual(rows[name]["seconds"], json.loads(made)["makespan"])
            self.assertAlmostEqual(rows["1f1b"]["seconds"], 4 * 1.6, places=9)
            self.assertEqual(rows["interleaved --stages-per-device 2"]["layers"], [6, 6, 6, 6])
            self.assertEqual(rows["seq1f1b --chunks 4"]["chunk_lengths"], [512] * 4)
            text = output(*SMALL, "--cost", file)
            self.assertIn(f"measured: times from {file}, of 2 stages and 2 chunks\n", text)
            self.assertNotIn("assumed", text)
            for words, wanted in ((("--cost", "1,2,3"), "wants a file of measured costs"),
                                  (("--cost", folder), "cannot read"),
                                  (("--cost", file, "--efficiency", "1,1,1"), "leave one of them out")):
                result = run(*SMALL, *words)
                self.assertEqual((result.returncode, result.stdout), (2, ""))
                self.assertIn(wanted, result.stderr)

    def test_measured_parts_are_cut(self):
        """A file with a stage for the embedding, for each layer and for the output layer: against all cuts, each summed up here."""
        draw = random.Random(5)
        kinds, layers, devices = ("forward", "backward_input", "backward_weight"), 6, 3
        with tempfile.TemporaryDirectory() as folder:
            model = self.write_model(folder, layers, 256, 1000)
            file = pathlib.Path(folder) / "costs.json"
            parts = {kind: [0.5, *(draw.randint(2, 9) for _ in range(layers)), 20] for kind in kinds}
            def write(rows):
                file.write_text(json.dumps({"pipelining_costs": 1, "unit": "ms", "communication": 1,
                                            **{kind: [[each] for each in rows[kind]] for kind in kinds}}), encoding="utf-8")
            def summed(cut):
                write({kind: [sum(parts[kind][begin + 1:end + 1]) + parts[kind][0] * (begin == 0 and stage == 0)
                              + parts[kind][-1] * (stage + 1 == len(cut))
                              for stage, (begin, end) in enumerate(zip([0, *itertools.accumulate(cut)], itertools.accumulate(cut)))]
                       for kind in kinds})
                made = subprocess.run([PROGRAM, "1f1b", "--devices", str(devices), "--microbatches", "6", "--cost", str(file), "--json"],
                                      capture_output=True, text=True, check=True).stdout
                return json.loads(made)["makespan"]
            words = ("--model", model, "--sequence", 512, "--gpu", "a100", "--microbatches", 6, "--cost", file, "--json", "--devices")
            write(parts)
            row = row_of(json.loads(output(*words, devices, "--schedules", "1f1b,zb-v"))["candidates"], "1f1b")
            given = row_of(json.loads(output(*words, devices, "--layout", row["layout"], "--schedules", "1f1b"))["candidates"], "1f1b")
            self.assertEqual(given["seconds"], row["seconds"])
            wide = json.loads(output(*words, 8, "--schedules", "1f1b"))["candidates"]
            self.assertEqual(sum(row_of(wide, "1f1b")["layers"]), layers)  # on more devices than layers
            searched = json.loads(output(*words, devices, "--schedules", "1f1b,interleaved", "--search", "--rounds", 1))
            pick = searched["candidates"][searched["pick"]]
            self.assertTrue(0 < pick["any_bound"] <= pick["seconds"] <= row["seconds"])
            self.assertAlmostEqual(summed(row["layers"]), row["seconds"], places=9)
            best = min(summed(cut) for cut in itertools.product(range(layers + 1), repeat=devices) if sum(cut) == layers)
            self.assertLessEqual(row["seconds"], best * 1.001)

    def test_recomputation_and_copies_to_the_host(self):
        with tempfile.TemporaryDirectory() as folder:
            words = (*SMALL[:-1], 8, "--cost", write_equal_costs(folder))
            rows = {row["schedule"]: row for row in json.loads(output(*words, "--format", "json"))["candidates"]}
            # The first device recomputes, and waits for one forward pass of the second, which does not.
            self.assertAlmostEqual(rows["1f1b"]["seconds"], (8 + 1) * 3)
            self.assertAlmostEqual(rows["1f1b with recompute"]["seconds"], 8 * 4 + 1)
            # By hand: 12 layers, 1 activation where there were 2; the second device keeps that and has the output layer.
            hidden, sequence, vocabulary = 2048, 2048, 51200
            resident = 18 * (12 * 12 * hidden ** 2 + hidden * vocabulary)
            activation = 12 * sequence * (32 * hidden + 4 * 16)
            self.assertAlmostEqual(rows["1f1b"]["memory_gb"], (resident + 2 * activation) / 1e9, places=9)
            second = resident + 6 * sequence * vocabulary + activation
            self.assertAlmostEqual(rows["1f1b with recompute"]["memory_gb"], second / 1e9, places=9)
            # A copy takes 0.03 s next to passes of a second: activations that idle leave for nothing.
            plain, copied = rows["gpipe"], rows["gpipe with offload"]
            self.assertAlmostEqual(plain["seconds"], copied["seconds"])
            self.assertLess(copied["memory_gb"], plain["memory_gb"] - 3 * activation / 1e9)
            # On two devices no activation of 1F1B idles for long; a row without any copy would be 1F1B again.
            self.assertIn("gpipe with recompute", rows)
            own = rows["zb-auto --memory-limit 1 with recompute"]
            self.assertLessEqual(own["seconds"], rows["1f1b with recompute"]["seconds"])
            for row in rows.values():
                self.assertLessEqual(row["bound"], row["seconds"] * (1 + 1e-9), row)
            between = (copied["memory_gb"] + plain["memory_gb"]) / 2
            text = output(*words, "--memory", f"{between:.6f}GB", "--all")
            self.assertRegex(text, r"gpipe with offload +27\.000")
            self.assertRegex(text, r"gpipe +27\.000.*too large")

    def test_a_large_vocabulary_goes_into_shards(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "model.json"
            model.write_text(json.dumps({"model_type": "gpt_neox", "num_hidden_layers": 8, "hidden_size": 1024,
                                         "num_attention_heads": 8, "intermediate_size": 4096,
                                         "vocab_size": 256000}), encoding="utf-8")
            words = ("--model", model, "--sequence", 512, "--gpu", "a100", "--devices", 4, "--microbatches", 8)
            found = json.loads(output(*words, *unsearched(), "--format", "json"))
            rows = {row["schedule"]: row for row in found["candidates"]}
            plain, shards = rows["1f1b"], rows["1f1b with vocabulary-2"]
            # The output layer is as much work as 3.3 layers, and stands on the last device alone.
            self.assertLess(shards["seconds"], 0.8 * plain["seconds"])
            self.assertLess(shards["memory_gb"], 0.8 * plain["memory_gb"])
            self.assertEqual(sum(shards["layers"]), 8)
            pick = found["candidates"][found["pick"]]
            self.assertIn("vocabulary", pick["schedule"])
            for row in found["candidates"]:
                self.assertLessEqual(row["bound"], row["seconds"] * (1 + 1e-9), row)
            self.check_header(pick, *words, *only(pick))

    def test_devices_that_differ(self):
        common = ("--model", "gpt-1.3b", "--sequence", 2048, "--devices", 2, "--microbatches", 8, *unsearched())
        both = json.loads(output(*common, "--gpu", "h100,a100", "--format", "json"))
        slow = json.loads(output(*common, "--gpu", "a100", "--format", "json"))
        fast = json.loads(output(*common, "--gpu", "h100", "--format", "json"))
        time = [{row["schedule"]: row["seconds"] for row in each["candidates"]} for each in (fast, both, slow)]
        self.assertLess(time[0]["1f1b"], time[1]["1f1b"])
        self.assertLess(time[1]["1f1b"], time[2]["1f1b"])
        layers = row_of(both["candidates"], "1f1b")["layers"]
        self.assertGreater(layers[0], 2 * layers[1])  # 989 TFLOPS and 312, and the output layer on the second
        with tempfile.TemporaryDirectory() as folder:
            small = pathlib.Path(folder) / "small.json"
            small.write_text(json.dumps({"peak_tflops": 312, "memory_gb": 40, "link_gb_per_s": 300,
                                         "network_gb_per_s": 25, "host_gb_per_s": 24}), encoding="utf-8")
            tight = json.loads(output(*common, "--gpu", f"a100,{small}", "--format", "json"))
        memory = {row["schedule"]: row["memory_gb"] for row in slow["candidates"]}
        for row in tight["candidates"]:
            # As a share of 80 GB, what the second one holds counts twice.
            self.assertGreaterEqual(row["memory_gb"] + 1e-9, memory.get(row["schedule"], 0))

    def test_cut_places_and_order_are_searched_together(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "model.json"
            model.write_text(json.dumps({"model_type": "gpt_neox", "num_hidden_layers": 7, "hidden_size": 1024,
                                         "num_attention_heads": 8, "intermediate_size": 4096,
                                         "vocab_size": 1000}), encoding="utf-8")
            common = ("--model", model, "--sequence", 100, *unsearched(), "--microbatches")
            equal = (*common, 6, "--devices", 4, "--gpu", "a100")
            differ = (*common, 4, "--devices", 3, "--gpu", "a100,h100,a100")
            rounds = ("--search", "--rounds", 1)
            for words in (equal, differ):
                plain = json.loads(output(*words, "--format", "json"))
                written = output(*words, *rounds, "--format", "json")
                found = json.loads(written)
                best = plain["candidates"][plain["pick"]]
                pick = found["candidates"][found["pick"]]
                self.assertEqual(pick, found["candidates"][-1])
                self.assertRegex(pick["schedule"], ", order searched$|, cut anew$")
                self.assertLess(pick["seconds"], 0.99 * best["seconds"])
                self.assertEqual(sum(pick["layers"]), 7)
                for row in found["candidates"]:
                    self.assertLessEqual(row.get("any_bound", 0), row["seconds"] * (1 + 1e-9), row)
                    self.assertEqual("any_bound" in row, "vocabulary" not in row["schedule"] and not is_apart(row))
                self.assertEqual([{k: v for k, v in row.items() if k != "any_bound"}
                                  for row in found["candidates"][:-1]], plain["candidates"])
                text = output(*words, *rounds)
                self.assertRegex(text, r"no cut, no placement and no order of the layers on these devices is more than "
                                       r"[\d.]+ % faster\n")
                if words == equal:
                    self.check_header(pick, *equal, *rounds)
                    # A limit that the pick does not keep: what is found keeps it.
                    least = found["candidates"][found["frontier"][0]]["memory_gb"]
                    tight = 0.1 * least + 0.9 * pick["memory_gb"]
                    other = json.loads(output(*equal, *rounds, "--memory", f"{tight:.6f}GB", "--format", "json"))
                    self.assertRegex(other["candidates"][-1]["schedule"], ", order searched$|, cut anew$")
                    self.assertLessEqual(other["candidates"][-1]["memory_gb"], tight)
            self.assertEqual(written, output(*differ, *rounds, "--format", "json"))
            # The slow devices hold a layer each, the fast one is the first.
            self.assertEqual(pick["places"], [1, 0, 2])
            self.assertIn("devices at the places of the pipeline: 1 0 2\n", text)
            moved = json.loads(output(*common, 4, "--devices", 3, "--gpu", "h100,a100,a100", *rounds, "--format", "json"))
            self.assertLessEqual(moved["candidates"][moved["pick"]]["seconds"], best["seconds"])
            self.assertIn("give them as the text report says", run(*differ, *rounds, "--format", "header").stderr)
            self.check_refusal((*equal, "--seconds", 1), "give --search as well")

    def test_a_search_keeps_the_cut_that_is_given(self):
        """By a layout, as equal shares of measured times, or where other stages would be frozen."""
        with tempfile.TemporaryDirectory() as folder:
            model = self.write_model(folder, 8, 1024, 1000)
            common = ("--model", model, "--sequence", 512, "--gpu", "a100", "--devices", 4, "--microbatches", 6,
                      "--schedules", "1f1b,gpipe,interleaved,zb-h1", "--format", "json")
            uneven = "Et*3|t*2|t|ttL"
            for words, layers in ((("--layout", uneven), [3, 2, 1, 2]), (("--cost", write_equal_costs(folder)), [2, 2, 2, 2]),
                                  (("--frozen", 5, "--layout", uneven), [3, 2, 1, 2])):
                plain = json.loads(output(*common, *words))
                found = json.loads(output(*common, *words, "--search", "--rounds", 1))
                best, pick = (each["candidates"][each["pick"]] for each in (plain, found))
                self.assertTrue(pick["schedule"].endswith(", order searched") and "cannot" not in pick, pick)
                self.assertLess(pick["seconds"], 0.999 * best["seconds"])
                self.assertTrue(0 < pick["any_bound"] <= pick["seconds"], pick)
                for row in found["candidates"]:
                    self.assertTrue(row["layers"] == layers or len(row["layers"]) > 4, row)
                    self.assertLessEqual(row["any_bound"], row["seconds"] * (1 + 1e-9), row)
                self.assertIn("\nno order of these stages on these devices is more than ", output(*common[:-2], *words, "--search", "--rounds", 1))

    def test_sequences_of_one_length_are_the_same_as_lengths(self):
        for more, given in (((), self.rows), (("--modules", 2), None), (("--layout", "Et*9|t*15L"), None), (("--frozen", 9, "--layout", "Et*9|t*15L"), None)):
            few = unsearched() if more else ()
            rows = given or json.loads(output(*SMALL, *more, *few, "--format", "json"))["candidates"]
            rows = {row["schedule"]: row for row in rows  # lengths have no bytes that an order could be made for
                    if not re.search(" with (?!recompute|offload)| --memory ", row["schedule"]) and not is_apart(row)}
            found = json.loads(output(*SMALL[:2], *SMALL[4:8], *more, *few, "--lengths", "2048x4", "--format", "json"))["candidates"]
            padded = {row["schedule"].removesuffix(", padded to 2048"): row for row in found
                      if row["schedule"].endswith(", padded to 2048")}
            self.assertEqual(set(rows), set(padded))
            compared = 0
            for name, row in rows.items():
                if row["layers"] != padded[name]["layers"]:  # layers move between stages where lengths are equal
                    self.assertLess(row["seconds"], padded[name]["seconds"] * (1 + 1e-9))
                elif len(set(row["chunk_lengths"])) == 1:  # lengths cut microbatches into chunks of equal tokens
                    compared += 1
                    self.assertAlmostEqual(row["seconds"], padded[name]["seconds"], delta=1e-9 * row["seconds"], msg=name)
                    # Of recomputed ones peaks of two classes are added up.
                    self.assertAlmostEqual(row["memory_gb"], padded[name]["memory_gb"], delta=(0.03 if "recompute" in name else 1e-6) * row["memory_gb"])
            self.assertGreater(compared, 5 if more else 20)

    def test_lengths_have_pictures_experts_and_measured_times(self):
        hidden, width, vocabulary, layers, peak = 512, 256, 20000, 6, 312e12
        eyes = {"layers": 3, "hidden": 256, "heads": 4, "tokens": 128}
        with tempfile.TemporaryDirectory() as folder:
            model, file = pathlib.Path(folder) / "model.json", pathlib.Path(folder) / "costs.json"
            shape = {"hidden_size": hidden, "num_attention_heads": 8, "vocab_size": vocabulary, "moe_intermediate_size": width,
                     "intermediate_size": 2048, "num_experts": 8, "num_experts_per_tok": 2, "encoder": eyes}
            model.write_text(json.dumps({**shape, "num_hidden_layers": layers}), encoding="utf-8")
            draw = random.Random(3)
            kinds = ("forward", "backward_input", "backward_weight")
            times = {kind: [[draw.randint(2, 9) for _ in range(4)] for _ in range(layers + 2)] for kind in kinds}  # by sequence
            def write(count):
                file.write_text(json.dumps({"pipelining_costs": 1, "unit": "ms", "communication": 1, **({"microbatches": count} if count > 1 else {}),
                                            **{kind: [part[:count] for part in times[kind]] for kind in kinds}}), encoding="utf-8")
            words = ("--model", model, "--gpu", "a100", "--schedules", "1f1b,zb-h1,interleaved", "--format", "json", "--devices")
            def rows(devices, *more):
                return {each["schedule"]: each for each in json.loads(output(*words, devices, *more))["candidates"]}
            # Sequences of one length are what they are without lengths.
            for count in (1, 4):
                write(count)
                for more in (("--pictures", 3), ("--expert", 4, "--experts"), ("--pictures", 2, "--expert", 4, "--experts"), ("--cost", file)):
                    plain, same = rows(2, *more, "--sequence", 2048, "--microbatches", 4), rows(2, *more, "--lengths", "2048x4")
                    compared = 0
                    for name, row in plain.items():
                        schedule, *experts = name.split(", ")
                        other = same.get(", ".join([schedule, "padded to 2048", *experts]))
                        if other is None or other["layers"] != row["layers"] or len(set(row["chunk_lengths"])) > 1:
                            continue
                        compared += 1
                        self.assertAlmostEqual(row["seconds"], other["seconds"], delta=1e-9 * row["seconds"], msg=name)
                        more_of_both = 0.01 * ("recompute" in name)  # whose peaks are added up, or else are those of the sum
                        self.assertTrue(-1e-9 <= row["memory_gb"] - other["memory_gb"] <= (1e-9 + more_of_both) * row["memory_gb"], name)
                    self.assertGreater(compared, 3, more)
            # By hand, on one device: every sequence has its pictures, however it is packed.
            unequal = ("--lengths", "2048,1024x2,512")
            seen, blind = (row_of(rows(1, *unequal, *more).values(), "1f1b, packed to 2048") for more in (("--pictures", 3), ()))
            picture = eyes["layers"] * (3 * 24 * 256 ** 2 * 128 + 3.5 * 4 * 256 * 128 ** 2) / (0.62 * peak)
            self.assertAlmostEqual(seen["seconds"] - blind["seconds"], 4 * 3 * picture, delta=1e-9 * seen["seconds"])
            two, one = (row_of(rows(1, "--lengths", each, "--pictures", 3).values(), "1f1b, packed to 2048" if "," in each else "1f1b, padded to 2048")
                        for each in ("2048,1024x2", "2048x2"))
            kept = eyes["layers"] * 128 * (32 * 256 + 4 * 4)  # of a picture, of which two sequences have six
            self.assertAlmostEqual((two["memory_gb"] - one["memory_gb"]) * 1e9, 3 * kept, delta=1)
            # Measured times of sequences, whole or in pieces, add up to what they are; what is padded takes longer.
            write(4)
            own = rows(1, *unequal, "--cost", file)
            whole = sum(sum(part) for kind in kinds for part in times[kind]) / 1000
            self.assertAlmostEqual(own["1f1b, packed to 2048"]["seconds"], whole, places=9)
            self.assertAlmostEqual(own["1f1b, packed to 2048"]["bound"], whole, places=9)
            self.assertGreater(own["1f1b, padded to 2048"]["seconds"], 1.2 * whole)
            write(1)  # of the longest: in all a bit more than 4608 of 2048 tokens take, since attention grows
            one = rows(1, *unequal, "--cost", file)
            longest = sum(part[0] for kind in kinds for part in times[kind]) / 1000
            self.assertAlmostEqual(one["1f1b, padded to 2048"]["seconds"], 4 * longest, places=9)
            self.assertTrue(1.9 * longest < one["1f1b, packed to 2048"]["seconds"] < 2.25 * longest)
            write(4)
            self.check_refusal((*words, 1, "--lengths", "512x3", "--cost", file), "times of 4 microbatches one by one, --lengths 3 sequences")
            # Experts by hand, a layer and two microbatches: forward, back next to forward of the other one, back.
            model.write_text(json.dumps({**shape, "num_hidden_layers": 1}), encoding="utf-8")
            found = rows(1, "--lengths", "2048,1024x2", "--expert", 4, "--experts")
            def passes(sequences, number):
                tokens = sum(sequences)
                attention = sum(2 * hidden * each ** 2 for each in sequences) / (0.62 * peak)
                before = 2 * tokens * (4 * hidden ** 2 + hidden * 8) / (0.62 * peak)
                experts = 2 * tokens * 2 * hidden * 2 * width / (0.62 * peak)
                outputs = 2 * tokens * hidden * vocabulary / (0.40 * peak)
                message = 2 * tokens * hidden * 2 * 3 / 4 / 300e9
                rows_of_all = [("c", "A", before + attention, ""), ("n", "D", message, "A"), ("c", "E", experts, "D"), ("n", "C", message, "E"),
                               ("c", "O", outputs, "C"), ("c", "Oi", outputs, "O"), ("c", "Ow", outputs, ""), ("n", "K", message, "Oi"),
                               ("c", "M", experts, "K"), ("c", "W", experts, ""), ("n", "J", message, "M"),
                               ("c", "B", before + 2.5 * attention, "J"), ("c", "V", before, "")]
                return [(engine, name + number, time, needs + number if needs else "") for engine, name, time, needs in rows_of_all]
            def takes(*tokens):
                first, second = (passes(each, str(i)) for i, each in enumerate(tokens))
                best = float("inf")
                for middle in ([*first[5:], *second[:5]], [*second[:4], *first[5:8], second[4], *first[8:]]):
                    ends, clock = {"": 0}, {"c": 0, "n": 0}
                    for engine, name, time, needs in [*first[:5], *middle, *second[5:]]:
                        clock[engine] = ends[name] = max(clock[engine], ends[needs]) + time
                    best = min(best, max(clock.values()))
                return best
            def check_packed(found):
                packs = (2048,), (1024, 1024)
                row = found["1f1b, packed to 2048, experts overlapped"]
                self.assertTrue(any(abs(row["seconds"] - takes(*each)) < 1e-12 for each in (packs, packs[::-1])), row)
            check_packed(found)
            # The same with times that were measured by kind: of each of the three sequences, then of the longest for all.
            def letters(name):  # of a kind and of the output layer in it
                return {"attention": "AO", "dispatch": "D", "experts": "E", "combine": "C", "combine back": "K", "experts back": "M",
                        "expert gradients": "W", "dispatch back": "J", "attention back": ("B", "Oi"), "attention gradients": ("V", "Ow")}[name]
            predicted, names = passes, ("attention", "dispatch", "experts", "combine", "combine back", "experts back", "expert gradients",
                                        "dispatch back", "attention back", "attention gradients")
            took = {letter: [draw.randint(20, 90) / 1000 for _ in range(3)] for name in names for letter in letters(name)}
            for own in (True, False):
                def passes(sequences, number):
                    if own:
                        numbers = [0] if sequences == (2048,) else [1, 2]
                        times = {name: sum(each[i] for i in numbers) for name, each in took.items()}
                    else:  # pieces take their predicted share
                        def of(*tokens):
                            return {name[:-1]: time for _, name, time, _ in predicted(tokens, "0")}
                        times = {name: took[name][0] * sum(of(each)[name] for each in sequences) / of(2048)[name] for name in took}
                    return [(engine, name, times[name[:-1]], needs) for engine, name, _, needs in predicted(sequences, number)]
                def rows_of(letter):
                    return took[letter] if own else took[letter][:1]
                file.write_text(json.dumps({"pipelining_costs": 1, "communication": 0, **({"microbatches": 3} if own else {}),
                                            **{name: [[0] * len(rows_of("A")), rows_of(letters(name)[0]),
                                                      rows_of(letters(name)[1]) if len(letters(name)) > 1 else [0] * len(rows_of("A"))]
                                               for name in names}}), encoding="utf-8")
                check_packed(rows(1, "--lengths", "2048,1024x2", "--expert", 4, "--experts", "--cost", file))

    def test_lengths_vary_and_have_frozen_layers(self):
        words = (*SMALL[:2], "--gpu", "a100", "--devices", 2, *unsearched(), "--format", "json", "--lengths", "512x5,4096,1024")
        noisy = json.loads(output(*words, "--jitter", 0.1))["candidates"]
        self.assertEqual(noisy, json.loads(output(*words, "--jitter", 0.1))["candidates"])
        self.assertTrue(all(row["ranked"] > row["seconds"] and "groups" not in row for row in noisy))
        frozen = json.loads(output(*words, "--frozen", 12, "--layout", "Et*12|t*12L"))["candidates"]
        self.assertTrue(all(row["layers"] == [12, 12] or len(row["layers"]) > 2 for row in frozen))
        # By hand: the first stage is done after one forward pass and a message; then the second works without a pause.
        hidden, vocabulary, peak = 2048, 51200, 312e12
        def forward(pieces):
            return sum(12 * (24 * hidden ** 2 * each + 2 * hidden * each ** 2) for each in pieces) / (0.62 * peak)
        def busy(pieces):
            return sum(12 * (3 * 24 * hidden ** 2 * each + 3.5 * 2 * hidden * each ** 2) / (0.62 * peak)
                       + 3 * 2 * hidden * each * vocabulary / (0.40 * peak) for each in pieces)
        row = row_of(frozen, "1f1b --frozen 1, packed to 4096")
        packs = ([4096], [512] * 5 + [1024])
        message = 2 * hidden * 4096 / 300e9
        ends = [forward(pack) + message + sum(map(busy, packs)) for pack in packs]
        self.assertTrue(any(abs(row["seconds"] - end) < 1e-9 for end in ends), (row, ends))
        self.assertAlmostEqual(row["bound"], sum(map(busy, packs)), places=9)

    def test_sequences_of_unequal_length(self):
        words = (*SMALL[:2], "--gpu", "a100", "--devices", 2, *unsearched(), "--lengths")
        found = json.loads(output(*words, "512x5,4096,1024", "--format", "json"))
        rows = {row["schedule"]: row for row in found["candidates"]}
        pick = found["candidates"][found["pick"]]
        self.assertLess(pick["seconds"], rows["1f1b, padded to 4096"]["seconds"] / 2)
        self.assertLess(rows["1f1b, packed to 4096"]["seconds"], rows["1f1b, padded to 4096"]["seconds"])
        for row in rows.values():
            self.assertLessEqual(row["bound"], row["seconds"] * (1 + 1e-9), row)
        text = output(*words, "512x5,4096,1024")
        self.assertIn("7 sequences, 7680 tokens, the longest 4096,", text)
        self.assertRegex(text, rf"> {re.escape(pick['schedule'])} .* {round(7680 / pick['seconds'] / 2)}\n")
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "lengths"
            file.write_text("512x3 512x2\n4096\n1024\n", encoding="utf-8")
            again = json.loads(output(*words, file, "--format", "json"))
            self.assertEqual({row["schedule"]: row["memory_gb"] for row in again["candidates"]},
                             {name: row["memory_gb"] for name, row in rows.items()})
        # By hand: chunks of 1024 are 1024; 512 + 512; 512 + 512; 512; and the four pieces of 4096.
        chunks = [[[(1024, 0)]], [[(512, 0)] * 2], [[(512, 0)] * 2], [[(512, 0)]],
                  [[(1024, 1024 * i)] for i in range(4)]]
        for keep in (1, 4):
            row = rows[f"chunkflow, chunks of 1024, {keep} kept"]
            seconds, held = self.by_hand(row["layers"], chunks, keep, 1024)
            self.assertAlmostEqual(row["seconds"], seconds, delta=1e-9 * seconds)
            self.assertAlmostEqual(row["memory_gb"], held / 1e9, delta=1e-6 * held / 1e9)
        # One long sequence, of which memory is mostly keys and values.
        alone = json.loads(output(*words, "4096", "--format", "json"))["candidates"]
        row = next(row for row in alone if row["schedule"] == "chunkflow, chunks of 256, 1 kept")
        seconds, held = self.by_hand(row["layers"], [[[(256, 256 * i)] for i in range(16)]], 1, 256)
        self.assertAlmostEqual(row["seconds"], seconds, delta=1e-9 * seconds)
        self.assertAlmostEqual(row["memory_gb"], held / 1e9, delta=1e-6 * held / 1e9)
        few = rows["chunkflow, chunks of 1024, 1 kept"]
        tight = output(*words, "512x5,4096,1024", "--memory", f"{few['memory_gb'] + 1e-6:.9f}GB")
        fit = [row for row in rows.values() if row["memory_gb"] <= few["memory_gb"]]
        best = min(fit, key=lambda row: row["seconds"])
        self.assertIn(f"pick: {best['schedule']}, the fastest of ", tight)
        self.assertGreaterEqual(int(re.search(r"the fastest of (\d+) that fit", tight)[1]), len(fit))  # others have cuts that fit
        for words_and_wanted in ((("12y",), "12y"), (("0x3",), "wants lengths"), (("-4",), "or a file of them; cannot read '-4'"),
                                 (("1e3",), "or a file of them; cannot read '1e3'"), (("16777217",), "wants lengths"),
                                 (("4096", "--memory", "1GB"), "nothing fits 1 GB per GPU; the least is "), (("5x9999",), "more than 4096"),
                                 ((",",), "has no lengths"), (("64", "--sequence", 3), "--sequence is for sequences of")):
            result = run(*words, *words_and_wanted[0])
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertRegex(result.stderr, words_and_wanted[1])

    def test_groups_of_gpus_that_share_sequences(self):
        words = (*SMALL[:2], "--gpu", "a100", "--devices", 4, *unsearched(), "--lengths", "512x5,4096,1024")
        lengths = [512] * 5 + [4096, 1024]
        found = json.loads(output(*words, "--format", "json"))
        rows = {row["schedule"]: row for row in found["candidates"] if "groups" in row}
        # All at once; the long one alone; and no more, since none is longer.
        self.assertEqual(set(rows), {"sequence groups, 1 microbatch", "sequence groups, 2 microbatches"})
        self.assertEqual([sorted(sum((group["sequences"] for group in groups), []))
                          for groups in rows["sequence groups, 2 microbatches"]["groups"]], [[5], [0, 1, 2, 3, 4, 6]])
        hidden, vocabulary, layers, rate = 2048, 51200, 24, 312e12
        parameters = layers * 12 * hidden ** 2 + 2 * hidden * vocabulary
        gathered = 8 * parameters * 3 / 4 / 300e9  # twice bf16 and once single precision, of which a quarter is there

        def seconds_on(tokens, gpus):
            work = layers * (3 * 2 * tokens * 12 * hidden ** 2 + 3.5 * 2 * hidden * tokens ** 2) / (0.62 * rate)
            work += 3 * 2 * tokens * hidden * vocabulary / (0.40 * rate)
            return work / gpus + 2 * layers * 4 * 2 * tokens * hidden / gpus * (gpus - 1) / gpus / 300e9

        def bytes_on(tokens, gpus):
            return (layers * tokens * (32 * hidden + 4 * 16) + 6 * tokens * vocabulary) / gpus

        def check(row):
            seconds, held = 0, 0
            for groups in row["groups"]:
                self.assertEqual(sum(group["gpus"] for group in groups), 4)
                seconds += max(gathered, *(sum(seconds_on(lengths[i], group["gpus"]) for i in group["sequences"])
                                           for group in groups))
                held = max(held, *(sum(bytes_on(lengths[i], group["gpus"]) for i in group["sequences"]) for group in groups))
            self.assertAlmostEqual(row["seconds"], seconds, delta=1e-9 * seconds)
            resident = 18 * parameters / 4 + 8 * hidden * vocabulary
            self.assertAlmostEqual(row["memory_gb"], (resident + held) / 1e9, delta=1e-9 * held)

        def least(sequences, room):
            best = float("inf")
            for sizes in ((4,), (2, 2), (2, 1, 1), (1, 1, 1, 1)):
                for places in itertools.product(range(len(sizes)), repeat=len(sequences)):
                    ends, held = [0] * len(sizes), [0] * len(sizes)
                    for i, place in zip(sequences, places):
                        ends[place] += seconds_on(lengths[i], sizes[place])
                        held[place] += bytes_on(lengths[i], sizes[place])
                    if max(held) <= room:
                        best = min(best, max(ends))
            return max(best, gathered)

        for row in rows.values():
            check(row)
        best = least(range(7), float("inf"))
        self.assertAlmostEqual(rows["sequence groups, 1 microbatch"]["seconds"], best, delta=1e-9 * best)
        # Without room for the long sequence on a GPU, or with it.
        for limit in (8, 9, 11, 20):
            tight = json.loads(output(*words, "--memory", f"{limit}GB", "--format", "json"))
            room = limit * 1e9 - 18 * parameters / 4 - 8 * hidden * vocabulary
            for row in tight["candidates"]:
                if row["schedule"] != "sequence groups, 2 microbatches":
                    continue
                check(row)
                wanted = least([5], room) + least([0, 1, 2, 3, 4, 6], room)
                if wanted < float("inf"):
                    self.assertLessEqual(row["memory_gb"], limit)
                    self.assertAlmostEqual(row["seconds"], wanted, delta=1e-9 * wanted)
                else:
                    self.assertGreater(row["memory_gb"], limit)
        text = output(*words)
        self.assertIn("pick: sequence groups, ", text)
        self.assertRegex(text, r"GPUs of the groups, microbatch by microbatch: [\dx, ]+; --format json has the sequences of each\n")
        self.assertIn("no groups for its microbatches are more than 0 % faster", text)
        # Heads cannot be shared by more GPUs than they are many, nor weights travel in no time.
        alone = json.loads(output(*words[:-1], "1024", "--tensor", 16, "--format", "json"))["candidates"]
        row = next(row for row in alone if "groups" in row)
        self.assertLessEqual(max(group["gpus"] for group in row["groups"][0]), 16)
        self.assertAlmostEqual(row["seconds"], 8 * parameters * 7 / 8 / 8 / 25e9, delta=1e-9)

    def test_groups_have_pictures_and_measured_times(self):
        hidden, vocabulary, layers, rate, link, lengths = 512, 20000, 6, 312e12, 300e9, [2048, 512, 512, 1024]
        eyes = {"layers": 3, "hidden": 256, "heads": 4, "tokens": 128}
        with tempfile.TemporaryDirectory() as folder:
            model, file = pathlib.Path(folder) / "model.json", pathlib.Path(folder) / "costs.json"
            def write_model(heads):
                model.write_text(json.dumps({"hidden_size": hidden, "num_attention_heads": 8, "num_hidden_layers": layers, "vocab_size": vocabulary,
                                             "intermediate_size": 4 * hidden, "encoder": {**eyes, "heads": heads}}), encoding="utf-8")
            write_model(4)
            words = ("--model", model, "--gpu", "a100", "--schedules", "gpipe", "--format", "json", "--lengths", "2048,512x2,1024", "--devices")
            def groups(*more):
                return [row for row in json.loads(output(*words, *more))["candidates"] if "groups" in row]
            draw = random.Random(5)
            measured = [[[draw.randint(2, 9) / 1000 for _ in lengths] for _ in range(layers + 2)] for _ in range(3)]
            def write(own):
                file.write_text(json.dumps({"pipelining_costs": 1, "communication": 0, **({"microbatches": 4} if own else {}),
                                            **{kind: [part if own else part[:1] for part in measured[i]]
                                               for i, kind in enumerate(("forward", "backward_input", "backward_weight"))}}), encoding="utf-8")
            def arithmetic(tokens, pictures):  # on one GPU
                work = layers * (3 * 2 * tokens * 12 * hidden ** 2 + 3.5 * 2 * hidden * tokens ** 2) / (0.62 * rate)
                work += pictures * eyes["layers"] * (3 * 24 * 256 ** 2 * 128 + 3.5 * 4 * 256 * 128 ** 2) / (0.62 * rate)
                return work + 3 * 2 * tokens * hidden * vocabulary / (0.40 * rate)
            def exchanged(tokens, pictures, gpus):  # four all-to-alls forward and back, of layers and of the encoder's
                of_all = layers * tokens * hidden + eyes["layers"] * pictures * 128 * 256
                return 2 * 4 * 2 * of_all / gpus * (gpus - 1) / gpus / link
            def reduced(tokens, gpus):  # of tensor parallelism, which a measured pass has in it: two all-reduces forward and back
                return 2 * layers * 2 * 2 * (gpus - 1) / gpus * 2 * tokens * hidden / link
            for devices, tensor, pictures, own in ((4, 1, 0, None), (4, 1, 3, None), (2, 2, 3, None), (4, 1, 0, True), (4, 1, 0, False), (2, 2, 0, True),
                                                   (2, 2, 0, False), (4, 1, 3, True)):
                def seconds(i, gpus):
                    work = arithmetic(lengths[i], pictures)
                    if own is not None:
                        of = i if own else 0
                        whole = arithmetic(lengths[of], pictures) / tensor + (reduced(lengths[of], tensor) + 2 * (tensor - 1) / tensor * 2 * 2 * eyes["layers"] *
                                                                              pictures * 128 * 2 * 256 / link)
                        work *= sum(part[of] for kind in measured for part in kind) / whole
                    return work / gpus + exchanged(lengths[i], pictures, gpus)
                def held(i, gpus):
                    kept = layers * lengths[i] * (32 * hidden + 4 * 8) + eyes["layers"] * pictures * 128 * (32 * 256 + 4 * 4)
                    return (kept + 6 * lengths[i] * vocabulary) / gpus
                parameters = layers * 12 * hidden ** 2 + 2 * hidden * vocabulary + (eyes["layers"] * 12 * 256 ** 2 if pictures else 0)
                gathered = 8 * parameters * 3 / 4 / link
                if own is not None:
                    write(own)
                rows = groups(devices, "--tensor", tensor, *(("--pictures", pictures) if pictures else ()), *(("--cost", file) if own is not None else ()))
                self.assertEqual({row["schedule"] for row in rows}, {"sequence groups, 1 microbatch", "sequence groups, 2 microbatches"})
                for row in rows:
                    time, most, least = 0, 0, 0
                    for each in row["groups"]:
                        time += max(gathered, *(sum(seconds(i, group["gpus"]) for i in group["sequences"]) for group in each))
                        most = max(most, *(sum(held(i, group["gpus"]) for i in group["sequences"]) for group in each))
                        sequences, best = sorted(sum((group["sequences"] for group in each), [])), float("inf")
                        for sizes in ((4,), (2, 2), (2, 1, 1), (1, 1, 1, 1)):
                            for places in itertools.product(range(len(sizes)), repeat=len(sequences)):
                                ends = [0] * len(sizes)
                                for i, place in zip(sequences, places):
                                    ends[place] += seconds(i, sizes[place])
                                best = min(best, max(ends))
                        least += max(gathered, best)
                    self.assertAlmostEqual(row["seconds"], time, delta=1e-9 * time, msg=(row, own, tensor))
                    self.assertAlmostEqual(row["seconds"], least, delta=1e-9 * time, msg=(row, own, tensor))
                    self.assertAlmostEqual(row["memory_gb"] * 1e9, 18 * parameters / 4 + 8 * hidden * vocabulary + most, delta=1)
            # Heads of the encoder are shared as those of layers are.
            write_model(2)
            self.assertLessEqual(max(group["gpus"] for row in groups(4, "--pictures", 3) for each in row["groups"] for group in each), 2)

    def test_lengths_on_gpus_that_differ(self):
        words = (*SMALL[:2], "--devices", 2, "--lengths", "512x3,2048", *unsearched(), "--format", "json", "--gpu")
        equal = {row["schedule"]: row for row in json.loads(output(*words, "a100"))["candidates"]}
        named = {row["schedule"]: row for row in json.loads(output(*words, "a100,a100"))["candidates"]}
        self.assertEqual(named, {name: row for name, row in equal.items() if "groups" not in row})
        mixed = json.loads(output(*words, "a100,h100"))
        pick = mixed["candidates"][mixed["pick"]]
        # The first GPU has both ends of a V, and so few layers that both GPUs take as long.
        self.assertEqual(pick["schedule"], "slice-v, chunks of 64")
        self.assertEqual((pick["layers"][0], pick["layers"][3], sum(pick["layers"])), (3, 0, 24))
        self.check_header(pick, *(word for word in words if word not in ("--format", "json")), "a100,h100")
        for row in mixed["candidates"]:
            self.assertLessEqual(row["bound"], row["seconds"] * (1 + 1e-9), row)
        row = next(row for row in mixed["candidates"] if row["schedule"] == "1f1b, packed to 2048")
        self.assertLess(row["layers"][0], row["layers"][1])
        # By hand: microbatches of 2048 and of 3 x 512, and a network between the two.
        hidden, vocabulary = 2048, 51200
        def time(stage, pieces, linears, attentions):
            rate = (312e12, 989e12)[stage]
            linear = sum(2 * tokens * 12 * hidden ** 2 for tokens in pieces) / (0.62 * rate)
            attention = sum(2 * hidden * tokens ** 2 for tokens in pieces) / (0.62 * rate)
            output_layer = sum(2 * tokens * hidden * vocabulary for tokens in pieces) / (0.40 * rate)
            return row["layers"][stage] * (linears * linear + attentions * attention) + stage * linears * output_layer
        first, second = [2048], [512] * 3
        message = 2 * 2048 * hidden / 25e9
        ready = time(0, first, 1, 1) + message
        free = ready + time(1, first, 3, 3.5)
        back = free + message
        free = max(free, time(0, first, 1, 1) + time(0, second, 1, 1) + message) + time(1, second, 3, 3.5)
        end = max(time(0, first, 1, 1) + time(0, second, 1, 1), back) + time(0, first, 2, 2.5)
        end = max(end, free + message) + time(0, second, 2, 2.5)
        self.assertAlmostEqual(row["seconds"], end, delta=1e-9)

    def test_lengths_are_searched_further_and_written_as_headers(self):
        words = (*SMALL[:2], "--gpu", "a100", "--devices", 2, *unsearched(), "--lengths", "512x5,4096,1024")
        plain = json.loads(output(*words, "--format", "json"))["candidates"]
        found = json.loads(output(*words, "--search", "--rounds", 1, "--format", "json"))
        rows = found["candidates"]
        self.assertEqual([{k: v for k, v in row.items() if k != "any_bound"} for row in rows[:len(plain)]], plain)
        for row in rows:
            self.assertEqual("any_bound" in row, "groups" not in row)
            self.assertLessEqual(row.get("any_bound", 0), row["seconds"] * (1 + 1e-9), row)
        hidden, tokens = 2048, [512] * 5 + [4096, 1024]
        work = sum(24 * (3 * 2 * n * 12 * hidden ** 2 + 3.5 * 2 * hidden * n ** 2) / 0.62 + 3 * 2 * n * hidden * 51200 / 0.40
                   for n in tokens) / 312e12
        self.assertAlmostEqual(rows[0]["any_bound"], work / 2, delta=1e-9)
        # The least memory: unequal numbers of chunks, some of which are recomputed.
        least = min((row for row in plain if "chunkflow" in row["schedule"]), key=lambda row: row["memory_gb"])
        self.check_header(least, *words[:6], *only(least), *words[-2:], "--memory", f"{least['memory_gb'] + 1e-9:.12f}GB")
        self.assertIn("has no C++ type to write down", run(*words, "--format", "header").stderr)

    @staticmethod
    def by_hand(layers, microbatches, keep, size):
        """Seconds and bytes of ChunkFlow for gpt-1.3b on two A100."""
        hidden, vocabulary, rate = 2048, 51200, 312e12
        def time(stage, pieces, linears, attentions):
            total = 0
            for tokens, before in pieces:
                linear = 2 * tokens * 12 * hidden ** 2 / (0.62 * rate)
                attention = 4 * hidden * (tokens * before + tokens ** 2 / 2) / (0.62 * rate)
                total += layers[stage] * (linears * linear + attentions * attention)
                total += linears * 2 * tokens * hidden * vocabulary / (0.40 * rate) if stage == 1 else 0
            return total
        units = [(m, c) for m, chunks in enumerate(microbatches) for c in range(len(chunks))]
        backward = [(m, c) for m, chunks in enumerate(microbatches) for c in reversed(range(len(chunks)))]
        orders = []
        for device in (0, 1):
            rows, done, last = [], 0, 0
            for m, c in backward:
                last = max(last + 1, 1 + units.index((m, len(microbatches[m]) - 1)))
                while done < min(last + 1 - device, len(units)):
                    rows.append(("F", *units[done]))
                    done += 1
                rows.append(("B", m, c))
            orders.append(rows)
        message = 2 * size * hidden / 300e9
        ends, free, at = {}, [0, 0], [0, 0]
        while at != [len(orders[0]), len(orders[1])]:
            for device in (0, 1):
                while at[device] < len(orders[device]):
                    kind, m, c = orders[device][at[device]]
                    pieces = microbatches[m][c]
                    kept = c + keep >= len(microbatches[m])
                    other = (kind, m, c, 1 - device)
                    waits = (kind == "F") == (device == 1)
                    if waits and other not in ends:
                        break
                    ready = ends[other] + message if waits else 0
                    if kind == "F":
                        length = time(device, pieces, 1, 1)
                    else:  # a recomputation waits for nothing
                        free[device] += 0 if kept else time(device, pieces, 1, 1)
                        length = time(device, pieces, 2, 2.5)
                    free[device] = ends[kind, m, c, device] = max(free[device], ready) + length
                    at[device] += 1
        most = 0
        for device in (0, 1):
            held = 18 * (layers[device] * 12 * hidden ** 2 + hidden * vocabulary)
            held += 6 * size * vocabulary if device == 1 else 0  # logits
            held += 2 * layers[device] * 4 * hidden * 4096  # gradients of keys and values, single precision
            peak = held
            for kind, m, c in orders[device]:
                tokens = sum(length for length, _ in microbatches[m][c])
                whole = layers[device] * tokens * (32 * hidden + 4 * 16)
                part = 2 * tokens * hidden * device + layers[device] * 4 * hidden * tokens
                if c + keep >= len(microbatches[m]):
                    part = whole
                held += whole if kind == "F" else whole - part
                peak = max(peak, held)
                held -= whole - part if kind == "F" else whole
            most = max(most, peak)
        return max(free), most

    def test_equally_fast_ones_are_told_apart_by_memory(self):
        with tempfile.TemporaryDirectory() as folder:
            words = (*SMALL[:-3], 4, "--microbatches", 8, "--cost", write_equal_costs(folder))
            found = json.loads(output(*words, "--format", "json"))
            self.check_pick(found)
            pick = found["candidates"][found["pick"]]
            self.assertTrue(pick["schedule"].endswith(" with weights-on-host"), pick)
            plain = next(row for row in found["candidates"] if pick["schedule"] == row["schedule"] + " with weights-on-host")
            self.assertEqual(pick["seconds"], plain["seconds"])
            self.assertLess(pick["memory_gb"], plain["memory_gb"])
            self.assertRegex(output(*words), r"on the host: [\d.]+ GB for each GPU\n")
        for words in ((*SMALL[:-1], 16), (*SMALL[:-1], 16, "--data", 8), ("--model", "gpt-7b", *SMALL[2:-3], 8, "--microbatches", 16)):
            self.check_pick(json.loads(output(*words, *unsearched(), "--format", "json")))

    def test_a_pick_can_be_run(self):
        with tempfile.TemporaryDirectory() as folder:
            shape = {"num_hidden_layers": 30, "hidden_size": 2048, "num_attention_heads": 16, "vocab_size": 51200, "intermediate_size": 8192}
            words = (*SMALL[2:], *unsearched())
            files = {}
            for tied in (False, True):
                files[tied] = pathlib.Path(folder) / f"{tied}.json"
                files[tied].write_text(json.dumps({**shape, "tie_word_embeddings": tied}), encoding="utf-8")
            for needs in ((files[True],), (files[False], "--tied"), (files[False], "--clip")):
                words_now = ("--model", *needs, *words)
                found = json.loads(output(*words_now, "--format", "json"))
                self.check_pick(found)
                pick = found["candidates"][found["pick"]]
                self.assertNotIn("cannot", pick)
                text = output(*words_now, "--all")
                for row in found["candidates"]:
                    # What keeps totals or a tied weight to itself is the lowering's to say: here, stages that go one way.
                    if "cannot" in row:
                        line = next(line for line in text.splitlines() if row["schedule"] in re.split(" = |  +", line[2:]))
                        self.assertRegex(line, r"  [a-z][a-z_ ]+$")
                        self.assertNotIn(found["candidates"].index(row), found["frontier"])
            self.assertTrue(any("cannot" in row for row in found["candidates"]))
            plain = json.loads(output("--model", files[False], *words, "--format", "json"))
            self.assertFalse(any("cannot" in row for row in plain["candidates"]))

    def test_frozen_layers_go_forward_only(self):
        words = (*SMALL, *unsearched(), "--layout", "Et*12|t*12L")
        found = json.loads(output(*words, "--frozen", 12, "--format", "json"))
        self.check_pick(found)
        rows = {row["schedule"]: row for row in found["candidates"]}
        row = rows["1f1b --frozen 1"]
        # By hand: the first stage is done after one forward pass and a message; then the second works without a pause.
        hidden, sequence, vocabulary, peak = 2048, 2048, 51200, 312e12
        products, attention = 12 * 24 * hidden ** 2 * sequence / (0.62 * peak), 12 * 2 * hidden * sequence ** 2 / (0.62 * peak)
        output_layer = 2 * hidden * sequence * vocabulary / (0.40 * peak)
        busy = 3 * products + 3.5 * attention + 3 * output_layer
        self.assertAlmostEqual(row["seconds"], products + attention + 2 * hidden * sequence / 300e9 + 4 * busy, places=9)
        self.assertAlmostEqual(row["bound"], 4 * busy, places=9)
        weights = 12 * 12 * hidden ** 2 + hidden * vocabulary
        activation = 12 * sequence * (32 * hidden + 4 * 16)
        self.assertAlmostEqual(row["memory_gb"], (18 * weights + 6 * sequence * vocabulary + activation) / 1e9, places=9)
        # With the first stage only half frozen nothing is left out; with all layers of both it is the output layer that trains.
        part = json.loads(output(*words, "--frozen", 11, "--format", "json"))["candidates"]
        self.assertIn("1f1b", {each["schedule"] for each in part})
        free = {each["schedule"]: each for each in json.loads(output(*SMALL, *unsearched(), "--frozen", 12, "--format", "json"))["candidates"]}
        least = min(each["seconds"] for name, each in free.items() if name.startswith("1f1b"))
        self.assertLess(least, row["seconds"])  # more of the frozen layers' share is the first device's
        for more, wanted in ((("--frozen", 25), "--frozen has 25 layers, the model 24"), (("--frozen", 3, "--format", "header"), "--format header knows no frozen"), (("--frozen", 0), "from 1 to"),
                             (("--frozen", 12, "--layout", "Et*12|t*12L", "--tied"), "no schedule can run that; the first says: plan: the first stage is frozen")):
            self.check_refusal((*SMALL, *more), wanted)

    def test_experts_are_sent_for_while_others_are_computed(self):
        hidden, width, vocabulary, sequence, peak, link = 1024, 704, 32000, 2048, 989e12, 450e9
        shape = {"hidden_size": hidden, "num_attention_heads": 8, "vocab_size": vocabulary, "moe_intermediate_size": width,
                 "intermediate_size": 4096, "num_experts": 16, "num_experts_per_tok": 4}
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "model.json"
            words = ("--model", model, "--gpu", "h100", "--sequence", sequence, "--expert", 8)
            model.write_text(json.dumps({**shape, "num_hidden_layers": 1}), encoding="utf-8")
            found = json.loads(output(*words, "--devices", 1, "--microbatches", 2, "--schedules", "1f1b", "--experts", "--format", "json"))
            row = {each["schedule"]: each for each in found["candidates"]}["1f1b, experts overlapped"]
            # One device, one layer, two microbatches: forward alone, backward of the first next to forward of the second,
            # backward alone. The second's tokens travel while nothing else is ready, those of the first while it works.
            attention = 2 * hidden * sequence ** 2 / (0.62 * peak)
            before = 2 * sequence * (4 * hidden ** 2 + hidden * 16) / (0.62 * peak)
            experts = 2 * sequence * 2 * hidden * 4 * width / (0.62 * peak)
            outputs = 2 * sequence * hidden * vocabulary / (0.40 * peak)
            message = 2 * sequence * hidden * 4 * 7 / 8 / link
            forward = [("c", "A", 0, before + attention, ()), ("n", "D", 0, message, ("A0",)), ("c", "E", 0, experts, ("D0",)),
                       ("n", "C", 0, message, ("E0",)), ("c", "O", 0, outputs, ("C0",))]
            backward = [("c", "Oi", 0, outputs, ("O0",)), ("c", "Ow", 0, outputs, ()), ("n", "K", 0, message, ("Oi0",)),
                        ("c", "M", 0, experts, ("K0",)), ("c", "W", 0, experts, ()), ("n", "J", 0, message, ("M0",)),
                        ("c", "B", 0, before + 2.5 * attention, ("J0",)), ("c", "V", 0, before, ())]
            def second(passes):
                return [(row, name, 1, time, tuple(each[:-1] + "1" for each in needs)) for row, name, _, time, needs in passes]
            ahead, back = second(forward), second(backward)
            both = [ahead[0], ahead[1], ahead[2], ahead[3], *backward[:2], backward[2], ahead[4], *backward[3:]]
            ends, clock = {}, {"c": 0, "n": 0}
            for engine, name, microbatch, time, needs in [*forward, *both, *back]:
                clock[engine] = max([clock[engine], *(ends[each] for each in needs)]) + time
                ends[name + str(microbatch)] = clock[engine]
            self.assertAlmostEqual(row["seconds"], max(clock.values()), places=12)
            self.assertAlmostEqual(row["bound"], 2 * (3 * (before + experts + outputs) + 3.5 * attention), places=12)
            # At most two microbatches are there, the copies of whose tokens wait next to what their layer keeps.
            held = row["memory_gb"] * 1e9
            parameters = 4 * hidden ** 2 + 16 * hidden + 2 * hidden * 16 * width // 8 + 2 * hidden * vocabulary
            copies = 2 * sequence * hidden * 4
            kept = sequence * (14 * hidden + 4 * 8 + 2 * hidden + 4 * width * 4) + copies
            resident = 18 * parameters + 6 * sequence * vocabulary
            self.assertAlmostEqual(held, resident + 2 * kept + copies, delta=1)
            # The same computed again, the output layer first: of one layer and microbatch at a time is more there than its input.
            found = json.loads(output(*words, "--devices", 1, "--microbatches", 2, "--schedules", "gpipe", "--experts", "--format", "json"))
            row = {each["schedule"]: each for each in found["candidates"]}["gpipe with recompute, experts overlapped"]
            again = [("c", "Oa", 0, outputs, ("C0",)), ("c", "Oi", 0, outputs, ("Oa0",)), backward[1], ("c", "R", 0, before + attention, ()),
                     ("n", "S", 0, message, ("R0",)), ("c", "T", 0, experts, ("S0",)), backward[2], ("c", "M", 0, experts, ("K0", "T0")),
                     *backward[4:]]
            for both in ([*ahead, *again], [again[0], *ahead[:4], *again[1:7], ahead[4], *again[7:]]):
                ends, clock = {}, {"c": 0, "n": 0}
                for engine, name, microbatch, time, needs in [*forward, *both, *second(again)]:
                    clock[engine] = max([clock[engine], *(ends[each] for each in needs)]) + time
                    ends[name + str(microbatch)] = clock[engine]
            self.assertAlmostEqual(row["seconds"], max(clock.values()), places=12)  # together, which is shorter
            self.assertAlmostEqual(row["memory_gb"] * 1e9, resident + kept + copies, delta=1)

            # Measured, each kind has a time of its own: in ms, of the embedding, the layer and the output layer.
            took = {"A": 3, "D": 5, "E": 7, "C": 11, "O": 2, "Oi": 2.5, "Ow": 1.5, "K": 13, "M": 17, "W": 19, "J": 23, "B": 29, "V": 31}
            kinds = {"attention": "AO", "dispatch": "D", "experts": "E", "combine": "C", "combine back": "K", "experts back": "M",
                     "expert gradients": "W", "dispatch back": "J", "attention back": ("B", "Oi"), "attention gradients": ("V", "Ow")}
            file = pathlib.Path(folder) / "costs.json"
            costs = {"pipelining_costs": 1, "unit": "ms", "communication": 0,
                     **{kind: [[0], [took[of[0]]], [took[of[1]] if len(of) > 1 else 0]] for kind, of in kinds.items()}}
            file.write_text(json.dumps(costs), encoding="utf-8")
            found = json.loads(output(*words, "--devices", 1, "--microbatches", 2, "--schedules", "1f1b", "--experts", "--cost", file,
                                      "--format", "json"))
            row = {each["schedule"]: each for each in found["candidates"]}["1f1b, experts overlapped"]
            both = [*ahead[:4], *backward[:2], backward[2], ahead[4], *backward[3:]]
            ends, clock = {}, {"c": 0, "n": 0}
            for engine, name, microbatch, _, needs in [*forward, *both, *back]:
                clock[engine] = max([clock[engine], *(ends[each] for each in needs)]) + took[name] / 1000
                ends[name + str(microbatch)] = clock[engine]
            self.assertAlmostEqual(row["seconds"], max(clock.values()), places=12)
            for change, wanted in (({"dispatch": [[0], [5]]}, "'dispatch' is of 2 x 1 stages"),
                                   ({"forward": [[1], [1], [1]]}, "line 1: 'forward' is no entry of a file of costs"),
                                   ({kind: times[:2] for kind, times in costs.items() if kind in kinds}, "wants the times of all parts")):
                file.write_text(json.dumps({**costs, **change}), encoding="utf-8")
                self.check_refusal((*words, "--devices", 1, "--microbatches", 2, "--experts", "--cost", file), wanted)

            model.write_text(json.dumps({**shape, "num_hidden_layers": 8}), encoding="utf-8")
            words = (*words, "--devices", 4, "--microbatches", 16, *unsearched())
            whole = {each["schedule"]: each for each in json.loads(output(*words, "--format", "json"))["candidates"]}
            found = json.loads(output(*words, "--experts", "--format", "json"))
            self.check_pick(found)
            self.assertRegex(found["candidates"][found["pick"]]["schedule"], ", experts overlapped$")
            text = output(*words, "--experts", "--clip", "--all")
            reasons = set()
            for each in found["candidates"]:
                name, _, cut = each["schedule"].partition(", ")
                self.assertEqual(bool(cut), "cannot" not in each, each)
                if cut:
                    self.assertLessEqual(each["seconds"], whole[name]["seconds"] * (1 + 1e-12), name)
                else:
                    line = next(line for line in text.splitlines() if name in re.split(" = |  +", line[2:]))
                    reasons.add(line.rsplit("  ", 1)[1])
            self.assertEqual(reasons, {"experts need a plain chain", "experts need layers that stay"})
            rows = {each["schedule"]: each["seconds"] for each in found["candidates"]}
            # Where memory is short, only devices that lack it compute again.
            least = min(each["memory_gb"] for each in found["candidates"] if "cannot" not in each)
            room = least + 0.05 * (found["candidates"][found["pick"]]["memory_gb"] - least)
            tight = json.loads(output(*words, "--experts", "--memory", f"{room}GB", "--format", "json"))
            self.check_pick(tight)
            relieved = [each for each in tight["candidates"] if re.search(r"--on-stages .* with (recompute|offload), experts overlapped$", each["schedule"])]
            self.assertTrue(relieved)
            for each in relieved:
                name = each["schedule"].split(" --on-stages")[0]
                self.assertLessEqual(each["memory_gb"], room)
                self.assertGreaterEqual(each["seconds"], rows[name + ", experts overlapped"] * (1 - 1e-12))
                self.assertLess(each["seconds"], rows[name + " with recompute, experts overlapped"])
            self.assertLess(rows["eager-1f1b, experts overlapped"], 0.97 * whole["eager-1f1b"]["seconds"])
            found = json.loads(output(*words, "--experts", "--modules", 1, "--format", "json"))  # which no cut of two is best with
            searched = json.loads(output(*words, "--experts", "--modules", 1, "--search", "--rounds", 1, "--format", "json"))
            pick = searched["candidates"][searched["pick"]]
            self.check_pick(searched)
            self.assertRegex(pick["schedule"], ", experts overlapped, cut anew$")
            self.assertLess(pick["seconds"], 0.999 * found["candidates"][found["pick"]]["seconds"])
            self.assertNotIn("any_bound", pick)  # whose messages would count as work
            for more, wanted in ((("--frozen", 2), "layers that are all trained"),
                                 (("--format", "header"), "--format header cuts no layer")):
                self.check_refusal((*words, "--experts", *more), wanted)
        self.check_refusal((*SMALL, "--experts"), "experts on several GPUs")

    def test_experts_go_with_shards(self):
        hidden, width, vocabulary, tokens, peak, link, network, host = 1024, 704, 32000, 2048, 989e12, 450e9, 50e9, 50e9
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "model.json"
            def found(layers, devices, microbatches, *more):
                model.write_text(json.dumps({"hidden_size": hidden, "num_attention_heads": 8, "vocab_size": vocabulary, "moe_intermediate_size": width,
                                             "intermediate_size": 4096, "num_experts": 16, "num_experts_per_tok": 4, "num_hidden_layers": layers}), encoding="utf-8")
                return {each["schedule"]: each for each in json.loads(output(
                    "--model", model, "--gpu", "h100", "--sequence", tokens, "--expert", 8, "--devices", devices, "--microbatches", microbatches,
                    "--experts", "--format", "json", *more))["candidates"]}
            attention = 2 * hidden * tokens ** 2 / (0.62 * peak)
            before = 2 * tokens * (4 * hidden ** 2 + hidden * 16) / (0.62 * peak)
            experts = 2 * tokens * 2 * hidden * 4 * width / (0.62 * peak)
            outputs = 2 * tokens * hidden * vocabulary / (0.40 * peak)
            message = 2 * tokens * hidden * 4 * 7 / 8 / link
            layer = 4 * hidden ** 2 + 16 * hidden + 2 * hidden * 16 * width // 8  # parameters on a GPU
            copies = 2 * tokens * hidden * 4
            kept = tokens * (14 * hidden + 4 * 8 + 2 * hidden + 4 * width * 4) + copies
            # A vocabulary in shards, one microbatch: a layer on each of two devices, messages from and to shards, which exchange statistics, too.
            hop = 2 * tokens * hidden / link
            forward = before + attention + message + experts + message
            rows = found(2, 2, 1, "--schedules", "1f1b,zb-h1")
            for name, hidden_by in (("1f1b with vocabulary-2", experts), ("1f1b with vocabulary-interlaced", experts), ("zb-h1 with vocabulary-2", 0)):
                # Gradients of experts hide the message back, or come after it all, with those of attention.
                backward = message + experts + max(hidden_by, message) + before + 2.5 * attention
                whole = hop + forward + hop + forward + hop + outputs / 2 + hop + outputs + hop + backward + hop + backward
                self.assertAlmostEqual(rows[name + ", experts overlapped"]["seconds"], whole + max(experts - hidden_by + before, hop), places=12, msg=name)
            # Four microbatches: devices 1 and 2 hold three and two of them with two barriers more, one set of logits, and half of both ends.
            rows = found(2, 2, 4, "--schedules", "1f1b")
            for name, most in (("vocabulary-1", 3), ("vocabulary-2", 4), ("vocabulary-interlaced", 3)):
                row = rows[f"1f1b with {name}, experts overlapped"]
                self.assertAlmostEqual(row["bound"], 4 * (3 * (before + experts) + 3.5 * attention + 3 * outputs / 2), places=12)
                self.assertGreater(row["seconds"], row["bound"])
                resident = 18 * (layer + hidden * vocabulary) + 6 * tokens * vocabulary / 2
                self.assertAlmostEqual(row["memory_gb"] * 1e9, resident + most * kept + copies, delta=1, msg=name)
            # Weights in shards of two replicas, two microbatches on one device: a layer waits for its own weights, the output layer for those
            # after it; gradients are scattered once, at the end.
            def check(engines, row):
                ends, clock = {}, {}
                for engine, name, time, needs in engines:
                    clock[engine] = ends[name] = max([clock.get(engine, 0), *(ends[each] for each in needs)]) + time
                return abs(row["seconds"] - max(clock.values())) < 1e-12
            first, last = layer + hidden * vocabulary, hidden * vocabulary
            gathers = [("g", "gather", 2 * first / 2 / network, ()), ("g", "gather output", 2 * last / 2 / network, ())]
            scatters = [("g", "scatter", 4 * first / 2 / network, ("V1",)), ("g", "scatter output", 4 * last / 2 / network, ())]
            def ahead(i):
                return [("c", f"A{i}", before + attention, ("gather",)), ("n", f"D{i}", message, (f"A{i}",)), ("c", f"E{i}", experts, (f"D{i}",)),
                        ("n", f"C{i}", message, (f"E{i}",)), ("c", f"O{i}", outputs, (f"C{i}", "gather output"))]
            def back(i):
                return [("c", f"Oi{i}", outputs, (f"O{i}",)), ("c", f"Ow{i}", outputs, ()), ("n", f"K{i}", message, (f"Oi{i}",)),
                        ("c", f"M{i}", experts, (f"K{i}",)), ("c", f"W{i}", experts, ()), ("n", f"J{i}", message, (f"M{i}",)),
                        ("c", f"B{i}", before + 2.5 * attention, (f"J{i}",)), ("c", f"V{i}", before, ())]
            for more in ((), ("--search", "--rounds", 1)):
                row = found(1, 1, 2, "--data", 2, "--schedules", "1f1b", *more)["1f1b with sharded-weights, experts overlapped"]
                f, b = ahead(1), back(0)
                orders = ([*gathers, *ahead(0), *both, *back(1), *scatters] for both in ([*f[:4], *b[:3], f[4], *b[3:]], [*b, *f]))
                self.assertTrue(any(check(order, row) for order in orders), row)
                parameters = layer + 2 * hidden * vocabulary
                held = (2 + 4 + 12) * parameters / 2 + (2 + 4) * parameters + 6 * tokens * vocabulary
                self.assertAlmostEqual(row["memory_gb"] * 1e9, held + 2 * kept + copies, delta=1)
            # Half of the stages of a device on the host: what they gather and scatter is theirs alone.
            rows = found(4, 2, 2, "--schedules", "interleaved", "--layout", "Et|t|t|tL")
            plain, away = (rows[f"interleaved --stages-per-device 2{more}, experts overlapped"] for more in ("", " with weights-on-host"))
            self.assertAlmostEqual((plain["memory_gb"] - away["memory_gb"]) * 1e9, 12 * (layer + hidden * vocabulary), delta=1)
            self.assertGreater(away["seconds"], plain["seconds"])

    def test_modules_and_an_encoder_are_parts_of_stages(self):
        hidden, layers, sequence, vocabulary = 512, 6, 1024, 20000
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "model.json"
            shape = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": 8, "intermediate_size": 4 * hidden,
                     "vocab_size": vocabulary, "num_nextn_predict_layers": 1,
                     "encoder": {"layers": 3, "hidden": 256, "heads": 4, "tokens": 128}}
            model.write_text(json.dumps(shape), encoding="utf-8")
            words = ("--model", model, "--gpu", "a100", "--sequence", sequence, "--microbatches", 4, "--devices")
            found = json.loads(output(*words, 2, "--pictures", 3, "--layout", "Ee*3t*4|ttmL", "--schedules", "1f1b", "--format", "json"))
            row = {each["schedule"]: each for each in found["candidates"]}["1f1b"]
            self.assertEqual((row["layers"], row["layout"]), ([7, 3], "Ee*3t*4|ttmL"))
            # By hand, 1F1B of two stages. Scores: causal with half of the products, of pictures with all.
            rate, of_vocabulary = 0.62 * 312e12, 0.40 * 312e12
            layer, scores = 24 * hidden ** 2 * sequence / rate, 2 * hidden * sequence ** 2 / rate
            seen, seen_scores = 24 * 256 ** 2 * 3 * 128 / rate, 4 * 256 * 3 * 128 ** 2 / rate
            joining, outputs = 4 * hidden ** 2 * sequence / rate, 2 * 2 * hidden * vocabulary * sequence / of_vocabulary
            forward = (4 * (layer + scores) + 3 * (seen + seen_scores), 3 * (layer + scores) + joining + outputs)
            backward = (4 * (2 * layer + 2.5 * scores) + 3 * (2 * seen + 2.5 * seen_scores),
                        3 * (2 * layer + 2.5 * scores) + 2 * joining + 2 * outputs)
            message = 2 * hidden * sequence / 300e9
            self.assertAlmostEqual(row["seconds"], forward[0] + 4 * (forward[1] + backward[1]) + backward[0] + 2 * message, places=9)
            # The module has a layer, a projection of two hidden states to one, and a copy of the embedding.
            parameters = (12 * (4 * hidden ** 2 + 3 * 256 ** 2) + vocabulary * hidden,
                          12 * 3 * hidden ** 2 + 2 * hidden ** 2 + 2 * vocabulary * hidden)
            kept = (2 * (4 * sequence * (32 * hidden + 4 * 8) + 3 * 3 * 128 * (32 * 256 + 4 * 4)),
                    3 * sequence * (32 * hidden + 4 * 8) + 8 * hidden * sequence + 2 * 6 * sequence * vocabulary)
            self.assertAlmostEqual(row["memory_gb"], max(18 * a + b for a, b in zip(parameters, kept)) / 1e9, places=9)
            # Cuts that are made are printed, and read back with the same times.
            for more, counts in (((), (0, 1)), (("--pictures", 3), (3, 1)), (("--modules", 0), (0, 0)), (("--modules", 2, "--clip"), (0, 2))):
                call = (*words, 4, *more, "--schedules", "1f1b,zb-v", "--format", "json")
                found = json.loads(output(*call))
                self.check_pick(found)
                self.assertNotIn("cannot", found["candidates"][found["pick"]])  # lowered and proven
                for row in found["candidates"]:
                    if "vocabulary" in row["schedule"]:
                        self.assertNotIn("cannot", row)
                    if "layout" not in row or "vocabulary" in row["schedule"]:
                        continue
                    again = json.loads(output(*call, "--layout", row["layout"]))["candidates"]
                    same = {each["schedule"]: each for each in again}[row["schedule"]]
                    self.assertEqual({**row, "bound": 0}, {**same, "bound": 0})
                    self.assertEqual(sum(row["layers"]), layers + sum(counts))
                    if "--clip" in more:
                        self.assertRegex(row["layout"], "mmL$")  # totals need all gradients of the embedding
            text = output(*words, 4, "--schedules", "1f1b", "--layout", "Et*3|t*3|m|L")
            self.assertIn("stages 0, 2 have the embedding: add up their gradients of it after each step, the plan does not\n", text)
            # By hand, one microbatch with a vocabulary in shards: embeddings go on to the module, whose hidden state is a second one.
            call = (*words[:-3], "--microbatches", 1, "--devices", 2, "--pictures", 3, "--schedules", "1f1b")
            found = json.loads(output(*call, "--format", "json"))
            row = row_of(found["candidates"], "1f1b with vocabulary-2")
            ahead = {"e": seen + seen_scores, "t": layer + scores, "m": layer + scores + joining}
            back = {"e": 2 * seen + 2.5 * seen_scores, "t": 2 * layer + 2.5 * scores, "m": 2 * (layer + joining) + 2.5 * scores}
            held = {"e": (12 * 256 ** 2, 3 * 128 * (32 * 256 + 4 * 4)), "t": (12 * hidden ** 2, sequence * (32 * hidden + 4 * 8))}
            held["m"] = (held["t"][0] + 2 * hidden ** 2, held["t"][1] + 8 * hidden * sequence)
            parts = "eeettttttm"
            stages = parts[:row["layers"][0]], parts[row["layers"][0]:]
            # To the first stage, between stages twice, to all shards twice, their statistics, to the last stage.
            seconds = sum(ahead[part] + back[part] for part in parts) + 3 * outputs / 2 + 7 * 2 * message
            self.assertAlmostEqual(row["seconds"], seconds, places=9)
            shards = 18 * vocabulary * hidden + 6 * sequence * vocabulary
            memory = max(sum(18 * held[part][0] + held[part][1] for part in stage) + shards for stage in stages)
            self.assertAlmostEqual(row["memory_gb"], memory / 1e9, places=9)
            pick = found["candidates"][found["pick"]]
            self.assertIn("vocabulary", pick["schedule"])
            self.check_header(pick, *call)
            clipped = run(*words, 4, "--schedules", "1f1b", "--layout", "Et*3|t*3|m|L", "--clip")
            self.assertIn("inner stages share the embedding", clipped.stderr)
            for more, wanted in ((("--modules", 65), "--modules wants a whole number from 1 to 64"),
                                 (("--layout", "Et*6|L"), "--layout has 0 modules for further tokens m, the model 1"),
                                 (("--layout", "Et*5m|tL"), "--layout has a layer t after a module m"),
                                 (("--layout", "Eet*6|mL"), "--layout has 1 layers of an encoder e, the model 0")):
                self.check_refusal((*words, 2, *more), wanted)
            self.check_refusal((*SMALL, "--pictures", 1), "--pictures is for models with an encoder")

    def test_memory_is_made_on_the_devices_that_lack_it(self):
        hidden, sequence, vocabulary = 1024, 2048, 8000
        with tempfile.TemporaryDirectory() as folder:
            model = self.write_model(folder, 12, hidden, vocabulary)
            gpu = {"peak_tflops": 312, "link_gb_per_s": 300, "network_gb_per_s": 25, "host_gb_per_s": 0.001}  # no copy pays
            files = [pathlib.Path(folder) / "small.json", pathlib.Path(folder) / "large.json"]
            kept = 3 * sequence * (32 * hidden + 4 * 8)  # of the three layers of the first stage, one microbatch
            weights = 18 * (12 * 3 * hidden ** 2 + vocabulary * hidden)
            files[0].write_text(json.dumps({**gpu, "memory_gb": (weights + 1.9 * kept) / 1e9}), encoding="utf-8")
            files[1].write_text(json.dumps({**gpu, "memory_gb": 80}), encoding="utf-8")
            words = ("--model", model, "--gpu", f"{files[0]},{files[1]},{files[1]}", "--sequence", sequence, "--devices", 3, "--microbatches", 4,
                     "--layout", "Et*3|t*8|tL", "--schedules", "1f1b")
            found = json.loads(output(*words, "--format", "json"))
            self.check_pick(found)
            rows = {row["schedule"]: row for row in found["candidates"]}
            plain, whole, some = (rows["1f1b" + more] for more in ("", " with recompute", " --on-stages 0 with recompute"))
            # The first device waits for the second, so that its recomputations take nothing; those of the second do.
            self.assertAlmostEqual(some["seconds"], plain["seconds"], places=9)
            layer = (24 * hidden ** 2 * sequence + 2 * hidden * sequence ** 2) / (0.62 * 312e12)
            self.assertGreater(whole["seconds"], some["seconds"] + 2 * 8 * layer)
            self.assertGreater(plain["memory_gb"], 80)  # as a share of the larger one
            # One activation is there at a time, and tokens of other microbatches.
            self.assertAlmostEqual(some["memory_gb"], 80 * (weights + kept) / (weights + 1.9 * kept), places=6)
            self.assertEqual(found["candidates"][found["pick"]], some)
            tool = subprocess.run([PROGRAM, "1f1b", "--devices", "3", "--microbatches", "4", "--with", "recompute", "--on-stages", "0",
                                   "--format", "csv"], capture_output=True, text=True, check=True).stdout
            self.assertEqual((tool.count(",R,0,"), tool.count(",R,")), (4, 4))

    def test_no_cut_of_any_listed_schedule_is_faster(self):
        """Random small models: every cut into as many stages as devices, or twice as many, given as a layout."""
        draw = random.Random(3)
        with tempfile.TemporaryDirectory() as folder:
            gpu = pathlib.Path(folder) / "gpu.json"
            models = [(4, 4, 64, 1000, 256, 300),
                      (draw.choice((2, 3)), 2, 64 * draw.randint(1, 8), draw.choice((100, 9000, 40000)), draw.choice((64, 256)), 50)]
            if os.environ.get("PIPELINING_TEST_EVERYTHING"):
                models.append((4, 4, 64, 1000, 64, 50))
            for devices, layers, hidden, vocabulary, sequence, link in models:
                gpu.write_text(json.dumps({"peak_tflops": 300, "memory_gb": 80, "link_gb_per_s": link, "network_gb_per_s": 25,
                                           "host_gb_per_s": 24}), encoding="utf-8")
                model = self.write_model(folder, layers, hidden, vocabulary, heads=4)
                words = ("--model", model, "--gpu", gpu, "--sequence", sequence, "--devices", devices, "--microbatches", 2 * devices,
                         "--format", "json")
                found = json.loads(output(*words))
                self.check_pick(found)
                pick = found["candidates"][found["pick"]]
                if not is_apart(pick) and "--memory " not in pick["schedule"]:
                    self.check_header(pick, *words[:-2], *only(pick))
                best = pick["seconds"]
                for stages in (devices, 2 * devices):
                    for bars in itertools.combinations(range(layers + stages - 1), stages - 1):
                        if stages > layers + 2:
                            continue
                        ends = (-1, *bars, layers + stages - 1)
                        cut = "|".join("t" * (b - a - 1) for a, b in zip(ends, ends[1:]))
                        rows = json.loads(output(*words, "--layout", f"E{cut}L"))
                        fastest = rows["candidates"][rows["pick"]]["seconds"]
                        self.assertLessEqual(best, fastest * 1.001 * 1.001, (words, cut, rows["candidates"][rows["pick"]]))

    def test_random_models_keep_any_limit_on_2_to_16_devices(self):
        draw = random.Random(8)
        within = 0
        with tempfile.TemporaryDirectory() as folder:
            for devices in (2, 5, 9, 16):
                layers = draw.randint(1, 3 * devices)
                model = self.write_model(folder, layers, 64 * draw.randint(2, 32), draw.choice((500, 32000, 256000)), 4, 64 * draw.randint(1, 99))
                further, pictures = draw.randint(0, 3), draw.choice((0, 1, 4))
                shape = {"modules": further, "encoder": {"layers": 5, "hidden": 64 * draw.randint(1, 16), "heads": 4, "tokens": 256}}
                model.write_text(json.dumps({**json.loads(model.read_text(encoding="utf-8")), **shape}), encoding="utf-8")
                parts = layers + further + (5 if pictures else 0)
                words = ("--model", model, "--gpu", draw.choice(("a100", "h100")), "--sequence", draw.choice((256, 1024)), "--devices", devices,
                         *(("--pictures", pictures) if pictures else ()),
                         "--microbatches", draw.randint(1, 3 * devices), *unsearched(), "--json")
                if devices in (5, 16):  # parts of random times, too
                    file = pathlib.Path(folder) / "costs.json"
                    file.write_text(json.dumps({"pipelining_costs": 1, "unit": "ms", "communication": draw.randint(0, 3),
                                                **{kind: [[draw.randint(0, 99) / 10] for _ in range(parts + 2)]
                                                   for kind in ("forward", "backward_input", "backward_weight")}}), encoding="utf-8")
                    words = (*words, "--cost", file)
                free = json.loads(output(*words))
                rows = free["candidates"]
                chosen = rows[free["pick"]]
                most, least = (of(row["memory_gb"] for row in rows) for of in (max, min))
                for limit in (least * 1.0001, draw.uniform(least, most), rows[free["pick"]]["memory_gb"] * 0.9999):
                    if limit <= least:
                        continue
                    found = json.loads(output(*words, "--memory", f"{limit:.9f}GB"))
                    self.check_pick(found)
                    pick = found["candidates"][found["pick"]]
                    self.assertLessEqual(pick["memory_gb"], limit)
                    self.assertNotIn("cannot", pick)  # it was lowered and proven
                    for row in found["candidates"]:  # whose order was made for these bytes
                        if row["schedule"].startswith("zb-auto --memory "):
                            self.assertLessEqual(row["memory_gb"], limit * (1 + 1e-9))
                            within += 1
                    for row in rows:  # as found without a limit
                        if row["memory_gb"] <= limit:
                            self.assertLessEqual(pick["seconds"], row["seconds"] * 1.001 * 1.001, (words, limit, row))
                    for row in found["candidates"]:
                        self.assertTrue(row["bound"] <= row["seconds"] * (1 + 1e-9) and (is_apart(row) or sum(row["layers"]) == parts), row)
                if not is_apart(chosen) and "--memory " not in chosen["schedule"]:
                    self.check_header(chosen, *words[:words.index("--schedules")], *only(chosen), *words[words.index("--json") + 1:])
        self.assertGreater(within, 3)

    def test_weights_in_shards_stay_as_long_as_there_is_room(self):
        words = (*SMALL[:-1], 8, "--data", 64, *unsearched())
        found = json.loads(output(*words, "--format", "json"))
        rows = {row["schedule"]: row for row in found["candidates"]}
        for name in ("interleaved --stages-per-device 4", "breadth-first --stages-per-device 4"):
            two, three, all_stay = (rows[f"{name}{more} with sharded-weights"] for more in ("", " --resident 3", " --resident 4"))
            ahead = rows[f"{name} --resident 4 --prefetch 3 with sharded-weights"]
            self.assertTrue(all_stay["seconds"] <= three["seconds"] <= two["seconds"], name)
            self.assertTrue(all_stay["seconds"] < 0.8 * two["seconds"] or name.startswith("breadth-first"))  # where all is hidden
            self.assertLessEqual(ahead["seconds"], all_stay["seconds"])
            self.assertTrue(two["memory_gb"] < three["memory_gb"] < all_stay["memory_gb"])
            self.assertLess(ahead["memory_gb"], 1.01 * all_stay["memory_gb"])  # as many weights, and more gradients
        self.assertNotIn("dualpipe-v --resident 2 with sharded-weights", rows)  # as it is without the option
        # In this room three stages may stay on a device; the header has that in its type.
        words = ("--model", "llama-70b", "--sequence", 512, "--gpu", "h100", "--devices", 8, "--microbatches", 8, "--data", 64,
                 "--memory", "54.2GB")
        found = json.loads(output(*words, *unsearched(), "--format", "json"))
        pick = found["candidates"][found["pick"]]
        self.assertIn("--resident 3", pick["schedule"])
        self.check_header(pick, *words, *only(pick))

    def test_jitter_is_the_same_every_time_and_never_helps(self):
        words = (*self.fewer, "--jitter", 0.1, "--format", "json")
        first = output(*words)
        self.assertEqual(first, output(*words))
        noisy = json.loads(first)["candidates"]
        self.assertEqual(len(noisy), len(self.found_fewer["candidates"]))
        for plain, row in zip(self.found_fewer["candidates"], noisy):
            self.assertEqual(plain["seconds"], row["seconds"])
            self.assertGreater(row["ranked"], plain["seconds"])

    def test_picture(self):
        root = xml.etree.ElementTree.fromstring(output(*self.fewer, "--format", "svg"))
        circles = [e for e in root.iter() if e.tag.endswith("circle")]
        self.assertEqual(len(circles), len(self.found_fewer["candidates"]))

    def test_header_compiles_and_gives_the_predicted_time(self):
        typed = [row for row in self.rows if not is_apart(row)]
        pick = self.pick_of(typed, self.found["memory_gb"])
        self.check_header(pick, *SMALL, *only(pick))

    def test_headers_of_the_least_memory(self):
        longer = ("--model", "gpt-1.3b", "--sequence", 8192, *SMALL[4:])
        found = json.loads(output(*longer, *unsearched(), "--format", "json"))
        for words, each, adapter in ((SMALL, self.found, " with weights-on-host"), (longer, found, " with recompute")):
            least = next(row for row in (each["candidates"][i] for i in each["frontier"]) if not is_apart(row))
            self.assertTrue(least["schedule"].endswith(adapter), least)
            limited = (*words, *only(least), "--memory", f"{least['memory_gb'] + 1e-6:.9f}GB")
            within = json.loads(output(*limited, "--json"))  # with its adapter on some stages, too
            pick = within["candidates"][within["pick"]]
            self.assertLessEqual(pick["seconds"], least["seconds"])
            self.check_header(pick, *limited)

    def check_header(self, pick, *words):
        self.headers.append((output(*words, "--format", "header"), pick["seconds"]))

    @classmethod
    def tearDownClass(cls):
        """All headers in one program, so that what they include is compiled once: each has its predicted time and a plan."""
        if not cls.headers:
            return
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            source = '#include <cstdio>\n'
            for i, (text, _) in enumerate(cls.headers):
                (path / f"chosen_{i}.hpp").write_text(text.replace("namespace chosen", f"namespace chosen_{i}"),
                                                      encoding="utf-8")
                source += f'#include "chosen_{i}.hpp"\n'
            source += "int main() {\n"
            for i in range(len(cls.headers)):
                source += (f'  std::printf("%.12g %d\\n", pipelining::makespan(chosen_{i}::timetable()),\n'
                           f'              static_cast<int>(chosen_{i}::plan().items.size() > 0));\n')
            (path / "main.cpp").write_text(source + "}\n", encoding="utf-8")
            subprocess.run([COMPILER, "-std=c++20", f"-I{INCLUDE}", path / "main.cpp", "-o", path / "main"],
                           check=True, timeout=240)
            lines = subprocess.run([path / "main"], capture_output=True, text=True, check=True).stdout.splitlines()
        test = cls()
        test.assertEqual(len(lines), len(cls.headers))
        for line, (_, predicted) in zip(lines, cls.headers):
            seconds, planned = line.split()
            test.assertAlmostEqual(float(seconds), predicted, places=9)
            test.assertEqual(planned, "1")


if __name__ == "__main__":
    PROGRAM, COMPILER, INCLUDE = sys.argv[1:4]
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
