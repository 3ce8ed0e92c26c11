#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The gate on whole kernels passes them as they are. It refuses launches that were made worse on purpose, by edits of headers,
and a changed constant.

usage: whole_planted_test.py

Exit status 77 where nvcc is missing.
"""
import importlib.machinery
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import types
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
ATTENTION = "pipe/attention/"


def load_gate():
    loader = importlib.machinery.SourceFileLoader("gate", str(ROOT / "scripts/check-kernels"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gate", loader))
    loader.exec_module(module)
    return module


gate = load_gate()
whole = gate.whole_gpu

PIECES = (ATTENTION + "hopper/forward_block.cuh", "int const n = static_cast<int>(add_one());",
          "int const n = last < 0 ? block : last + blocks;")
VALUES_IN_SHARED_MEMORY = (ATTENTION + "portable/backward_block.cuh", "holds_values = Dim != 64;", "holds_values = false;")
HEADS = (ATTENTION + "work_order.hpp", "2 * streams <= multiprocessors || streams <= fit", "true || streams <= fit")
KEY_HEADS = (ATTENTION + "work_order.hpp", "is_shared || streams_within(", "true || is_shared || streams_within(")
GROUPS = (ATTENTION + "work_order.hpp", "while (parts < p.group()", "while (false")
KEYS = (ATTENTION + "key_splits.hpp", "return static_cast<std::int32_t>(best);", "return static_cast<std::int32_t>(best > 0);")
SEARCH = (ATTENTION + "hopper/forward_block.cuh", "if constexpr (band_mask<", "if constexpr (false && band_mask<")
STEPS = (ATTENTION + "hopper/backward_copies.cuh", "if constexpr (band_mask<", "if constexpr (false && band_mask<")
RANGES = (ATTENTION + "work_order.hpp", "cut < sums.steps ? static_cast<std::int32_t>(cut) : 0", "0")
OUTPUTS = (ATTENTION + "hopper/forward_block.cuh", "value_dim % 64 == 0 &&", "false &&")
SECTIONS = (ATTENTION + "work_order.hpp", "2 * each > fit && each > 0;", "false;")
ROOMY = (ATTENTION + "portable/forward_block.cuh", "if (shared_bytes < usual::blocks", "if (false && shared_bytes < usual::blocks")
ROUNDING = (ATTENTION + "work_order.hpp", "return end.is_beyond_query &&", "return false && end.is_beyond_query &&")
ZEROS = (ATTENTION + "kernel/query_order.cuh", "|| band_mask<Mask>;", "|| (false && band_mask<Mask>);")
EARLY = (ATTENTION + "hopper/forward_block.cuh", "(tiles - 1 - rest / section)", "(rest / section)")


def plant(folder, *edits):
    """Copies of headers with text replaced, which must be there once."""
    for header, old, new in edits:
        to = folder / header
        text = (to if to.exists() else ROOT / "include" / header).read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise SystemExit(f"{header} no longer has once: {old}")
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(text.replace(old, new), encoding="utf-8")


class Planted(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.folder = pathlib.Path(cls.temporary.name)
        # As check-kernels --whole does; the other tests use the program that it compiles.
        cls.status = gate.check_whole(types.SimpleNamespace(write=False, model=False), NVCC, cls.folder)
        cls.program = cls.folder / "whole_gpu"

    def problems(self, names, *edits):
        over = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        plant(over, *edits)
        for path in self.folder.glob("*.o"):
            shutil.copy(path, over)
        return [*whole.check(whole.build(NVCC, gate.run, over, over), names)]

    def refused(self, problems, *sentences):
        """Each sentence is found, and nothing else is refused."""
        for sentence in sentences:
            self.assertTrue(any(re.fullmatch(sentence, problem) for problem in problems), (sentence, problems))
        for problem in problems:
            self.assertTrue(any(re.fullmatch(sentence, problem) for sentence in sentences), problem)

    def test_as_it_is(self):
        self.assertEqual(self.status, 0)

    def test_the_page_names_each_aim_that_is_missed_with_its_bound(self):
        text = (ROOT / "docs/explanation/kernel_speed.md").read_text(encoding="utf-8")
        said = {(name, way): (float(speed), float(most)) for name, way, speed, most in
                re.findall(r"(?m)^\| `(\w+)`.* \| (forward|free|kept) \| ([\d.]+) \| ([\d.]+) \|$", text)}
        found = gate.whole_gpu_targets.missed(self.program)
        self.assertEqual(said, {call: (round(speed, 3), round(most, 3)) for call, (speed, most) in found.items()})
        self.assertTrue(all(speed < most for speed, most in said.values()))

    def test_dealt_pieces_values_in_shared_memory_and_one_shape_for_all_gpus(self):
        self.refused(self.problems(("held_chunk", "square_8k"), PIECES, VALUES_IN_SHARED_MEMORY, ROOMY),
                     r"held_chunk:forward_1_held has busiest 1\d\d\d, committed is \d+",
                     r"(held_chunk|square_8k):forward\S* has (busiest|fullness|memory_kib) .*",
                     r"portable_backward_256_on_100_kib has shared_bytes 123488, committed is \d+",
                     r"portable_backward_\d+_on_1\d\d_kib has (shared_bytes|resident) .*",
                     r"portable_forward_128_on_100_kib has resident 1, committed is 2",
                     r"portable_forward_\w+_on_100_kib has (shared_bytes|resident) .*")

    def test_heads_fastest_whatever_the_cache_holds(self):
        self.refused(self.problems(("many_2k", "square_8k"), HEADS, KEY_HEADS),
                     r"many_2k:forward has heads_together 128, committed is \d+", r"many_2k:forward has memory_kib .*",
                     r"square_8k:kept has memory_kib .*", r"\w+:(kept|free|forward) has (heads_together|memory_kib|busiest|fullness) .*")

    def test_no_parts_of_groups_or_keys_and_short_pieces_first(self):
        self.refused(self.problems(("few_8k", "few_2k", "chunk_10", "square_8k"), GROUPS, RANGES, KEYS, EARLY),
                     r"few_2k:(kept|free) has step_cut 0, committed is 18",
                     r"few_8k:kept has group_parts 1, committed is \d", r"few_8k:free has blocks 64, committed is \d+",
                     r"chunk_10:forward has key_parts 1, committed is \d", r"chunk_10:forward has fullness [4-8]\d\d, .*",
                     r"square_8k:forward has fullness \d+, .*",
                     r"(few_[28]k:(kept|free|forward)|(chunk_10|square_8k):forward) has .*")

    def test_ranges_of_masks_ignored_late_pieces_short_sections_and_a_kernel_that_rounds(self):
        self.refused(self.problems(("documents_2k_32k", "many_2k"), SEARCH, STEPS, OUTPUTS, SECTIONS, ROUNDING, ZEROS),
                     r"documents_2k_32k:forward has asked \d+, committed is \d+",
                     r"documents_2k_32k:(kept|free) has asked \d+, committed is \d+",
                     r"many_2k:forward has next_asked 1, committed is 2",
                     r"many_2k:(kept|free) has is_rounded 0, committed is 1", r"many_2k:free has starts_at_0 1, committed is 0",
                     r"many_2k:forward has heads_together 26, committed is 16",
                     r"\w+:(kept|free|forward) has (asked|next_asked|starts_at_0|is_rounded|shared_bytes|heads_together|memory_kib|busiest|fullness) .*")


class Constants(unittest.TestCase):
    def test_a_commit_that_changes_one_touches_no_kernel(self):
        def git(*words):
            return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False).stdout.split()

        if git("rev-parse", "--is-shallow-repository") != ["false"]:
            self.skipTest("no history here")
        constants = str(whole.CONSTANTS.relative_to(ROOT))
        for commit in git("log", "--no-merges", "--diff-filter=M", "--format=%H", "--", constants):
            touched = git("diff-tree", "--no-commit-id", "--name-only", "-r", commit)
            self.assertEqual([path for path in touched if path.startswith("include/" + ATTENTION)], [], commit)


if __name__ == "__main__":
    try:
        NVCC = gate.find_tools(types.SimpleNamespace(nvcc=None, nvdisasm=None), False)[0]
    except gate.Missing as reason:
        print(f"whole_planted_test: skipped, {reason}")
        sys.exit(gate.SKIPPED)
    unittest.main(argv=sys.argv[:1])
