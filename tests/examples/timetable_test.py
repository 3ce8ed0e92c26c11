#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs the timetable tool as users do, and recomputes every figure that it prints from the passes alone.

usage: timetable_test.py PROGRAM [unittest argument ...]
"""
import csv
import io
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

PROGRAM = ""


def run(*words):
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=60, check=False)


PROGRESS = re.compile(r"^[0-9.]+ s: (making|writing) .*\n", re.MULTILINE)  # of what takes longer than 2 s


def output(*words):
    result = run(*words)
    if result.returncode != 0 or re.sub(PROGRESS, "", result.stderr):
        raise AssertionError(f"{words}: exit status {result.returncode}, {result.stderr}")
    return result.stdout


def table(*words):
    return json.loads(output(*words, "--format", "json"))


def strict_json(text):
    """What JSON says, without the Infinity and NaN that Python reads next to it."""
    def refuse(name):
        raise AssertionError(f"{name} is no number of JSON")
    return json.loads(text, parse_constant=refuse)


def names():
    return [line.split()[0] for line in output("--list").split("\n\n")[0].splitlines()]


#: What differs from other schedules in tests over all of them.
MICROBATCHES = {"stp": 12}
LAYERS_OF_DEVICE = {"round-pipe": 3}  # by default: each in a stage that goes back
# RoundPipe runs the forward passes of 11 of 12 layers twice.
WORK_DONE_TWICE = {"round-pipe": 12 * 4 * 11 / 12}
STAGES_GO_ONE_WAY = {"round-pipe"}  # it has the same tests of its own


def with_needed_options(name, *words):
    """The words, with as many microbatches as the schedule needs and the options that the tool asks for."""
    words = [name, *words]
    at = words.index("--microbatches") + 1
    words[at] = MICROBATCHES.get(name, words[at])
    for option, value in (("--memory-limit", 8),):
        if f"needs the option {option}" in run(*words).stderr:
            words += [option, value]
    return words


def entries(found):
    for device, row in enumerate(found["passes"]):
        for entry in row:
            yield device, entry


def unit(entry):
    return entry["stage"], entry["microbatch"], entry["chunk"]


def ends_by_kind(found):
    """(kind, unit) -> (end, device); a fused backward stands for both of its halves."""
    ends = {}
    for device, entry in entries(found):
        kinds = "IW" if entry["kind"] == "B" else entry["kind"]
        for kind in kinds:
            assert (kind, unit(entry)) not in ends, f"{entry} stands twice"
            ends[kind, unit(entry)] = (entry["end"], device)
    return ends


def check_rules(case, found):
    ends = ends_by_kind(found)
    every = {(s, m, c) for s in range(found["stages"]) for m in range(found["microbatches"])
             for c in range(found["chunks"])}
    case.assertEqual(set(ends), {(kind, u) for kind in "FIW" for u in every})
    latency = found["cost"]["communication"]
    for device, entry in entries(found):
        stage, microbatch, chunk = unit(entry)
        if entry["kind"] == "F":
            waits = [("F", (stage - 1, microbatch, chunk)), ("F", (stage, microbatch, chunk - 1))]
        elif entry["kind"] == "W":
            waits = [("I", unit(entry))]
        else:
            waits = [("I", (stage + 1, microbatch, chunk)), ("I", (stage, microbatch, chunk + 1)), ("F", unit(entry))]
        for needed in waits:
            if needed in ends:
                end, where = ends[needed]
                case.assertGreaterEqual(entry["start"], end + (latency if where != device else 0), (entry, needed))
    for row in found["passes"]:
        for before, after in zip(row, row[1:]):
            pair = (before["start"], before["end"]) == (after["start"], after["end"])
            case.assertTrue(pair or after["start"] >= before["end"], (before, after))


def check_durations(case, found):
    cost = found["cost"]
    times = {"F": cost["forward"], "I": cost["backward_input"], "W": cost["backward_weight"]}
    times["B"] = times["I"] + times["W"]
    for row in found["passes"]:
        for index, entry in enumerate(row):
            neighbours = row[max(0, index - 1):index] + row[index + 1:index + 2]
            alone = all(other["start"] != entry["start"] for other in neighbours)
            if alone:
                case.assertAlmostEqual(entry["end"] - entry["start"], times[entry["kind"]], places=9)


def pairs_take_their_sum(found):
    times = {"F": found["cost"]["forward"], "I": found["cost"]["backward_input"],
             "W": found["cost"]["backward_weight"]}
    times["B"] = times["I"] + times["W"]
    for row in found["passes"]:
        for a, b in zip(row, row[1:]):
            if a["start"] == b["start"] and a["end"] - a["start"] < times[a["kind"]] + times[b["kind"]] - 1e-9:
                return False
    return True


def check_figures(case, found):
    rows = found["passes"]
    starts = [row[0]["start"] for row in rows]
    stops = [row[-1]["end"] for row in rows]
    busy = [sum(end - start for start, end in {(e["start"], e["end"]) for e in row}) for row in rows]
    span = max(stop - start for start, stop in zip(starts, stops))
    case.assertEqual(len(rows), found["devices"])
    case.assertAlmostEqual(found["makespan"], max(stops) - min(starts))
    case.assertAlmostEqual(found["span"], span)
    case.assertAlmostEqual(found["bubble_rate"], 1 - sum(busy) / len(busy) / span)
    case.assertAlmostEqual(found["makespan_bubble_rate"], 1 - sum(busy) / len(busy) / found["makespan"])
    case.assertLessEqual(found["least_makespan"], found["makespan"] * (1 + 1e-9))
    case.assertLessEqual(found["least_span"], found["span"] * (1 + 1e-9))
    case.assertGreaterEqual(found["least_span"], max(busy) * (1 - 1e-9) if pairs_take_their_sum(found) else 0)
    case.assertAlmostEqual(sum(found["chunk_shares"]), 1)
    case.assertEqual(len(found["chunk_shares"]), found["chunks"])
    for row, peak in zip(rows, found["peak_activations"]):
        live, most = 0, 0
        for entry in row:
            share = found["chunk_shares"][entry["chunk"]]
            live += share if entry["kind"] == "F" else -share if entry["kind"] in "BW" else 0
            most = max(most, live)
        case.assertAlmostEqual(peak, most)
    # What waits for W, at the start of every pass: begun halves whose other half has not ended.
    for row, peak in zip(rows, found["peak_weight_inputs"]):
        ended = {unit(entry): entry["end"] for entry in row if entry["kind"] == "W"}
        begun = [(entry["start"], ended[unit(entry)], entry["chunk"]) for entry in row if entry["kind"] == "I"]
        most = max((sum(found["chunk_shares"][chunk] for start, end, chunk in begun if start <= now < end)
                    for now, _, _ in begun), default=0)
        case.assertAlmostEqual(peak, most)


class RoundPipe(unittest.TestCase):
    """Stages that go one way: every rule and figure from the passes and the layers of stages alone."""

    @staticmethod
    def made(devices, microbatches, cost, *words):
        return table("round-pipe", "--devices", devices, "--microbatches", microbatches, "--cost",
                     ",".join(map(str, cost)), *words)

    @staticmethod
    def layers_of(stage, forward, backward):
        """The layers of a stage: shares of all but the last, packed from the back; or one."""
        if stage >= forward:
            return [forward + backward - 1 - stage]
        return list(range(stage * (backward - 1) // forward, (stage + 1) * (backward - 1) // forward))

    def check(self, found, forward, backward, cost):
        devices, microbatches = found["devices"], found["microbatches"]
        self.assertEqual(found["stages"], forward + backward)
        # Every layer goes back once; forward, with what comes back, every layer but the last twice.
        ends = {(e["stage"], e["microbatch"]): (e["end"], device) for device, e in entries(found)}
        self.assertEqual(set(ends), {(s, m) for s in range(found["stages"]) for m in range(microbatches)})
        went = [layer for stage in range(forward) for layer in self.layers_of(stage, forward, backward)]
        self.assertEqual(went, list(range(backward - 1)))
        for device, entry in entries(found):
            stage, layers = entry["stage"], self.layers_of(entry["stage"], forward, backward)
            self.assertEqual((device, entry["kind"]), (stage % devices, "F" if stage < forward else "B"))
            time = len(layers) * cost[0] if stage < forward else sum(cost[:3])
            self.assertAlmostEqual(entry["end"] - entry["start"], time)
            if stage > 0:
                end, where = ends[stage - 1, entry["microbatch"]]
                self.assertGreaterEqual(entry["start"] + 1e-9, end + (cost[3] if where != device else 0))
        busy = []
        for row in found["passes"]:
            busy.append(sum(e["end"] - e["start"] for e in row))
            for before, after in zip(row, row[1:]):
                self.assertGreaterEqual(after["start"], before["end"])
        self.assertEqual(found["makespan"], max(row[-1]["end"] for row in found["passes"]))
        self.assertAlmostEqual(found["makespan_bubble_rate"], 1 - sum(busy) / devices / found["makespan"])
        for least in ("least_makespan", "least_span"):  # the work of the busiest device
            self.assertAlmostEqual(found[least], max(busy))
        held = [int(any(e["kind"] == "B" for e in row)) for row in found["passes"]]
        self.assertEqual((found["peak_activations"], found["peak_weight_inputs"]), (held, [0] * devices))

    def test_stages_and_times(self):
        for devices, microbatches in ((4, 8), (4, 4), (1, 1), (3, 2), (8, 16)):
            for cost in ((1, 1, 1, 0), (2, 3, 4, 0.5)):
                self.check(self.made(devices, microbatches, cost), devices, 3 * devices, cost)
        for forward, backward in ((1, 3), (2, 4), (3, 4), (3, 10)):
            words = ("--forward-stages", forward, "--backward-stages", backward)
            self.check(self.made(4, 6, (1, 1, 1, 0), *words), forward, backward, (1, 1, 1, 0))

    def test_equal_times_have_the_law(self):
        # The first stage has one layer less; all others take 3. It goes first, so the others wait for it alone.
        for devices in (2, 4, 6):
            for microbatches in (devices, 2 * devices, 32):
                found = self.made(devices, microbatches, (1, 1, 1, 0))
                self.assertEqual(found["makespan"], 3 * (4 * microbatches + devices - 1) - 1)

    def test_loads_of_weights(self):
        plain = self.made(4, 8, (1, 1, 1, 0))
        loaded = self.made(4, 8, (1, 1, 1, 0), "--with", "sharded-weights", "--gather", 2, "--scatter", 4)
        # The first load has two layers, and the last unload one; all others are hidden.
        self.assertEqual(loaded["makespan"], plain["makespan"] + 2 * 2 + 4)

    def test_refusals(self):
        words = ("round-pipe", "--devices", 4, "--microbatches", 8)
        for more, reason in ((["--forward-stages", 12], "at most 11 go forward, not 12"),
                             (["--forward-stages", 1, "--backward-stages", 2], "in all no fewer than devices"),
                             (["--with", "recompute"], "goes into sharded-weights and gathered-once alone"),
                             (["--chunks", 2], "round-pipe does not have the option --chunks"),
                             (["--format", "pytorch"], "gradients to the one before, which this flow does not")):
            result = run(*words, *more)
            self.assertEqual((result.returncode, result.stdout), (2, ""), more)
            self.assertIn(reason, result.stderr)

    def test_costs_of_layers_from_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            times = [[1 + i] for i in range(12)]  # of 12 layers
            costs = cost_file(folder, {"pipelining_costs": 1, "communication": 0, "forward": times, "backward_input": times,
                                       "backward_weight": times})
            found = table("round-pipe", "--devices", 4, "--microbatches", 8, "--cost", costs)
            for _, entry in entries(found):
                layers = self.layers_of(entry["stage"], 4, 12)
                self.assertAlmostEqual(entry["end"] - entry["start"],
                                       sum((1 if entry["kind"] == "F" else 3) * (1 + layer) for layer in layers))


class AttentionExchange(unittest.TestCase):
    WORDS = ("slimpipe", "--devices", 4, "--microbatches", 4, "--chunks", 8, "--stages-per-device", 1, "--tokens", 8192)

    @staticmethod
    def busy(found):
        return sum(entry["end"] - entry["start"] for _, entry in entries(found))

    def test_the_same_work_in_less_time(self):
        for ratio, cost, shown in ((0.5, "1.5,2.25,1", (1.124, 1.101)), (1, "2,3.5,1", (1.164, 1.104)), (8, "9,21,1", (1.298, 1.113))):
            words = (*self.WORDS, "--attention-ratio", ratio, "--cost", cost)
            plain, exchanged = table(*words, "--even"), table(*words, "--with", "attention-exchange")
            self.assertAlmostEqual(self.busy(plain), self.busy(exchanged))
            # What docs/how_to/attention_exchange.md says that its lesson prints.
            for found, times in zip((plain, exchanged), shown):
                self.assertAlmostEqual(found["makespan"] / (self.busy(found) / 4), times, delta=0.0005)

    def test_parts_of_layers(self):
        words = ("slimpipe", "--devices", 3, "--microbatches", 4, "--tokens", 600, "--attention-ratio", 2)
        for more, chunks, held in (([], 3, 2), (["--chunks", 6, "--stages-per-device", 1], 6, 1)):
            found = table(*words, *more, "--with", "attention-exchange")
            self.assertEqual(found["stages"], 3 * held * 4 * chunks)
            self.assertEqual({(e["kind"], e["stage"], e["microbatch"]) for _, e in entries(found)},
                             {(k, s, m) for k in "FB" for s in range(found["stages"]) for m in range(4)})
            self.assertIn("messages", output(*words, *more, "--with", "attention-exchange", "--format", "calls"))

    def test_refusals(self):
        words = ("--devices", 4, "--microbatches", 8, "--with", "attention-exchange")
        for name, more, reason in (("slimpipe", [], "needs --tokens and --attention-ratio"),
                                   ("seq1f1b", ["--tokens", 64, "--attention-ratio", 1], "attention-exchange is for slimpipe alone"),
                                   ("slimpipe", ["--tokens", 64, "--attention-ratio", 1, "--format", "pytorch"], "a chain")):
            result = run(name, *words, *more)
            self.assertEqual((result.returncode, result.stdout), (2, ""), more)
            self.assertIn(reason, result.stderr)


class Timetables(unittest.TestCase):
    def test_every_schedule_at_several_sizes(self):
        for name in (name for name in names() if name not in STAGES_GO_ONE_WAY):
            for devices, microbatches, cost in ((4, 8, "1,1,1"), (4, 8, "1,1.25,0.75,0.5"), (1, 1, "2,3,4,1"),
                                                (2, 4, "1,1,1,0"), (8, 16, "10,12,8,1"), (3, 2, "1,2,1")):
                words = with_needed_options(name, "--devices", devices, "--microbatches", microbatches, "--cost", cost)
                microbatches = words[words.index("--microbatches") + 1]
                with self.subTest(words=words):
                    result = run(*words)
                    if result.returncode == 2 and devices != 4:  # a precondition of the schedule
                        self.assertEqual(result.stdout, "")
                        continue
                    found = table(*words)
                    self.assertEqual((found["schedule"], found["devices"], found["microbatches"]),
                                     (name, devices, microbatches))
                    self.assertEqual(list(found), ["schedule", "devices", "stages", "microbatches", "chunks", "cost",
                                                   "chunk_shares", "makespan", "span", "bubble_rate",
                                                   "makespan_bubble_rate", "least_makespan", "least_span",
                                                   "peak_activations", "peak_weight_inputs", "passes"])
                    check_rules(self, found)
                    check_durations(self, found)
                    check_figures(self, found)

    def test_figures_of_the_papers(self):
        # A user's model under ZB-H1 held 8 activations and 8 weight inputs on the last of 8 devices.
        found = table("zb-h1", "--devices", 8, "--microbatches", 32)
        self.assertEqual((found["peak_activations"][-1], found["peak_weight_inputs"][-1]), (8, 8))
        found = table("1f1b", "--devices", 8, "--microbatches", 32, "--cost", "10,12,8")
        self.assertEqual(found["makespan"], (32 + 7) * 30)
        self.assertEqual(found["peak_activations"], [8, 7, 6, 5, 4, 3, 2, 1])
        self.assertEqual(found["cost"], {"forward": 10, "backward_input": 12, "backward_weight": 8,
                                         "communication": 0})
        found = table("seq1f1b", "--devices", 8, "--microbatches", 32, "--chunks", 4)
        self.assertEqual(found["peak_activations"][0], 11 / 4)
        self.assertEqual(found["makespan"], (32 * 4 + 7) * 3)
        self.assertEqual(found["chunks"], 4)
        self.assertEqual(table("gpipe", "--devices", 4, "--microbatches", 6)["peak_activations"], [6] * 4)

    def test_overlapped_pairs_take_the_time_of_their_option(self):
        words = ("dualpipe-v", "--devices", 2, "--microbatches", 4)
        durations = {round(e["end"] - e["start"], 9) for _, e in entries(table(*words, "--pair-cost", "2.25"))}
        self.assertEqual(durations, {1, 2, 2.25})
        for each, pairs in ((table(*words), True), (table(*words, "--unfused"), False)):
            together = any(a["start"] == b["start"] for row in each["passes"] for a, b in zip(row, row[1:]))
            self.assertEqual(together, pairs)

    def test_pairs_and_whole_backward_passes_hide_all_reduces(self):
        words = ("--devices", 3, "--microbatches", 9, "--cost", "4,3,2")
        for name, pairs in (("1f1b", False), ("zb-h1", False), ("stp", True)):
            plain, waits = table(name, *words), table(name, *words, "--all-reduce", 0.5)
            self.assertEqual(waits["cost"]["all_reduce"], 0.5)
            self.assertNotIn("all_reduce", plain["cost"])
            for row, other in zip(plain["passes"], waits["passes"]):
                for i, (a, b) in enumerate(zip(row, other)):
                    paired = pairs and any(0 <= j < len(row) and row[j]["start"] == a["start"] for j in (i - 1, i + 1))
                    alone = a["kind"] in "FI" and not paired
                    self.assertAlmostEqual(b["end"] - b["start"], a["end"] - a["start"] + (0.5 if alone else 0))
            self.assertLessEqual(waits["least_makespan"], waits["makespan"])
        self.assertIn(", all_reduce 0.5\n", output("stp", *words, "--all-reduce", 0.5))
        self.assertIn(", all-reduce 0.5", output("stp", *words, "--all-reduce", 0.5, "--format", "svg"))
        for refused, reason in ((["stp", "--devices", 3, "--microbatches", 7], "take DualPipeV or VHalf"),):
            result = run(*refused)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertIn(reason, result.stderr)

    def test_chunks_of_equal_work_and_of_equal_length(self):
        tokens, chunks, ratio, cost = 32768, 4, 1.5, (1.0, 1.25, 0.75)
        words = ("seq1f1b", "--devices", 8, "--microbatches", 16, "--chunks", chunks, "--cost", "1,1.25,0.75",
                 "--tokens", tokens, "--attention-ratio", ratio)
        bubbles = {}
        for even in (False, True):
            found = table(*words, *(["--even"] * even))
            check_rules(self, found)
            check_figures(self, found)
            lengths = [share * tokens for share in found["chunk_shares"]]
            self.assertAlmostEqual(sum(lengths), tokens)
            times = {}
            for _, entry in entries(found):
                times.setdefault((entry["kind"], entry["chunk"]), set()).add(round(entry["end"] - entry["start"], 6))
            total = {}
            for chunk in range(chunks):
                begin, end = sum(lengths[:chunk]), sum(lengths[:chunk + 1])
                linear, attention = (end - begin) / tokens, (end ** 2 - begin ** 2) / tokens ** 2
                forward = cost[0] * chunks * (linear + ratio * attention) / (1 + ratio)
                # Backward: twice the forward work, of attention two and a half times, all for the input.
                inputs = cost[1] * chunks * (linear + 2.5 * ratio * attention) / (1 + 2.5 * ratio)
                weights = cost[2] * chunks * linear
                for kind, wanted in (("F", forward), ("B", inputs + weights)):
                    self.assertEqual(len(times[kind, chunk]), 1)
                    self.assertAlmostEqual(times[kind, chunk].pop(), wanted, places=5)
                total[chunk] = forward + inputs + weights
            imbalance = max(total.values()) * chunks / sum(total.values())
            self.assertLess(imbalance, 1.015) if not even else self.assertGreater(imbalance, 1.3)
            bubbles[even] = found["bubble_rate"]
            text = output(*words, *(["--even"] * even))
            self.assertIn("tokens of chunks: " + ", ".join(str(round(length)) for length in lengths) + ";", text)
        self.assertLess(bubbles[False], bubbles[True])

    def test_chunks_are_timed_by_the_work_they_were_cut_by(self):
        words = ("seq1f1b", "--devices", 8, "--microbatches", 16, "--chunks", 4, "--tokens", 4096,
                 "--attention-ratio", 1.5)
        found = table(*words)
        # The gradient of the input of attention takes two and a half times its forward work.
        self.assertEqual(found["cost"], {"forward": 1, "backward_input": 1.9, "backward_weight": 0.4,
                                         "communication": 0})
        # By the closed form of the bubble, (P - 1)(F + B) of the first chunk on M C (F + B), plus what rounding adds.
        self.assertAlmostEqual(found["bubble_rate"], 7 / (64 + 7), delta=0.015)
        self.assertEqual(table(*words, "--cost", "1,1.9,0.4"), found)
        # Cut for other times, chunks are equal in those.
        found = table(*words, "--cost", "1,1,1")
        whole = {}
        for _, entry in entries(found):
            whole[entry["chunk"], entry["kind"]] = entry["end"] - entry["start"]
        totals = [whole[chunk, "F"] + whole[chunk, "B"] for chunk in range(4)]
        self.assertLess(max(totals) / min(totals), 1.01)

    def test_default_cost_and_one_chunk_for_all(self):
        words = ("1f1b", "--devices", 2, "--microbatches", 3)
        self.assertEqual(table(*words), table(*words, "--cost", "1,1,1,0"))
        self.assertEqual(table(*words), table(*words, "--chunks", "1"))

    def test_value_behind_an_equals_sign(self):
        self.assertEqual(output("1f1b", "--devices=2", "--microbatches=3", "--format=csv"),
                         output("1f1b", "--devices", 2, "--microbatches", 3, "--format", "csv"))

    def test_csv_has_the_passes_of_the_json(self):
        plain = ("--devices", 3, "--microbatches", 4, "--cost", "0.1,0.2,0.3,0.05")
        for words, more in ((("seq1f1b", *plain, "--chunks", 2), []),
                            (("1f1b", *plain, "--with", "recompute"), []),
                            (("1f1b", *plain, "--with", "offload", "--copy-cost", 0.1), ["copy_out", "copy_in"]),
                            (("interleaved", *plain, "--with", "sharded-weights", "--gather", 0.1), ["network"])):
            with self.subTest(words=words):
                rows = list(csv.DictReader(io.StringIO(output(*words, "--format", "csv"))))
                found = table(*words)
                self.assertEqual([key for key in found if key in ("copy_out", "copy_in", "network")], more)
                wanted = [{"device": device, **entry} for key in ["passes", *more]
                          for device, row in enumerate(found[key]) for entry in row]
                self.assertEqual(len(rows), len(wanted))
                for row, entry in zip(rows, wanted):
                    for key, value in entry.items():
                        self.assertEqual(row[key], value) if key == "kind" else self.assertEqual(float(row[key]), value)

    def test_trace_has_the_passes_of_the_json(self):
        words = ("1f1b", "--devices", 3, "--microbatches", 4)
        events = json.loads(output(*words, "--format", "trace"))["traceEvents"]
        drawn = sorted((e["tid"], e["ts"] / 1000, (e["ts"] + e["dur"]) / 1000) for e in events if e["ph"] == "X")
        self.assertEqual(drawn, sorted((d, e["start"], e["end"]) for d, e in entries(table(*words))))

    def test_trace_has_arrows_and_counters_that_agree_with_the_json(self):
        words = ("zb-h1", "--devices", 4, "--microbatches", 8)
        events = json.loads(output(*words, "--format", "trace"))["traceEvents"]
        self.assertEqual(sum(e["ph"] == "s" for e in events), 2 * 3 * 8)
        peaks = {}
        for event in events:
            if event["ph"] == "C":
                for key, value in event["args"].items():
                    at = (event["name"], key)
                    peaks[at] = max(peaks.get(at, 0), value)
        found = table(*words)
        for device in range(4):
            name = f"kept on device {device}"
            self.assertEqual(peaks[name, "activations"], found["peak_activations"][device])
            self.assertEqual(peaks[name, "weight inputs"], found["peak_weight_inputs"][device])

    def test_compare_has_the_figures_of_every_schedule_at_equal_work(self):
        words = ("--devices", 4, "--microbatches", 12, "--cost", "4,6,2,0.5", "--memory-limit", 4)
        rows = json.loads(output("compare", *words, "--format", "json"))
        self.assertEqual([row["schedule"] for row in rows], names())
        text = output("compare", *words)
        lines = {row["schedule"]: row for row in csv.DictReader(io.StringIO(output("compare", *words, "--format", "csv")))}
        for row in rows:
            held = LAYERS_OF_DEVICE.get(row["schedule"], row["stages"] / 4)
            rounded = 0 if held == row["stages"] // 4 else 1e-9  # helix has 9 stages
            costs = ",".join(str(time / held / row["chunks"]) for time in (4, 6, 2))
            own = [row["schedule"], *words[:4], "--cost", costs + ",0.5"]
            if "needs the option" in run(*own).stderr:
                own += ["--memory-limit", 4 * held]
            found = table(*own)
            with self.subTest(own=own):
                for key in ("makespan", "span", "bubble_rate", "makespan_bubble_rate", "least_makespan"):
                    self.assertAlmostEqual(row[key], found[key], delta=rounded)
                    self.assertAlmostEqual(float(lines[row["schedule"]][key]), found[key], delta=rounded)
                for key in ("peak_activations", "peak_weight_inputs"):
                    self.assertAlmostEqual(row[key], max(found[key]) / held)
                # Every device does the work of 12 microbatches, 12 each, however the work is cut.
                twice = WORK_DONE_TWICE.get(row["schedule"], 0)
                self.assertAlmostEqual(row["makespan"] * (1 - row["makespan_bubble_rate"]), 12 * 12 + twice)
                gap = re.search(rf"\n{row['schedule']} +{row['stages']} +{row['chunks']} +[\d.]+ +([\d.]+) %", text)
                self.assertAlmostEqual(float(gap[1]), 100 * max(0, row["makespan"] / row["least_makespan"] - 1), delta=0.051)
        # What a schedule cannot do is said in its line, and the others go on.
        self.assertRegex(output("compare", "--devices", 3, "--microbatches", 6), r"\ndualpipe +[^\n]*even")

    def test_calls_add_up(self):
        for policy, communicators in (("pipeline", 1), ("pair", 3), ("edge", 6), ("exchange", 1)):
            lines = output("1f1b", "--devices", 4, "--microbatches", 8, "--format", "calls",
                           "--policy", policy).splitlines()
            self.assertIn(f"policy {policy}: {communicators} communicator", lines[0])
            rows = [[float(cell) for cell in line.split()[1:]] for line in lines[2:]]
            *devices, total = rows
            self.assertEqual([sum(column) for column in zip(*devices)][:8], total[:8])
            for row in rows:
                self.assertEqual(sum(row[1:7]), row[7])
                self.assertAlmostEqual(row[7] / row[0], row[8], places=3)
            self.assertEqual(total[6], 0)        # copies
            self.assertEqual(total[0], 64)       # passes
            self.assertEqual(total[3], 2 * 48)   # both ends of 2 x 3 x 8 messages
        copied = ["1f1b", "--devices", 4, "--microbatches", 8, "--with", "offload", "--copy-cost", 0.1]
        last = [float(cell) for cell in output(*copied, "--format", "calls").splitlines()[-1].split()[1:]]
        moved = output(*copied, "--format", "csv").count(",H,")
        self.assertGreater(moved, 0)
        self.assertEqual((last[0], last[6], sum(last[1:7])), (64, 2 * moved, last[7]))  # there and back
        lines = output("1f1b", "--devices", 4, "--microbatches", 8, "--format", "calls",
                       "--bytes", "1,0,0,0,0,8,8").splitlines()
        self.assertEqual(float(lines[-1].split()[4]), 2 * (48 + 2 + 6))  # tied gradients; rows there and back

    def test_memory_map_has_no_gaps(self):
        lines = output("seq1f1b", "--devices", 3, "--microbatches", 4, "--chunks", 2, "--format", "memory",
                       "--bytes", "100,1000,0,300").splitlines()[1:]
        end = 0
        for line in lines:
            cells = line.split()
            if cells[1] == "arena":
                self.assertEqual(int(cells[3]), end)
                end = 0
                continue
            self.assertEqual(int(cells[4]), end)
            end += int(cells[2]) * int(cells[3])
        self.assertTrue(lines[0].startswith("     0  activation             4             1024             0"), lines[0])

    def test_svg_is_well_formed_and_has_a_cell_per_pass(self):
        for name in names():
            words = with_needed_options(name, "--devices", 4, "--microbatches", 8)
            with self.subTest(words=words):
                root = xml.etree.ElementTree.fromstring(output(*words, "--format", "svg"))
                space = "{http://www.w3.org/2000/svg}"
                self.assertEqual(root.tag, space + "svg")
                self.assertEqual({e.tag for e in root.iter()}, {space + tag for tag in
                                                               ("svg", "rect", "text", "g", "title")})
                cells = [e for e in root.iter(space + "rect") if e.find(space + "title") is not None]
                self.assertEqual(len(cells), sum(map(len, table(*words)["passes"])))

    def test_pytorch_files_come_back_as_they_went(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "schedule.csv"
            for name in names():
                words = with_needed_options(name, "--devices", 4, "--microbatches", 8)
                for content in ("pytorch", "pytorch-comms"):
                    with self.subTest(words=words, content=content):
                        # Some orders follow from the costs, which the file does not hold.
                        result = run(*words, "--cost", "3,2,1,0.5", "--format", content)
                        if name.startswith("seq") or name in ("bitpipe", "chimera", "chunkflow", "dualpipe", "helix", "round-pipe", "slice-v", "slimpipe", "stp", "svpp", "wei-pipe"):
                            self.assertEqual((result.returncode, result.stdout), (2, ""))
                            continue
                        file.write_text(result.stdout, encoding="utf-8")
                        self.assertEqual("SEND_F" in result.stdout, content == "pytorch-comms")
                        self.assertEqual(output("csv", file, "--format", content), result.stdout)
                        wanted = table(*words, "--cost", "3,2,1,0.5")
                        loaded = table("csv", file, "--cost", "3,2,1,0.5")
                        self.assertEqual(loaded, {**wanted, "schedule": "csv"})

    # Embedding and output layer on one device, and the ends of a model of three stages.
    ELSEWHERE = ("0F0,3F0,0F1,3B0,0B0,3F1,3B1,0B1\n1F0,1F1,1B0,1B1\n2F0,2F1,2B0,2B1\n", "0F0,2F0,2B0,0B0\n1F0,1B0\n")

    def test_files_have_their_stages_anywhere(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "schedule.csv"
            for text, makespan in zip(self.ELSEWHERE, (22, 9)):
                file.write_text(text, encoding="utf-8")
                found = table("csv", file)
                self.assertEqual((found["makespan"], found["stages"]), (makespan, len(set(re.findall(r"(\d)F", text)))))
                self.assertEqual(output("csv", file, "--format", "pytorch"), text)
                copied = ["--with", "offload", "--copy-cost", 0.5]
                for words in ([], ["--with", "recompute"], ["--with", "recompute-first"], copied, ["--with", "sharded-weights"]):
                    for form in ("text", "svg", "html", "trace", "calls", "memory"):
                        with self.subTest(text=text, words=words, form=form):
                            self.assertTrue(output("csv", file, *words, "--format", form))
                    self.assertEqual(output("csv", file, *words, "--format", "pytorch"), text)
                again = pathlib.Path(folder) / "again.csv"
                again.write_text(output("csv", file, "--format", "pytorch-comms"), encoding="utf-8")
                self.assertEqual(table("csv", again), found)

    def test_files_in_adapters_are_their_schedules_in_adapters(self):
        adapters = (["recompute"], ["recompute", "--recompute-cost", 0.5], ["recompute-first"], ["offload", "--copy-cost", 0.5],
                    ["offload-half", "--copy-cost", 0.5, "--offloaded-stages", 1], ["sharded-weights", "--gather", 1, "--scatter", 0.5],
                    ["gathered-once", "--gather", 1], ["weights-on-host", "--gather", 1], ["vocabulary-1"],
                    ["vocabulary-2", "--vocabulary-cost", "0.5,1,1,0.5"], ["vocabulary-interlaced"])
        size = ("--devices", 4, "--microbatches", 8)
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "schedule.csv"
            for name in ("gpipe", "zb-h1", "interleaved", "v-half"):
                file.write_text(output(name, *size, "--format", "pytorch"), encoding="utf-8")
                for words in adapters:
                    with self.subTest(name=name, words=words):
                        wanted = table(name, *size, "--with", *words)
                        self.assertEqual(table("csv", file, "--with", *words), {**wanted, "schedule": f"csv with {words[0]}"})

    def test_schedules_in_adapters(self):
        for schedule in ("1f1b", "seq1f1b", "zb-h1", "v-half", "interleaved"):
            for words in (["recompute"], ["recompute-first"], ["offload", "--copy-cost", "0.25"],
                          ["offload-half", "--copy-cost", "0.25", "--offloaded-stages", "1"], ["vocabulary-1"], ["vocabulary-2", "--vocabulary-cost", "0,1,1,0,0.5,0.5"],
                          ["vocabulary-interlaced"]):
                with self.subTest(schedule=schedule, words=words):
                    made = table(schedule, "--devices", 4, "--microbatches", 8, "--with", *words)
                    kinds = {one["kind"] for row in made["passes"] for one in row}
                    self.assertLessEqual({"recompute": {"K", "R"}, "offload": {"H", "Q"}}.get(words[0].split("-")[0], set("ESTG")), kinds)
        size = ("--devices", 4, "--microbatches", 8)
        for cost in (0, 0.25, 1):  # of a recompute that brings a share of the activation back
            everywhere = table("1f1b", *size, "--with", "recompute-first", "--recompute-cost", cost)["makespan"]
            self.assertEqual(everywhere, 8 * (3 + cost) + 3 * 3)
            made = table("1f1b", *size, "--with", "recompute", "--recompute-cost", cost)
            self.assertTrue(8 * (3 + cost) <= made["makespan"] <= everywhere - cost, made["makespan"])
            # Right before its own backward pass a forward pass keeps its activation.
            self.assertEqual({one["kind"] for one in made["passes"][3]}, {"F", "B"})
        self.assertEqual(table("zb-auto", "--devices", 8, "--microbatches", 24, "--memory-limit", 2, "--with", "recompute")["makespan"], 107)
        with tempfile.TemporaryDirectory() as folder:  # a last stage that is much slower than the others computes nothing again
            file = pathlib.Path(folder) / "costs.json"
            file.write_text(json.dumps({"pipelining_costs": 1, "communication": 0, **{kind: [[each] for each in (3, 2, 2, 2, 2, 3, 3, 8.4)]
                                        for kind in ("forward", "backward_input", "backward_weight")}}), encoding="utf-8")
            for adapted, wanted in (("recompute", 857.4), ("recompute-first", 1126.2)):
                self.assertAlmostEqual(table("1f1b", "--devices", 8, "--microbatches", 32, "--with", adapted, "--cost", file)["makespan"], wanted)
        for cost in ("0.25", "8"):  # chunks: what hides under the next one moves
            self.assertEqual(table("seq1f1b", *size, "--with", "offload-chunks", "--copy-cost", cost)["makespan"],
                             table("seq1f1b", *size)["makespan"])
        plain = table("1f1b", "--devices", 4, "--microbatches", 8, "--with", "vocabulary-2", "--vocabulary-cost", "0,0,0,0")
        self.assertEqual(plain["peak_activations"], [6, 5, 4, 3])
        for load, unload, later in ((4, 8, 0), (5, 8, 1), (4, 10, 2)):  # P F and P B hide
            self.assertEqual(table("chronos", *size, "--with", "weights-on-host", "--gather", load, "--scatter", unload)["makespan"],
                             table("chronos", *size)["makespan"] + later)
        self.assertEqual(plain["makespan"], 8 * 3 + 3 * 3)
        at_once = table("1f1b", "--devices", 5, "--microbatches", 12, "--with", "vocabulary-interlaced", "--vocabulary-cost", "0,1,1,0")
        self.assertEqual(at_once["peak_activations"], [7, 6, 5, 4, 3])
        self.assertEqual(at_once["makespan"], 12 * (3 + 2) + 4 * 3)

    def test_stages_with_nothing_to_train(self):
        # Two encoders of four stages: found by exhaustive search, where 1F1B takes 85 and 119.
        for latency, best in ((1, 71), (2, 89)):
            words = ("1f1b", "--devices", 4, "--microbatches", 16, "--cost", f"1,1,1,{latency}")
            made = table(*words, "--frozen", 2)
            self.assertLessEqual(made["makespan"], best)
            self.assertGreater(table(*words)["makespan"], best)
        for name in names():
            if name in ("helix", "wei-pipe", "round-pipe"):
                continue
            words = with_needed_options(name, "--devices", 4, "--microbatches", 8, "--cost", "1,1.5,0.5,0.25")
            plain = table(*words)
            last = max(each["stage"] for row in plain["passes"] for each in row)
            for count in (1, last):
                made = table(*words, "--frozen", count)
                def passes(of):
                    return [sorted((each["kind"], each["stage"], each["microbatch"], each["chunk"]) for each in row)
                            for row in of["passes"]]
                self.assertEqual(passes(made), [[each for each in row if each[0] == "F" or each[1] >= count]
                                                for row in passes(plain)], name)
                self.assertLessEqual(made["makespan"], plain["makespan"] * (1 + 1e-9), name)
                self.assertLessEqual(made["least_makespan"], made["makespan"] * (1 + 1e-9), name)
        text = output("1f1b", "--devices", 4, "--microbatches", 16, "--frozen", 2)
        self.assertIn("1f1b, 2 stages frozen", text)
        words = ("1f1b", "--devices", 4, "--microbatches", 4, "--frozen", 2, "--with", "recompute")
        # Messages of a plan: forwards between all four devices, gradients between the trained two.
        self.assertIn("; 16 messages,", output(*words, "--format", "calls"))
        for words, wanted in ((("1f1b", "--frozen", 4), "all stages are frozen, so nothing is trained"),
                              (("1f1b", "--frozen", 5), "there is no stage 4; stages are 0 to 3"),
                              (("1f1b", "--frozen", 0), "--frozen must be at least 1, not '0'"),
                              (("1f1b", "--frozen", 1, "--with", "vocabulary-2"), "1f1b with vocabulary-2 has no frozen stages: weights or work"),
                              (("1f1b", "--frozen", 1, "--with", "sharded-weights"), "1f1b with sharded-weights has no frozen stages"),
                              (("helix", "--frozen", 1, "--stages-per-device", 2), "helix has no frozen stages"),
                              (("wei-pipe", "--frozen", 1), "wei-pipe has no frozen stages"),
                              (("round-pipe", "--frozen", 1), "round-pipe has no frozen stages")):
            result = run(*words, "--devices", 4, "--microbatches", 8)
            self.assertEqual((result.returncode, result.stdout), (2, ""), words)
            self.assertIn(wanted, result.stderr)

    def test_v_auto_on_two_devices_is_as_short_as_can_be(self):
        for microbatches, most in ((4, 211), (6, 311), (16, 811)):
            self.assertLessEqual(table("v-auto", "--devices", 2, "--microbatches", microbatches, "--memory-limit", 4, "--cost", "10,10,5,1")["span"], most)

    def test_adapters_that_cannot_be(self):
        for words, text in (
                (["1f1b", "--with", "shards"], "--with wants recompute, recompute-first, offload, offload-half, "
                                               "offload-chunks, vocabulary-1, vocabulary-2, vocabulary-interlaced, sharded-weights, gathered-once, "
                                               "weights-on-host or attention-exchange, not 'shards'"),
                (["1f1b", "--vocabulary-cost", "1,1,1,1"], "--vocabulary-cost is for a vocabulary in shards only"),
                (["1f1b", "--with", "vocabulary-1", "--vocabulary-cost", "1,1"], "wants 4 or 6 times, E,S,T,G or"),
                (["1f1b", "--with", "offload"], "--with offload needs --copy-cost T above 0"),
                (["1f1b", "--copy-cost", "1"], "--copy-cost is for --with offload, offload-half and offload-chunks only"),
                (["1f1b", "--recompute-cost", "1"], "--recompute-cost is for --with recompute and recompute-first only"),
                (["1f1b", "--offloaded-stages", "1"], "--offloaded-stages is for --with offload and offload-half only"),
                (["chunkflow", "--with", "recompute"], "goes into no adapter"),
                (["slice-v", "--chunk-counts", "1,4", "--with", "vocabulary-2"], "goes into no adapter"),
                (["dualpipe", "--with", "vocabulary-2"], "shards stand around stages that are looped or in waves")):
            with self.subTest(words=words):
                result = run(words[0], "--devices", 4, "--microbatches", 8, *words[1:])
                self.assertEqual((result.returncode, result.stdout), (2, ""))
                self.assertIn(text, result.stderr)

    def test_iterations_without_a_barrier(self):
        words = ["--devices", 4, "--microbatches", 8, "--iterations", 10]
        self.assertIn("\n10 iterations: 270 with a barrier at the optimizer's step, 243 where the next iteration validates it "
                      "(10 % less)\n", output("zb-h2", *words))
        self.assertIn("\n10 iterations: 330 with a barrier at the optimizer's step, 330 where the next iteration validates it "
                      "(0 % less)\n", output("1f1b", *words))
        refused = run("zb-h2", *words, "--format", "csv")
        self.assertEqual((refused.returncode, refused.stdout), (2, ""))

    def test_text_fits_the_width(self):
        for width in (40, 77, 200):
            lines = output("1f1b", "--devices", 12, "--microbatches", 40, "--width", width).splitlines()
            rows = [line for line in lines if re.match(r"device \d+ +\|", line)]
            self.assertEqual(len(rows), 12)
            self.assertLessEqual(max(map(len, rows)), width)

    def test_help_and_list(self):
        self.assertIn("--microbatches M", output("--help"))
        self.assertIn("--microbatches M", output("systems", "--help"))
        self.assertLessEqual({"gpipe", "1f1b", "seq1f1b"}, set(names()))
        schedules, heading, adapters = output("--list").split("\n\n")
        self.assertEqual(heading, "Adapters of a schedule, or of a FILE (--with NAME):")
        for line in [*schedules.splitlines(), *adapters.splitlines()]:
            self.assertRegex(line, r"^\S+ +\S.{10,130}$")
        refused = run("1f1b", "--with", "nothing").stderr
        self.assertEqual({line.split()[0] for line in adapters.splitlines()},
                         set(re.search(r"--with wants (.*), not", refused)[1].replace(" or ", ", ").split(", ")))
        self.assertRegex(output("--list"), r"\nseq1f1b +[^\n]*4 chunks \(--chunks, --eager\)\n")


def cost_file(folder, costs):
    path = pathlib.Path(folder, "costs.json")
    path.write_text(json.dumps(costs), encoding="utf-8")
    return str(path)


class MeasuredCosts(unittest.TestCase):
    """--cost FILE: every pass takes what the file says of its stage and chunk."""
    COSTS = {"pipelining_costs": 1, "communication": 0.25, "forward": [[1, 2], [3, 4.5], [2, 2], [5, 1]],
             "backward_input": [[2, 3], [4, 5], [1, 1], [7, 2]], "backward_weight": [[1, 1], [0, 2], [3, 3], [1, 1]]}
    SIZE = ("--devices", 2, "--microbatches", 5)

    def check_times(self, found):
        """Stages and chunks of whole ones of the file, or halves of them."""
        stages, chunks = found["stages"], found["chunks"]
        times = {}
        for kind, name in (("F", "forward"), ("I", "backward_input"), ("W", "backward_weight")):
            fine = [[self.COSTS[name][s // 2][c // 4] / 2 / 4 for c in range(8)] for s in range(8)]  # 8 x 8 equal pieces
            high, wide = 8 // stages, 8 // chunks
            for s in range(stages):
                for c in range(chunks):
                    times[kind, s, c] = sum(sum(row[c * wide:(c + 1) * wide]) for row in fine[s * high:(s + 1) * high])
        for _, entry in entries(found):
            s, _, c = unit(entry)
            wanted = times["I", s, c] + times["W", s, c] if entry["kind"] == "B" else times[entry["kind"], s, c]
            self.assertAlmostEqual(entry["end"] - entry["start"], wanted, places=9)
        for kind, name in (("F", "forward"), ("I", "backward_input"), ("W", "backward_weight")):
            mean = sum(time for (of, _, _), time in times.items() if of == kind) / stages / chunks
            self.assertAlmostEqual(found["cost"][name], mean, places=9)

    def test_every_cut_takes_the_times_of_the_file(self):
        with tempfile.TemporaryDirectory() as folder:
            file = cost_file(folder, self.COSTS)
            for words in (("1f1b",), ("zb-h1",), ("interleaved",), ("interleaved", "--stages-per-device", 4), ("v-half",),
                          ("seq1f1b", "--chunks", 2), ("seq1f1b", "--chunks", 8),
                          ("seq1f1b-zb-interleaved", "--chunks", 4)):
                with self.subTest(words=words):
                    found = table(*words, "--devices", 2, "--microbatches", 6, "--cost", file)
                    check_rules(self, found)
                    self.check_times(found)
            order = pathlib.Path(folder, "order.csv")
            order.write_text(output("1f1b", *self.SIZE, "--format", "pytorch"), encoding="utf-8")
            read = table("csv", order, "--cost", file)
            self.check_times(read)
            self.assertEqual(read["makespan"], table("1f1b", *self.SIZE, "--cost", file)["makespan"])
            page = output("1f1b", *self.SIZE, "--cost", file, "--format", "html", "--against", "seq1f1b")
            self.assertIn("seq1f1b", page)

    def extreme(self, folder, time):
        return cost_file(folder, {**self.COSTS, "backward_weight": [[1, 1], [0, 2], [3, time], [1, 1]]})

    def test_outputs_of_extreme_times_are_read_back(self):
        with tempfile.TemporaryDirectory() as folder:
            for time in (1e12, 1e-12):
                words = ("zb-h1", *self.SIZE, "--cost", self.extreme(folder, time), "--format")
                found = strict_json(output(*words, "json"))
                check_rules(self, found)
                self.assertEqual(time == 1e12, found["makespan"] > 1e11)
                strict_json(output(*words, "trace"))
                rows = list(csv.DictReader(io.StringIO(output(*words, "csv"))))
                self.assertEqual(max(float(row["end"]) for row in rows), found["makespan"])
                picture = xml.etree.ElementTree.fromstring(output(*words, "svg"))
                for element in picture.iter():
                    for name in ("x", "y", "width", "height"):
                        self.assertRegex(element.get(name, "0"), r"^[0-9.e+-]+%?$")

    def test_times_beyond_those_of_the_command_line_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            for time in (1e308, 1e290, 1.1e12, 9e-13, 1e-290, -1):
                result = run("zb-h1", *self.SIZE, "--cost", self.extreme(folder, time))
                self.assertEqual((result.returncode, result.stdout), (2, ""))
                self.assertIn("costs.json': costs, line 1: 'backward_weight' has a time for stage 2, chunk 1 that is not 0 or "
                              "between 1e-12 and 1e12", result.stderr)

    def test_compare_and_search_take_the_same_times(self):
        with tempfile.TemporaryDirectory() as folder:
            file = cost_file(folder, self.COSTS)
            compared = json.loads(output("compare", *self.SIZE, "--cost", file, "--format", "json"))
            made = {line["schedule"]: line["makespan"] for line in compared if "makespan" in line}
            self.assertGreater(len(made), 15)
            for name in ("gpipe", "1f1b", "zb-h1", "interleaved", "seq1f1b", "v-half"):
                self.assertEqual(made[name], table(name, *self.SIZE, "--cost", file)["makespan"])
            self.assertIn(f"costs from {file}, in the mean a device's share of the model takes forward 10.25,",
                          output("compare", *self.SIZE, "--cost", file))
            words = ("search", *self.SIZE, "--memory", 2, "--moves", 2000, "--like", "zb-h1", "--cost", file)
            found = table(*words)
            self.check_times(found)
            self.assertLessEqual(found["makespan"], made["zb-h1"])
            header = output(*words, "--format", "header")
            self.assertRegex(header, rf"--cost {file} --seed 1 --moves \d+")

    def test_a_file_of_equal_costs_is_as_good_as_numbers(self):
        with tempfile.TemporaryDirectory() as folder:
            file = cost_file(folder, {"pipelining_costs": 1, "communication": 0.5, "forward": [[1], [1]],
                                      "backward_input": [[1.5], [1.5]], "backward_weight": [[0.5], [0.5]]})
            for words in (("1f1b", *self.SIZE), ("compare", *self.SIZE),
                          ("search", *self.SIZE, "--memory", 2, "--moves", 2000)):
                by_file, by_numbers = (output(*words, "--format", "csv", "--cost", cost)
                                       for cost in (file, "1,1.5,0.5,0.5"))
                self.assertEqual(by_file, by_numbers)


class Mistakes(unittest.TestCase):
    GOOD = ("1f1b", "--devices", "4", "--microbatches", "8")

    def refused(self, *words, reason):
        result = run(*words)
        with self.subTest(words=words):
            self.assertEqual(result.returncode, 2)
            self.assertEqual(result.stdout, "")
            self.assertRegex(re.sub(PROGRESS, "", result.stderr), r"\Atimetable: [^\n]+\n\Z")
            self.assertIn(reason, result.stderr)

    def test_names(self):
        self.refused(reason="the name of a schedule is missing")
        self.refused("--devices", 4, "--microbatches", 8, reason="name of a schedule is missing")
        self.refused("1b1f", *self.GOOD[1:], reason="did you mean 1f1b")
        self.refused("gpip", *self.GOOD[1:], reason="did you mean gpipe?")
        self.refused("nothing-like-it", *self.GOOD[1:], reason="there is no schedule 'nothing-like-it'")
        self.refused("", *self.GOOD[1:], reason="there is no schedule ''")
        self.refused(*self.GOOD, "gpipe", reason="more than the name")
        self.refused("1f1b\nx", *self.GOOD[1:], reason="there is no schedule")

    def test_extents(self):
        for bad, reason in (("0", "at least 1"), ("-3", "at least 1"), ("x", "whole number"), ("4x", "whole number"),
                            ("4.5", "whole number"), ("", "whole number"), (" 4", "whole number"),
                            ("+4", "whole number"), ("99999999999999999999", "out of range")):
            self.refused("1f1b", "--devices", bad, "--microbatches", "8", reason=reason)
            self.refused("1f1b", "--devices", "4", "--microbatches", bad, reason=reason)
            self.refused("seq1f1b", *self.GOOD[1:], "--chunks", bad, reason=reason)
        self.refused("1f1b", "--devices", "4", reason="--microbatches is missing")
        self.refused("1f1b", "--microbatches", "4", reason="--devices is missing")

    def test_absurd_sizes(self):
        self.refused("1f1b", "--devices", "2000000000", "--microbatches", "2000000000", reason="65535")
        self.refused("1f1b", "--devices", "60000", "--microbatches", "60000", reason="2^28")
        self.refused("1f1b", "--devices", "8000", "--microbatches", "8000", reason="passes")
        self.refused("seq1f1b", "--devices", "64", "--microbatches", "60000", "--chunks", "60000", reason="2^28")
        self.refused("1f1b", "--devices", "1000", "--microbatches", "1000", "--format", "svg", reason="viewer")

    def test_options(self):
        self.refused(*self.GOOD, "--device", "4", reason="did you mean --devices")
        self.refused(*self.GOOD, "--frobnicate", reason="there is no option")
        self.refused(*self.GOOD, "-x", reason="there is no option")
        self.refused(*self.GOOD, "--devices", "4", reason="stands twice")
        self.refused(*self.GOOD, "--format", reason="needs a value")
        self.refused("1f1b", "--devices", "--microbatches", "8", reason="--devices needs a value")
        self.refused(*self.GOOD, "--format", "png", reason="text, csv, json")
        self.refused(*self.GOOD, "--chunks", "2", reason="1f1b does not have the option --chunks")
        self.refused(*self.GOOD, "--eager", reason="1f1b does not have the option --eager")
        self.refused(*self.GOOD, "--eager=1", reason="takes no value")
        self.refused(*self.GOOD, "--pair-cost", "3", reason="does not have the option --pair-cost")
        self.refused(*self.GOOD, "--memory-limit", "3", reason="does not have the option --memory-limit")
        self.refused(*self.GOOD, "--memory-limit", "-3", reason="above 0")
        self.refused(*self.GOOD, "--memory-limit", "nan", reason="above 0")
        self.refused(*self.GOOD, "--width", "3", "--format", "csv", reason="text only")
        self.refused(*self.GOOD, "--list", reason="stands by itself")
        self.refused("compare", "1f1b", *self.GOOD[1:], reason="compare takes options and no word like '1f1b'")
        self.refused(*self.GOOD, "--format", "calls", "--policy", "ring", reason="pipeline, pair, edge or exchange")
        self.refused(*self.GOOD, "--policy", "edge", reason="calls and memory")
        self.refused(*self.GOOD, "--format", "memory", "--bytes", "1,2,3,4,5,6,7,8", reason="at most 7")
        self.refused(*self.GOOD, "--bytes", "1", reason="calls, memory and html")
        self.refused(*self.GOOD, "--format", "memory", "--bytes", "1,-2", reason="0 or between 1 and 2^40")
        self.refused("1f1b", "--devices", "1000", "--microbatches", "1000", "--format", "calls", reason="planned")

    def test_tokens(self):
        chunked = ("seq1f1b", *self.GOOD[1:], "--chunks", "4")
        self.refused(*chunked, "--tokens", "0", "--attention-ratio", "1", reason="at least 1")
        self.refused(*chunked, "--tokens", "3", "--attention-ratio", "1", reason="too short")
        self.refused(*chunked, "--tokens", "8", "--attention-ratio", "-1", reason="between 0")
        self.refused(*chunked, "--tokens", "8", "--attention-ratio", "nan", reason="between 0")
        self.refused(*chunked, "--tokens", "8", reason="belong together")
        self.refused(*chunked, "--attention-ratio", "1", reason="belong together")
        self.refused(*chunked, "--even", reason="belong together")
        self.refused(*self.GOOD, "--tokens", "8", "--attention-ratio", "1", reason="has no chunks")

    def test_formats_have_their_own_options(self):
        self.refused(*self.GOOD, "--against", "gpipe", reason="--against is for the format html only")
        self.refused(*self.GOOD, "--format", "html", "--against", "gpip", reason="did you mean gpipe?")
        self.refused(*self.GOOD, "--torch", "2.15", reason="--torch is for the format pytorch-comms only")
        self.refused(*self.GOOD, "--format", "pytorch-comms", "--torch", "2.9", reason="2.14 or 2.15, not '2.9'")
        self.refused("1f1b", "--devices", "1000", "--microbatches", "1000", "--format", "html", reason="too slow")
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "page.html")
            self.refused("1f1b", "--devices", "1000", "--microbatches", "1000", "--format", "html", "--output", str(file),
                         reason="too slow")
            self.assertFalse(file.exists())
            self.assertEqual(run(*self.GOOD, "--format", "html", "--output", str(file)).stdout, "")
            self.assertEqual(file.read_text(encoding="utf-8"), output(*self.GOOD, "--format", "html"))
            self.refused(*self.GOOD, "--output", folder, reason="--output: cannot write")
        self.refused("1f1b", "--devices", "1000", "--microbatches", "2000", "--format", "trace", reason="viewer")
        self.refused("compare", *self.GOOD[1:], "--format", "svg", reason="wants text, csv or json, not 'svg'")
        self.refused("compare", "--devices", "4", reason="--microbatches is missing")

    def test_a_search_can_be_bounded(self):
        for bad in ("0", "-1", "nan", "1e9"):
            self.refused(*self.GOOD, "--limit-seconds", bad, reason="above 0 and at most 1e6")
        self.refused("1f1b", "--devices", 64, "--microbatches", 30000, "--limit-seconds", "0.001", "--format", "csv",
                     reason="1f1b was given up after 0.001 s; allow more with --limit-seconds")
        self.assertIn("given up", output("compare", "--devices", 64, "--microbatches", 4000, "--limit-seconds", "1e-6"))

    def test_costs(self):
        for bad, reason in (("1,1", "3 or 4 times"), ("1,1,1,1,1", "3 or 4 times"), ("1,,1", "wants a number"),
                            ("1,1,1,", "wants a number"), ("1,1,x", "wants a number"), ("-1,1,1", "between 1e-12"),
                            ("1,nan,1", "between 1e-12"), ("1,inf,1", "between 1e-12"), ("1,1e13,1", "between 1e-12"),
                            ("1,1e-13,1", "between 1e-12"),
                            ("1,1e999,1", "out of range"), ("0,0,0", "above 0"), ("1;1;1", "3 or 4 times"),
                            ("1, 1,1", "wants a number"), ("", "3 or 4 times")):
            self.refused(*self.GOOD, "--cost", bad, reason=reason)

    def test_files_of_costs(self):
        good = MeasuredCosts.COSTS
        self.refused(*self.GOOD, "--cost", "/nonexistent/file", reason="or a file of costs; cannot read")
        self.refused(*self.GOOD, "--cost", "/dev/zero", reason="larger than 256 MiB")
        self.refused(*self.GOOD, "--cost", "/dev/null", reason="an object in braces is wanted, at line 1")
        with tempfile.TemporaryDirectory() as folder:
            for bad, reason in (({**good, "forward": [[1, 2], [3]]}, "'forward' has another number of times for stage 1"),
                                ({**good, "foward": [[1]]}, "'foward' is no entry of a file of costs"),
                                ({"forward": [[1]]}, "'pipelining_costs' is missing")):
                self.refused(*self.GOOD, "--cost", cost_file(folder, bad), reason=reason)
            file = cost_file(folder, good)
            self.refused("seq1f1b", *self.GOOD[1:], "--tokens", 64, "--attention-ratio", 1, "--cost", file,
                         reason="do not go with a file of costs")
            self.refused("dualpipe", *self.GOOD[1:], "--pair-cost", 1, "--cost", file, reason="which have no times of pairs")
            self.refused("gaps", "--devices", 2, "--microbatches", 3, "--cost", file, reason="whole thousandths")

    def test_files(self):
        self.refused("csv", reason="csv needs the name of a file")
        self.refused("csv", "/nonexistent/file", reason="No such file")
        self.refused("csv", "/", reason="cannot read '/'")
        self.refused("csv", "a", "b", reason="more than the name")
        self.refused("csv", "/dev/null", "--devices", 4, reason="csv does not have the option --devices")
        self.refused("csv", "/dev/null", reason="the file is empty")
        self.refused("csv", "/dev/zero", reason="larger than 256 MiB")
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
            file.write("0F0,0B0,0\x01X3\n")
            file.flush()
            self.refused("csv", file.name, reason="line 1, cell 3: '0?X3' is not an action")
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
            file.write("0F0,2F0,2B0,0B0\n1F0,1B0\n")
            file.flush()
            for words, reason in ((["offload"], "--with offload needs --copy-cost"),
                                  (["recompute", "--gather", 1], "--gather is for --with sharded-weights"),
                                  (["vocabulary-1"], "a vocabulary in shards wants stages that go round the devices"),
                                  (["offload-chunks", "--copy-cost", 1], "files have no chunks of sequences"),
                                  (["attention-exchange"], "files have no chunks of sequences")):
                self.refused("csv", file.name, "--with", *words, reason=reason)

    def test_what_waits(self):
        """A FIFO with nobody at its other end, and a terminal, are named by every option that takes a file."""
        model = ("--model", "llama3-8b")
        shape = ("--devices", 2, "--microbatches", 2, "--sequence", 1024)
        terminal = os.openpty()
        with tempfile.TemporaryDirectory() as folder:
            fifo = os.path.join(folder, "fifo")
            os.mkfifo(fifo)
            for name, reason in ((fifo, "it is a FIFO, whose other end may be nobody's"),
                                 (os.ttyname(terminal[1]), "it is a terminal, which would be waited for")):
                for words in (("csv", name), (*self.GOOD, "--cost", name), ("compare", *self.GOOD[1:], "--cost", name),
                              ("search", *self.GOOD[1:], "--cost", name),
                              ("choose", *shape, "--model", name, "--gpu", "h100"), ("systems", "--model", name, "--gpu", "h100"),
                              ("choose", *shape, *model, "--gpu", name), ("choose", *shape, *model, "--gpu", "h100", "--cost", name),
                              ("choose", "--devices", 2, *model, "--gpu", "h100", "--lengths", name)):
                    self.refused(*words, reason=reason)
            self.refused(*self.GOOD, "--output", fifo, reason=f"--output: cannot write '{fifo}': it is a FIFO")
        for end in terminal:
            os.close(end)
        # A pipe of a shell has its other end.
        result = subprocess.run(["bash", "-c", f'"{PROGRAM}" csv <(printf "0F0,0B0\\n")'], capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_full_disk(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = subprocess.run([PROGRAM, *self.GOOD], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(result.returncode, 1)
        self.assertIn("could not write", result.stderr)

    def test_limit_of_files(self):
        """`ulimit -f` is a sentence, and no signal."""
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        with tempfile.TemporaryFile("w") as printed:
            result = subprocess.run([PROGRAM, *self.GOOD], stdout=printed, stderr=subprocess.PIPE, text=True, check=False,
                                    preexec_fn=limit)
        self.assertEqual((result.returncode, result.stderr), (1, "timetable: could not write the output\n"))


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
