#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Opens the interactive pages in a headless Chromium and holds every figure against the library's own.

usage: timeline_test.py TIMETABLE GPT [--pictures FOLDER]

Exit status 77, with a word, where there is no Chromium on the PATH.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import browser

TIMETABLE, GPT = sys.argv[1:3]
PICTURES = pathlib.Path(sys.argv[4]) if "--pictures" in sys.argv else None
FIGURES = ["makespan", "span", "bubble_rate", "makespan_bubble_rate"]


def run(*words):
    result = subprocess.run([TIMETABLE, *map(str, words)], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0 and not re.sub(r"(?m)^[0-9.]+ s: .*\n", "", result.stderr), (words, result.stderr)
    return result.stdout


def names():
    return [line.split()[0] for line in run("--list").split("\n\n")[0].splitlines()]


def words_of(name, devices, microbatches):
    limit = ["--memory-limit", 8] if name in ("v-auto", "v-continuous", "zb-auto") else []
    least = {"stp": 3 * devices - 1}.get(name, 1)
    return [name, "--devices", devices, "--microbatches", max(microbatches, least), *limit]


#: Schedules whose orders do not follow the costs, and of which there is no file.
FIXED_ORDERS = ("bitpipe", "chimera", "chunkflow", "dualpipe", "helix", "round-pipe", "slice-v", "slimpipe", "stp", "svpp",
                "wei-pipe")
#: What adapters need, and by slider another value and the option that has it.
ADAPTERS = {
    "recompute": (["--recompute-cost", 0.75], {"R": (1.25, "--recompute-cost")}),
    "recompute-first": (["--recompute-cost", 0.75], {"R": (1.25, "--recompute-cost")}),
    "offload": (["--copy-cost", 0.5], {"O": (0.5625, "--copy-cost"), "L": (0.5625, "--copy-cost")}),
    "offload-half": (["--copy-cost", 1.5], {}),
    "offload-chunks": (["--copy-cost", 1.5], {}),
    "vocabulary-1": (["--vocabulary-cost", "0.5,1,1.5,0.25"], {}),
    "vocabulary-2": (["--vocabulary-cost", "0.5,1,1.5,0.25,0.125,0.375"], {}),
    "vocabulary-interlaced": (["--vocabulary-cost", "0.5,1,1.5,0.25"], {}),
    "sharded-weights": (["--gather", 0.5, "--scatter", 0.75], {"A": (0.25, "--gather"), "Z": (1.25, "--scatter")}),
    "gathered-once": (["--gather", 0.5, "--scatter", 0.75], {"A": (0.25, "--gather"), "Z": (1.25, "--scatter")}),
    "weights-on-host": (["--gather", 0.5, "--scatter", 0.75], {"A": (0.25, "--gather"), "Z": (1.25, "--scatter")}),
}


def same(found, expected, what):
    assert len(found) == len(expected), what
    for a, b in zip(found, expected):
        assert abs(a - b) <= 1e-9 * max(1, abs(b)), (what, found, expected)


class Pages:
    def __init__(self, chromium, folder):
        self.page = chromium
        self.file = pathlib.Path(folder, "page.html")
        self.csv = pathlib.Path(folder, "order.csv")

    def open(self, *words):
        self.file.write_text(run(*words, "--format", "html"), encoding="utf-8")
        self.page.open(self.file)

    def figures(self, view=0):
        return json.loads(self.page.evaluate(f"JSON.stringify(timeline.views[{view}].figures)"))

    def slide(self, **values):
        """Types values next to sliders, as a user does."""
        for key, value in values.items():
            self.page.evaluate(f"{{const e = document.getElementById('{key}_value'); e.value = '{value}';"
                               "e.dispatchEvent(new Event('input'))}")

    def evaluate(self, text):
        return json.loads(self.page.evaluate(f"JSON.stringify({text})"))

    def click(self, name):
        self.page.evaluate(f"document.getElementById('{name}').click()")

    def look_at(self, memory):
        self.page.evaluate(f"{{const m = document.getElementById('memory'); m.value = '{memory}';"
                           "m.dispatchEvent(new Event('change'))}")

    def picture(self, name):
        if PICTURES:
            self.page.screenshot(PICTURES / f"{name}.png")

    def hold(self, expected, what, view=0, factor=1):
        found = self.figures(view)
        same([found[key] for key in FIGURES], [expected[key] for key in FIGURES], what)
        for key in ("peak_activations", "peak_weight_inputs"):
            same(found[key], expected[key], (what, key))
        # Every pass of a compute engine starts when the library says.
        starts = self.evaluate(f"(v => v.t.offsets.slice(0, v.t.devices).map((a, d) => [...v.times.start.slice(a, "
                               f"v.t.offsets[d + 1])]))(timeline.views[{view}])")
        for device, row in enumerate(expected["passes"]):
            same(starts[device], [factor * entry["start"] for entry in row], (what, "starts", device))


def check_slots(pages, words):
    """The slots of every class and device are those of the plan."""
    expected = {}
    for line in run(*words, "--format", "memory").splitlines()[1:]:
        device, word, slots = line.split()[:3]
        if word not in ("arena", "host"):
            expected[int(device), word] = int(slots)
    peaks = pages.evaluate("timeline.slot_peaks(timeline.views[0].changes)")
    classes = [word[:17] for word, _ in pages.evaluate("timeline.page.classes")]  # the table has columns
    found = {(device, classes[k]): count for device, row in enumerate(peaks) for k, count in enumerate(row) if count}
    assert found == expected, (words, {k: (found.get(k), expected.get(k)) for k in {*found, *expected}
                                       if found.get(k) != expected.get(k)})


def check_path(pages, what):
    """From 0 to the makespan without a gap but for what lies between two passes."""
    path = pages.evaluate("""(v => v.path.map((i, k) => [v.times.start[i], v.times.end[i], k == 0 ? 0 :
        Math.max(0, ...v.t.needs[i].concat(v.t.pair(i) ? v.t.needs[i + 1] : [], v.t.overlapped[i] ? v.t.needs[i - 1] : [])
          .filter(need => need[0] == v.path[k - 1]).map(need => timeline.delay(v.t, i, need, v.times.cost)))]))(
        timeline.views[0])""")
    assert path[0][0] == 0 and abs(path[-1][1] - pages.figures()["makespan"]) < 1e-9, what
    for (_, end, _), (start, _, delay) in zip(path, path[1:]):
        assert abs(start - end - delay) < 1e-9, (what, path)


def order(made):
    return [[{k: v for k, v in e.items() if k not in ("start", "end")} for e in row] for row in made["passes"]]


def check_every_schedule(pages):
    for name in names():
        for devices, microbatches, cost in ((4, 8, "1,1,1,0"), (6, 12, "10,12,8,1")):
            words = [*words_of(name, devices, microbatches), "--cost", cost]
            pages.open(*words)
            expected = json.loads(run(*words, "--format", "json"))
            pages.hold(expected, words)
            check_slots(pages, words)
            check_path(pages, words)
            if devices != 4:
                continue
            # The fixed order, timed again: by the page, and by the library from a file.
            new = {"F": 1.75, "I": 2.5, "W": 0.625, "latency": 0.375}
            pages.slide(**new)
            costs = ["--cost", ",".join(str(value) for value in new.values())]
            if name.startswith("seq") or name in FIXED_ORDERS:
                slid = json.loads(run(*words_of(name, devices, microbatches), *costs, "--format", "json"))
                assert order(expected) == order(slid), name
                expected = slid
            else:
                pages.csv.write_text(run(*words, "--format", "pytorch"), encoding="utf-8")
                expected = json.loads(run("csv", pages.csv, *costs, "--format", "json"))
            pages.hold(expected, (name, "slid"))
            check_path(pages, (name, "slid"))
        pages.picture(name)


def check_adapters(pages):
    """Recomputation, copies, shards and gathers, and all-reduces in pairs: what passes do is in the data of a page."""
    offered = set(re.search(r"wants (.*), not", subprocess.run([TIMETABLE, "1f1b", "--with", "x"], capture_output=True, text=True,
                                                               check=False).stderr)[1].replace(" or ", ", ").split(", "))
    assert offered == {*ADAPTERS, "attention-exchange"}, offered
    for adapter, (options, more) in ADAPTERS.items():
        held = 0
        for name in ("1f1b", "zb-h1") if adapter.startswith("vocabulary") else (
                "gpipe" if adapter.startswith("offload") else "1f1b", "v-half", "seq1f1b"):
            words = [*words_of(name, 4, 6), "--with", adapter]
            asked = [*words, *options, "--cost", "1,1.25,0.75,0.125"]
            pages.open(*asked)
            made = json.loads(run(*asked, "--format", "json"))
            pages.hold(made, asked)
            check_slots(pages, asked)
            check_path(pages, asked)
            # All times twice as long: the same order in twice the time.
            pages.slide(**{key: 2 * value for key, value in pages.evaluate("timeline.page.cost").items()})
            twice = {key: 2 * made[key] if key in ("makespan", "span") else made[key] for key in made}
            pages.hold(twice, (asked, "slid to twice the costs"), factor=2)
            # Some times changed, where the library has the same order for them.
            changed = {**dict(zip(options[::2], options[1::2])), **{option: value for value, option in more.values()}}
            other = [*words, *(word for pair in changed.items() for word in pair), "--cost", "1,1.25,0.75,0.15625"]
            slid = json.loads(run(*other, "--format", "json"))
            pages.click("reset")
            pages.slide(latency=0.15625, **{key: value for key, (value, _) in more.items()})
            check_path(pages, other)
            if order(made) == order(slid):
                pages.hold(slid, (other, "slid"))
                held += 1
        assert held > 0, adapter
        pages.picture(adapter)


def check_braids(pages):
    """All-reduces that the other pass of a pair hides, or the gradient of the weights after it."""
    for name, keeps_order in (("stp", True), ("v-half", False), ("1f1b", True), ("dualpipe", True)):
        words = words_of(name, 4, 12)
        costs = ["--cost", "1,1.25,0.75,0.125", "--all-reduce"]
        pages.open(*words, *costs, 0.5)
        made = json.loads(run(*words, *costs, 0.5, "--format", "json"))
        pages.hold(made, words)
        for value in (0.25, 1.5):
            pages.slide(all_reduce=value)
            slid = json.loads(run(*words, *costs, value, "--format", "json"))
            assert order(slid) == order(made) or not keeps_order, name
            if order(slid) == order(made):
                pages.hold(slid, (words, "slid to", value))


def check_chunks(pages):
    """Chunks of unequal work: their times move with the sliders, as the library scales them."""
    words = ["seq1f1b", "--devices", 4, "--microbatches", 6, "--chunks", 4, "--tokens", 4096, "--attention-ratio", 1.5]
    pages.open(*words, "--cost", "1,1,1", "--even")
    pages.hold(json.loads(run(*words, "--cost", "1,1,1", "--even", "--format", "json")), "even chunks")
    pages.slide(F=2, I=3, W=0.5)
    pages.hold(json.loads(run(*words, "--cost", "2,3,0.5", "--even", "--format", "json")), "even chunks, slid")
    # Chunks of equal work count by their tokens.
    pages.open(*words, "--cost", "1,1,1")
    made = json.loads(run(*words, "--cost", "1,1,1", "--format", "json"))
    assert len(set(made["chunk_shares"])) > 1
    pages.hold(made, "chunks of equal work")
    # Microbatches of unequal numbers of chunks, and of those some computed twice.
    for options in (["--chunk-counts", "1,4"], ["--keep", 1]):
        words = ["chunkflow", "--devices", 4, "--microbatches", 8, *options]
        pages.open(*words)
        made = json.loads(run(*words, "--format", "json"))
        pages.hold(made, words)
        check_slots(pages, words)
        check_path(pages, words)
        slid = json.loads(run(*words, "--cost", "2,3,0.5,0.25", "--format", "json"))
        assert order(made) == order(slid), words
        pages.slide(F=2, I=3, W=0.5, latency=0.25)
        if "--keep" in options:
            pages.slide(R=2)  # as long as a forward pass where nothing is said
        pages.hold(slid, (words, "slid"))


def check_exchange(pages):
    """Stages that are no chain: parts of layers, some on other devices."""
    words = ["slimpipe", "--devices", 4, "--microbatches", 4, "--stages-per-device", 1, "--tokens", 4096, "--attention-ratio", 2,
             "--with", "attention-exchange"]
    pages.open(*words, "--cost", "3,4,2")
    pages.hold(json.loads(run(*words, "--cost", "3,4,2", "--format", "json")), "exchange")
    check_slots(pages, words)
    check_path(pages, "exchange")
    pages.slide(F=2, I=3, W=1.5, latency=0.125)
    pages.hold(json.loads(run(*words, "--cost", "2,3,1.5,0.125", "--format", "json")), "exchange, slid")
    pages.picture("exchange")


def check_file(pages, folder):
    """Times by stage and links from a file keep their ratio to the means."""
    file = pathlib.Path(folder, "costs.json")
    costs = {"pipelining_costs": 1, "communication": 0.125, "message_bytes": 4, "forward": [[1], [1.5], [0.75], [1.25]],
             "backward_input": [[2], [1.25], [1], [1.5]], "backward_weight": [[0.5], [0.25], [1], [0.75]],
             "links": [[0, 1, 0.5, 0.125], [1, 0, 0.25, 0], [2, 3, 0, 0.25], [3, 2, 0.375, 0.125]]}
    file.write_text(json.dumps(costs), encoding="utf-8")
    for name in ("1f1b", "zb-h1", "wei-pipe"):
        words = [*words_of(name, 4, 8), "--cost", file]
        pages.open(*words)
        made = json.loads(run(*words, "--format", "json"))
        pages.hold(made, words)
        check_path(pages, words)
        pages.slide(**{key: 2 * value for key, value in pages.evaluate("timeline.page.cost").items()})
        twice = {key: 2 * made[key] if key in ("makespan", "span") else made[key] for key in made}
        pages.hold(twice, (words, "slid to twice the costs"), factor=2)


def check_two(pages):
    """Two schedules on one axis; a device has the same work in both."""
    words = ["v-half", "--devices", 4, "--microbatches", 8]
    pages.open(*words, "--against", "1f1b")
    pages.hold(json.loads(run(*words, "--format", "json")), "first")
    pages.hold(json.loads(run("1f1b", *words[1:], "--cost", "2,2,2", "--format", "json")), "second", 1)
    assert pages.page.evaluate("document.querySelectorAll('canvas').length") == 2
    assert pages.page.evaluate("timeline.state.to") == 66
    pages.picture("two")
    pages.click("arrows")
    pages.click("path")
    pages.picture("arrows_and_path")


def check_hands(pages):
    """Mouse, keys and switches on 1F1B of two devices, whose times are known: F0 of device 1 is from 1 to 2."""
    pages.open("1f1b", "--devices", 2, "--microbatches", 2)
    box = json.loads(pages.page.evaluate("JSON.stringify(document.querySelector('canvas').getBoundingClientRect())"))
    wide = box["width"] - 84 - 104
    x = lambda time: box["left"] + 84 + time / 9 * wide  # noqa: E731
    y = box["top"] + 6 + 68 + 15  # the middle of the passes of device 1
    pages.page.mouse("mouseMoved", x(1.5), y)
    tip = pages.page.evaluate("document.getElementById('tip').textContent")
    assert tip == ("forward of stage 1, microbatch 0\ndevice 1, 1 to 2\nwaits for forward of stage 0, microbatch 0 on "
                   "device 0\nneeded by backward of stage 1, microbatch 0"), tip
    pages.picture("hover")
    pages.page.mouse("mouseMoved", x(0.5), y)
    assert pages.page.evaluate("document.getElementById('tip').style.display") == "none"
    before = pages.page.evaluate("[timeline.state.from, timeline.state.to]")
    assert before == [0, 9], before
    pages.page.mouse("mouseWheel", x(3), y, deltaX=0, deltaY=-100, modifiers=2)  # with Ctrl
    low, high = pages.page.evaluate("[timeline.state.from, timeline.state.to]")
    assert high - low < 8 and abs((3 - low) / (high - low) - 3 / 9) < 1e-2, (low, high)  # zoomed about the mouse
    pages.page.mouse("mousePressed", x(3), y, button="left", clickCount=1)
    pages.page.mouse("mouseMoved", x(3) - 100, y, button="left")
    pages.page.mouse("mouseReleased", x(3) - 100, y, button="left")
    moved = pages.page.evaluate("timeline.state.from")
    assert abs(moved - low - 100 * (high - low) / wide) < 1e-6, (low, moved)
    for key, seen in (("0", [0, 9]),):
        pages.page.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        assert pages.page.evaluate("[timeline.state.from, timeline.state.to]") == seen
    blank = "document.querySelector('canvas').toDataURL()"
    plain = pages.page.evaluate(blank)
    for switch in ("arrows", "path"):
        pages.click(switch)
        assert pages.page.evaluate(blank) != plain, switch
        pages.click(switch)
        assert pages.page.evaluate(blank) == plain, switch
    # Every class in use can be looked at alone.
    pages.open("1f1b", "--devices", 2, "--microbatches", 2, "--bytes", "10,1000")
    assert pages.evaluate("[...document.getElementById('memory').options].map(o => o.value)") == [
        "all", "activation", "received_input", "output", "received_gradient", "input_gradient", "none"]
    pages.look_at("activation")
    assert pages.page.evaluate("timeline.views[0].curves.map(c => c.peak)") == [2000, 1000]


def check_host(pages):
    """What lies on the host is no memory of the device."""
    words = ["1f1b", "--devices", 4, "--microbatches", 6, "--with", "offload", "--copy-cost", 0.5]
    pages.open(*words, "--bytes", "1,1")
    expected = {device: 0 for device in range(4)}
    for line in run(*words, "--format", "memory").splitlines()[1:]:
        if line.split()[1] == "host_activation":
            expected[int(line.split()[0])] = int(line.split()[2])
    assert max(expected.values()) > 0
    for memory, host in (("host", True), ("all", False)):
        pages.look_at(memory)
        peaks = pages.evaluate("timeline.views[0].curves.map(c => Math.max(0, ...c.steps.map(s => s[1][10])))")
        assert peaks == ([expected[device] for device in range(4)] if host else [0] * 4), (memory, peaks)


def check_bytes(pages):
    pages.open("zb-h1", "--devices", 2, "--microbatches", 4, "--bytes", "1000,100000,30000")
    assert pages.page.evaluate("Math.max(...timeline.views[0].curves.map(c => c.peak))") >= 2 * 100000 + 30000
    pages.look_at("weight_input")
    peaks = json.loads(run("zb-h1", "--devices", 2, "--microbatches", 4, "--format", "json"))["peak_weight_inputs"]
    assert pages.page.evaluate("timeline.views[0].curves.map(c => c.peak)") == [30000 * peak for peak in peaks]
    pages.picture("bytes")


def check_measured(pages, folder):
    """The page of the demo: planned, and as measured in the trace next to it."""
    text = pathlib.Path(folder, "text")
    text.write_text("it was the best of times, it was the worst of times; " * 40)
    subprocess.run([GPT, "--layers", "8", "--width", "32", "--sequence", "32", "--devices", "4", "--microbatches", "8",
                    "--schedule", "v-half", "--steps", "4", "--text", text, "--output", folder],
                   check=True, capture_output=True, timeout=120)
    pages.page.open(pathlib.Path(folder, "timeline.html"))
    planned = pages.figures()
    events = json.loads(pathlib.Path(folder, "trace.json").read_text())["traceEvents"]
    drawn = {pid: [(e["tid"], e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == pid]
             for pid in (1, 2)}
    for pid, found in ((1, planned), (2, None)):
        if found is None:
            pages.click("measured")
            found = pages.figures()
            assert found["makespan"] != planned["makespan"]
            shown = pages.page.evaluate("timeline.state.to - timeline.state.from")
            assert abs(shown - found["makespan"]) < 1e-9 and pages.page.evaluate("document.getElementById('F').disabled")
        whole = max(end for _, _, end in drawn[pid]) - min(start for _, start, _ in drawn[pid])
        assert abs(found["makespan"] * 1e3 - whole) < 1, (pid, found["makespan"], whole)  # milliseconds against micro
    pages.picture("measured")
    # Both ends of arrows, and counters, in the trace that the demo writes.
    assert sum(e["ph"] == "s" for e in events) == sum(e["ph"] == "f" for e in events) == 2 * 2 * 8 * 6, "arrows"
    assert {e["pid"] for e in events if e["ph"] == "C"} == {1, 2}, "counters"


def main():
    program = browser.find()
    if program is None:
        print("skipped: no Chromium on the PATH (" + ", ".join(browser.NAMES) + ")")
        return 77
    with tempfile.TemporaryDirectory() as folder, browser.Browser(program) as chromium:
        pages = Pages(chromium, folder)
        check_every_schedule(pages)
        check_adapters(pages)
        check_braids(pages)
        check_chunks(pages)
        check_exchange(pages)
        check_file(pages, folder)
        check_two(pages)
        check_hands(pages)
        check_bytes(pages)
        check_host(pages)
        check_measured(pages, folder)
        size = len(run("v-half", "--devices", 4, "--microbatches", 8, "--format", "html"))
        assert size < 50000 and not re.search(r"(src|href)=", pages.file.read_text(encoding="utf-8")), size
    print("pages of", len(names()), "schedules held against the library")
    return 0


if __name__ == "__main__":
    sys.exit(main())
