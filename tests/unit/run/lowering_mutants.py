#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Plants bugs into a copy of lowering, of which a program chooses one when it runs, and looks whether flows by chance
find each of them.

usage: lowering_mutants.py plant ROOT OUT
       lowering_mutants.py run PROGRAM

`plant` writes OUT/pipe/..., to be found before the library. `run` starts PROGRAM, which is tests/unit/run/random_flows.test.cpp
with these headers, once for each bug.
"""
import os
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from planted_headers import edits_of, planted, write  # noqa: E402

SLOTS, USES, ARENA, WAITS = "plan/lower/device_plan.hpp", "plan/lower/data_uses.hpp", "plan/lower/arena.hpp", "plan/lower/waits.hpp"
GRAPH = "flow/stage_graph.hpp"
PROGRAM, ORDER, DEVICE = "plan/lower/device_program.hpp", "plan/lower/global_order.hpp", "plan/lower/device_plan.hpp"

# As planted_headers.py says. The first is lowering itself.
MUTANTS = [
    ("nothing", SLOTS, "", ""),
    ("take a slot before whoever left it has ended", SLOTS, "std::exchange(users[k], nothing)",
     "(PLANTED && k == 0 ? nothing : std::exchange(users[k], nothing))"),
    ("take a slot before its readers on other streams have ended", SLOTS,
     "std::exchange(users[k], nothing)", "(PLANTED && k > 0 ? (users[k] = nothing) : std::exchange(users[k], nothing))"),
    ("forget who made what a slot holds", SLOTS, "into.maker = i;", ""),
    ("give a slot back twice", SLOTS, "into.slot = from.take(i);", "into.slot = from.take(i); from.release(into.slot, i);"),
    ("give back another slot", SLOTS, "pools_[what.pool].release(what.slot, i);", "pools_[what.pool].release(0, i);"),
    ("send before it has been made", SLOTS, "waits_.need(i, made.maker);", ""),
    ("give back after the first reader", SLOTS, "--what.reads == 0)", "--what.reads == 0 || PLANTED)"),
    ("count no reader of what is sent", SLOTS, "count_reader(held_[product_of(step)]);", ""),
    ("give back before taking", SLOTS, "    for (int i = first; i < end; ++i)\n      hand_slots<true, true>(i);",
     "    for (int i = first; i < end && PLANTED; ++i) {\n      hand_slots<false, true>(i);\n      give_back_after(i);\n    }\n"
     "    for (int i = first; i < end; ++i)\n      hand_slots<true, true>(i);",
     "    for (int i = first; i < end; ++i)\n      give_back_after(i);",
     "    for (int i = first; i < end && !PLANTED; ++i)\n      give_back_after(i);"),
    ("read before it has been made", SLOTS, "waits_.need(i, datum.maker);", ""),
    ("wait for nobody whose datum has no slot", SLOTS, "waits_.need(i, held(use, work, place).maker);", ""),
    ("let all that use a sum run at once", SLOTS, "datum.maker = i;", ""),
    ("forget who made what has no slot", SLOTS, "held(use, work, place).maker = i;", ""),
    ("hand all that an item uses as the first of it", SLOTS, "        next[number] = in_slot(datum, use.at);",
     "        *(PLANTED ? work_.uses + step.first_use : next + number) = in_slot(datum, use.at);"),
    ("hand what is read among what is filled", SLOTS, "static_cast<slot_class>(what.pool), place, 1,",
     "static_cast<slot_class>(what.pool), PLANTED && place == slot_place::inputs ? slot_place::outputs : place, 1,"),
    ("free a sum after its first chunk", USES, "(use.whole || ends_kind(work))", "(PLANTED || use.whole || ends_kind(work))"),
    ("take all engines for the first reader", SLOTS, "    return declared_.engine_row[", "    return PLANTED ? 0 : declared_.engine_row["),
    ("begin a sum at its other end", USES, "(order == effect::chunk_order::ascending ? 0 :", "((order == effect::chunk_order::ascending) != PLANTED ? 0 :"),
    ("keep a sum for each chunk", USES, "    int const at = use.whole ? place.unit : place.microbatch;",
     "    int const at = use.whole || PLANTED ? place.unit : place.microbatch;"),
    ("count several neighbours as one place", USES, "result += slots(use, work);",
     "result += PLANTED && slots(use, work) > 0 ? 1 : slots(use, work);"),
    ("read the own chunk of other stages", USES, "+ whose.chunk - work.chunk;", "+ (PLANTED ? 0 : whose.chunk - work.chunk);"),
    ("number what all chunks read as the first of them does", GRAPH, "to_all ? of.chunk : 0;",
     "to_all && !PLANTED ? of.chunk : 0;"),
    ("number a neighbour as if all edges led to a chunk", GRAPH, "result.number = neighbours_by(",
     "result.number = PLANTED ? result.number : neighbours_by("),
    ("order nobody by what is followed", USES, "|| one.what == does::follows;", "|| (one.what == does::follows && !PLANTED);"),
    ("size nothing that is handed", SLOTS, "sized(use.pool, bytes_of(", "sized(use.pool, PLANTED ? 0 : bytes_of("),
    ("let all classes begin at the start", ARENA, "    layouts[of].offset = end;", "    layouts[of].offset = PLANTED ? 0 : end;"),
    ("make slots too small", SLOTS, "layout.bytes = bytes >", "layout.bytes = PLANTED ? 0 : bytes >"),
    ("leave a wait out", WAITS, "      waits->push_back(at);", ""),
    ("take a stream to be further than it is", WAITS, "clock.known(stream)[other] >= at)",
     "clock.known(stream)[other] >= at - (PLANTED ? 1 : 0))"),
    ("number both directions together", PROGRAM, "end.sequence = line.count++;",
     "end.sequence = (PLANTED ? lines[2 * end.peer] : line).count++;"),
    ("receive from oneself", PROGRAM, "operation::receive, what.device,",
     "operation::receive, PLANTED ? what.to : what.device,"),
    ("post messages together that do not meet", PROGRAM, "return follow &&", "return (follow || PLANTED) &&"),
    ("give the items of a device each other's slots", PROGRAM, "at.use += event.slots;",
     "at.use += event.slots - (PLANTED && event.slots > 1 ? 1 : 0);"),
    ("let a pass go before what it waits for", ORDER, "        if (!emitted_[needed.index(k)])",
     "        if (!emitted_[needed.index(k)] && !PLANTED)"),
    ("offer the compute engine alone what has arrived", ORDER, "other < table_.rows();",
     "other < (PLANTED ? devices : table_.rows());"),
    ("lay out one slot too few", DEVICE, "      layouts[of].count = pools_[of].count();",
     "      layouts[of].count = pools_[of].count() - (PLANTED && pools_[of].count() > 0 ? 1 : 0);"),
]


def plant(root, out):
    edits = [(number, name, f"pipe/{header}", old, new) for number, name, header, old, new in edits_of(MUTANTS)]
    for path, text in planted(root / "include", edits).items():
        write(out / path, text.replace("#pragma once\n", "#pragma once\n#include <planted_bug.hpp>\n", 1))
    chosen = 'std::getenv("PLANTED_BUG")'
    write(out / "planted_bug.hpp", "#pragma once\n#include <cstdlib>\n"
          f"inline int const planted_bug = {chosen} == nullptr ? 0 : std::atoi({chosen});\n")


def run(program):
    def passes(bug):
        return subprocess.run([program, "--abort-after=1"], env={**os.environ, "PLANTED_BUG": str(bug)}, timeout=120,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0

    if not passes(0):
        sys.exit("lowering_mutants.py: without a bug the test fails")
    bugs = list(enumerate(MUTANTS))[1:]
    survivors = [mutant[0] for number, mutant in bugs if passes(number)]
    print(f"{len(bugs) - len(survivors)} of {len(bugs)} bugs found")
    if survivors:
        sys.exit("lowering_mutants.py: nothing finds: " + "; ".join(survivors))


def main():
    if sys.argv[1] == "plant":
        plant(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
    else:
        run(sys.argv[2])


if __name__ == "__main__":
    main()
