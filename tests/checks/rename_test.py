#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks that scripts/rename-from-0.2 finds a header of today for each of 0.2, changes names and members, and changes nothing when it
runs again.

usage: rename_test.py ROOT
"""
import pathlib
import subprocess
import sys
import tempfile

# Headers of 0.2 without a successor; the changelog says what to use.
GONE = {
    "attention/reference.hpp", "flow/constants.hpp", "plan/lower/static_lowering.hpp", "plan/prove/diagnosis.hpp", "plan/prove/static_proof.hpp",
    "plan/static_plan.hpp", "timetable/static_order.hpp", "timetable/static_simulation.hpp"}

# Lines of 0.2, and the same in 0.3.
NAMES = [
    ("namespace pp = pipelining;", None),
    ("int last(pp::pipeline const& over, pp::rank_axis axis) { return axis == pp::rank_axis::pipeline; }",
     "int last(pp::pipeline_view const& over, pp::rank_axis axis) { return axis == pp::rank_axis::pipeline; }"),
    ("pp::pipeline_tables own = pp::copy_tables(table);", "pp::pipeline own = table.over.copy();"),
    ("auto const table = pp::make_timetable<pp::GPipe>({4, 8});", None),
    ("std::vector<pp::dynamic_timetable> const& steps = all();", None),
    ("int const devices = table.extents.devices + steps.front().extents.devices + block.extents.devices;",
     "int const devices = table.over.extents.devices + steps.front().over.extents.devices + block.extents.devices;"),
    ("int const units = pp::units(table.over()) + steps[1].tables.first_units[0];",
     "int const units = table.over.units() + steps[1].over.first_units[0];"),
    ("bool const last = pp::chunks_of(over, m) == 1 && pp::prove(plan).broken == pp::plan_rule::none;",
     "bool const last = over.chunks_of(m) == 1 && pp::prove(plan).broken == pp::proof::rule::none;"),
    ("auto const own = pp::lower<pp::communicator_per_edge>(table);",
     "auto const own = pp::lower<pp::communicators::per_edge>(table);"),
    ("double const flops = pp::linear_flops(model, tokens) + pp::parameters(pp::find_transformer(name));",
     "double const flops = model.linear_flops(tokens) + pp::parameters(pp::transformer::named(name));"),
    ("auto const cost = pp::predict_costs(model, setup, on, {.linear = 1}, extents, content, lengths);",
     "auto const cost = pp::prediction{model, setup, on, {.linear = 1}}.costs(extents, content, lengths);"),
    ("void go(pp::threads const& own, pp::mpi_ranks over, pp::cuda::streams on) { on.deadline = pp::threads{}.deadline; }",
     "void go(pp::thread_options const& own, pp::mpi_options over, pp::cuda::stream_options on) "
     "{ on.deadline = pp::thread_options{}.deadline; }"),
    ("int items(pp::plan_view work); int lanes(pp::plan_view const& work, int device);",
     "int items(pp::plan const& work); int lanes(pp::plan const& work, int device);"),
    ("pp::bound_options how; pp::exact_options options; auto bytes = pp::predict_bytes(model, setup, content[0], lengths);",
     "pp::time_bounds::options how; pp::exact_order::options options; "
     "auto bytes = pp::prediction{model, setup}.bytes(content[0], lengths);"),
]


def problems(root):
    headers = (root / "tests/checks/headers_of_0.2.txt").read_text(encoding="utf-8").split()
    program = [f"#include <pipe/{name}>\n" for name in headers] + [old + "\n" for old, _ in NAMES]
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "source.cpp"
        source.write_text("".join(program), encoding="utf-8")
        command = [root / "scripts/rename-from-0.2", folder]
        subprocess.run(command, check=True, capture_output=True)
        text = source.read_text(encoding="utf-8")
        if subprocess.run(command, check=True, capture_output=True).stdout or source.read_text(encoding="utf-8") != text:
            yield "the second run changes what the first has changed"
    for (old, new), line in zip(NAMES, text.splitlines()[-len(NAMES):]):
        if line != (new or old):
            yield f"rename-from-0.2 makes of\n  {old}\nthe line\n  {line}"
    includes = [line for line in text.splitlines() if line.startswith("#include ")]
    found = [line.removeprefix("#include <pipe/").removesuffix(">") for line in includes]
    for name in found:
        if name not in GONE and not (root / "include/pipe" / name).is_file():
            yield f"rename-from-0.2 leads to pipe/{name}, which is not there"
    for door in ("cluster.hpp", "planner.hpp", "view.hpp"):
        if door not in found:
            yield f"pipe.hpp of 0.2 had what {door} has, which is not included"
    if len(headers) != 312:
        yield f"version 0.2 had 312 headers; the list has {len(headers)}"


if __name__ == "__main__":
    found_problems = list(problems(pathlib.Path(sys.argv[1]).resolve()))
    print(*found_problems, sep="\n")
    sys.exit(1 if found_problems else 0)
