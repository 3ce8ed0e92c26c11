#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs the commands of the documentation, or names the test that does.

Every line of a fence ```sh: `scripts/timetable`, and `scripts/demo` with options, run here, with the programs that were built,
in an empty folder. Of any other line, ELSEWHERE says which file runs it, and that file must still have the words given.

usage: commands_test.py REPOSITORY TIMETABLE GPT
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

# What a command begins with; the file that runs it; words that stand there. GPU_ONLY has what needs a GPU and a profiler.
# Of whole_tables.md optimality_test.py runs every command, and compares all that it prints.
ELSEWHERE = [
    ("scripts/timetable blocks", "tests/examples/CMakeLists.txt", "docs/explanation/v_shapes.md"),
    *((command, "tests/examples/whole_tables.md", f"```sh\n{command}\n```\n") for command in (
        "scripts/timetable gaps --devices 4 --microbatches 6 --cost 10,12,8,1",
        "scripts/timetable systems --model gpt-7b --sequence 4096 --gpu h100 --devices 8 --microbatches 32",
        "scripts/timetable systems --model gpt-7b --sequence 65536 --gpu h100 --devices 8 --tensor 8 --data 2 --microbatches 32")),
    ("source <(scripts/timetable completion bash)", "tests/examples/terminal_test.py", '"completion", "bash"'),
    ("scripts/demo", "tests/examples/gpt_test.py", "subprocess"),
    ("scripts/test package", "tests/package/every_way.py", "def main"),
    ("scripts/test compilers", "tests/compilers/every_compiler.py", "def main"),
    ("scripts/test", ".github/workflows/tests.yml", "scripts/test"),
    ("scripts/docs", ".github/workflows/tests.yml", "scripts/docs"),
    ("scripts/gpu-check", "tests/checks/gpu_check_test.py", "gpu-check"),
    ("scripts/bench", "tests/checks/CMakeLists.txt", "bench.py"),
    ("scripts/check-kernels", "tests/kernels/CMakeLists.txt", "check-kernels"),
    ("scripts/release", "tests/checks/release_test.py", "scripts/release"),
    ("scripts/check-house", "tests/checks/CMakeLists.txt", "check-house"),
    ("python3 tests/checks/check_headers.py include/pipe --write", "tests/examples/add_schedule_test.py", 'run(*check_headers, "--write")'),
    ("python3 tests/examples/pictures_test.py ", "tests/examples/add_schedule_test.py", 'tests/examples/pictures_test.py", tree / "timetable"'),
    ("python3 tests/examples/schedule_table_test.py ", "tests/examples/add_schedule_test.py", 'run(*table, "--write")'),
    ("cmake --workflow --preset gcc", "scripts/test", 'cmake --workflow --preset "$preset"'),
    ("cmake --build build/gcc && ctest --preset gcc", "CMakePresets.json", '"configurePreset": "gcc"'),
    ("cmake --preset gpu", "scripts/gpu-check", "preset gpu"),
    ("cmake --build build/gpu", "scripts/gpu-check", "--target"),
    ("ctest --test-dir build/gpu", "scripts/gpu-check", "ctest"),
    ("build/gpu/bin/gpt --backend cuda", "scripts/gpu-check", "bin/gpt --backend cuda"),
    ("mpirun -n 4 build/gpu/bin/gpt --backend nccl", "scripts/gpu-check", "--backend nccl"),
    ("g++ -std=c++20 -I include examples/01_first_pipeline.cpp", "tests/package/every_way.py", "def include_path"),
    ("cmake -G Ninja -S . -B build/install", "tests/package/every_way.py", "-DPIPELINING_BUILD_EXAMPLES=OFF"),
    ("cmake --install build/install", "tests/package/every_way.py", '"--install"'),
    ("PKG_CONFIG_PATH=", "tests/package/every_way.py", '"pkg-config", "--cflags", "--libs", "pipelining"'),
    ("conan create . -s compiler.cppstd=20", "tests/package/every_way.py", '"compiler.cppstd=20"'),
    ("vcpkg install pipelining --overlay-ports=ports", "tests/package/every_way.py", '"vcpkg", "install", "pipelining"'),
    ("mpirun -n ", "tests/examples/gpt_mpi_restart_test.py", "def check_pages"),
    ("for attempt in 1 2 3; do mpirun -n ", "tests/examples/gpt_mpi_restart_test.py", "def check_pages"),
    ("clang++-19 ", "tests/package/module_test.py", "--precompile"),
    ("cmake -S . -B build -DCMAKE_PREFIX_PATH=", "tests/package/CMakeLists.txt", "pipelining_consumer_test(nccl"),
    ("cmake --build build", "tests/package/CMakeLists.txt", "--build-and-test"),
]
GPU_ONLY = ["nsys profile "]
# A model and a GPU, for commands that read them.
FILES = {
    "config.json": {"hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16, "intermediate_size": 8192,
                    "vocab_size": 32000, "hidden_act": "silu"},
    "gpu.json": {"peak_tflops": 312, "memory_gb": 80, "link_gb_per_s": 300, "network_gb_per_s": 25, "host_gb_per_s": 25},
}


def commands(root):
    for page in [root / "README.md", root / "CONTRIBUTING.md", *sorted(root.glob("docs/**/*.md"))]:
        for fence in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            for line in fence.replace("\\\n", " ").splitlines():
                if command := line.split("  #")[0].split(" # ")[0].strip():
                    yield page.relative_to(root).as_posix(), command


def problem_with(root, programs, folder, command):
    script, _, words = command.partition(" ")
    runs_here = script in programs and words.strip()
    elsewhere = next(((file, there) for known, file, there in ELSEWHERE
                      if command.startswith(known) and not (runs_here and known == script)), None)
    if runs_here and not elsewhere:
        done = subprocess.run(f"'{programs[script]}' {words}", shell=True, cwd=folder, capture_output=True, text=True)
        target = next(iter(re.findall(r"(?: > |--output )(\S+)", words)), None)
        empty = not done.stdout and not (target and (folder / target).stat().st_size > 0)
        return f"ended with {done.returncode}: {done.stderr}" if done.returncode or empty else None
    if any(command.startswith(known) for known in GPU_ONLY):
        return None
    if elsewhere:
        file, there = elsewhere
        says = (root / file).is_file() and there in (root / file).read_text(encoding="utf-8")
        return None if says else f"{file} should run it, but does not say '{there}'"
    return "no test runs it: add it to tests/examples/commands_test.py"


def main(root, tool, gpt):
    programs = {"scripts/timetable": tool, "scripts/demo": gpt}
    found = list(commands(root))
    with tempfile.TemporaryDirectory() as folder:
        # Files for the commands that read some.
        subprocess.run(f"'{tool}' 1f1b --devices 4 --microbatches 8 --format pytorch > my_schedule.csv", shell=True,
                       cwd=folder, check=True)
        for name, facts in FILES.items():
            (pathlib.Path(folder) / name).write_text(json.dumps(facts), encoding="utf-8")
        problems = [f"{page}: `{command}` {why}" for page, command in found
                    if (why := problem_with(root, programs, pathlib.Path(folder), command))]
    if len(found) < 20:
        problems.append(f"only {len(found)} commands were found in the documentation")
    return problems


if __name__ == "__main__":
    said = main(*(pathlib.Path(word).resolve() for word in sys.argv[1:4]))
    print("\n".join(said))
    sys.exit(1 if said else 0)
