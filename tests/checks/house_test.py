#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks that scripts/check-house counts what a small house has, complains of each figure above its budget, and raises none.

usage: house_test.py ROOT
"""
import pathlib
import re
import subprocess
import sys
import tempfile

DOC = "//! A paragraph of three lines that\n//! stands twice, with other\n//! line breaks.\n"
SAME_DOC = "//! A paragraph of three\n//! lines that stands twice,\n//! with other line breaks.\n"
FILES = {
    "include/pipe/pipe.hpp": "#include <pipe/schedule/ring.hpp>\n",
    "include/pipe/flow/lone.hpp": DOC + "namespace pipelining::inline v1 {\nint used();\nint of_nobody(); // used in a comment\n"
                                        "namespace detail {\nint hidden();\n}\n}\n",
    "include/pipe/flow/part.hpp": SAME_DOC + "namespace pipelining {\n" + "int line();\n" * 600 + "}\n",
    "include/pipe/schedule/ring.hpp": "#include <pipe/flow/lone.hpp>\nnamespace pipelining {\nstruct Ring {};\nint effort;\n}\n",
    "include/pipe/view/draw.hpp": "#include <pipe/planner/guess.hpp>\nnamespace pipelining {\nint draw() {\n" + "\n" * 60 + "}\n}\n",
    "include/pipe/planner/guess.hpp": "namespace pipelining::planner {\nint guess;\n}\n",
    "examples/01_first_pipeline.cpp": "// pp::line\nint a = pp::used() + sizeof(pp::Ring);\n",
    "examples/02_long.cpp": "int a;\n" * 201,
    "examples/gpt/main.cpp": "int main() {\n}\n",
    "tools/timetable/main.cpp": 'bool is = name == "ring"; // effort\nauto said = "a ring";\nint main() {\n' + "\n" * 60 + "}\n",
    "include/pipe/planner/registry/rows.hpp": 'namespace pipelining {\nint rows = many(named("ring", 1), named(\n  "v-ring"));\n}\n',
    "include/pipe/planner/many.hpp": "namespace pipelining {\nint many(); // pass_kind::forward\nint draw(int = pass_kind::backward);\n}\n",
    "tests/some.test.cpp": 'test("v-ring");\n',
    "tests/some_test.py": 'run("ring")\nname == "ring"\n',
    "tests/golden/ring.cpp": '"ring"\n',
    "README.md": "In prose, guess.\n\n```cpp\npp::draw();\n```\n",
}
EXPECTED = {
    "lines of code of include/pipe": 1 + 7 + 602 + 5 + 5 + 11, "lines of code of flow/": 7 + 602, "lines of code of planner/": 11,
    "lines of code of schedule/": 5, "lines of code of the doors": 1, "lines of code of view/": 5,
    "headers of the spine": 2, "lines of code of the spine": 7 + 5, "headers that pipe.hpp opens": 2,
    "public names of pipe.hpp besides schedules": 3, "public names of planner/": 4, "public names of schedules": 2,
    "public names of view/": 1, "public names that nobody uses": 5, "functions over 60 lines in include/pipe": 1,
    "functions over 60 lines in tools and examples": 1, "headers under 80 lines with one includer": 5,
    "headers over 600 lines": 1, "lessons over 200 lines": 1, "lines of examples/gpt/": 2, "lines of tools/": 64,
    "includes that the layers forbid": 1, "paragraphs of documentation that stand twice": 1,
    "kinds of training named in timetable, plan, run, view, planner": 1,
    "names of schedules in quotes in include, tools, examples": 1, "names of schedules in quotes in tests, benchmarks": 2,
}
# What the sentences name.
NAMED = ["of_nobody (flow/lone.hpp)", "planner::guess", "rows (planner/registry/rows.hpp)", "line (flow/part.hpp)", "effort (schedule/ring.hpp)",
         "include/pipe/view/draw.hpp:3 draw (62 lines)", "tools/timetable/main.cpp:3 main (62 lines)", "include/pipe/flow/part.hpp (605 lines)",
         "examples/02_long.cpp (201 lines)", "view/draw.hpp includes planner/guess.hpp", 'tools/timetable/main.cpp:1 "ring"',
         'tests/some.test.cpp:1 "v-ring"', "include/pipe/planner/many.hpp:3 pass_kind::backward", 'tests/some_test.py:2 "ring"',
         "include/pipe/flow/lone.hpp:1 and include/pipe/flow/part.hpp:1"]


def table(rows):
    lines = [f"| {name} | {budget} | {goal} |\n" for name, (budget, goal) in rows.items()]
    return "Before.\n\n| figure | budget | goal |\n| --- | ---: | ---: |\n" + "".join(lines) + "\nAfter.\n"


def check(script, root, *options):
    done = subprocess.run([sys.executable, script, "--root", root, *options], capture_output=True, text=True)
    rows = re.findall(r"^\| (.+?) +\| +([\d,]+) +\| +([\d,]+|-) +\|$", (root / "docs/house.md").read_text(encoding="utf-8"), re.M)
    return done.returncode, done.stdout + done.stderr, {name: (int(budget), goal) for name, budget, goal in rows}


def problems(script, root):
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    page = root / "docs/house.md"
    page.parent.mkdir()

    page.write_text(table({"gone": (7, 7)}), encoding="utf-8")
    status, said, _ = check(script, root)
    if status != 1 or "no budget for 'headers of the spine'" not in said or "row 'gone' that nothing measures" not in said:
        yield f"without rows: status {status}, {said}"
    status, said, rows = check(script, root, "--write")
    for name in sorted(EXPECTED.keys() | rows.keys()):
        today = rows.get(name, (None, "-"))
        if today != (EXPECTED.get(name), "-"):
            yield f"{name}: counted {today}, not {EXPECTED.get(name)}"
    text = page.read_text(encoding="utf-8")
    if status != 0 or not text.startswith("Before.\n\n| figure ") or not text.endswith("|\n\nAfter.\n"):
        yield f"--write: status {status}, {said}{text}"

    higher = {name: (count + 1, count) for name, count in EXPECTED.items()}
    page.write_text(table({**higher, "headers over 600 lines": ("-", 1)}), encoding="utf-8")
    status, said, rows = check(script, root, "--write")
    if status != 0 or rows != {name: (count, str(count)) for name, count in EXPECTED.items()}:
        yield f"--write does not lower to today's figures, or loses a goal: status {status}, {said}"

    page.write_text(table({name: (count - 1, 0) for name, count in EXPECTED.items()}), encoding="utf-8")
    status, said, rows = check(script, root, "--write")
    if status != 1 or rows != {name: (count - 1, "0") for name, count in EXPECTED.items()}:
        yield f"--write raises a budget: status {status}, {said}"
    for name, count in EXPECTED.items():
        if f"The figure '{name}' is {count:,}, above its budget of {count - 1:,}: " not in said:
            yield f"no sentence about '{name}'"
    for item in NAMED:
        if item not in said:
            yield f"no sentence names {item}"

    (root / "include/pipe/flow/lone.hpp").write_text("int a() {\n", encoding="utf-8")
    status, said, _ = check(script, root)
    if status != 2 or "include/pipe/flow/lone.hpp: line 1: '{' is never closed" not in said:
        yield f"with a broken header: status {status}, {said}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = list(problems(pathlib.Path(sys.argv[1]) / "scripts/check-house", pathlib.Path(folder)))
    print(*found, sep="\n")
    sys.exit(1 if found else 0)
