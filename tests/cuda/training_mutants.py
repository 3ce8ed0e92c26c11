#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Plants bugs into what executors for CUDA do after complete gradients, of which a program chooses one when it runs.

usage: training_mutants.py ROOT OUT

Writes OUT/pipe/..., the headers with bugs, OUT/planted.cu, the source to compile with OUT before other include
paths, and OUT/names.cpp. ROOT is the root of the repository.
"""
import pathlib
import sys

import mutants

EXECUTE, RUN_ITEM, SHARED = mutants.EXECUTE, "execute.hpp", "shared_device.cuh"
DECISIONS, VALIDATE = "device_board.cuh", "execute.hpp"
WAIT, POST = "device.wait_for(wait, step);", "device.post(first, group);"


def no_wait(subject):
    return EXECUTE, WAIT, f"if (step.about != subject::{subject})\n        {WAIT}"


def no_post(subject):
    return EXECUTE, POST, f"if (group.front().about != subject::{subject})\n      {POST}"


# What is wrong, the header, what stands there, what stands there instead. The first is the executor itself.
MUTANTS = [
    ("nothing", EXECUTE, "", ""),
    ("add the tied gradients before they have come", *no_wait("add_tied")),
    ("send a tied gradient before it is there", *no_wait("tied_gradient")),
    ("send rows before they are written", *no_wait("gather")),
    ("pass the totals on before they have come", *no_wait("spread")),
    ("step the optimizer before the totals are there", *no_wait("update")),
    ("skip the exchange of the tied gradients", *no_post("tied_gradient")),
    ("skip the gathering of rows", *no_post("gather")),
    ("keep the totals on device 0", *no_post("spread")),
    ("tell a stage of its gradients after every pass", RUN_ITEM, "if (step.completes_stage)",
     "if (step.completes_stage || PLANTED)"),
    ("tell no stage of its gradients", RUN_ITEM, "if (step.completes_stage", "if (!PLANTED && step.completes_stage"),
    ("add a gradient to itself", RUN_ITEM, "memory.tied_gradient(1)", "memory.tied_gradient(PLANTED ? 0 : 1)"),
    ("leave the optimizer of the first stage out", RUN_ITEM, "if (step.about == subject::update)",
     "if (step.about == subject::update && (!PLANTED || where.stage > 0))"),
    ("start the second half of a pair before what it waits for", mutants.DEVICE,
     "board.start_after(on, board.beside());", "(void)0;"),
    ("go on before the second half of a pair has ended", mutants.DEVICE,
     "auto const join = [this, on] { board.start_after(board.beside(), on); };",
     "auto const join = [this, on] {\n      if (!PLANTED || board.guards() != nullptr)\n"
     "        board.start_after(board.beside(), on);\n    };"),
    ("tell no stage of gradients that a pair completes", RUN_ITEM, "announce(other, two, second.where);",
     "(void)0;"),
    ("tell of gradients on the stream of one half", RUN_ITEM, "second.where.stream = stream;", "(void)0;"),
    ("run pairs in turn", RUN_ITEM, "if (pair.size() != 2)", "if (PLANTED || pair.size() != 2)"),
    ("run the first plan of streams whatever is asked for", mutants.STREAMS,
     "now_ = machine_->plans[static_cast<std::size_t>(which.index)].get();", "now_ = machine_->plans.front().get();"),
    ("run the first plan of ranks whatever is asked for", mutants.MACHINE, "running_ = plans_[at].get();",
     "running_ = plans_.front().get();"),
    ("keep graphs of streams whose memory has moved", mutants.STREAMS, "each->iteration = graph();", "(void)each;"),
    ("keep graphs of ranks whose memory has moved", mutants.MACHINE, "if (outgrows(work, plans_))",
     "if (!PLANTED && outgrows(work, plans_))"),
    ("let memory be as large as the first plan wants", SHARED, "if (wanted <= has)",
     "if (PLANTED ? has > 0 : wanted <= has)"),
    ("tell no totals", mutants.STREAMS, "bool const at_end = detail::rooms::steps_early(now_->lowered.validation);",
     "bool const at_end = detail::rooms::steps_early(now_->lowered.validation);\n    if (PLANTED)\n      return {};"),
    ("decide before the rows have come to the host", mutants.DEVICE, "return its->come();", "return true;"),
    ("ask for rows that have not come to the device", mutants.DEVICE,
     "for (int const wait : work.waits_of(step))\n        wait_for(wait, step);", "(void)0;"),
    ("step early with rows of the iteration before", DECISIONS, "about == rooms::subject::early_update && stage < all.rows",
     "!PLANTED && about == rooms::subject::early_update && stage < all.rows"),
    ("carry no rows over to the next plan", DECISIONS, "if (carried.empty())", "if (PLANTED || carried.empty())"),
    ("go on with a wrong iteration on streams", mutants.STREAM_PLAN, "!boards[d].begins_again()",
     "(PLANTED || !boards[d].begins_again())"),
    ("go on with a wrong iteration on ranks", EXECUTE, "next == validated && device.begins_again()",
     "next == validated && device.begins_again() && !PLANTED"),
    ("leave what was sent early unreceived", EXECUTE,
     "device.post(next, steps.subspan(from, static_cast<std::size_t>(end) - from));", "(void)0;"),
    ("roll nothing back", VALIDATE, "stage.roll_back(where, stage.accepts(where, early_totals(memory, copy)));",
     "stage.roll_back(where, false);"),
]


def main():
    root, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    mutants.plant(root, out, MUTANTS)
    mutants.write(out / "planted.cu", "#include <tests/cuda/training.cu>\n")
    mutants.write_names(out / "names.cpp", "names_of_training_mutants", MUTANTS)


if __name__ == "__main__":
    main()
