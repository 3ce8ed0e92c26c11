#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Pages, pictures and tables with names that try to be more than text: other parsers read them, and a browser runs nothing.

usage: hostile_test.py PROGRAM FOLDER_OF_BROWSER
"""
import csv
import html.parser
import json
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

PROGRAM = sys.argv[1]
sys.path.insert(0, sys.argv[2])
import browser  # noqa: E402

NAMES = [b"</script><script>hacked = 1</script>", b"<img src=x onerror='hacked = 1'>", b"]]><script>hacked = 1</script><![CDATA[",
         b"--><svg onload=\"hacked = 1\"><!--", b"\"}],\"x\":[{\"", b"'; hacked = 1; '", b"\\\"; hacked = 1; //", b"&lt;script&gt; &#60;b&#62;",
         b"\x1b[2J\x07\x08", b"\xff\xfe \xc3", b"\xed\xa0\x80", b"a\xef\xbf\xbf\xef\xbf\xbeb", b"\xe2\x80\xa8 hacked = 1 \xe2\x80\xa9", b"caf\xc3\xa9 \xe2\x82\xac",
         b"${hacked = 1}`", b"%s%n", b"javascript:hacked=1"]


class Scripts(html.parser.HTMLParser):
    """The scripts of a page, and all its other elements."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.scripts, self.elements, self.title, self.inside = [], [], "", None

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.inside == "title":
            self.title += data


def refuse(number):
    raise AssertionError(f"{number} is not JSON")


def check(name, folder, page):
    subprocess.run([PROGRAM, folder, name], check=True)
    folder = pathlib.Path(folder)
    text = {each: (folder / each).read_bytes().decode("utf-8") for each in
            ("page.html", "picture.svg", "table.json", "trace.json", "table.csv")}  # strictly
    for each in ("table.json", "trace.json"):
        json.loads(text[each], parse_constant=refuse)
    rows = list(csv.reader(text["table.csv"].splitlines()))
    assert len({len(row) for row in rows}) == 1, rows
    picture = xml.etree.ElementTree.fromstring(text["picture.svg"])
    tags = {each.tag.rsplit("}", 1)[-1] for each in picture.iter()}
    assert tags <= {"svg", "g", "rect", "text", "title", "line", "path", "style", "tspan", "polyline", "desc"}, tags
    assert not any(key.startswith("on") for each in picture.iter() for key in each.attrib)
    found = Scripts()
    found.feed(text["page.html"])
    assert len(found.scripts) == 2 and "img" not in found.elements and "svg" not in found.elements, found.elements
    data = json.loads(found.scripts[0], parse_constant=refuse)
    assert data["title"] == found.title, (data["title"], found.title)
    if page is None:
        return
    page.open(folder / "page.html")
    assert page.evaluate("typeof hacked") == "undefined", name
    assert page.evaluate("document.scripts.length") == 2 and page.evaluate("document.images.length") == 0, name
    assert page.evaluate("document.getElementById('title').textContent") == data["title"], name
    page.open(folder / "picture.svg")
    assert page.evaluate("typeof hacked") == "undefined", name
    assert page.evaluate("document.querySelectorAll('script').length") == 0, name


def main():
    program = browser.find()
    page = browser.Browser(program) if program else None
    try:
        for name in NAMES:
            with tempfile.TemporaryDirectory() as folder:
                check(name, folder, page)
    finally:
        if page:
            page.__exit__()
    if page is None:
        print("without a browser: parsers alone have looked")


main()
