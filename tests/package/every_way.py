#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Depends on the library in every way that README names, from programs outside its tree, with warnings as errors.

Works on a copy of the files that git knows or would take in, in FOLDER. Names as arguments select some ways.

usage: every_way.py REPOSITORY FOLDER TOOLS [way...]        TOOLS: a folder with cmake, conan and meson of its own
"""
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys

WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wsign-conversion", "-Werror"]
CXX = os.environ.get("CXX", "g++")
MOST_SECONDS = 100  # of a processor until a clone draws its first timetable; on an idle machine some 65


class Skipped(Exception):
    pass


class Failed(Exception):
    pass


def run(command, cwd=None, expect=None, **environment):
    done = subprocess.run([str(word) for word in command], cwd=cwd, env={**os.environ, **environment},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise Failed(f"`{' '.join(map(str, command))}` ended with {done.returncode}:\n{done.stdout[-6000:]}")
    if expect is not None and expect not in done.stdout:
        raise Failed(f"`{' '.join(map(str, command))}` did not print '{expect}':\n{done.stdout[-2000:]}")
    return done.stdout


class Ways:
    def __init__(self, repository, folder, tools):
        self.repository, self.folder, self.tools = repository, folder, tools
        self.tree = folder / "tree"
        header = (repository / "include/pipe/version.hpp").read_text(encoding="utf-8")
        self.version = ".".join(re.findall(r"^#define PIPELINING_VERSION_\w+ (\d+)$", header, re.MULTILINE))
        self.greeting = f"pipelining {self.version}"  # what test_package prints

    def copy_tree(self):
        """What a clone of the present files would have, with one commit."""
        names = run(["git", "ls-files", "-co", "--exclude-standard", "-z"], self.repository).split("\0")
        for name in filter(None, names):
            source = self.repository / name
            if source.is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, self.tree / name)
        run(["git", "init", "-q"], self.tree)
        run(["git", "add", "-A"], self.tree)
        run(["git", "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "-qm", "all"], self.tree)
        self.commit = run(["git", "rev-parse", "HEAD"], self.tree).strip()

    def work(self, name):
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def cmake(self, source, binary, *options, program="cmake"):
        run([program, "-G", "Ninja", "-S", source, "-B", binary, f"-DCMAKE_CXX_COMPILER={CXX}",
             f"-DCMAKE_CXX_FLAGS=-O1 {' '.join(WARNINGS)}", "-DCMAKE_NO_SYSTEM_FROM_IMPORTED=ON", *options])
        run([program, "--build", binary])

    def installed(self):
        """The library under a prefix, made by CMake 3.22 and then moved."""
        prefix = self.folder / "prefix"
        if not prefix.exists():
            first, build = self.folder / "first_prefix", self.work("install")
            run([self.tools / "cmake", "-G", "Ninja", "-S", self.tree, "-B", build, f"-DCMAKE_CXX_COMPILER={CXX}",
                 "-DPIPELINING_BUILD_TESTS=OFF", "-DPIPELINING_BUILD_EXAMPLES=OFF", f"-DCMAKE_INSTALL_PREFIX={first}"])
            run([self.tools / "cmake", "--install", build])
            first.rename(prefix)
        return prefix

    def compile_and_run(self, name, source, *options, expect):
        program = self.work(name) / "program"
        run([CXX, "-std=c++20", "-O1", *WARNINGS, source, *options, "-pthread", "-o", program])
        run([program], expect=expect)

    # The ways. Each ends well, or with Failed, or with Skipped and a reason.

    def include_path(self):
        self.compile_and_run("include_path", self.tree / "examples/01_first_pipeline.cpp", "-I", self.tree / "include",
                             expect="loss ")

    def fetch_content_by_commit(self):
        """README's own lines, with the folder of a bare clone for the URL, and CMake 3.22."""
        work = self.work("fetch_content")
        run(["git", "clone", "-q", "--bare", self.tree, work / "library.git"])
        readme = (self.tree / "README.md").read_text(encoding="utf-8")
        fences = [fence for fence in re.findall(r"```cmake\n(.*?)```", readme, re.DOTALL) if "FetchContent" in fence]
        if len(fences) != 1:
            raise Failed("README.md must have one cmake fence with FetchContent")
        lines = (fences[0].replace("<URL or folder of a clone>", (work / "library.git").as_uri())
                 .replace("<commit>", self.commit).replace("your_target", "program"))
        if "<" in lines or self.commit not in lines:
            raise Failed(f"README.md has a placeholder that this test does not know:\n{lines}")
        (work / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.22)\nproject(consumer LANGUAGES CXX)\n"
            f"add_executable(program {self.tree / 'test_package/main.cpp'})\n{lines}", encoding="utf-8")
        self.cmake(work, work / "build", program=self.tools / "cmake")
        run([work / "build/program"], expect=self.greeting)

    def add_subdirectory(self):
        self.consumer("add_subdirectory", "cmake")

    def find_package(self):
        prefix = self.installed()
        self.consumer("find_package", "cmake", f"-DCMAKE_PREFIX_PATH={prefix}", f"-DVERSION_WANTED={self.version}")

    def find_package_cmake_3_22(self):
        prefix = self.installed()
        self.consumer("find_package", self.tools / "cmake", f"-DCMAKE_PREFIX_PATH={prefix}")

    def consumer(self, route, program, *options):
        work = self.work(route)
        shutil.copytree(self.tree / "tests/package/consumer", work / "source")
        self.cmake(work / "source", work / "build", f"-DROUTE={route}", f"-DCHECKOUT={self.tree}", *options,
                   program=program)
        run([work / "build/consumer"], expect=self.greeting)

    def pkg_config(self):
        if not shutil.which("pkg-config"):
            raise Skipped("pkg-config is not installed")
        search = str(self.installed() / "share/pkgconfig")
        words = run(["pkg-config", "--cflags", "--libs", "pipelining"], PKG_CONFIG_PATH=search).split()
        if len(words) != len(set(words)) or any("//" in word for word in words):
            raise AssertionError(f"pkg-config prints a flag twice, or a path with two bars: {words}")
        self.compile_and_run("pkg_config", self.tree / "test_package/main.cpp", *words, expect=self.greeting)

    def meson_pkg_config(self):
        if not shutil.which("pkg-config"):
            raise Skipped("pkg-config is not installed")
        self.meson("pkg-config")

    def meson_cmake(self):
        self.meson("cmake")

    def meson(self, method):
        prefix = self.installed()
        work = self.work("meson_" + method)
        shutil.copy2(self.tree / "test_package/main.cpp", work)
        modules = ", modules: ['pipelining::core']" if method == "cmake" else ""
        (work / "meson.build").write_text(
            "project('consumer', 'cpp', default_options: ['cpp_std=c++20', 'warning_level=2', 'werror=true'])\n"
            f"pipelining = dependency('pipelining', method: '{method}'{modules})\n"
            "executable('program', 'main.cpp', dependencies: pipelining,\n"
            "  cpp_args: ['-Wconversion', '-Wsign-conversion'])\n", encoding="utf-8")
        run([self.tools / "meson", "setup", work / "build", work, f"-Dcmake_prefix_path={prefix}",
             f"-Dpkg_config_path={prefix / 'share/pkgconfig'}"], CXX=CXX)
        run(["ninja", "-C", work / "build"])
        run([work / "build/program"], expect=self.greeting)

    def conan(self):
        conan, home = self.tools / "conan", self.work("conan")
        environment = {"CONAN_HOME": str(home), "CXX": CXX}
        run([conan, "profile", "detect"], **environment)
        run([conan, "create", self.tree, "-s", "compiler.cppstd=20", "-c",
             "tools.cmake.cmaketoolchain:generator=Ninja", "-c", f"tools.build:cxxflags={WARNINGS}"],
            expect=self.greeting, **environment)

    def vcpkg_steps(self):
        """What vcpkg would do with the port: with no feature, and with each that this machine can have."""
        work = self.work("vcpkg_steps")
        found = run(["cmake", "-G", "Ninja", "-S", self.tree, "-B", work / "probe", f"-DCMAKE_CXX_COMPILER={CXX}",
                     "-DPIPELINING_BUILD_TESTS=OFF", "-DPIPELINING_BUILD_EXAMPLES=OFF"])
        features = re.findall(r"^-- pipelining::(\w+): yes", found, re.MULTILINE)
        for chosen in [["core"], ["core", *features]]:
            run(["cmake", f"-DFEATURES={';'.join(chosen)}", f"-DWORK={work / 'port'}", "-P",
                 self.tree / "tests/package/vcpkg_steps.cmake"])
            self.cmake(self.tree / "test_package", work / "build", f"-DCMAKE_PREFIX_PATH={work / 'port/packages'}")
            run([work / "build/test_package"], expect=self.greeting)
        return "features " + ", ".join(features or ["none: no MPI, no CUDA here"])

    def vcpkg(self):
        if not shutil.which("vcpkg"):
            raise Skipped("vcpkg is not on the PATH; vcpkg_steps ran what it would do with CMake")
        work = self.work("vcpkg")
        run(["vcpkg", "install", "pipelining", f"--overlay-ports={self.tree / 'ports'}",
             f"--x-install-root={work / 'installed'}"])
        roots = [path for path in (work / "installed").iterdir() if (path / "share/pipelining").is_dir()]
        self.cmake(self.tree / "test_package", work / "build", f"-DCMAKE_PREFIX_PATH={roots[0]}")
        run([work / "build/test_package"], expect=self.greeting)

    def amalgamated(self):
        work = self.work("amalgamated_header")
        (work / "pipe").mkdir()
        run([self.tree / "scripts/amalgamate", work / "pipe/pipe.hpp"])
        self.compile_and_run("amalgamated", self.tree / "examples/01_first_pipeline.cpp", "-I", work, expect="loss ")

    def module(self):
        said = run([sys.executable, self.tree / "tests/package/module_test.py", self.tree, self.work("module")])
        if said.startswith("skipped: "):
            raise Skipped(said.removeprefix("skipped: ").strip())

    def first_drawing(self):
        """Not a way to depend on it: what the first command of a clone costs, without compiled files of earlier ones."""
        def seconds():
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            return used.ru_utime + used.ru_stime

        before = seconds()
        run([self.tree / "scripts/timetable", "1f1b", "--devices", "4", "--microbatches", "8"], expect="device 3 |",
            CCACHE_DISABLE="1")
        if (taken := seconds() - before) > MOST_SECONDS:
            raise Failed(f"the first timetable took {taken:.0f} s of a processor, and may take {MOST_SECONDS}")
        return f"{taken:.0f} s of a processor"

    def hosted_ci(self):
        """Not a way to depend on it: nothing here can run the workflows, so a linter and their schema look at them."""
        files = sorted((self.tree / ".github/workflows").glob("*.yml"))
        run([self.tools / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", *files])
        run([self.tools / "yamllint", "--strict", "-d", "{extends: default, rules: {line-length: {max: 125}, "
             "document-start: disable, truthy: {check-keys: false}}}", *files])


def main(repository, folder, tools, wanted):
    ways = Ways(repository, folder, tools)
    every = ["include_path", "fetch_content_by_commit", "add_subdirectory", "find_package", "find_package_cmake_3_22",
             "pkg_config", "meson_pkg_config", "meson_cmake", "conan", "vcpkg_steps", "vcpkg", "amalgamated", "module",
             "first_drawing", "hosted_ci"]
    if unknown := set(wanted) - set(every):
        sys.exit(f"every_way.py: no way is called {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    shutil.rmtree(folder, ignore_errors=True)
    ways.tree.mkdir(parents=True)
    ways.copy_tree()
    passed = failed = skipped = 0
    for name in wanted or every:
        try:
            note = getattr(ways, name)()
            passed += 1
            print(f"ok       {name}" + (f" ({note})" if note else ""), flush=True)
        except Skipped as why:
            skipped += 1
            print(f"skipped  {name}: {why}", flush=True)
        except Failed as why:
            failed += 1
            print(f"FAILED   {name}: {why}", flush=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*(pathlib.Path(word).resolve() for word in sys.argv[1:4]), sys.argv[4:]))
