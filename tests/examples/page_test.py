#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Does with the interactive page what a person does: wheel, keys, fingers, a click, a search, a phone, the dark.

usage: page_test.py TIMETABLE [--pictures FOLDER]

Exit status 77, with a word, where there is no Chromium on the PATH.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import browser

TIMETABLE = sys.argv[1]
PICTURES = pathlib.Path(sys.argv[3]) if "--pictures" in sys.argv else None
RANGE = "[timeline.state.from, timeline.state.to]"


class Page:
    def __init__(self, chromium, folder):
        self.browser = chromium
        self.file = pathlib.Path(folder, "page.html")

    def open(self, *words):
        text = subprocess.run([TIMETABLE, *map(str, words), "--format", "html"], capture_output=True, text=True, check=True).stdout
        self.file.write_text(text, encoding="utf-8")
        self.browser.open(self.file)

    def value(self, text):
        return json.loads(self.browser.evaluate(f"JSON.stringify({text})"))

    def range(self):
        return self.value(RANGE)

    def wide(self):
        low, high = self.range()
        return high - low

    def place(self, view, entry):
        """The middle of a pass on the screen."""
        return self.value(f"""(() => {{const v = timeline.views[{view}], box = v.canvas.getBoundingClientRect();
          const {{y, tall}} = place_of(v.t, {entry}, heights(v.t)), inner = v.width - left_of(v) - right_of(v);
          const middle = (v.times.start[{entry}] + v.times.end[{entry}]) / 2;
          return [box.left + left_of(v) + (middle - timeline.state.from) / (timeline.state.to - timeline.state.from) * inner,
                  box.top + y + tall / 2];}})()""")

    def wheel(self, x, y, down=0, aside=0, modifiers=0):
        self.browser.mouse("mouseWheel", x, y, deltaX=aside, deltaY=down, modifiers=modifiers)
        # The compositor scrolls; two frames later the page has seen it.
        self.browser.call("Runtime.evaluate", awaitPromise=True, expression="new Promise(done => setTimeout(() => "
                          "requestAnimationFrame(() => requestAnimationFrame(done)), 300))")

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.browser.mouse(kind, x, y, button="left", clickCount=1)

    def click_on(self, name):
        x, y = self.value(f"(b => [b.left + b.width / 2, b.top + b.height / 2])(document.getElementById('{name}')"
                          ".getBoundingClientRect())")
        self.click(x, y)

    def key(self, key):
        more = {"text": key} if len(key) == 1 else {}
        code = {"Escape": 27, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39}.get(key, 0)
        self.browser.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code,
                          **({"text": "\r"} if key == "Enter" else more))
        self.browser.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def fingers(self, kind, *points):
        self.browser.call("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": x, "y": y, "id": k} for k, (x, y) in
                                                                            enumerate(points)])

    def picture(self, name):
        if PICTURES:
            self.browser.evaluate("dispatchEvent(new Event('beforeprint'))")
            self.browser.screenshot(PICTURES / f"{name}.png")
            self.browser.evaluate("dispatchEvent(new Event('afterprint'))")


def check_wheel(page):
    """The wheel scrolls the page; with Ctrl it zooms by the size of the event; aside it pans; never beyond the data."""
    page.open("v-half", "--devices", 256, "--microbatches", 16)
    whole = page.range()
    page.wheel(600, 500, down=300)
    assert page.value("scrollY") == 300 and page.range() == whole, (page.value("scrollY"), page.range())
    page.open("v-half", "--devices", 4, "--microbatches", 8)
    whole, (x, y) = page.range(), page.place(0, 10)
    for down in (2, 40):
        before = page.wide()
        page.wheel(x, y, down=-down, modifiers=2)
        shrunk = page.wide() / before
        assert abs(shrunk - 2.718281828 ** (-down / 300)) < 1e-3, (down, shrunk)  # small events zoom little
    low = page.range()[0]
    page.wheel(x, y, aside=20)
    assert page.range()[0] > low
    for _ in range(8):
        page.wheel(x, y, down=3000, modifiers=2)
    assert page.range() == whole, page.range()
    for aside in (-5000, 5000):
        page.wheel(x, y, down=-100, modifiers=2)
        page.wheel(x, y, aside=aside)
        assert whole[0] <= page.range()[0] < page.range()[1] <= whole[1], page.range()
    assert page.range()[1] == whole[1]


def check_keys(page):
    """Keys act after any click, also on a check box, and leave fields alone that are typed into."""
    page.open("v-half", "--devices", 4, "--microbatches", 8)
    whole = page.range()
    page.click_on("arrows")
    assert page.value("timeline.state.arrows")
    page.key("w")
    zoomed = page.wide()
    assert abs(zoomed - 0.7 * (whole[1] - whole[0])) < 1e-9
    for key, direction in (("d", 1), ("a", -1), ("ArrowRight", 1), ("ArrowLeft", -1)):
        low = page.range()[0]
        page.key(key)
        assert abs(page.range()[0] - low - direction * zoomed / 10) < 1e-9, (key, low, page.range())
    for _ in range(60):
        page.key("d")
    assert page.range()[1] == whole[1], page.range()
    for _ in range(60):
        page.key("-")
    assert page.range() == whole, page.range()
    for _ in range(60):
        page.key("+")
    assert 0 < page.wide() < 1e-4 * (whole[1] - whole[0])
    page.key("0")
    assert page.range() == whole
    page.click_on("find")
    page.key("w")
    assert page.range() == whole and page.value("document.getElementById('find').value") == "w"
    page.click_on("path")
    page.key("s")
    page.key("w")
    assert page.wide() < whole[1] - whole[0]
    page.browser.evaluate("document.getElementById('F').focus()")
    low = page.range()
    page.key("ArrowRight")  # is the slider's
    assert page.range() == low


def check_pin(page):
    """A click keeps a pass in sight, with what it waits for; each of these is a button that goes there."""
    page.open("1f1b", "--devices", 2, "--microbatches", 2)
    entry = page.value("timeline.views[0].t.offsets[1]")  # the first pass of device 1
    plain = page.browser.evaluate("document.querySelector('canvas').toDataURL()")
    page.click(*page.place(0, entry))
    panel = "document.getElementById('pin')"
    assert page.value(f"{panel}.innerText").split("\n")[:3] == [
        "forward of stage 1, microbatch 0", "device 1, 1 to 2",
        "waits for forward of stage 0, microbatch 0 on device 0"], page.value(f"{panel}.innerText")
    page.browser.mouse("mouseMoved", 5, 5)
    assert page.browser.evaluate("document.querySelector('canvas').toDataURL()") != plain
    page.picture("pinned")
    page.browser.evaluate(f"{panel}.querySelector('button').click()")
    assert page.value("timeline.views[0].pinned") == 0
    page.key("Escape")
    assert page.value(f"{panel}.hidden") and page.value("timeline.views[0].pinned") == -1
    x, y = page.place(0, entry)
    page.browser.mouse("mousePressed", x, y, button="left", clickCount=1)
    page.browser.mouse("mouseMoved", x + 40, y, button="left")
    page.browser.mouse("mouseReleased", x + 40, y, button="left")
    assert page.value("timeline.views[0].pinned") == -1  # that was a drag


def check_search(page):
    page.open("v-half", "--devices", 16, "--microbatches", 32)
    found = "document.getElementById('found').textContent"
    page.click_on("find")
    for text, count in (("backward_input stage 3", 32), ("stage 3 microbatch 1", 3), ("forward", 32 * 32), ("nothing", 0)):
        page.browser.evaluate(f"{{const e = document.getElementById('find'); e.value = '{text}'; e.dispatchEvent(new Event('input'))}}")
        assert page.value(found) == f"{count} passes", (text, page.value(found))
    page.browser.evaluate("{const e = document.getElementById('find'); e.value = 'backward_weight stage 31 microbatch 31';"
                          "e.dispatchEvent(new Event('input'))}")
    assert page.value(found) == "1 pass"
    page.picture("search")
    page.browser.evaluate("show(0, 5)")
    page.key("Enter")
    entry = page.value("timeline.views[0].pinned")
    start, end = page.value(f"[timeline.views[0].times.start[{entry}], timeline.views[0].times.end[{entry}]]")
    low, high = page.range()
    assert low <= start < end <= high, (start, end, low, high)
    assert "stage 31, microbatch 31" in page.value("document.getElementById('pin').innerText")


def check_shares(page):
    """Without sizes memory is a share of 1F1B's, so the page agrees with its headline."""
    page.open("v-half", "--devices", 4, "--microbatches", 8, "--against", "1f1b")
    peaks = page.value("timeline.views.map(v => v.curves.map(c => c.peak))")
    for view, name in enumerate(("v-half", "1f1b")):
        made = json.loads(subprocess.run([TIMETABLE, name, "--devices", "4", "--microbatches", "8", "--json"], check=True,
                                         capture_output=True, text=True).stdout)
        expected = [peak / made["stages"] for peak in made["peak_activations"]]  # of 4 microbatches on 4 devices
        assert max(abs(a - b) for a, b in zip(peaks[view], expected)) < 1e-9, (name, peaks[view], expected)
    assert max(peaks[1]) == 1 and max(peaks[0]) < 0.8, peaks
    assert "in shares of what 1F1B keeps" in page.value("document.body.innerText")
    assert page.value("[...document.getElementById('memory').options].map(o => o.value)") == ["activation", "weight_input", "none"]
    page.picture("shares")


def check_names(page):
    """What a screen reader hears: every control has a name, every canvas a role, a label and a place for the focus."""
    page.open("v-half", "--devices", 4, "--microbatches", 8, "--bytes", "4096,65536,8192")
    nodes = page.browser.call("Accessibility.getFullAXTree")["nodes"]
    controls = ("button", "checkbox", "slider", "spinbutton", "searchbox", "combobox", "image", "img")
    roles = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")]
    named = [each for each in roles if each[0] in controls]
    assert {"button", "checkbox", "slider", "spinbutton", "searchbox", "combobox"} <= {role for role, _ in named}, roles
    assert all(name for _, name in named), named
    assert any("timeline of" in name for _, name in named), named
    assert page.value("[...document.querySelectorAll('canvas')].every(c => c.tabIndex == 0)")
    assert "received input" in page.value("document.getElementById('legend').innerText")


def check_phone(page):
    """390 pixels wide: no sideways scrolling, one finger scrolls down the page, two zoom."""
    chromium = page.browser
    chromium.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
    chromium.call("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    page.open("v-half", "--devices", 16, "--microbatches", 32, "--against", "1f1b")
    assert page.value("innerWidth") == 390 and page.value("document.documentElement.scrollWidth") == 390
    page.picture("phone")
    top = page.value("document.querySelector('canvas').getBoundingClientRect().top") + 60
    page.fingers("touchStart", (200, top + 200))
    for step in range(10):
        page.fingers("touchMove", (200, top + 200 - 20 * step))
    page.fingers("touchEnd")
    page.wheel(0, 0)
    assert page.value("scrollY") > 100, page.value("scrollY")
    chromium.evaluate("scrollTo(0, 0)")
    whole = page.wide()
    page.fingers("touchStart", (150, top), (250, top))
    for step in range(1, 6):
        page.fingers("touchMove", (150 - 10 * step, top), (250 + 10 * step, top))
    page.fingers("touchEnd")
    assert abs(page.wide() / whole - 0.5) < 0.05, page.wide() / whole
    chromium.call("Emulation.clearDeviceMetricsOverride")
    chromium.call("Emulation.setTouchEmulationEnabled", enabled=False)


def check_dark(page):
    luminance = "(c => c.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0))(getComputedStyle(document.body).{})"
    for scheme, dark in (("dark", True), ("light", False)):
        page.browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        page.open("1f1b", "--devices", 4, "--microbatches", 8)
        paper, ink = (page.value(luminance.format(each)) for each in ("backgroundColor", "color"))
        assert (paper < 120 and ink > 550) if dark else (paper > 700 and ink < 200), (scheme, paper, ink)
        page.picture(scheme)
    # A page that is open follows.
    before = page.browser.evaluate("document.querySelector('canvas').toDataURL()")
    page.browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    page.wheel(0, 0)
    assert page.browser.evaluate("document.querySelector('canvas').toDataURL()") != before
    page.browser.call("Emulation.setEmulatedMedia", features=[])


def check_large(page):
    """65,536 passes. Time is the machine's; the work is counted: what a canvas is asked for in a redraw."""
    for devices, microbatches in ((32, 256), (256, 32)):
        page.open("v-half", "--devices", devices, "--microbatches", microbatches, "--against", "1f1b")
        assert page.value("timeline.views.reduce((sum, v) => sum + v.t.size, 0)") == 65536
        calls, took = page.value("""(() => {
          let calls = 0;
          const all = CanvasRenderingContext2D.prototype, kept = {};
          for (const name of ["fillRect", "fillText", "stroke", "putImageData"]) {
            kept[name] = all[name];
            all[name] = function (...words) { ++calls; return kept[name].apply(this, words); };
          }
          const began = performance.now();
          dispatchEvent(new Event("resize"));
          const took = performance.now() - began;
          Object.assign(all, kept);
          return [calls, took];
        })()""")
        loaded = page.value("performance.getEntriesByType('navigation')[0].loadEventEnd")
        print(f"{devices} devices, {microbatches} microbatches, two schedules: loaded in {loaded / 1000:.2f} s, redrawn in "
              f"{took:.0f} ms, {calls} calls")
        assert calls < 1500, calls
    # What comes into sight is drawn then.
    drawn = "document.querySelectorAll('canvas')[1].toDataURL().length"
    before = page.value(drawn)
    page.browser.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.wheel(0, 0)
    assert page.value(drawn) > 1.5 * before, (before, page.value(drawn))


def main():
    program = browser.find()
    if program is None:
        print("skipped: no Chromium on the PATH (" + ", ".join(browser.NAMES) + ")")
        return 77
    with tempfile.TemporaryDirectory() as folder, browser.Browser(program) as chromium:
        page = Page(chromium, folder)
        for check in (check_wheel, check_keys, check_pin, check_search, check_shares, check_names, check_phone, check_dark,
                      check_large):
            check(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
