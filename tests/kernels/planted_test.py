#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""scripts/check-kernels refuses kernels that were made worse on purpose, by edits of their PTX, and passes them as they are.

usage: planted_test.py HOPPER.ptx PORTABLE.ptx

Exit status 77 where nvcc or nvdisasm is missing.
"""
import importlib.machinery
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
GATE = ROOT / "scripts/check-kernels"
HOPPER, PORTABLE = (pathlib.Path(path) for path in sys.argv[1:3])


def load_gate():
    loader = importlib.machinery.SourceFileLoader("gate", str(GATE))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gate", loader))
    loader.exec_module(module)
    return module


gate = load_gate()


def kernel_of(path, name):
    """PTX of one kernel: the head of the file and its entry, without places in sources."""
    text = path.read_text(encoding="utf-8")
    head = text[:text.index(".visible .entry")]
    entry = re.search(rf"\.visible \.entry {name}\(.*?(?=\.visible|\s\.file|\s\.section)", text, re.DOTALL).group(0)
    return head + re.sub(r"\n\s*\.loc\s[^\n]*", "", entry)


class Planted(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def say(self, ptx, architecture="sm_90a", budgets=None):
        """(exit status, text) of the gate on a kernel, the same one throughout a test."""
        source, cubin = self.folder / "one.ptx", self.folder / f"one.{architecture}.cubin"
        if not cubin.exists():
            source.write_text(ptx, encoding="utf-8")
            gate.assemble(PTXAS, source, architecture, cubin)
        done = subprocess.run([sys.executable, GATE, "--cubin", cubin, *(["--budgets", budgets] if budgets else [])],
                              capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def replaced(self, ptx, old, new, count):
        """PTX with all occurrences replaced, of which there must be so many."""
        self.assertEqual(ptx.count(old), count, f"the PTX no longer has {count} times {old!r}")
        return ptx.replace(old, new)

    def refused(self, said, *sentences):
        self.assertEqual(said[0], 1, said[1])
        for sentence in sentences:
            self.assertRegex(said[1], f"OVER BUDGET: .*{sentence}")

    def test_kernels_as_they_are_pass(self):
        for path, name, architecture in ((HOPPER, "backward_64", "sm_90a"), (PORTABLE, "forward_64", "sm_80")):
            code, text = self.say(kernel_of(path, name), architecture)
            self.assertEqual(code, 0, text)
            self.assertIn(f"{name} {architecture}", text)

    def test_serialised_products(self):
        """Gradients are packed while the product that reads the last ones runs: ptxas serialises all products."""
        ptx = kernel_of(HOPPER, "backward_64")
        self.refused(self.say(self.replaced(ptx, "wgmma.wait_group.sync.aligned 1;", "", 10)),
                     r"backward_64 sm_90a wgmma is serialised by ptxas: .*C75\d\d")

    def test_softmax_after_the_products(self):
        """Everything is waited for at once: right, and slower. ptxas has nothing to say."""
        ptx = kernel_of(HOPPER, "backward_64")
        self.refused(self.say(self.replaced(ptx, "wgmma.wait_group.sync.aligned 1;", "wgmma.wait_group.sync.aligned 0;", 10)),
                     "backward_64 sm_90a wgmma issues 0 exponentials of a pass under its own products, planned are 64")

    def test_spills(self):
        ptx = kernel_of(PORTABLE, "forward_64")
        self.refused(self.say(self.replaced(ptx, ".maxntid 128", ".maxntid 1024", 1), "sm_80"),
                     r"forward_64 sm_80( mma)? spills \d+ bytes")

    def budget_with(self, version=None, **changed):
        budget, of = gate.read_budget(ROOT / "tests/kernels/budgets", VERSION)
        for name, value in changed.items():
            budget["forward_64 sm_80 mma"][name] = value
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        (folder / f"{version or VERSION}.json").write_text(json.dumps(budget), encoding="utf-8")
        return folder

    def test_each_figure_is_held_against_the_budget(self):
        ptx = kernel_of(PORTABLE, "forward_64")
        for changed, sentence in (({"instructions": 500}, "takes [0-9]+ instructions for 1000 scores"),
                                  ({"shared_bytes": 1000}, "moves [0-9.]+ bytes of shared memory"),
                                  ({"products": {"m16n8k16": 120}}, "has the products .*m16n8k16.*planned are"),
                                  ({"exponentials_under_products": 1}, "issues 0 exponentials")):
            self.refused(self.say(ptx, "sm_80", self.budget_with(**changed)), sentence)
        code, text = self.say(ptx, "sm_80", self.budget_with(version="9.9.9", instructions=500))
        self.assertEqual(code, 0, text)
        self.assertRegex(text, r"there is no budget of nvcc [\d.]+; that of 9\.9\.9 serves")


if __name__ == "__main__":
    try:
        NVCC, PTXAS, _ = gate.find_tools(types.SimpleNamespace(nvcc=None, nvdisasm=None))
    except gate.Missing as reason:
        print(f"planted_test: skipped, {reason}")
        sys.exit(gate.SKIPPED)
    VERSION = gate.version_of(NVCC)
    unittest.main(argv=sys.argv[:1])
