#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tests what a terminal and a shell see of the timetable tool: completion, colours, progress.

usage: terminal_test.py TIMETABLE [unittest argument ...]
"""
import os
import pathlib
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = ""
ESCAPE = "\x1b["
#: Takes a few seconds in every build, since the order of the search is bounded by time.
SEARCH = ["search", "--devices", "16", "--microbatches", "64", "--memory", "8"]


def printed(*words):
    return subprocess.run([PROGRAM, *words], check=True, capture_output=True, text=True, timeout=60).stdout


def on_terminal(*words, **environment):
    """What the program writes on a terminal, on both of its outputs."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    master, slave = pty.openpty()
    process = subprocess.Popen([PROGRAM, *words], stdin=slave, stdout=slave, stderr=slave, close_fds=True,
                               env={**inherited, "TERM": "xterm-256color", **environment})
    os.close(slave)
    text = b""
    while True:
        try:
            part = os.read(master, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        text += part
    os.close(master)
    assert process.wait(60) == 0, text
    return text.decode()


class Colours(unittest.TestCase):
    WORDS = ["1f1b", "--devices", "2", "--microbatches", "4"]

    def test_a_terminal_has_them(self):
        self.assertIn(ESCAPE, on_terminal(*self.WORDS))
        self.assertIn(ESCAPE, on_terminal(*self.WORDS, NO_COLOR=""))  # empty says nothing, by no-color.org

    def test_they_can_be_declined(self):
        for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            self.assertNotIn(ESCAPE, on_terminal(*self.WORDS, **environment), environment)


class Progress(unittest.TestCase):
    def test_a_terminal_sees_one_line_which_goes_away(self):
        text = on_terminal(*SEARCH, "--seconds", "3")
        self.assertGreater(text.count("\r" + ESCAPE + "K"), 2)

    def test_a_dumb_terminal_gets_no_escapes(self):
        self.assertNotIn("\x1b", on_terminal(*SEARCH, "--seconds", "3", TERM="dumb"))

    def test_a_log_has_a_line_in_ten_seconds_at_most(self):
        # Takes minutes, of which twelve seconds are looked at.
        process = subprocess.Popen([PROGRAM, "blocks", "--devices", "64", "--legs", "6", "--chunks", "1,2,4,8"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            process.wait(12)
            self.fail("it should take longer")
        except subprocess.TimeoutExpired:
            process.kill()
        written = process.communicate()[1]
        times = re.findall(r"^([0-9.]+) s: .*\n", written, re.MULTILINE)
        self.assertEqual(len(times), 1, written)
        self.assertGreaterEqual(float(times[0]), 10)


def verbs():
    return re.findall(r"timetable ([a-z]+) ", printed("--help").split("\n\n")[0])


def options_of(verb):
    return set(re.findall(r"^  (--[a-z-]+)", printed("help", *([verb] if verb else [])), re.MULTILINE))


class Completion(unittest.TestCase):
    def bash(self, *words):
        """What bash offers for the last of these words."""
        text = ('source "$1"; shift; COMP_WORDS=(timetable "$@"); COMP_CWORD=$#; _timetable; '
                'printf "%s\\n" "${COMPREPLY[@]}"')
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder, "script")
            script.write_text(printed("completion", "bash"), encoding="utf-8")
            done = subprocess.run(["bash", "--norc", "-uc", text, "bash", script, *words], capture_output=True, text=True,
                                  timeout=60, check=True)
        self.assertEqual(done.stderr, "")
        return set(done.stdout.split())

    def test_bash_begins_with_verbs_and_schedules(self):
        names = {line.split()[0] for line in printed("--list").split("\n\n")[0].splitlines()}
        self.assertEqual(self.bash(""), names | set(verbs()) | {"help", "--list", "--help", "--version"})
        self.assertEqual(self.bash("v-h"), {"v-half"})
        self.assertEqual(self.bash("help", ""), set(verbs()))

    def test_bash_offers_the_options_of_the_help(self):
        for verb in verbs():
            self.assertEqual(self.bash(verb, "--"), options_of(verb) | {"--help"}, verb)
        self.assertEqual(self.bash("1f1b", "--"), set(re.findall(r"^  (--[a-z-]+)", printed("help", "1f1b"), re.MULTILINE)) |
                         {"--help"})

    def test_bash_offers_values_that_the_tool_takes(self):
        for verb, option in (("1f1b", "--format"), ("compare", "--format"), ("choose", "--format"), ("blocks", "--format"),
                             ("1f1b", "--with"), ("csv", "--torch"), ("1f1b", "--policy"), ("search", "--goal")):
            offered = self.bash(verb, option, "")
            said = subprocess.run([PROGRAM, verb, option, "no-such-value"], capture_output=True, text=True, check=False).stderr
            known = re.search(r" wants (.*), not ", said)[1]
            self.assertEqual(offered, set(re.split(r", | or ", known)), (verb, option))
            self.assertGreaterEqual(len(offered), 2, (verb, option))
            self.assertEqual(self.bash(verb, option, "=", ""), offered)  # bash cuts --format=csv so
        self.assertIn("gpt-7b", self.bash("choose", "--model", ""))
        self.assertIn("h100", self.bash("systems", "--gpu", "h"))
        self.assertIn("vocabulary", self.bash("reproduce", ""))
        self.assertEqual(self.bash("1f1b", "--devices", ""), set())
        self.assertEqual(self.bash("completion", ""), {"bash", "zsh", "fish", "--help"})

    def test_other_shells_read_theirs(self):
        for shell in ("zsh", "fish"):
            with self.subTest(shell=shell):
                program = shutil.which(shell)
                if program is None:
                    self.skipTest(f"no {shell} on the PATH")
                with tempfile.TemporaryDirectory() as folder:
                    script = pathlib.Path(folder, "script")
                    script.write_text(printed("completion", shell), encoding="utf-8")
                    done = subprocess.run([program, "-n", script], capture_output=True, text=True, timeout=60, check=False)
                    self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_fish_offers_values(self):
        program = shutil.which("fish")
        if program is None:
            self.skipTest("no fish on the PATH")
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder, "script")
            script.write_text(printed("completion", "fish"), encoding="utf-8")
            for line, wanted in (("timetable compare --format ", {"text", "csv", "json"}), ("timetable completion ", {"bash", "zsh", "fish"}),
                                 ("timetable v-h", {"v-half"}), ("timetable gaps --dev", {"--devices"})):
                done = subprocess.run([program, "--no-config", "-c", f"source {script}; complete -C '{line}'"], capture_output=True,
                                      text=True, timeout=60, check=True, env={**os.environ, "HOME": folder})
                self.assertEqual({each.split("\t")[0] for each in done.stdout.splitlines()}, wanted, done.stdout)

    def test_zsh_runs_its_function(self):
        program = shutil.which("zsh")
        if program is None:
            self.skipTest("no zsh on the PATH")
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder, "script")
            script.write_text(printed("completion", "zsh"), encoding="utf-8")
            # A stand-in for what only the line editor has.
            text = ('compdef() { :; }; compadd() { shift; print -l -- "$@"; }; _files() { print FILES; }; source "$1"; shift; '
                    'words=(timetable "$@"); CURRENT=$(($# + 1)); _timetable')
            for words, wanted in ((["compare", "--format", ""], {"text", "csv", "json"}), (["csv", ""], {"FILES"}),
                                  (["completion", ""], {"bash", "zsh", "fish", "--help"})):
                done = subprocess.run([program, "-f", "-c", text, "zsh", script, *words], capture_output=True, text=True, timeout=60,
                                      check=True)
                self.assertEqual(set(done.stdout.split()), wanted, done.stderr)

    def test_an_unknown_shell_is_refused(self):
        said = subprocess.run([PROGRAM, "completion", "csh"], capture_output=True, text=True, check=False)
        self.assertEqual((said.returncode, said.stdout), (2, ""))
        self.assertIn("bash, zsh or fish", said.stderr)


if __name__ == "__main__":
    PROGRAM = sys.argv[1]
    del sys.argv[1]
    unittest.main()
