#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""scripts/build-example says what it builds before it builds it, and shows how far it is on a terminal.

usage: build_example_test.py ROOT
"""
import json
import os
import pathlib
import pty
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path()
# A build that does not go on until somebody has written into the gate.
LISTS = """cmake_minimum_required(VERSION 3.22)
project(gated LANGUAGES NONE)
set(program "${CMAKE_BINARY_DIR}/bin/tool")
add_custom_command(OUTPUT "${program}" COMMAND cat "${CMAKE_SOURCE_DIR}/gate"
  COMMAND cmake -E copy "${CMAKE_SOURCE_DIR}/source" "${program}" DEPENDS "${CMAKE_SOURCE_DIR}/source" VERBATIM)
add_custom_target(tool DEPENDS "${program}")
"""
PRESETS = {"version": 6, "configurePresets": [
    {"name": "release", "generator": "Ninja", "binaryDir": "${sourceDir}/build/release"}]}


class BuildExample(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "scripts").mkdir()
        shutil.copy(ROOT / "scripts/build-example", self.root / "scripts")
        dependencies = self.root / "scripts/install-dependencies"
        dependencies.write_text("#!/bin/sh\n", encoding="utf-8")
        dependencies.chmod(0o755)
        (self.root / "CMakeLists.txt").write_text(LISTS, encoding="utf-8")
        (self.root / "CMakePresets.json").write_text(json.dumps(PRESETS), encoding="utf-8")
        (self.root / "source").write_text("one\n", encoding="utf-8")
        os.mkfifo(self.root / "gate")

    def start(self, stderr):
        return subprocess.Popen([self.root / "scripts/build-example", "tool"], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=stderr)

    def open_gate(self):
        (self.root / "gate").write_text("open\n", encoding="utf-8")  # waits for the build to read it

    def build(self):
        """What it says before it builds, and all that it says later."""
        tool = self.start(subprocess.PIPE)
        first = tool.stderr.readline()
        self.open_gate()
        out, rest = tool.communicate(timeout=60)
        self.assertEqual((tool.returncode, out), (0, b""))
        return first, rest

    def test_a_build_is_announced_before_it_begins(self):
        self.assertEqual(self.build(), (b"building tool: some minutes, once\n", b""))
        self.assertEqual((self.root / "build/release/bin/tool").read_text(encoding="utf-8"), "one\n")
        (self.root / "source").write_text("another\n", encoding="utf-8")
        self.assertEqual(self.build(), (b"building what has changed in tool\n", b""))

    def test_nothing_is_said_where_nothing_is_built(self):
        self.build()
        tool = self.start(subprocess.PIPE)
        self.assertEqual(tool.communicate(timeout=60), (b"", b""))
        self.assertEqual(tool.returncode, 0)

    def test_a_terminal_sees_how_far_it_is(self):
        here, there = pty.openpty()
        tool = self.start(there)
        os.close(there)
        self.open_gate()
        seen = b""
        try:
            while read := os.read(here, 4096):
                seen += read
        except OSError:  # nobody writes any more
            pass
        os.close(here)
        self.assertEqual((tool.wait(timeout=60), tool.stdout.read()), (0, b""))
        tool.stdout.close()
        self.assertTrue(seen.startswith(b"building tool: some minutes, once\r\n"), seen)
        self.assertIn(b"[1/1] ", seen)

    def test_a_broken_build_is_shown(self):
        (self.root / "source").unlink()
        tool = self.start(subprocess.PIPE)
        out, said = tool.communicate(timeout=60)
        self.assertEqual((tool.returncode, out), (1, b""))
        self.assertIn(b"missing and no known rule to make it", said)
        self.assertTrue(said.endswith(b"build-example: could not build tool\n"), said)


if __name__ == "__main__":
    ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
