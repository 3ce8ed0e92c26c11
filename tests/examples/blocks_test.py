#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks `timetable blocks`: its types compile and have the figures that stand above them; what it refuses.

usage: blocks_test.py TIMETABLE COMPILER INCLUDE
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

DEVICES = 3


def run(*words):
    return subprocess.run([PROGRAM, "blocks", *map(str, words)], capture_output=True, text=True, timeout=240, check=False)


class BlocksTest(unittest.TestCase):
    def test_types_have_the_figures_above_them(self):
        made = run("--devices", DEVICES, "--legs", 3, "--chunks", "1,2", "--format", "cpp").stdout
        figures = re.findall(r"// ([\d.]+) of \d+ microbatches, at least ([\d.]+); bubble ([\d.]+) %\nusing (block_\d+) =", made)
        self.assertGreater(len(figures), 10)
        legs = [int(number) for number in re.findall(r"strides<(\d)>", made)]
        self.assertEqual(set(legs), {1, 2, 3})
        checks = "\n".join(f"  check<{name}>({memory}, {least}, {bubble}, {count});"
                           for (memory, least, bubble, name), count in zip(figures, legs))
        program = made + f"""
#include <cmath>
#include <cstdio>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
int wrong = 0;
template <class Block> void check(double memory, double least, double bubble, int legs) {{
  auto const table = pipelining::make_timetable(Block{{}}, {{{DEVICES}, {4 * DEVICES}}});
  auto const peak = pipelining::peak_activations(table);
  double const held = static_cast<double>(peak.numerator) / static_cast<double>(peak.denominator) / legs;
  bool const good = std::abs(held - memory) < 6e-4 &&
                    std::abs(100 * pipelining::bubble_rate(table) - bubble) < 0.06 && least < memory + 6e-4;
  if (!good && ++wrong < 5)
    std::printf("%g %g %g: %g\\n", memory, least, bubble, held);
}}
constexpr auto table = pipelining::timetable<{figures[-1][3]}, {DEVICES}, 4>; // in the compiler, too
static_assert(pipelining::verify(table));
int main() {{
{checks}
  return wrong;
}}
"""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "main.cpp").write_text(program, encoding="utf-8")
            subprocess.run([COMPILER, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-I", INCLUDE,
                            str(root / "main.cpp"), "-o", str(root / "main")], check=True)
            done = subprocess.run([str(root / "main")], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_refusals(self):
        for words, reason in ((("--legs", 7), "--legs wants a whole number from 1 to 6, not '7'"),
                              (("--devices", 0), "--devices wants a whole number"),
                              (("--chunks", "1,"), "--chunks wants a whole number"),
                              (("--format", "html"), "--format wants text, json, svg or cpp, not 'html'"),
                              (("--step", 2), "there is no option '--step'"),
                              (("--devices",), "--devices needs a value")):
            result = run(*words)
            self.assertEqual((result.returncode, result.stdout), (2, ""), words)
            self.assertRegex(result.stderr, r"timetable: [^\n]+\n\Z")
            self.assertIn(reason, result.stderr)


if __name__ == "__main__":
    PROGRAM, COMPILER, INCLUDE = sys.argv[1:4]
    del sys.argv[1:4]
    unittest.main()
