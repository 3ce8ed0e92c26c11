#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Gates on what the compiler makes of the kernels for Hopper.

usage: check_kernels.py ptxas FILE.ptx

No spills, no local memory, no wgmma that ptxas serialises (warnings C75xx), registers as setmaxnreg expects them, and
the counts of instructions that the source asks for.
"""
import re
import subprocess
import sys

LAUNCH_REGISTERS = 168  # 65536 / 384, down to a multiple of 8: what setmaxnreg shares out again


# Products of a tile, once before the loop over tiles and once in it; weights with values, once in and once after it.
def products(dim, keys):
    return 2 * dim // 16 + 2 * keys // 16


COUNTS = {  # kernel: wgmma
    "forward_64": products(64, 128),
    "forward_64_own": products(64, 128),
    "forward_128": products(128, 128),
    "forward_128_half": products(128, 128),
    "forward_128_cap": products(128, 64),
    "forward_128_split": products(128, 128),
}
OTHERS = {"merge_128": 64}  # kernels without wgmma, and the most registers they may take
EVERY_KERNEL = {
    "wgmma.fence": 3,
    "wgmma.commit_group": 4,
    "wgmma.wait_group": 4,
    "cp.async.bulk.tensor.5d.shared": 4,  # queries of two consumers, keys, values
    "setmaxnreg.inc": 1,
    "setmaxnreg.dec": 1,
}
THROUGH_COPIES = ["cp.async.bulk.tensor.5d.global", "fence.proxy.async"]


def problems_of_text(text):
    kernels = {part[: part.index("(")]: part for part in text.split(".visible .entry ")[1:]}
    if sorted(kernels) != sorted({**COUNTS, **OTHERS}):
        yield f"the kernels are {sorted(kernels)}, not {sorted({**COUNTS, **OTHERS})}"
    for name, body in kernels.items():
        if name in OTHERS:
            continue
        stores = 0 if name.endswith("_split") else 1  # parts go to scratch in float
        for instruction, count in {"wgmma.mma_async": COUNTS.get(name), **EVERY_KERNEL,
                                   **dict.fromkeys(THROUGH_COPIES, stores)}.items():
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
        elif int(registers) != LAUNCH_REGISTERS:
            yield f"{name} launches with {registers} registers, not {LAUNCH_REGISTERS}: setmaxnreg would wait forever"


def main():
    ptxas, path = sys.argv[1:]
    run = subprocess.run([ptxas, "-arch=sm_90a", "-O3", "-v", "-o", "/dev/null", path], capture_output=True, text=True)
    with open(path, encoding="utf-8") as file:
        found = [*problems_of_text(file.read()), *problems_of_log(run.stdout + run.stderr)]
    print(*found, sep="\n")
    return 1 if found or run.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
