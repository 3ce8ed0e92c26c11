#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Holds predicted times of `timetable choose` against published runs, and the page that says how near they are.

usage: published_runs_test.py TIMETABLE ROOT [unittest argument ...]
"""
import pathlib
import sys
import unittest

TIMETABLE = ""
ROOT = pathlib.Path()


class Published(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        sys.path.insert(0, str(ROOT / "benchmarks"))
        import published_runs
        cls.of = published_runs
        cls.rows = published_runs.table(TIMETABLE)

    def test_half_of_the_errors_are_below_ten_percent(self):
        self.assertGreaterEqual(len(self.rows), 20)
        self.assertGreaterEqual(len({row["source"] for row in self.rows}), 5)
        self.assertLessEqual(self.of.median_error(self.rows), 10)
        self.assertGreater(self.of.share_within(self.rows, 15), 0.7)

    def test_runs_that_differ_by_more_than_the_band_are_ranked_right(self):
        pairs, right = self.of.ranked(self.rows, 15)
        self.assertGreaterEqual(pairs, 60)
        self.assertGreaterEqual(right, 0.9 * pairs)

    def test_the_page_has_these_figures(self):
        text = (ROOT / "docs/reproduction.md").read_text(encoding="utf-8")
        self.assertIn(self.of.page(self.rows), text)
        pairs, right = self.of.ranked(self.rows, 15)
        self.assertIn(f"Of {pairs} pairs of one model that differ by more, {right} are ranked right", text.replace("\n", " "))
        self.assertIn(f"{len(self.rows)} published runs", text.replace("\n", " "))


if __name__ == "__main__":
    TIMETABLE, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
