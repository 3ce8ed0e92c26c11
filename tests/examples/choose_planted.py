#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Plants wrong bounds into copies of sources of `timetable choose`, and holds that the tests of choose see each.

usage: choose_planted.py write ROOT OUT                           OUT: one source of those of choose; PIPELINING_PLANTED names a bug
       choose_planted.py test PLANTED PROGRAM COMPILER INCLUDE    PLANTED: made of it; PROGRAM: the tool

Without a bug the two print the same, and examples.choose holds that its tests pass with the tool.
"""
import os
import pathlib
import re
import subprocess
import sys

# What is wrong, the source, what stands there, what stands there instead, and the test that must see it.
BUGS = {
    "no activations": ("stages", "double held = pp::peak_slot_bytes(table, device, pp::slot_class::activation, activation);",
                       "double held = 0;", "test_predictions_of_1f1b_by_hand"),
    "a pick above the limit": ("lowered", "pp::memory_choice::within(points_of(found), asked.memory_gb)",
                               "pp::memory_choice::within(points_of(found), asked.memory_gb * 1.02)",
                               "test_random_models_keep_any_limit_on_2_to_16_devices"),
    "too large where it fits": ("too_large", "return {most.least * (1 - rounding),", "return {most.least * 1.2,",
                                "test_one_screen_says_of_what_it_leaves_out_what_all_rows_say"),
    "a bound above the best schedule": ("too_large", "one.bound = std::min(one.bound, least * (1 - 1e-9));",
                                        "one.bound = std::min(one.bound, least * 1.5);",
                                        "test_one_screen_says_of_what_it_leaves_out_what_all_rows_say"),
}

# All rows, all rows within a limit, and one screen: each goes through what the bugs change.
CALLS = ["--model gpt-1.3b --sequence 2048 --gpu a100 --devices 2 --microbatches 4 --schedules 1f1b,zb-auto,seq1f1b --json",
         "--model gpt-7b --sequence 16384 --gpu h100 --devices 4 --microbatches 12 --schedules 1f1b,zb-auto,seq1f1b --memory 52GB",
         "--model gpt-7b --sequence 16384 --gpu h100 --devices 4 --microbatches 12 --schedules 1f1b,zb-auto,seq1f1b --memory 52GB --all"]


def write(root, out):
    folder = pathlib.Path(root) / "tools/timetable/choose"
    text = "#include <cstdlib>\n#include <string_view>\nnamespace {\nbool planted(std::string_view bug) {\n" \
           "  char const* const name = std::getenv(\"PIPELINING_PLANTED\");\n  return name != nullptr && name == bug;\n}\n} // namespace\n"
    sources = {name: (folder / f"{name}.cpp").read_text(encoding="utf-8") for name in sorted({source for source, *_ in BUGS.values()})}
    for bug, (source, good, bad, _) in BUGS.items():
        if sources[source].count(good) != 1:
            sys.exit(f"choose_planted: {source}.cpp has {sources[source].count(good)} times what '{bug}' changes: {good}")
        declared = re.match(r"(double held) = (.*);$", good)
        if declared:
            chosen = f'double held = planted("{bug}") ? 0 : {declared[2]};'
        elif good.startswith("return"):
            chosen = f'if (planted("{bug}"))\n    {bad} most.most}};\n  {good}'
        elif good.endswith(";"):
            chosen = f'if (planted("{bug}"))\n      {bad}\n    else\n      {good}'
        else:
            chosen = f'(planted("{bug}") ? {bad} : {good})'
        sources[source] = sources[source].replace(good, chosen)
    pathlib.Path(out).write_text(text + "".join(sources.values()), encoding="utf-8")


def failed(words, test, bug):
    tests = pathlib.Path(__file__).resolve().parent / "choose_test.py"
    done = subprocess.run([sys.executable, tests, *words, f"Choice.{test}"], capture_output=True, text=True, timeout=600, check=False,
                          env={**os.environ, "PIPELINING_PLANTED": bug})
    if "Ran 1 test" not in done.stderr:
        sys.exit(f"{bug}: {test} did not run: {done.stderr[-2000:]}")
    return "AssertionError" in done.stderr


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(*sys.argv[2:])
        sys.exit()
    planted, program, *rest = sys.argv[2:]
    for call in CALLS:
        printed, wanted = (subprocess.run([each, "choose", *call.split()], capture_output=True, check=True).stdout for each in (planted, program))
        if printed != wanted:
            sys.exit(f"without a bug this is printed differently: choose {call}")
    for bug, (*_, test) in BUGS.items():
        if not failed([planted, *rest], test, bug):
            sys.exit(f"nobody sees the planted bug '{bug}': {test}")
