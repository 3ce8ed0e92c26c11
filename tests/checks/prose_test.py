#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tests the measure of prose with pages whose figures are known.

usage: prose_test.py
"""
import pathlib
import sys
import tempfile
import unittest

import check_prose


class Prose(unittest.TestCase):
    def problems(self, page, readme="Three short words.\n"):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs").mkdir()
            (root / "README.md").write_text(readme, encoding="utf-8")
            (root / "docs/page.md").write_text(page, encoding="utf-8")
            return check_prose.main(root, 0)

    def test_code_tables_and_headings_are_no_prose(self):
        page = "# A heading of words\n\nOne two three. Four `five six` seven.\n\n| a | b |\n\n```text\nno prose at all\n```\n- An item here\n"
        self.assertEqual(list(check_prose.sentences(page)), ["One two three.", "Four code seven.", "An item here"])

    def test_long_sentences_are_found(self):
        self.assertEqual(self.problems("A sentence of five words.\n"), [])
        (mean,) = self.problems("word " * 25 + "end.\n")
        self.assertIn("26.0 words in the mean", mean)
        self.assertEqual(len(self.problems("word " * 150 + "end.\n")), 2)

    def test_words_of_all_pages_are_counted(self):
        check_prose.MOST_WORDS, kept = 11, check_prose.MOST_WORDS
        try:
            self.assertEqual(self.problems("| a table |\n\nThree short words.\n", "Four words are here.\n"), [])
            (many,) = self.problems("| a table |\n\nThree short words.\n", "Five words are right here.\n")
            self.assertIn("12 words, and may have 11", many)
        finally:
            check_prose.MOST_WORDS = kept

    def test_rows_without_a_table_are_found(self):
        table = "Three short words.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
        self.assertEqual(self.problems(table + "\n" + table), [])
        (row,) = self.problems(table + "\n| 3 | 4 |\n")
        self.assertIn("docs/page.md: a row after a blank line is in no table: | 3 | 4 |", row)

    def test_hard_words_are_counted(self):
        check_prose.MOST_HARD, kept = 0, check_prose.MOST_HARD
        try:
            for hard in ("It is that of the device.", "What is read here is kept.", "It keeps inputs alone.", "It stands beside it.",
                         "They run with those of others."):
                self.assertEqual(len(self.problems(hard)), 2, hard)
            self.assertEqual(self.problems("It stands next to the only device."), [])
        finally:
            check_prose.MOST_HARD = kept

    def test_docstrings_begin_with_a_noun_or_a_verb(self):
        header = ("//! @brief What it gives.\n//! That is no beginning.\nint a; //!< its number\nint b; //!< Those of a.\n\n"
                  "// What is no docstring\n//! The number of a.\n//! Nobody begins here.\n")
        self.assertEqual([number for number, _ in check_prose.docstrings(header)], [1, 3, 4, 7])
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "include/pipe").mkdir(parents=True)
            (root / "include/pipe/a.hpp").write_text(header, encoding="utf-8")
            (root / "include/pipe/a.cuh").write_text("//! They are more.\n", encoding="utf-8")
            self.assertEqual([each.split(": ")[0] for each in check_prose.pronouns(root)],
                             ["include/pipe/a.cuh:1", "include/pipe/a.hpp:1", "include/pipe/a.hpp:4"])


if __name__ == "__main__":
    sys.exit(unittest.main())
