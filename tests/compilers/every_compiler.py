#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tries the headers for the host, README's example and the tests of the compiler with every compiler that can be had.

g++ and clang++ come from the distribution, where this may install packages; libc++ too, unpacked into FOLDER, since
Debian allows one at a time. What the distribution lacks of clang comes with zig from PyPI, which has libc++ in it.
Warnings are errors. Names as arguments select compilers.

usage: every_compiler.py REPOSITORY FOLDER [compiler...]
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wsign-conversion", "-Werror"]
GCC = range(12, 14)
CLANG = range(14, 23)
ZIG = {17: "0.12.1", 18: "0.13.0", 20: "0.15.2", 21: "0.16.0"}  # releases of clang that some Debians lack


class Skipped(Exception):
    pass


class Failed(Exception):
    pass


def run(command, **options):
    return subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=1800, **options)


def must(command, **options):
    done = run(command, **options)
    if done.returncode != 0:
        raise Failed(f"`{' '.join(map(str, command))}` ended with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


def install(package, program):
    """A program of the distribution, installed where that is allowed."""
    if shutil.which(program):
        return program
    if not shutil.which("apt-get") or os.geteuid() != 0:
        raise Skipped(f"{program} is not installed, and only root may install {package}")
    if run(["apt-get", "-q", "-y", "install", "--no-install-recommends", package],
           env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}).returncode != 0 or not shutil.which(program):
        raise Skipped(f"the distribution has no package {package}")
    return program


class Compilers:
    def __init__(self, root, folder):
        self.root, self.folder = root, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.every = self.folder / "every_header.cpp"
        headers = sorted(path.relative_to(root / "include/pipe").as_posix() for path in (root / "include/pipe").rglob("*.hpp"))
        host = [name for name in headers if not name.startswith("mpi")]  # which need mpi.h
        self.every.write_text("".join(f"#include <pipe/{name}>\n" for name in host), encoding="utf-8")

    def names(self):
        yield from (f"g++-{release}" for release in GCC)
        for release in CLANG:
            yield f"clang++-{release}"
            yield f"clang++-{release} with libc++"
        yield "nvcc with g++"
        yield "nvcc with clang++"

    def options(self, name):
        """How to call a compiler: the words of its command, and how the program finds its libraries."""
        program, _, library = name.partition(" with ")
        if program == "nvcc":
            if not shutil.which("nvcc"):
                raise Skipped("there is no CUDA toolkit")
            return ["nvcc", "-x", "cu", "-arch=sm_80", "-ccbin", self.host_of_nvcc(library)], {}
        release = int(program.rsplit("-", 1)[1])
        if program.startswith("g++"):
            return [install(program, program)], {}
        try:
            clang = install(program.replace("++", ""), program)
        except Skipped:
            if library != "libc++" or release not in ZIG:
                raise
            return self.zig(release), {}
        command = [clang, *self.libcxx(release)] if library else [clang]
        return command, self.search_path(release, library)

    def host_of_nvcc(self, wanted):
        if wanted == "g++":
            return "g++"
        if not shutil.which("clang++"):
            raise Skipped("there is no clang++")
        return "clang++"

    def libcxx(self, release):
        place = self.folder / f"libc++-{release}"
        include = place / f"usr/lib/llvm-{release}/include/c++/v1"
        if not (include / "vector").exists():
            place.mkdir(exist_ok=True)
            headers = [f"libc++-{release}-dev", f"libc++abi-{release}-dev", f"libunwind-{release}-dev"]
            needed = [re.findall(r"Depends: (lib(?:c\+\+|unwind)\S*)", run(["apt-cache", "depends", package]).stdout)
                      for package in headers]
            # The first must be there; releases differ in which of the others they have, and in their names.
            for package in dict.fromkeys([*headers, *sum(needed, [])]):
                if run(["apt-get", "download", "-q", package], cwd=place).returncode != 0 and package == headers[0]:
                    raise Skipped(f"the distribution has no package {package}")
            for package in place.glob("*.deb"):
                must(["dpkg", "-x", package, place])
        libraries = [f"-L{folder}" for folder in self.libraries(release)]
        return ["-Wno-unused-command-line-argument", "-stdlib=libc++", "-nostdinc++", "-isystem", include, *libraries,
                "-lc++abi"]

    def libraries(self, release):
        return sorted({path.parent for path in (self.folder / f"libc++-{release}").rglob("lib*.so*")})

    def search_path(self, release, library):
        return {"LD_LIBRARY_PATH": ":".join(map(str, self.libraries(release)))} if library else {}

    def zig(self, release):
        place = self.folder / f"zig-{ZIG[release]}"
        program = place / "ziglang/zig"
        if not program.exists() and run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", place,
                                         f"ziglang=={ZIG[release]}"]).returncode != 0:
            raise Skipped(f"neither the distribution nor PyPI has clang {release}")
        said = must([program, "c++", "-E", "-dM", "-x", "c++", "/dev/null"], env={**os.environ, **self.zig_cache()})
        if f"#define __clang_major__ {release}\n" not in said:
            raise Failed(f"zig {ZIG[release]} does not have clang {release}; mend ZIG")
        return [program, "c++"]

    def zig_cache(self):
        return {"ZIG_GLOBAL_CACHE_DIR": str(self.folder / "zig-cache"), "ZIG_LOCAL_CACHE_DIR": str(self.folder / "zig-cache")}

    def attempt(self, name):
        command, search = self.options(name)
        environment = {**os.environ, **self.zig_cache(), **search}
        warnings = ["-Xcompiler", "-Wall,-Wextra"] if command[0] == "nvcc" else WARNINGS
        # nvcc and zig have no -fsyntax-only.
        check = ["-fsyntax-only"] if "++-" in str(command[0]) else ["-c", "-o", self.folder / "object.o"]
        common = [*command, "-std=c++20", *warnings, "-I", self.root / "include"]
        sources = [self.every, *sorted(self.root.glob("tests/static/*/moderate.static.cpp")),
                   self.root / "tests/static/schedule/v_shape.static.cpp", self.root / "tests/headers/generated.cpp"]
        if name == "nvcc with clang++":
            sources = [self.every]  # nvcc takes less for a constant when its host is clang
        for source in sources:
            must([*common, *check, source], env=environment)
        program = self.folder / "program"
        threads = ["-Xcompiler", "-pthread"] if command[0] == "nvcc" else ["-pthread"]
        must([*common, "-O1", self.root / "examples/01_first_pipeline.cpp", *threads, "-o", program], env=environment)
        if not must([program], env=environment).startswith("loss "):
            raise Failed("README's example printed no loss")
        return "without the large timetables of the compiler, which want g++ there" if len(sources) == 1 else None


def main(root, folder, wanted):
    compilers = Compilers(root, folder)
    names = list(compilers.names())
    if unknown := set(wanted) - set(names):
        sys.exit(f"every_compiler.py: no compiler is called {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
    passed = failed = skipped = 0
    for name in wanted or names:
        try:
            note = compilers.attempt(name)
            passed += 1
            print(f"ok       {name}" + (f" ({note})" if note else ""), flush=True)
        except Skipped as why:
            skipped += 1
            print(f"skipped  {name}: {why}", flush=True)
        except Failed as why:
            failed += 1
            print(f"FAILED   {name}: {why}", flush=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve(), sys.argv[3:]))
