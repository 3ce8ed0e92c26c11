#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks that a preset which builds some targets only builds the programs of all tests that it runs.

usage: check_presets.py ROOT BUILD NINJA
"""
import json
import pathlib
import re
import subprocess
import sys

TEST = re.compile(r"^add_test\(\[=\[(.*?)\]=\] (.*)\)$", re.MULTILINE)
LABELS = re.compile(r'^set_tests_properties\(\[=\[(.*?)\]=\] .*\bLABELS "([^"]*)"', re.MULTILINE)


def tests_of(build):
    """Of every test, built or not: the paths in its command, and its labels."""
    for file in build.rglob("CTestTestfile.cmake"):
        text = file.read_text(encoding="utf-8")
        labels = {name: words.split(";") for name, words in LABELS.findall(text)}
        for name, command in TEST.findall(text):
            yield name, re.findall(r'"([^"]*)"', command), labels.get(name, [])


def fits(rule, labels, otherwise):
    return any(re.search(rule["label"], each) for each in labels) if "label" in rule else otherwise


def main(root, build, ninja):
    def ask(*words):
        return subprocess.run([ninja, "-C", build, "-t", *words], capture_output=True, text=True, check=True).stdout

    presets = json.loads((root / "CMakePresets.json").read_text(encoding="utf-8"))
    filters = {each["name"]: each.get("filter", {}) for each in presets["testPresets"]}
    made_here = {line.rsplit(": ", 1)[0] for line in ask("targets", "all").splitlines()}
    tests = list(tests_of(build))
    problems = []
    checked = 0
    for preset in presets["buildPresets"]:
        if "targets" not in preset:
            continue
        made = set(re.findall(r" -o (\S+)", ask("commands", *preset["targets"])))
        rules = filters[preset["name"]]
        for name, command, labels in tests:
            if not fits(rules.get("include", {}), labels, True) or fits(rules.get("exclude", {}), labels, False):
                continue
            files = {word[len(str(build)) + 1:] for word in command if word.startswith(f"{build}/")} & made_here
            checked += len(files)
            problems += [f"{name}, which the preset {preset['name']} runs, needs {file}: add it to "
                         f"{' or '.join(preset['targets'])}" for file in sorted(files - made)]
    if checked < 50:
        problems.append(f"only {checked} programs of tests were found under {build}")
    return problems


if __name__ == "__main__":
    found = main(*(pathlib.Path(word).resolve() for word in sys.argv[1:3]), sys.argv[3])
    print(*found, sep="\n")
    sys.exit(1 if found else 0)
