#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Builds the site and walks it: every guide in a headless Chromium, every page of the API as a file.

Held: no raw markup, no dead link, no missing picture, no absolute path, no script error, nothing from elsewhere, nothing wider
than a phone, words that the search finds.

usage: site_test.py REPOSITORY [--pictures FOLDER]

Exit status 77, with a word, where Doxygen, MkDocs Material or Chromium is missing.
"""
import functools
import html.parser
import http.server
import json
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import urllib.parse

ROOT = pathlib.Path(sys.argv[1]).resolve()
PICTURES = pathlib.Path(sys.argv[3]) if "--pictures" in sys.argv else None
sys.path.insert(0, str(ROOT / "tests/examples"))
import browser  # noqa: E402

SITE = ROOT / "build/docs/html"
RAW = re.compile(r"@ref\b|@image\b|</?(tt|table|code)\b|\]\((?!\))[^)\s]+\.(md|svg|html)|^#{1,4} |```|\*\*\w", re.MULTILINE)


class Page(html.parser.HTMLParser):
    """What a file links to, shows, and can be linked at; and its words but for code."""

    def __init__(self, file):
        super().__init__()
        self.links, self.places, self.words, self.hidden = [], set(), [], 0
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.places |= {found[name] for name in ("id", "name") if found.get(name)}
        self.links += [found[name] for name in ("href", "src") if found.get(name)]
        self.hidden += tag in ("pre", "code", "script", "style")

    def handle_endtag(self, tag):
        self.hidden -= tag in ("pre", "code", "script", "style")

    def handle_data(self, data):
        if not self.hidden:
            self.words.append(data)


@functools.cache
def target_of(folder, link):
    target = (folder / urllib.parse.unquote(link)).resolve()
    if target.is_dir():
        target /= "index.html"
    return target if target.is_file() else None


def dead_links(pages):
    for file, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc or link.startswith("javascript:"):
                continue
            target = target_of(file.parent, parts.path) if parts.path else file
            place = urllib.parse.unquote(parts.fragment)
            if target is None:
                yield f"{file.relative_to(SITE)}: {link} is no file"
            elif place and target in pages and place not in pages[target].places and not place.startswith("__"):
                yield f"{file.relative_to(SITE)}: {link} has no such place"


def walk(chromium, address, guides):
    chromium.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    for file in guides:
        where = file.relative_to(SITE).as_posix()
        chromium.problems.clear()
        chromium.go(f"{address}/{where}")
        chromium.problems = [each for each in chromium.problems if not each.startswith(address)]
        if chromium.problems:
            yield f"{where}: {chromium.problems[:2]}"
            chromium.problems.clear()
        words = chromium.evaluate("""[...document.querySelectorAll('article *')].filter(e => !e.closest('pre, code, .highlight'))
          .flatMap(e => [...e.childNodes].filter(n => n.nodeType == 3).map(n => n.textContent)).join('\\n')""") or ""
        if found := RAW.search(words):
            yield f"{where}: raw markup, {words[max(0, found.start() - 40):found.end() + 40]!r}"
        if str(ROOT) in words:
            yield f"{where}: a path of this machine"
        for missing in chromium.evaluate("[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"):
            yield f"{where}: {missing} is not shown"
        if (over := chromium.evaluate(wide)) > 0:
            yield f"{where}: {over} pixels wider than a phone"
        chromium.check()
    chromium.call("Emulation.clearDeviceMetricsOverride")


def search(chromium, address):
    """What a reader types finds pages."""
    Quiet.whole_index = True
    for word in ("deadlock", "Megatron"):
        chromium.problems.clear()
        chromium.go(f"{address}/index.html")
        chromium.evaluate("document.querySelector('[data-md-toggle=search]').click()")
        chromium.evaluate(f"{{const e = document.querySelector('.md-search__input'); e.focus(); e.value = '{word}';"
                          "for (const kind of ['input', 'keyup']) e.dispatchEvent(new Event(kind, {bubbles: true}))}")
        for _ in range(100):
            chromium.wait(100)
            count = chromium.evaluate("document.querySelectorAll('.md-search-result__item').length")
            if count:
                break
        if not count:
            yield f"the search finds nothing for {word}"


def dark(chromium, address):
    luminance = "(c => c.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0))(getComputedStyle(document.body).backgroundColor)"
    for scheme, is_dark in (("dark", True), ("light", False)):
        chromium.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        chromium.go(f"{address}/index.html")
        chromium.wait(300)
        if (chromium.evaluate(luminance) < 250) != is_dark:
            yield f"the {scheme} scheme of the system is not followed"
        if PICTURES:
            chromium.screenshot(PICTURES / f"site_{scheme}.png")
    chromium.call("Emulation.setEmulatedMedia", features=[])


def main():
    if shutil.which("doxygen") is None:
        print("skipped: no doxygen")
        return 77
    program = browser.find()
    if program is None:
        print("skipped: no Chromium on the PATH (" + ", ".join(browser.NAMES) + ")")
        return 77
    built = subprocess.run(["true"] if "--built" in sys.argv else [ROOT / "scripts/docs"], capture_output=True, text=True, check=False)
    if built.returncode != 0 and not (ROOT / "build/docs/venv/bin/mkdocs").exists():
        print("skipped: no MkDocs Material:", built.stderr.strip().splitlines()[-1:])
        return 77
    if built.returncode != 0:
        print(built.stdout + built.stderr)
        return 1
    pages = {file: Page(file) for file in SITE.glob("**/*.html") if file.parent.name != "images"}
    guides = sorted(file for file in pages if "api" not in file.relative_to(SITE).parts and file.name != "404.html")
    problems = [each for each in dead_links({file: page for file, page in pages.items() if file.name != "404.html"})]
    problems += [f"{file.relative_to(SITE)}: a path of this machine" for file, page in pages.items()
                 if str(ROOT) in "".join(page.words)]
    if len(guides) < 50 or len(pages) < 500:
        problems.append(f"there are {len(guides)} guides and {len(pages)} pages only")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    with browser.Browser(program) as chromium:
        chromium.allowed = address
        for part in (walk(chromium, address, [*guides, SITE / "docs/images/timeline.html", SITE / "api/index.html",
                                              SITE / "api/annotated.html"]),
                     search(chromium, address), dark(chromium, address)):
            problems += part
        if PICTURES:
            chromium.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
            chromium.go(f"{address}/docs/schedules.html")
            chromium.screenshot(PICTURES / "site_phone.png")
    print("\n".join(problems[:40] or [f"{len(guides)} guides and {len(pages) - len(guides)} pages of the API walked"]))
    return 1 if problems else 0


class Quiet(http.server.SimpleHTTPRequestHandler):
    whole_index = False  # every page makes the index of the search anew, which takes as long as all else on it

    def __init__(self, *words):
        super().__init__(*words, directory=SITE)

    def do_GET(self):
        if self.path == "/favicon.ico":  # which browsers ask for by themselves
            self.send_response(204)
            self.end_headers()
        elif self.path.endswith("/search_index.json") and not Quiet.whole_index:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps({**json.loads((SITE / "search/search_index.json").read_bytes()), "docs": []}).encode())
        else:
            super().do_GET()

    def log_message(self, *_):
        """Nothing."""


if __name__ == "__main__":
    sys.exit(main())
