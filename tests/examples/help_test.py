#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Asks every verb that the timetable tool knows for its --help, and holds it against what the verb takes.

usage: help_test.py TIMETABLE VERSION_HEADER [unittest argument ...]
"""
import pathlib
import re
import subprocess
import sys
import unittest

PROGRAM = ""
VERSION = pathlib.Path()
OPTION = re.compile(r"^  (--[a-z-]+)", re.MULTILINE)


def run(*words):
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=60, check=False)


def printed(*words):
    done = run(*words)
    if done.returncode != 0 or done.stderr:
        raise AssertionError(f"{words}: exit status {done.returncode}, {done.stderr}")
    return done.stdout


def verbs():
    """All that the usage names: the word after the tool's name, where it stands for itself."""
    usage = printed("--help").split("\n\n")[0]
    return re.findall(r"timetable ([a-z]+) ", usage)


class Help(unittest.TestCase):
    def test_the_usage_names_the_verbs(self):
        self.assertGreaterEqual(len(verbs()), 8)
        described = printed("--help").split("Verbs, each with a --help:\n\n")[1].split("\n\n")[0]
        self.assertEqual(re.findall(r"^  (\S+)", described, re.MULTILINE), verbs())

    def test_every_verb_has_help_however_it_is_asked_for(self):
        for verb in verbs():
            with self.subTest(verb=verb):
                text = printed(verb, "--help")
                self.assertTrue(text.startswith(f"usage: timetable {verb} "), text)
                for words in ((verb, "-h"), ("help", verb), (verb, "--no-such-option", "--help")):
                    self.assertEqual(printed(*words), text)
        self.assertEqual(printed("help"), printed("--help"))
        self.assertEqual(printed("-h"), printed("--help"))
        self.assertEqual(printed("help", "1f1b"), printed("1f1b", "--help"))
        self.assertTrue(printed("help", "1f1b").startswith("usage: timetable NAME "))

    def test_a_verb_knows_the_options_of_its_help_and_no_others(self):
        names = {verb: OPTION.findall(printed(verb, "--help")) for verb in verbs()}
        names["1f1b"] = OPTION.findall(printed("help", "1f1b"))
        every = set().union(*names.values())
        self.assertGreaterEqual(len(every), 50)
        for verb, known in names.items():
            self.assertEqual(len(known), len(set(known)), verb)
            if verb == "reproduce":
                continue  # takes the name of a table
            for option in every:
                with self.subTest(verb=verb, option=option):
                    said = run(verb, option, option)  # no value is right, and none may stand twice
                    self.assertEqual(said.returncode, 2)
                    unknown = re.search(r"there is no option|does not have the option|^timetable: only \w+ has the option",
                                        said.stderr)
                    self.assertEqual(unknown is None, option in known, said.stderr)

    def test_reproduce_lists_its_tables(self):
        tables = re.findall(r"^  (\S+)$", printed("reproduce", "--help"), re.MULTILINE)
        self.assertEqual(", ".join(tables), run("reproduce").stderr.strip().split(": ")[-1])

    def test_lines_fit_a_terminal(self):
        for verb in (None, *verbs()):
            text = printed("help", verb) if verb else printed("help")
            for line in text.splitlines():
                self.assertLessEqual(len(line), 100, line)
                self.assertEqual(line, line.rstrip())

    def test_what_stands_by_itself_does(self):
        for word in ("--list", "--version"):
            said = run(word, "1f1b")
            self.assertEqual((said.returncode, said.stdout), (2, ""))
            self.assertIn("stands by itself", said.stderr)
        for words, reason in ((("help", "1b1f"), "did you mean 1f1b"), (("help", "gaps", "csv"), "help wants one word")):
            said = run(*words)
            self.assertEqual((said.returncode, said.stdout), (2, ""))
            self.assertIn(reason, said.stderr)

    def test_version(self):
        numbers = re.findall(r"^#define PIPELINING_VERSION_\w+ (\d+)$", VERSION.read_text(encoding="utf-8"), re.MULTILINE)
        self.assertEqual(printed("--version"), f"timetable of pipelining {'.'.join(numbers)}\n")


if __name__ == "__main__":
    PROGRAM, VERSION = sys.argv[1], pathlib.Path(sys.argv[2])
    del sys.argv[1:3]
    unittest.main()
