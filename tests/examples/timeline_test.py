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
CLASSES = ["activation", "received_input", "output", "received_gradient", "input_gradient", "weight_input", "sequence",
           "sequence_gradient"]
FIGURES = ["makespan", "span", "bubble_rate", "makespan_bubble_rate"]


def run(*words):
    result = subprocess.run([TIMETABLE, *map(str, words)], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0 and not re.sub(r"(?m)^[0-9.]+ s: .*\n", "", result.stderr), (words, result.stderr)
    return result.stdout


def names():
    return [line.split()[0] for line in run("--list").splitlines()]


def words_of(name, devices, microbatches):
    limit = ["--memory-limit", 8] if name in ("v-auto", "v-continuous", "zb-auto") else []
    least = 3 * devices - 1 if name == "stp" else 1
    return [name, "--devices", devices, "--microbatches", max(microbatches, least), *limit]


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
        """Types values beside sliders, as a user does."""
        for key, value in values.items():
            self.page.evaluate(f"{{const e = document.getElementById('{key}_value'); e.value = '{value}';"
                               "e.dispatchEvent(new Event('input'))}")

    def click(self, name):
        self.page.evaluate(f"document.getElementById('{name}').click()")

    def picture(self, name):
        if PICTURES:
            self.page.screenshot(PICTURES / f"{name}.png")

    def hold(self, expected, what, view=0):
        found = self.figures(view)
        same([found[key] for key in FIGURES], [expected[key] for key in FIGURES], what)
        for key in ("peak_activations", "peak_weight_inputs"):
            same(found[key], expected[key], (what, key))


def check_slots(pages, words):
    """The slots of every class and device are those of the plan."""
    expected = {}
    for line in run(*words, "--format", "memory").splitlines()[1:]:
        cells = line.split()
        if cells[1] in CLASSES:
            expected[int(cells[0]), cells[1]] = int(cells[2])
    peaks = json.loads(pages.page.evaluate("JSON.stringify(timeline.slot_peaks(timeline.views[0].changes))"))
    found = {(device, CLASSES[k]): count for device, row in enumerate(peaks) for k, count in enumerate(row) if count}
    assert found == expected, (words, {k: (found.get(k), expected.get(k)) for k in {*found, *expected}
                                       if found.get(k) != expected.get(k)})


def check_path(pages, what):
    path = json.loads(pages.page.evaluate(
        "JSON.stringify((v => v.path.map(i => [v.times.start[i], v.times.end[i], v.t.device[i]]))(timeline.views[0]))"))
    latency = pages.page.evaluate("timeline.state.cost.latency")
    assert path[0][0] == 0 and abs(path[-1][1] - pages.figures()["makespan"]) < 1e-9, what
    for (_, end, device), (start, _, to) in zip(path, path[1:]):
        assert abs(start - end - (latency if device != to else 0)) < 1e-9, (what, path)


def check_every_schedule(pages):
    for name in names():
        if name in ("round-pipe", "wei-pipe"):  # one has stages that go one way, the other messages that a page does not know
            continue
        for devices, microbatches, cost in ((4, 8, "1,1,1,0"), (6, 10, "10,12,8,1")):
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
            if name.startswith("seq") or name in ("bitpipe", "chimera", "chunkflow", "dualpipe", "helix", "slice-v", "slimpipe", "stp", "svpp"):  # no such file; but their orders do not follow the costs
                order = [[{k: v for k, v in e.items() if k not in ("start", "end")} for e in row]
                         for row in expected["passes"]]
                expected = json.loads(run(*words_of(name, devices, microbatches), *costs, "--format", "json"))
                assert order == [[{k: v for k, v in e.items() if k not in ("start", "end")} for e in row]
                                 for row in expected["passes"]], name
            else:
                pages.csv.write_text(run(*words, "--format", "pytorch"), encoding="utf-8")
                expected = json.loads(run("csv", pages.csv, *costs, "--format", "json"))
            pages.hold(expected, (name, "slid"))
            check_path(pages, (name, "slid"))


def check_chunks(pages):
    """Chunks of unequal work: their times move with the sliders, as the library scales them."""
    words = ["seq1f1b", "--devices", 4, "--microbatches", 6, "--chunks", 4, "--tokens", 4096, "--attention-ratio", 1.5]
    pages.open(*words, "--cost", "1,1,1", "--even")
    pages.hold(json.loads(run(*words, "--cost", "1,1,1", "--even", "--format", "json")), "even chunks")
    pages.slide(F=2, I=3, W=0.5)
    pages.hold(json.loads(run(*words, "--cost", "2,3,0.5", "--even", "--format", "json")), "even chunks, slid")


def check_exchange(pages):
    """Stages that are no chain: parts of layers, some on other devices. Times of messages alone may be slid."""
    words = ["slimpipe", "--devices", 4, "--microbatches", 4, "--stages-per-device", 1, "--tokens", 4096, "--attention-ratio", 2,
             "--with", "attention-exchange"]
    pages.open(*words, "--cost", "3,4,2")
    pages.hold(json.loads(run(*words, "--cost", "3,4,2", "--format", "json")), "exchange")
    check_slots(pages, words)
    check_path(pages, "exchange")
    pages.slide(latency=0.125)
    pages.hold(json.loads(run(*words, "--cost", "3,4,2,0.125", "--format", "json")), "exchange, slid")
    pages.picture("exchange")


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
    pages.page.mouse("mouseWheel", x(3), y, deltaX=0, deltaY=-100)
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
    # Every class of the plan can be looked at alone; those that are not in use have no curve.
    pages.page.evaluate("{const m = document.getElementById('memory'); m.value = 'weight_input';"
                        "m.dispatchEvent(new Event('change'))}")
    assert pages.page.evaluate("timeline.views[0].curves.map(c => c.peak)") == [0, 0]


def check_bytes(pages):
    pages.open("zb-h1", "--devices", 2, "--microbatches", 4, "--bytes", "1000,100000,30000")
    assert pages.page.evaluate("Math.max(...timeline.views[0].curves.map(c => c.peak))") >= 2 * 100000 + 30000
    pages.page.evaluate("{const m = document.getElementById('memory'); m.value = 'weight_input';"
                        "m.dispatchEvent(new Event('change'))}")
    peaks = json.loads(run("zb-h1", "--devices", 2, "--microbatches", 4, "--format", "json"))["peak_weight_inputs"]
    assert pages.page.evaluate("timeline.views[0].curves.map(c => c.peak)") == [30000 * peak for peak in peaks]
    pages.picture("bytes")


def check_measured(pages, folder):
    """The page of the demo: planned, and as measured in the trace beside it."""
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
        check_chunks(pages)
        check_exchange(pages)
        check_two(pages)
        check_hands(pages)
        check_bytes(pages)
        check_measured(pages, folder)
        size = len(run("v-half", "--devices", 4, "--microbatches", 8, "--format", "html"))
        assert size < 40000 and not re.search(r"(src|href)=", pages.file.read_text(encoding="utf-8")), size
    print("pages of", len(names()), "schedules held against the library")
    return 0


if __name__ == "__main__":
    sys.exit(main())
