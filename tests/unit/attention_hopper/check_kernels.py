#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Gates on what the compiler makes of the kernels for Hopper.

usage: check_kernels.py ptxas FILE.ptx OUT

Writes the machine code to OUT.sm_90a.cubin and what ptxas says of it beside it, for scripts/check-kernels. No spills, no local memory, no wgmma that ptxas serialises (warnings C75xx), registers as setmaxnreg expects them, and
the counts of instructions that the source asks for.
"""
import re
import subprocess
import sys

LOADS = "cp.async.bulk.tensor.5d.shared"  # each consumer's own tiles, and those of a stage
STORES = "cp.async.bulk.tensor.5d.global"
# What setmaxnreg shares out again: 65536 over the threads, down to a multiple of 8.
LAUNCH_REGISTERS = {"forward_64": 128}  # of 512 threads
LAUNCH_REGISTERS_OF_384 = 168


# Each count of wgmma: over the head dim, then over the rows of a step; once before the loop over tiles or after it, and
# once in the loop.
def forward(dim, keys, consumers=2):
    return {"wgmma.mma_async": 2 * dim // 16 + 2 * keys // 16, "wgmma.fence": 3, "wgmma.commit_group": 4,
            "wgmma.wait_group": 4, LOADS: consumers + 2, STORES: 1, "fence.proxy.async": 1}


def query_gradient(dim, keys):
    return {"wgmma.mma_async": 4 * dim // 16 + 2 * keys // 16, "wgmma.fence": 4, "wgmma.commit_group": 6,
            "wgmma.wait_group": 6, LOADS: 6, STORES: 1, "fence.proxy.async": 1}


def key_gradient(dim):  # no tile of weights or gradients goes through shared memory
    return {"wgmma.mma_async": 4 * dim // 16 + 4 * 64 // 16, "wgmma.fence": 6, "wgmma.commit_group": 8,
            "wgmma.wait_group": 7, LOADS: 6, STORES: 0, "fence.proxy.async": 0, "prefetch.global.L2": 2 * dim // 32}


COUNTS = {
    "forward_64": forward(64, 128, consumers=3),
    "forward_64_own": forward(64, 128),
    "forward_128": forward(128, 128),
    "forward_128_half": forward(128, 128),
    "forward_128_cap": forward(128, 64),
    "forward_128_split": {**forward(128, 128), STORES: 0, "fence.proxy.async": 0},  # parts go to scratch in float
    "query_gradient_64": query_gradient(64, 128),
    "query_gradient_64_own": query_gradient(64, 64),
    "query_gradient_128": query_gradient(128, 128),
    "query_gradient_128_cap": query_gradient(128, 64),
    "key_gradient_64": key_gradient(64),
    "key_gradient_64_own": key_gradient(64),
    "key_gradient_128": key_gradient(128),
    "key_gradient_128_cap": key_gradient(128),
}
EVERY_KERNEL = {"setmaxnreg.inc": 1, "setmaxnreg.dec": 1, "atom.": 0, "red.global": 0, "red.async": 0}
OTHERS = {"merge_128": 64}  # kernels without wgmma, and the most registers they may take


def problems_of_text(text):
    kernels = {part[: part.index("(")]: part for part in text.split(".visible .entry ")[1:]}
    if sorted(kernels) != sorted({**COUNTS, **OTHERS}):
        yield f"the kernels are {sorted(kernels)}, not {sorted({**COUNTS, **OTHERS})}"
    for name, body in kernels.items():
        if name in OTHERS:
            continue
        for instruction, count in {**COUNTS.get(name, {}), **EVERY_KERNEL}.items():
            if body.count(instruction) != count:
                yield f"{name} has {body.count(instruction)} {instruction}, not {count}"


def problems_of_log(log):
    for line in log.splitlines():
        if re.search(r"C75\d\d|warning|error", line):
            yield line
    found = re.findall(r"Function properties for (\w+)\n\s*(\d+) bytes stack frame, (\d+) bytes spill stores, "
                       r"(\d+) bytes spill loads\n.*Used (\d+) registers", log)
    if len(found) != len(COUNTS) + len(OTHERS):
        yield f"ptxas tells of {len(found)} kernels, not of {len(COUNTS) + len(OTHERS)}:\n{log}"
    for name, *sizes, registers in found:
        if any(int(size) for size in sizes):
            yield f"{name} spills: stack, stores, loads = {sizes} bytes"
        if name in OTHERS:
            if int(registers) > OTHERS[name]:
                yield f"{name} takes {registers} registers, more than {OTHERS[name]}"
        elif int(registers) != (planned := LAUNCH_REGISTERS.get(name, LAUNCH_REGISTERS_OF_384)):
            yield f"{name} launches with {registers} registers, not {planned}: setmaxnreg would wait forever"


def main():
    ptxas, path, out = sys.argv[1:]
    cubin = f"{out}.sm_90a.cubin"
    run = subprocess.run([ptxas, "-arch=sm_90a", "-O3", "-v", "-o", cubin, path], capture_output=True, text=True)
    log = run.stdout + run.stderr
    with open(f"{cubin}.log", "w", encoding="utf-8") as file:
        file.write(log)
    with open(path, encoding="utf-8") as file:
        found = [*problems_of_text(file.read()), *problems_of_log(log)]
    print(*found, sep="\n")
    return 1 if found or run.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
