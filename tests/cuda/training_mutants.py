#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Plants one bug each into what executors for CUDA do behind complete gradients.

usage: training_mutants.py ROOT OUT

Writes OUT/training_mutants.cu, OUT/training_table.cpp and the folders of headers that they include. ROOT is the root of
the repository.
"""
import pathlib
import re
import sys

import mutants

EXECUTE, RUN_ITEM = mutants.EXECUTE, "run_item.hpp"
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
    ("tell a stage of its gradients after every pass", RUN_ITEM, "if (step.completes_stage)", "if (true)"),
    ("tell no stage of its gradients", RUN_ITEM, "if (step.completes_stage)", "if (false)"),
    ("add a gradient to itself", RUN_ITEM, "memory.tied_gradient(1)", "memory.tied_gradient(0)"),
    ("leave the optimizer of the first stage out", RUN_ITEM, "if (step.about == subject::update)",
     "if (step.about == subject::update && where.stage > 0)"),
]


def rename(text, number):
    text = mutants.rename(text, number)
    text = text.replace(f"<pipe/run/{RUN_ITEM}>", f"<m{number}/{RUN_ITEM}>")
    return re.sub(r"\b(run_item|run_hook|run_composite|run_halves|handed)\b(?!\.hpp)", rf"\1_m{number}", text)


def driver(text, number):
    text = rename(text, number)
    text = re.sub(r"\b(train_on_ranks|train_on_streams)\b", rf"\1_m{number}", text)
    text = text.replace("namespace {", f"namespace m{number} {{").replace("namespace pp = pipelining;", "")
    # The functions of the driver's unnamed namespace are found from outside of their own.
    return re.sub(r"(?ms)^(training_result) (train_on_\w+)\((.*?)\) \{",
                  rf"\1 \2(\3) {{\n  using namespace m{number};", text)


def main():
    root, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    files = mutants.headers_of(root)
    files[RUN_ITEM] = (root / "include" / "pipe" / "run" / RUN_ITEM).read_text(encoding="utf-8")
    source = (root / "tests" / "cuda" / "training.cu").read_text(encoding="utf-8")
    body = ["namespace pipelining {}", "namespace pp = pipelining;"]
    table = ["#include <tests/cuda/training_mutants.hpp>", ""]
    for number, mutant in enumerate(MUTANTS):
        for name, text in mutants.mutate(files, mutant).items():
            mutants.write(out / f"m{number}" / name, rename(text, number))
        body.append(driver(source, number))
        table += [f"training_result train_on_{where}_m{number}(training_case const&);" for where in ("streams", "ranks")]
    table += ["", "std::vector<training_mutant> all_training_mutants() {", "  return {"]
    table += [f'    {{"{mutant[0]}", train_on_streams_m{number}, train_on_ranks_m{number}}},'
              for number, mutant in enumerate(MUTANTS)]
    mutants.write(out / "training_mutants.cu", "\n".join(body))
    mutants.write(out / "training_table.cpp", "\n".join([*table, "  };", "}", ""]))


if __name__ == "__main__":
    main()
