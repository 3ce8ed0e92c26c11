#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks that every recipe and page names the version of include/pipe/version.hpp, where they cannot read it there.

usage: check_versions.py REPOSITORY
"""
import json
import pathlib
import re
import sys


def version_of(root):
    header = (root / "include/pipe/version.hpp").read_text(encoding="utf-8")
    numbers = dict(re.findall(r"^#define PIPELINING_VERSION_(\w+) (\d+)$", header, re.MULTILINE))
    return ".".join(numbers[part] for part in ("MAJOR", "MINOR", "PATCH"))


def problems(root):
    version = version_of(root)
    short = version.rsplit(".", 1)[0]

    def text(name):
        return (root / name).read_text(encoding="utf-8")

    port = json.loads(text("ports/pipelining/vcpkg.json"))["version"]
    if port != version:
        yield f"ports/pipelining/vcpkg.json: version {port}, but version.hpp has {version}"
    releases = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", text("CHANGELOG.md"), re.MULTILINE)
    if releases[:1] != [version]:
        yield f"CHANGELOG.md: the newest release is {releases[:1]}, but version.hpp has {version}"
    pages = ["README.md", "test_package/CMakeLists.txt", *(str(path.relative_to(root)) for path in root.glob("docs/**/*.md"))]
    wanted = 0
    for name in pages:
        for found in re.findall(r"find_package\(pipelining (?:CONFIG )?(\d[\d.]*)", text(name)):
            wanted += 1
            if found not in (short, version):
                yield f"{name}: find_package asks for {found}, but version.hpp has {version}"
        for found in re.findall(r"pipelining/(\d+\.\d+\.\d+)", text(name)):
            if found != version:
                yield f"{name}: names pipelining/{found}, but version.hpp has {version}"
    if wanted == 0:
        yield "no find_package(pipelining VERSION) found: test_package must ask for the version"
    namespace = "v" + short.replace(".", "_")
    for path in sorted([*root.glob("include/pipe/**/*.hpp"), *root.glob("include/pipe/**/*.cuh")]):
        for found in re.findall(r"^namespace pipelining::inline (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            if found != namespace:
                yield f"{path.relative_to(root)}: the inline namespace is {found}, but version.hpp has {version}: {namespace}"
    if "version.hpp" not in text("conanfile.py") or re.search(r"^\s+version = ", text("conanfile.py"), re.MULTILINE):
        yield "conanfile.py must read the version from include/pipe/version.hpp"


if __name__ == "__main__":
    found_problems = list(problems(pathlib.Path(sys.argv[1])))
    print(*found_problems, sep="\n")
    sys.exit(1 if found_problems else 0)
