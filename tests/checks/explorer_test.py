#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks the form of the site's links to Compiler Explorer: every program that the pages show whole, with the one header in
place of the library's, and no link where nobody says from where the header comes. Nothing is downloaded.

usage: explorer_test.py REPOSITORY
"""
import base64
import json
import pathlib
import re
import sys
import unittest
import urllib.parse

ROOT = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(ROOT / "docs/site"))
import stage  # noqa: E402

URL = "https://example.org/pipelining.hpp"
LINK = re.compile(r"\[[^\]]+\]\(https://godbolt\.org/clientstate/([\w%=+-]+)\)")


class Explorer(unittest.TestCase):
    def states(self, page, header):
        return [json.loads(base64.b64decode(urllib.parse.unquote(each))) for each in LINK.findall(stage.staged(page, header))]

    def test_the_program_of_the_readme_runs_there(self):
        (state,) = self.states(ROOT / "README.md", URL)
        (session,) = state["sessions"]
        self.assertEqual(session["language"], "c++")
        self.assertIn("-std=c++20", session["executors"][0]["compiler"]["options"])
        program = session["source"]
        self.assertTrue(program.startswith(f"#include <{URL}>\n"), program[:80])
        self.assertNotIn("<pipe/", program)
        shown = re.search(r"```cpp\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]
        self.assertEqual(program.replace(URL, "pipe/pipe.hpp"), shown)

    def test_parts_of_programs_have_no_link(self):
        self.assertEqual(self.states(ROOT / "docs/how_to/own_schedule.md", URL), [])

    def test_without_an_address_there_is_no_link(self):
        for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
            self.assertNotIn("godbolt", stage.staged(page, ""), page)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
