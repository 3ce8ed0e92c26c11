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
SLICES = 8  # of dK and dV, in which parts of a group add in turn: one wait, one barrier, one hand-on each
# What setmaxnreg shares out again: 65536 over the threads, down to a multiple of 8.
LAUNCH_REGISTERS = {"forward_64": 128, "forward_80": 128, "forward_112": 128}  # of 512 threads
LAUNCH_REGISTERS_OF_384 = 168


# Each count of wgmma: over the head dim, then over the rows of a step; once before the loop over tiles or after it, and
# once in the loop.
def forward(dim, keys, consumers=2, value=0):
    value = value or dim
    copies, stores = (2 if width % 64 else 1 for width in (dim, value))  # of a tile: panels, where heads are not whole ones
    # Outputs that leave while the next piece begins, with tiles or without, and the last ones; or those of each piece.
    ends = 3 if dim in (64, 128) or (dim, keys) == (192, 64) else 1
    return {"wgmma.mma_async": 2 * dim // 16 + 2 * keys // 16 * max(1, value // 128), "wgmma.fence": 3, "wgmma.commit_group": 4,
            "wgmma.wait_group": 5, LOADS: (consumers + 1) * copies + stores, STORES: ends * stores,
            "fence.proxy.async": ends, "stmatrix": ends * 4 * -(-value // 64), "atom.": 1}  # of the count of pieces


def backward(dim, is_ordered=True, is_band=True):
    parts = 2 if dim == 64 else 1  # of a step: logits, dO . V, dV and dK for each, dQ once
    copies = 2 if dim % 64 else 1  # of a tile: panels, where heads are not whole ones
    return {"wgmma.mma_async": 2 * (parts * (2 * dim // 16 + 2 * 64 // 16) + 128 // 16), "wgmma.fence": 6 * parts + 1,
            "wgmma.commit_group": 8 * parts + 2, "wgmma.wait_group": 4 * parts + 5, LOADS: 6 * copies, STORES: 0,
            "fence.proxy.async": 2, "stmatrix": 8 * parts, "bar.sync 7": 4 + SLICES * is_ordered + is_band * (2 - is_ordered),  # two where a piece begins; the last: before dQ is rounded
            "red.relaxed.gpu.global.add.v4.f32": 16,
            "red.relaxed.gpu.global.add.v2.f32": dim // 2, "ld.acquire.gpu": 2 + SLICES if is_ordered else 2,  # of dQ, of those passed on, of pieces; or of the first and of all
            "red.release.gpu": 0 if is_ordered else 4,  # of the first tile; of each step, and of the last stages
            "st.release.gpu": (2 + SLICES) * is_ordered, "atom.": 1}  # of the ticket


def wide_backward(is_ordered=True):
    of_step = 2 * 256 // 16 + 3 * 64 // 16  # logits and dO . V; dV, dK and dQ
    return {**backward(128, is_ordered), "wgmma.mma_async": 2 * of_step, "wgmma.fence": 5, "wgmma.commit_group": 10,
            "wgmma.wait_group": 10, LOADS: 4, "red.relaxed.gpu.global.add.v4.f32": 32}


# Head dim 192 with values of 128: the code of two consumers, of which one has no dV.
def latent_backward(is_ordered=True):
    both = 2 * (192 // 16 + 128 // 16 + 2 * 64 // 16) + 64 // 16  # logits, dO . V, dQ and dK; dV
    return {**wide_backward(is_ordered), "wgmma.mma_async": 2 * both, "wgmma.fence": 10, "wgmma.commit_group": 18,
            "wgmma.wait_group": 20, "fence.proxy.async": 4, "stmatrix": 16, "bar.sync 7": 2 * (4 + SLICES * is_ordered + 2 - is_ordered),
            "red.relaxed.gpu.global.add.v4.f32": 48, "red.relaxed.gpu.global.add.v2.f32": 80, "ld.acquire.gpu": 2 + 2 * SLICES if is_ordered else 3,
            "st.release.gpu": (2 + 2 * SLICES) * is_ordered}


COUNTS = {
    "forward_64": forward(64, 128, consumers=3),
    "forward_64_own": forward(64, 128),
    "forward_128": forward(128, 128),
    "forward_128_document": forward(128, 128),
    "forward_128_half": forward(128, 128),
    "forward_128_cap": forward(128, 64),
    "forward_256": forward(256, 80),
    "forward_256_cap": forward(256, 64),
    "forward_80": forward(80, 96, consumers=3),
    "forward_96_cap": forward(96, 64),
    "forward_112": forward(112, 96, consumers=3),
    "forward_192_128": forward(192, 128, value=128),
    "forward_192_128_cap": forward(192, 64, value=128),
    "backward_64": backward(64),
    "backward_64_free": backward(64, is_ordered=False),
    "backward_64_own": backward(64, is_band=False),
    "backward_64_heads": backward(64),
    "backward_128": backward(128),
    "backward_128_free": backward(128, is_ordered=False),
    "backward_128_document": backward(128),
    "backward_128_cap": backward(128),
    "backward_192_128": latent_backward(),
    "backward_192_128_free": latent_backward(is_ordered=False),
    "backward_192_128_cap": latent_backward(),
    "backward_80": backward(80),
    "backward_80_free": backward(80, is_ordered=False),
    "backward_96_cap": backward(96),
    "backward_112": backward(112),
    "backward_256": wide_backward(),
    "backward_256_free": wide_backward(is_ordered=False),
    "backward_256_cap": wide_backward(),
    "forward_128_split": {**forward(128, 128), STORES: 0, "fence.proxy.async": 0, "stmatrix": 0},  # parts go to scratch in float
}
EVERY_KERNEL = {"setmaxnreg.inc": 1, "setmaxnreg.dec": 1, "atom.": 0, "red.global": 0, "red.async": 0}
# Kernels without wgmma, and the most registers they may take.
OTHERS = {"merge_128": 64, **{f"{way}_sums_{name}": 64 for way in ("start", "finish") for name in ("64", "64_own", "64_heads", "128", "128_document", "128_cap", "256", "256_cap", "80", "96_cap", "112", "192_128", "192_128_cap")}}


def problems_of_text(text):
    kernels = {part[: part.index("(")]: part for part in text.split(".visible .entry ")[1:]}
    if sorted(kernels) != sorted({**COUNTS, **OTHERS}):
        yield f"the kernels are {sorted(kernels)}, not {sorted({**COUNTS, **OTHERS})}"
    for name, body in kernels.items():
        if name in OTHERS:
            continue
        for instruction, count in {**EVERY_KERNEL, **COUNTS.get(name, {})}.items():
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
