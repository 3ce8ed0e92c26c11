#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compiles modules/pipelining.cppm with the newest clang that is installed, and README's example with `import`.

Prints `skipped: ...` where there is no clang 16 or newer; g++ 12 and 13 do not manage it.

usage: module_test.py REPOSITORY FOLDER
"""
import pathlib
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True


def run(*command):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"`{' '.join(map(str, command))}` ended with {done.returncode}:\n{done.stdout[-6000:]}")
    return done.stdout


def newest_clang():
    for name in [*(f"clang++-{release}" for release in range(22, 15, -1)), "clang++"]:
        if shutil.which(name):
            release = re.search(r"clang version (\d+)", run(name, "--version"))
            if release and int(release[1]) >= 16:
                return name
    return None


def main(root, folder):
    module = root / "modules/pipelining.cppm"
    needed = set(re.findall(r"^#include <([^>]+)>", run(sys.executable, root / "scripts/amalgamate"), re.MULTILINE))
    before = module.read_text(encoding="utf-8").split("export module")[0]
    if missing := needed - set(re.findall(r"^#include <([^>]+)>", before, re.MULTILINE)):
        sys.exit(f"{module.name} must include before the module: {', '.join(sorted(missing))}")
    clang = newest_clang()
    if not clang:
        print("skipped: no clang 16 or newer is installed (Debian: clang-19)")
        return
    folder.mkdir(parents=True, exist_ok=True)
    example = (root / "examples/01_first_pipeline.cpp").read_text(encoding="utf-8")
    example = example.replace("#include <pipe/pipe.hpp>\n", "")
    last = list(re.finditer(r"^#include .*\n", example, re.MULTILINE))[-1].end()
    (folder / "program.cpp").write_text(
        f"{example[:last]}#include <string>\n\nimport pipelining;\n{example[last:]}", encoding="utf-8")
    options = [clang, "-std=c++20", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror"]
    run(*options, "-I", root / "include", "--precompile", module, "-o", folder / "pipelining.pcm")
    run(*options, f"-fmodule-file=pipelining={folder / 'pipelining.pcm'}", folder / "program.cpp",
        folder / "pipelining.pcm", "-o", folder / "program")
    if "loss " not in (said := run(folder / "program")):
        sys.exit(f"the program with the module printed:\n{said}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
