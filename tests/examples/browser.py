# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A headless Chromium, driven over a pair of pipes: no port, no driver program, no package."""
import base64
import json
import os
import shutil
import subprocess
import tempfile

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find():
    """The path of the first browser of these names, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page. Messages are JSON objects with a zero byte after each, on the descriptors 3 and 4 of the browser."""

    def __init__(self, program, width=1280, height=860):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self.to = os.pipe()
        self.answers, to_write = os.pipe()
        # Away from 3 and 4, which they must become in the child.
        ends = [os.dup(fd) for fd in (to_read, to_write)]

        def connect():
            high = [os.dup(fd) for fd in ends]
            while min(high) < 5:
                high = [os.dup(fd) for fd in high]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-extensions", "--disable-background-networking", "--hide-scrollbars", "--remote-debugging-pipe",
             f"--window-size={width},{height}", f"--user-data-dir={self.folder.name}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False,
            preexec_fn=connect)
        for fd in (to_read, to_write, *ends):
            os.close(fd)
        self.pending = b""
        self.number = 0
        self.session = None
        self.problems = []
        self.loaded = False
        self.allowed = "file:"  # addresses that pages may ask for begin so
        target = next(each["targetId"] for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for area in ("Page", "Runtime", "Log", "Network"):
            self.call(area + ".enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.to)  # the browser ends when nobody speaks to it
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.answers)
        self.folder.cleanup()

    def receive(self):
        while b"\0" not in self.pending:
            part = os.read(self.answers, 1 << 16)
            if not part:
                raise RuntimeError("the browser has ended")
            self.pending += part
        message, self.pending = self.pending.split(b"\0", 1)
        found = json.loads(message)
        self.loaded |= found.get("method") == "Page.loadEventFired"
        if found.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.problems.append(json.dumps(found["params"])[:600])
        if found.get("method") == "Network.requestWillBeSent":
            self.problems += [url for url in [found["params"]["request"]["url"]] if not url.startswith((self.allowed, "file:", "data:", "blob:"))]
        return found

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            found = self.receive()
            if found.get("id") == self.number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                return found["result"]

    def open(self, path):
        """Opens a file, as from a file manager; raises what the page reports."""
        self.go(path.resolve().as_uri())
        self.check()

    def go(self, address):
        """Opens an address; what it reports stays in `problems`."""
        self.call("Runtime.evaluate", expression="window.left = true")
        self.loaded = False
        self.call("Page.navigate", url=address)
        while not self.call("Runtime.evaluate", expression="!window.left && document.readyState == 'complete'")["result"].get("value"):
            if not self.loaded:  # each question takes the page time to load
                self.receive()

    def wait(self, milliseconds):
        self.call("Runtime.evaluate", awaitPromise=True, expression=f"new Promise(done => setTimeout(done, {milliseconds}))")

    def check(self):
        if self.problems:
            raise AssertionError("\n".join(self.problems))

    def evaluate(self, expression):
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in found:
            raise AssertionError(json.dumps(found["exceptionDetails"])[:800])
        self.check()
        return found["result"].get("value")

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def screenshot(self, path):
        height = self.evaluate("document.documentElement.scrollHeight")
        width = self.evaluate("document.documentElement.clientWidth")
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True,
                         clip={"x": 0, "y": 0, "width": width, "height": height, "scale": 1})
        path.write_bytes(base64.b64decode(shot["data"]))
