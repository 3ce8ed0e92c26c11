#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs the gpt example on a small model: what it prints, what it writes, how it refuses.

usage: gpt_test.py PROGRAM TIMETABLE
"""
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

PROGRAM, TIMETABLE = sys.argv[1:]
SMALL = ["--layers", "8", "--width", "32", "--sequence", "32", "--devices", "4", "--microbatches", "8"]
# schedule, chunks that it is run with, passes of a unit on a stage, most of its peak against 1F1B's
SCHEDULES = [("seq1f1b", 4, 2, 0.6), ("gpipe", 1, 2, 2.2)]


def run(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=120)


def rows(output):
    """The lines of the comparison: name -> (chunks, planned peak, its share, bytes, their share, gradients that differ)."""
    number = r"([\d.]+)"
    found = re.findall(rf"^  ([\w-]+(?: with [\w-]+)?) +(\d+) +{number} +{number} % +{number} MB +{number} % +(\d+)$", output, re.MULTILINE)
    return {name: tuple(map(float, values)) for name, *values in found}


def pools(output):
    """Bytes of slots by device: name -> numbers."""
    return {what: list(map(float, numbers.split())) for what, numbers in
            re.findall(r"^    ([a-z, ]+?) +((?: +[\d.]+){4})$", output, re.MULTILINE)}


def check_versions():
    """Each version of the vector loops that this processor has, and a sentence for the others; a schedule keeps the bits of each."""
    losses = {}
    for version in ("plain", "x86-64-v3", "x86-64-v4", None):
        environment = {name: value for name, value in os.environ.items() if name != "PIPELINING_VECTORS"}
        if version:
            environment["PIPELINING_VECTORS"] = version
        result = subprocess.run([PROGRAM, *SMALL, "--width", "40", "--steps", "4"], capture_output=True, text=True, timeout=120,
                                env=environment)
        if version in losses or result.returncode != 2:
            assert result.returncode == 0, result
            used = re.match(r"GPT of [^\n]* devices, vector loops: ([a-z0-9-]+)\n", result.stdout)[1]
            assert used == (version or list(losses)[-1]), result.stdout  # the highest, where none is named
            assert all(values[-1] == 0 for values in rows(result.stdout).values()) and rows(result.stdout), result.stdout
            losses[used] = [float(loss) for loss in re.findall(r"loss ([\d.]+)   \d+ tokens/s", result.stdout)]
        else:
            assert version != "plain" and re.fullmatch(
                rf"gpt: vector_version: this processor has no version '{version}' of the vector loops; choose plain[^\n]*\n", result.stderr), result
    assert all(abs(one - other) < 2e-3 for each in losses.values() for one, other in zip(each, losses["plain"], strict=True)), losses


def check_gain(said):
    """One device next to the pipeline, a word where the machine is busy, and what to do next."""
    own, shared, measured, in_turn = (float(re.search(words + r" +step ([\d.]+) ms", said)[1]) for words in (
        "for every device:", "of this machine:", "measured:", "in turn on one core:"))
    times = [float(each) for each in re.findall(r"([\d.]+) times (?=as fast|here by|as measured)", said)]
    for found, step in zip(times, (own, shared, measured), strict=True):
        assert abs(found - in_turn / step) < 0.01 + 0.1 * found / step, (found, in_turn, step)
    assert abs(measured - 1.3 * shared) < 0.2 or ("the machine was busy" in said) == (measured > 1.3 * shared), said
    assert len(re.findall(r"^  scripts/(?:demo|timetable) ", said.split("\nnext:\n")[1], re.MULTILINE)) == 3, said


def check_run(schedule, chunks, passes, most, text):
    with tempfile.TemporaryDirectory() as folder:
        result = run(*SMALL, "--schedule", schedule, "--steps", "12", "--text", text, "--output", folder)
        assert result.returncode == 0, result.stderr
        compared = rows(result.stdout)
        assert {"gpipe", "1f1b", "seq1f1b", "v-min", "v-half", "v-zb", schedule} <= set(compared), result.stdout
        assert all(values[-1] == 0 for values in compared.values()), result.stdout
        assert compared["1f1b"][2] == compared["1f1b"][4] == 100, result.stdout
        assert compared[schedule][4] <= 100 * most, result.stdout
        assert compared["seq1f1b"][4] < compared["v-half"][4] < 100, result.stdout
        assert compared["v-min"][4] <= compared["v-half"][4], result.stdout
        losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)   \d+ tokens/s", result.stdout)]
        assert losses[-1] < losses[0] - 1, result.stdout
        for word in ("predicted", "measured", "idle share", "unigram entropy", "bubble", "tokens/s"):
            assert word in result.stdout, word
        check_gain(result.stdout)
        for picture in ("timetable.svg", "loss.svg"):
            root = xml.etree.ElementTree.parse(pathlib.Path(folder, picture)).getroot()
            assert root.tag.endswith("svg"), picture
        events = json.loads(pathlib.Path(folder, "trace.json").read_text())["traceEvents"]
        drawn = [event for event in events if event["ph"] == "X"]
        stages = 4
        assert len(drawn) == 2 * stages * 8 * chunks * passes, len(drawn)  # planned and measured
        # Arrows of both: every unit crosses the three boundaries forwards and backwards.
        assert sum(event["ph"] == "s" for event in events) == 2 * 2 * 3 * 8 * chunks
        assert {event["pid"] for event in events if event["ph"] == "C"} == {1, 2}
        assert '"measured":{"starts":[' in pathlib.Path(folder, "timeline.html").read_text()


def check_post_validation(text):
    """Steps that are taken early and rolled back where they were wrong leave the losses and weights of steps that wait."""
    ends = []
    for early in ([], ["--post-validation"]):
        with tempfile.TemporaryDirectory() as folder:
            result = run(*SMALL, "--schedule", "zb-h2", "--steps", "14", "--clip", "1", *early, "--text", text, "--output", folder)
        assert result.returncode == 0, result.stderr
        line = re.search(r"gradients clipped to a norm of 1 in (\d+) of 14 steps, left out in 0; weights [0-9a-f]{16}\n", result.stdout)
        ends.append((re.findall(r"loss ([\d.]+)   ", result.stdout), line[0]))
        clipped = int(line[1])
    assert 0 < clipped and ends[0] == ends[1], ends
    found = re.search(r"(\d+) early steps were wrong: stages rolled back (\d+) times, (\d+) iterations began again\n", result.stdout)
    assert int(found[1]) == clipped and clipped - 1 <= int(found[3]) <= clipped, found[0]


def check_clipped_copies(text):
    """Copies of stages add up their gradients before they are clipped: a norm that is never reached changes no loss, and two
    schedules with the same copies end with the same weights."""
    losses, weights = [], []
    for schedule, *clip in (("dualpipe",), ("dualpipe", "--clip", "1e9"), ("dualpipe", "--clip", "0.5"), ("chimera", "--clip", "0.5")):
        with tempfile.TemporaryDirectory() as folder:
            result = run(*SMALL, "--schedule", schedule, "--steps", "8", *clip, "--text", text, "--output", folder)
        assert result.returncode == 0, result.stderr
        losses.append(re.findall(r"loss ([\d.]+)   ", result.stdout))
        weights += re.findall(r"in (\d+) of 8 steps, left out in 0; weights ([0-9a-f]{16})\n", result.stdout)
    assert losses[0] and losses[0] == losses[1], losses
    assert weights[0][0] == "0" and int(weights[1][0]) > 0 and weights[1] == weights[2], weights
    check_refusal(2, "--post-validation validates steps that are part of the plan, which wants one copy of every stage and no shards; "
                  "leave it out", *SMALL, "--schedule", "chimera", "--clip", "1", "--post-validation")


def check_sizes(text):
    """Chunk counts that change from iteration to iteration: plans are made once, and gradients are those of one device."""
    with tempfile.TemporaryDirectory() as folder:
        result = run(*SMALL, "--schedule", "chunkflow", "--chunk-counts", "1,1,4,2:3,1:2,2,2,1,1,5", "--steps", "8", "--text", text,
                     "--output", folder)
    assert result.returncode == 0, result.stderr
    assert ("\niterations of 3 sizes: 3 plans made, 6 times one was there; two rounds of all sizes held against one device: "
            "0 gradients differ\n") in result.stdout, result.stdout


def check_costs(text):
    """The costs that a run has measured are those of its cut, and the timetable tool plans with them."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(pathlib.Path(folder, "costs.json"))
        words = [*SMALL, "--schedule", "seq1f1b-zb-h1", "--chunks", "2", "--steps", "6", "--text", text]
        result = run(*words, "--output", folder, "--costs", file)
        assert result.returncode == 0, result.stderr
        assert f"timetable compare --devices 4 --microbatches 8 --cost {file}\n" in result.stdout, result.stdout
        costs = json.loads(pathlib.Path(file).read_text(encoding="utf-8"))
        assert set(costs) == {"pipelining_costs", "communication", "message_bytes", "links", "forward", "backward_input",
                              "backward_weight"}, costs
        neighbours = {(device, other) for device in range(4) for other in (device - 1, device + 1) if 0 <= other < 4}
        measured = {tuple(link[:2]) for link in costs["links"]}  # those whose messages were waited for
        assert measured and measured <= neighbours, costs
        assert all(seconds >= 0 for link in costs["links"] for seconds in link[2:]), costs
        for kind in ("forward", "backward_input", "backward_weight"):
            assert [len(times) for times in costs[kind]] == [2] * 4, costs
            assert all(0 < time < 1 for times in costs[kind] for time in times), costs
        again = subprocess.run([TIMETABLE, "seq1f1b-zb-h1", "--chunks", "2", "--devices", "4", "--microbatches", "8",
                                "--cost", file, "--format", "json"], capture_output=True, text=True, check=True)
        for row in json.loads(again.stdout)["passes"]:
            for entry in row:
                kind = {"F": "forward", "I": "backward_input", "W": "backward_weight"}[entry["kind"]]
                assert abs(entry["end"] - entry["start"] - costs[kind][entry["stage"]][entry["chunk"]]) < 1e-9, entry
        result = run(*words, "--output", folder, "--costs", folder)
        assert result.returncode == 1 and result.stderr.startswith(f"gpt: cannot write {folder}: "), result.stderr


def check_adapters(text):
    """Activations that wait on the host, or are recomputed: no bit differs, and less is kept, as planned."""
    with tempfile.TemporaryDirectory() as folder:
        for schedule in ("1f1b", "seq1f1b", "v-half"):
            for adapter in ("offload", "recompute"):
                result = run(*SMALL, "--schedule", schedule, "--with", adapter, "--steps", "4", "--text", text, "--output",
                             folder, "--costs", str(pathlib.Path(folder, "costs.json")))
                assert result.returncode == 0, result.stderr
                name = f"{schedule} with {adapter}"
                compared = rows(result.stdout)
                assert all(values[-1] == 0 for values in compared.values()), result.stdout
                for peak in (1, 4):  # planned, and the measured share of 1F1B's
                    assert compared[name][peak] < compared[schedule][peak], result.stdout
                for other in (f"\n{name}: devices 4", f"\n{name}, prediction and measurement"):
                    assert other in result.stdout, result.stdout
                slots = {where: list(map(float, numbers.split())) for where, numbers in
                         re.findall(r"^    (on the .*?, (?:planned|measured))((?: +[\d.]+){4})$", result.stdout, re.MULTILINE)}
                assert len(slots) == (4 if adapter == "offload" else 0), result.stdout
                for where in ("device", "host") if slots else ():
                    planned, measured = slots[f"on the {where}, planned"], slots[f"on the {where}, measured"]
                    assert all(most <= room for most, room in zip(measured, planned)), slots
                    assert measured[0] > 0, slots
                events = json.loads(pathlib.Path(folder, "trace.json").read_text())["traceEvents"]
                assert any(event["ph"] == "X" for event in events)
                assert '"measured":{"starts":[' in pathlib.Path(folder, "timeline.html").read_text()


def check_sharded_weights(text):
    """Weights in shards: no bit differs, and no more whole ones lie in slots than planned."""
    with tempfile.TemporaryDirectory() as folder:
        # With three stages on a device, of which two stay, one is gathered again.
        three = [*SMALL[:SMALL.index("--devices")], "--devices", "2", "--microbatches", "8", "--stages-per-device", "3"]
        for schedule, size in (("1f1b", SMALL), ("interleaved", SMALL), ("v-half", SMALL), ("zb-v", SMALL), ("interleaved", three)):
            for adapter in ("sharded-weights", "gathered-once"):
                result = run(*size, "--schedule", schedule, "--with", adapter, "--steps", "2", "--text", text, "--output", folder)
                assert result.returncode == 0, result.stderr
                compared = rows(result.stdout)
                assert f"{schedule} with {adapter}" in compared, result.stdout
                assert all(values[-1] == 0 for values in compared.values()), result.stdout
                slots = {where: list(map(float, numbers.split())) for where, numbers in
                         re.findall(r"^    ((?:weights|gradients), (?:planned|measured))((?: +[\d.]+){2,4})$", result.stdout, re.MULTILINE)}
                assert len(slots) == 4, result.stdout
                for what in ("weights", "gradients"):
                    planned, measured = slots[f"{what}, planned"], slots[f"{what}, measured"]
                    assert all(0 < most <= room for most, room in zip(measured, planned)), slots


def check_vocabulary(text):
    """Embedding and output layer in shards: no bit differs, and slots hold as many microbatches as the schedule says."""
    small = ["--layers", "8", "--width", "16", "--sequence", "16", "--devices", "4", "--microbatches", "8", "--steps", "2", "--text", text]
    with tempfile.TemporaryDirectory() as folder:
        for schedule, adapter, held in (("1f1b", "1", [5, 4, 3]), ("1f1b", "2", [6, 5, 4]), ("1f1b", "interlaced", [6, 5, 4]),
                                        ("seq1f1b", "1", None), ("v-half", "2", None)):
            result = run(*small, "--schedule", schedule, "--with", "vocabulary-" + adapter, "--output", folder)
            assert result.returncode == 0, result.stderr
            assert re.search(rf"^One step of {schedule} with vocabulary-{adapter}: 4 devices, 8 microbatches, held against one device that "
                             r"has all shards: 0 of \d{5} gradients differ$", result.stdout, re.MULTILINE), result.stdout
            found = pools(result.stdout)
            for what in ("activations", "logits"):
                assert all(0 < most <= room for most, room in zip(found[what + ", measured"], found[what + ", planned"])), found
            if held:  # on the devices before the last, whose stage has the norm, too
                unit = found["activations, measured"][0] / held[0]
                assert [round(bytes / unit, 2) for bytes in found["activations, measured"][:3]] == held, found
        for sentence, *words in (
                ("the vocabulary in shards (--with vocabulary-...) goes with none of --clip, --costs and several --chunk-counts; "
                 "leave them out", "1f1b", "--clip", "1"),
                ("the vocabulary in shards wants sequences of equal length, whose gradients add up from the first microbatch on, as those "
                 "of breadth-first do not", "breadth-first")):
            check_refusal(2, sentence, *small, "--schedule", *words, "--with", "vocabulary-2")


def check_shards(text):
    """Stages in shards: no bit differs, slots and passes that wait alone are as planned, and braids hide the sums of the others."""
    small = ["--layers", "8", "--width", "16", "--sequence", "16", "--devices", "4", "--steps", "2", "--text", text]
    exposed = {}
    with tempfile.TemporaryDirectory() as folder:
        for words in (["stp"], ["stp", "--unfused"], ["1f1b", "--tensor", "4"], ["v-half", "--tensor", "2"]):
            result = run(*small, "--microbatches", "12", "--schedule", *words, "--output", folder)
            assert result.returncode == 0, result.stderr
            assert re.search(r"held against one device that has all shards: 0 of \d{5} gradients differ\n", result.stdout), result.stdout
            found = pools(result.stdout)
            for what in ("activations", "for weights"):
                assert all(most <= room for most, room in zip(found[what + ", measured"], found[what + ", planned"])), found
            assert found["passes alone, measured"] == found["passes alone, planned"], found
            exposed[" ".join(words)] = found["exposed"]
    # Two sums in each layer of a pass, which STP waits for in 2P + (d + 1) mod 2 passes of a layer, and 1F1B in all forward passes.
    assert exposed["stp"] == [18, 16, 18, 16] and exposed["1f1b --tensor 4"] == [48] * 4, exposed
    assert all(alone > braided for alone, braided in zip(exposed["stp --unfused"], exposed["stp"])), exposed
    for sentence, *words in (
            ("STP: 10 microbatches are too few: its braids begin when 11 are there, 3 P - 1; take DualPipeV or VHalf for fewer",
             "stp", "--microbatches", "10"),
            ("stages in shards (--tensor) want the heads of keys and values, 4, to be a multiple of the 3 shards", "1f1b", "--tensor", "3"),
            ("stages in shards (--tensor) go into no adapter; leave --with out", "1f1b", "--tensor", "2", "--with", "offload"),
            ("tensor parallelism (--tensor) goes with none of --clip, --costs and several --chunk-counts; leave them out",
             "1f1b", "--tensor", "2", "--clip", "1"),
            *(("stages in shards (--tensor) want a schedule over whole sequences with one copy of every stage, which "
               f"{name} is not; take stp, 1f1b or a V shape", name, "--tensor", "2")
              for name in ("chimera", "seq1f1b", "helix", "wei-pipe"))):
        check_refusal(2, sentence, *small, "--microbatches", "12", "--schedule", *words)


def check_round_pipe(text):
    """Weights on the host, stages dealt out in turn: no bit differs, and a device has room for the weights of two stages."""
    small = ["--layers", "8", "--width", "16", "--sequence", "16", "--devices", "4", "--microbatches", "8", "--text", text]
    with tempfile.TemporaryDirectory() as folder:
        for words, stages in (([], 11), (["--with", "gathered-once"], 11), (["--forward-stages", "2", "--backward-stages", "5"], 7)):
            result = run(*small, "--schedule", "round-pipe", *words, "--steps", "6", "--output", folder)
            assert result.returncode == 0, result.stderr
            name = "round-pipe with " + ("gathered-once" if "gathered-once" in words else "sharded-weights")
            assert f"\n{name}: devices 4, stages {stages}, microbatches 8" in result.stdout, result.stdout
            assert re.search(rf"\nOne step of {name}: 4 devices, 8 microbatches, held against one device: 0 of \d{{5}} gradients differ\n",
                             result.stdout), result.stdout
            found = pools(result.stdout)
            for what in ("weights", "gradients"):
                assert all(0 < most <= room for most, room in zip(found[what + ", measured"], found[what + ", planned"])), found
            assert {"timetable.svg", "loss.svg", "trace.json"} <= set(os.listdir(folder))
    for sentence, *words in (
            ("RoundPipe: 8 layers are at most as many stages that go back, and all but those of the first of these, 7, at most as many that "
             "go forward; ask for fewer than 3 forward and 9 back, or for more --layers", "--backward-stages", "9"),
            ("round-pipe goes with none of --clip, --costs and several --chunk-counts; leave them out", "--clip", "1"),
            ("round-pipe does not have the option --chunks", "--chunks", "2")):
        check_refusal(2, sentence, *small, "--schedule", "round-pipe", *words)


def check_exchange(text):
    """Attention that other devices take over: the bits of one device that splits it alike, in the slots that were planned."""
    small = ["--layers", "8", "--width", "16", "--sequence", "19", "--devices", "4", "--microbatches", "3", "--text", text]
    exchange = ["--schedule", "slimpipe", "--with", "attention-exchange"]
    with tempfile.TemporaryDirectory() as folder:
        for chunks in ("4", "8"):
            result = run(*small, *exchange, "--chunks", chunks, "--steps", "6", "--output", folder)
            assert result.returncode == 0, result.stderr
            assert re.search(r"^One step of slimpipe with attention-exchange: 4 devices, 3 microbatches, held against one device that splits "
                             r"attention alike: 0 of \d{5} gradients differ$", result.stdout, re.MULTILINE), result.stdout
            found = pools(result.stdout)
            assert all(0 < most <= room for most, room in zip(found["activations, measured"], found["activations, planned"])), found
    for sentence, *words in (
            ("the exchange of attention has a layer in every stage, 4 of them, but the model has 8; choose --layers, a multiple of --devices",
             *exchange, "--stages-per-device", "1"),
            ("the exchange of attention goes with none of --clip, --costs and several --chunk-counts; leave them out", *exchange, "--clip", "1"),
            ("attention-exchange is for slimpipe alone, whose devices run as many chunks at the same time as there are devices, and not for "
             "1f1b", "--schedule", "1f1b", "--with", "attention-exchange"),
            ("a sequence of 19 tokens cannot be cut into 20 chunks", *exchange, "--chunks", "20")):
        check_refusal(2, sentence, *small, *words)


def check_weights_on_host(text):
    """Weights of deep stages on the host: no bit differs, and a device has room for those of one stage."""
    with tempfile.TemporaryDirectory() as folder:
        for schedule in ("chronos", "interleaved"):
            result = run(*SMALL, "--schedule", schedule, "--with", "weights-on-host", "--steps", "2", "--text", text, "--output", folder)
            assert result.returncode == 0, result.stderr
            compared = rows(result.stdout)
            assert f"{schedule} with weights-on-host" in compared, result.stdout
            assert all(values[-1] == 0 for values in compared.values()), result.stdout
            slots = [list(map(float, numbers.split())) for numbers in
                     re.findall(r"^    (?:weights|gradients), (?:planned|measured)((?: +[\d.]+){4})$", result.stdout, re.MULTILINE)]
            assert len(slots) == 4, result.stdout
            for planned, measured in (slots[:2], slots[2:]):
                assert all(0 < most <= room < 1.1 * most for most, room in zip(measured, planned)), slots


def check_travelling_weights(printed, name, tiny):
    """Weights are messages; what is sent is what was planned, to the byte."""
    assert f"\nOne step of {name}: 4 devices, 8 microbatches, held against one device: 0 of " in printed, printed
    sent = re.findall(r"^    weights sent, (?:planned|measured)((?: +[\d.]+){4})$", printed, re.MULTILINE)
    assert len(sent) == 2 and sent[0].split() == sent[1].split(), printed
    for words in (["--microbatches", "6"], ["--chunks", "2"], ["--with", "recompute"], ["--costs", "costs.json"]):
        refused = run(*tiny, "--schedule", name, *words)
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1), refused


def check_loaded_weights(printed, name, _):
    """They come from the host: see check_round_pipe."""
    assert f"\nOne step of {name} with sharded-weights: 4 devices, 8 microbatches, held against one device: 0 of " in printed, printed


def check_stages_in_shards(printed, name, _):
    """See check_shards."""
    assert f"\nOne step of {name}: 4 devices, 12 microbatches, held against one device that has all shards: 0 of " in printed, printed


#: Schedules that are not compared with others by rows.
SYSTEMS = {"wei-pipe": check_travelling_weights, "round-pipe": check_loaded_weights, "stp": check_stages_in_shards}
MICROBATCHES = {"stp": ["--microbatches", "12"]}


def check_every_schedule(text):
    """Every name of --list trains."""
    tiny = ["--layers", "8", "--width=16", "--heads=2", "--sequence", "16", "--devices=4", "--microbatches", "8"]
    names = [line.split()[0] for line in
             subprocess.run([TIMETABLE, "--list"], capture_output=True, text=True, check=True).stdout.split("\n\n")[0].splitlines()]
    assert len(names) > 20
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            words = [*tiny, *MICROBATCHES.get(name, []), "--schedule", name, "--steps", "1", "--text", text, "--output", folder]
            result = run(*words)
            if "needs the option" in result.stderr:
                assert (result.returncode, result.stdout) == (2, ""), result
                result = run(*words, "--memory-limit=8")
            assert result.returncode == 0, (name, result.stderr)
            if name in SYSTEMS:
                SYSTEMS[name](result.stdout, name, tiny)
                continue
            assert rows(result.stdout)[name][-1] == 0, result.stdout
            if name in ("helix", "chimera", "bitpipe", "dualpipe"):  # what devices keep is what the timetable says, to the byte
                planned, measured = (re.search(rf"^    {what} +((?: +[\d.]+){{4}})$", result.stdout, re.MULTILINE)[1].split()
                                     for what in ("planned", "measured"))
                assert planned == measured, result.stdout
    with tempfile.TemporaryDirectory() as folder:  # sequences of unequal length, and what is not kept
        kept = {}
        for words in (["chunkflow", "--chunk-counts", "1,1,4", "--keep=1"],
                      ["chunkflow", "--chunk-counts", "1,1,4", "--keep=4"], ["slice-v", "--chunk-counts", "2,4"]):
            result = run(*tiny, "--schedule", *words, "--steps", "2", "--text", text, "--output", folder)
            assert result.returncode == 0, (words, result.stderr)
            kept[words[-1]] = rows(result.stdout)[words[0]]
            assert kept[words[-1]][-1] == 0, result.stdout
        for peak in (1, 4):  # planned, and the measured share of 1F1B's
            assert kept["--keep=1"][peak] < kept["--keep=4"][peak], kept
    result = run(*tiny, "--schedule", "1f1b", "--group", "2")
    assert (result.returncode, result.stdout) == (2, "") and "does not have the option --group" in result.stderr, result


def check_interrupted(text):
    """Ctrl-C or SIGTERM after some steps: the files are written, and one line says how far it came."""
    for sent in (signal.SIGINT, signal.SIGTERM):
        with tempfile.TemporaryDirectory() as folder:
            process = subprocess.Popen([PROGRAM, *SMALL, "--schedule", "1f1b", "--steps", "1000000", "--text", text,
                                        "--output", folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for line in process.stdout:
                if line.startswith("step 11/"):
                    break
            process.send_signal(sent)
            rest, errors = process.communicate(timeout=60)
            assert process.returncode == 128 + sent and errors == "", (process.returncode, errors)
            done = int(re.search(r"^interrupted after (\d+) of 1000000 steps; schedules were not compared$", rest,
                                 re.MULTILINE)[1])
            assert 11 <= done < 1000, done
            assert set(os.listdir(folder)) == {"timetable.svg", "loss.svg", "trace.json", "timeline.html"}
            root = xml.etree.ElementTree.parse(pathlib.Path(folder, "loss.svg")).getroot()
            curve = next(each for each in root.iter() if each.tag.endswith("polyline"))
            assert len(curve.attrib["points"].split()) == done


def check_checkpoints(text):
    """A run that SIGTERM has ended goes on with other devices, and ends with the bits of one that nobody has disturbed."""
    for clip in ([], ["--clip", "0.5", "--post-validation"]):
        with tempfile.TemporaryDirectory() as folder:
            saved = pathlib.Path(folder, "saved")
            common = [*SMALL, "--steps", "12", "--text", text, "--schedule", "1f1b", "--output", f"{folder}/output", *clip]
            end = r"^step 12/12   loss (\S+) |weights ([0-9a-f]{16})$"
            alone = run(*common)
            expected = re.findall(end, alone.stdout, re.MULTILINE)
            assert alone.returncode == 0 and len(expected) == (2 if clip else 1), alone
            process = subprocess.Popen([PROGRAM, *common, "--checkpoint", str(saved), "--every", "1"], stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True)
            for line in process.stdout:
                if line.startswith("step 1/12"):
                    break
            process.send_signal(signal.SIGTERM)
            rest, errors = process.communicate(timeout=60)
            assert process.returncode == 128 + signal.SIGTERM and errors == "", (process.returncode, errors)
            done = re.search(r"^interrupted after (\d+) of 12 steps", rest, re.MULTILINE)[1]
            again = run(*common, "--devices", "2", "--checkpoint", str(saved))
            assert again.returncode == 0 and f"goes on after step {done}\n" in again.stdout, again
            assert re.findall(end, again.stdout, re.MULTILINE) == expected, (again.stdout, expected)
            ended = run(*common, "--checkpoint", str(saved))
            assert ended.returncode == 0 and ended.stdout.endswith("goes on after step 12\nnothing is left to train\n"), ended
            before = {path.name: path.read_bytes() for path in saved.iterdir()}
            other = run(*common, "--checkpoint", str(saved), "--seed", "2")
            assert other.returncode == 1 and "the file has seed=1, this run has seed=2" in other.stderr, other
            assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    check_refusal(2, "--checkpoint on threads wants stages that stay whole on their devices, which those of wei-pipe do not",
                  *SMALL, "--text", text, "--schedule", "wei-pipe", "--checkpoint", "folder")


def check_limits(text):
    """Nobody who reads, no memory, no threads: a sentence each, and no signal."""
    def limited(sentence, limit, *words, close=False):
        with tempfile.TemporaryDirectory() as folder:
            process = subprocess.Popen([PROGRAM, *SMALL, "--schedule", "1f1b", "--text", text, "--output", folder, *words],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=limit)
            if close:
                process.stdout.close()
            errors = process.stderr.read()
            assert process.wait(60) == 1 and re.fullmatch(f"gpt: {sentence}\n", errors), (process.returncode, errors)
    limited("cannot write the output: Broken pipe", None, "--steps", "1000000", close=True)
    def memory(most, stack=None):
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            if stack:
                resource.setrlimit(resource.RLIMIT_STACK, (stack, stack))
        return limit
    limited("not enough memory; choose a smaller model or fewer microbatches", memory(1 << 28), "--steps", "1",
            "--layers", "28", "--width", "512")
    limited(r"run: this machine gives no thread to device \d: Resource temporarily unavailable; allow the process more threads "
            r"or memory \(ulimit -u, ulimit -v\)", memory(1 << 31, 1 << 30), "--steps", "1")


def check_full_disk(text):
    small = [*SMALL, "--schedule", "1f1b", "--text", text]
    with tempfile.TemporaryDirectory() as folder, open("/dev/full", "w", encoding="utf-8") as full:
        for words in ([*small, "--steps", "1", "--output", folder], ["--help"]):
            result = subprocess.run([PROGRAM, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
            assert (result.returncode, result.stderr) == (1, "gpt: cannot write the output: No space left on device\n")
        os.symlink("/dev/full", pathlib.Path(folder, "trace.json"))
        result = run(*small, "--steps", "1", "--output", folder)
        assert result.returncode == 1, result
        assert result.stderr == f"gpt: cannot write {folder}/trace.json: No space left on device\n", result.stderr
        os.unlink(pathlib.Path(folder, "trace.json"))
        os.mkfifo(pathlib.Path(folder, "trace.json"))
        result = run(*small, "--steps", "1", "--output", folder)
        assert result.returncode == 1, result
        assert result.stderr == f"gpt: cannot write {folder}/trace.json: it is a FIFO, whose other end may be nobody's\n", result.stderr
    check_limit_of_files(small)


def check_what_waits():
    """What would be waited for is named: a FIFO with nobody at its other end, and a terminal."""
    with tempfile.TemporaryDirectory() as folder:
        fifo = f"{folder}/fifo"
        os.mkfifo(fifo)
        check_refusal(1, f"cannot read any text from {fifo}: it is a FIFO, whose other end may be nobody's", "--text", fifo)
        check_refusal(1, f"cannot make the folder {fifo}", *SMALL, "--output", fifo)
        result = run(*SMALL, "--schedule", "1f1b", "--steps", "1", "--output", folder, "--costs", fifo)
        assert result.returncode == 1, result
        assert result.stderr == f"gpt: cannot write {fifo}: it is a FIFO, whose other end may be nobody's\n", result.stderr
    mine, terminal = os.openpty()
    check_refusal(1, f"cannot read any text from {os.ttyname(terminal)}: it is a terminal, which would be waited for",
                  "--text", os.ttyname(terminal))
    os.close(mine)
    os.close(terminal)


def check_limit_of_files(small):
    """`ulimit -f` is a sentence, whichever file grows too large."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run([PROGRAM, *small, "--steps", "1", "--output", folder], capture_output=True, text=True, preexec_fn=limit)
        assert result.returncode == 1, result
        assert re.fullmatch(rf"gpt: cannot write {folder}/\S+: File too large\n", result.stderr), result.stderr
        with open(pathlib.Path(folder, "printed"), "w", encoding="utf-8") as printed:
            result = subprocess.run([PROGRAM, "--help"], stdout=printed, stderr=subprocess.PIPE, text=True, preexec_fn=limit)
        assert (result.returncode, result.stderr) == (1, "gpt: cannot write the output: File too large\n"), result


def check_refusal(status, sentence, *arguments):
    result = run(*arguments)
    assert result.returncode == status, result
    assert result.stdout == "" and result.stderr == f"gpt: {sentence}\n", result.stderr


with tempfile.TemporaryDirectory() as temporary:
    text = pathlib.Path(temporary, "text")
    text.write_text("it was the best of times, it was the worst of times; " * 40)
    for each in SCHEDULES:
        check_run(*each, str(text))
    short = pathlib.Path(temporary, "short")
    short.write_text("too short")
    check_refusal(2, "the text has 9 bytes, but one sequence and the byte after it need 33",
                  *SMALL, "--text", str(short), "--output", temporary)
    check_refusal(1, f"cannot make the folder {text}", *SMALL, "--text", str(text), "--output", str(text))
    check_every_schedule(str(text))
    check_shards(str(text))
    check_vocabulary(str(text))
    check_adapters(str(text))
    check_sharded_weights(str(text))
    check_weights_on_host(str(text))
    check_round_pipe(str(text))
    check_exchange(str(text))
    check_costs(str(text))
    check_post_validation(str(text))
    check_clipped_copies(str(text))
    check_sizes(str(text))
    check_interrupted(str(text))
    check_limits(str(text))
    check_checkpoints(str(text))
    check_full_disk(str(text))
check_versions()
check_refusal(1, "cannot read any text from /no/such/file: No such file or directory", "--text", "/no/such/file")
check_refusal(1, "cannot read any text from /: it is a folder", "--text", "/")
check_refusal(1, "cannot read any text from /dev/null: it is empty", "--text", "/dev/null")
check_what_waits()
check_refusal(1, "cannot read any text from /dev/zero: it has more than 64 MiB; a piece of it will do",
              "--text", "/dev/zero")
check_refusal(2, "a model of 2.06e+11 parameters is too much for this example, which takes 1e+08 at most; choose fewer "
              "--layers or less --width", "--layers", "1024", "--width=4096")
check_refusal(2, "a step of 2.14e+14 multiplications is too much for this example, which takes 1e+13 at most; choose a "
              "shorter --sequence, fewer --microbatches or a smaller model", "--sequence", "65536")
check_refusal(2, "--steps wants a whole number from 1 to 1000000, not '0'", "--steps", "0")
check_refusal(2, "--steps wants a whole number from 1 to 1000000, not '5x'", "--steps", "5x")
check_refusal(2, "--steps wants a value", "--steps")
check_refusal(2, "--clip wants a number above 0, not 'half'", "--clip", "half")
check_refusal(2, "--clip wants a number above 0, not '0'", "--clip", "0")
check_refusal(2, "--post-validation validates the norm that --clip gives; give both", "--post-validation")
check_refusal(2, "--with wants one of recompute, offload, vocabulary-1, vocabulary-2, vocabulary-interlaced, "
              "sharded-weights, gathered-once, weights-on-host, attention-exchange, not 'vocabulary-3'", "--with", "vocabulary-3")
check_refusal(2, "--with wants a value", "--with")
check_refusal(2, "chunkflow with unequal numbers of chunks, or with recomputation of its own, goes into no adapter",
              "--schedule", "chunkflow", "--with", "offload")
check_refusal(2, "no such option: '--step'; --help names them all", "--step", "5")
check_refusal(2, "no such option: '--step'; --help names them all", "--step=5")
check_refusal(2, "--steps wants a whole number from 1 to 1000000, not ''", "--steps=")
check_refusal(2, "a sequence of 128 tokens cannot be cut into 300 chunks", "--chunks", "300")
check_refusal(2, "width must be a multiple of heads, and heads of key heads", "--heads", "7")
assert run("--schedule", "nonsense").returncode == 2
assert run("--help").stdout.startswith("usage: gpt")
