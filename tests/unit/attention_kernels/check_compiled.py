#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Makes machine code of the attention kernels and checks what ptxas says of each.

usage: check_compiled.py ptxas FILE.ptx OUT

Writes the machine code to OUT.sm_NN.cubin and what ptxas says of it beside it, for scripts/check-kernels. For sm_80 and
sm_90a: no spills, no local memory, no warning C75xx, registers within the launch bounds. In the PTX of
sm_80: as many matrix products, matrix loads and asynchronous copies as the tile sizes ask for.
"""
import re
import subprocess
import sys


def forward(dim, tiles, keys, value=0, places=2):
    queries, threads, value = 64 * tiles, 128, value or dim
    return (products(dim // 16, tiles, keys) + across(value, tiles, keys),
            copies(dim, queries + 2 * keys, threads) + copies(value, places * keys, threads))


def backward(dim, tiles, warps, part=32, value=0):
    value, halves = value or dim, 2 if dim == 256 else 1
    step, keys, held = 32 if dim > 128 else 64, 16 * tiles * warps, dim != 64
    parts = step // part
    of_part = (products(dim // 16, tiles, part) + products(value // 16, tiles, part) +
               across(dim // halves, tiles, part) + across(value // halves, tiles, part))
    # The columns of dQ, in squares of 32 or in rows of 16; the left operand comes from shared memory, too.
    if dim in (64, 128, 256):
        of_query = across(32, 2, keys) + counts(0, keys // 16 * 2)
    else:
        groups, times = (2, 3) if dim == 192 else ((dim // 16 + 1) // 2, 1)
        of_query = (across(16 * groups, 1, keys) + counts(0, keys // 16)) * times
    # Values that are held are loaded once, not for each part; so are keys where the parts are large.
    saved = counts(0, (value // 16 + dim // 16 * (part == 32)) * (1 - parts) if held else 0)
    threads = 32 * warps
    return (of_part * parts + of_query + saved,
            copies(dim, keys + 2 * step, threads) + copies(value, keys + 2 * step, threads) + 2)


class counts:
    """Matrix products and matrix loads of a piece of code."""

    def __init__(self, mma, ldmatrix):
        self.mma, self.ldmatrix = mma, ldmatrix

    def __add__(self, other):
        return counts(self.mma + other.mma, self.ldmatrix + other.ldmatrix)

    def __mul__(self, times):
        return counts(self.mma * times, self.ldmatrix * times)


def products(steps, tiles, columns):  # multiply_rows; the loop over Dim is unrolled `steps` times
    return counts(steps * columns // 8 * tiles, steps * (tiles + columns // 16))


def across(width, tiles, inner):  # multiply_across
    return counts(inner // 16 * width // 8 * tiles, inner // 16 * width // 16)


def copies(dim, rows, threads):
    pieces = dim // 8
    return rows * (pieces if pieces & (pieces - 1) == 0 else (pieces + 7) // 8 * 8) // threads


KERNELS = {
    "forward_64": forward(64, 2, 64), "forward_64_half": forward(64, 2, 64), "forward_64_own": forward(64, 2, 64),
    "forward_128": forward(128, 2, 48), "forward_128_full": forward(128, 2, 48), "forward_128_window": forward(128, 2, 48),
    "forward_64_split": forward(64, 2, 64), "forward_128_split": forward(128, 2, 48),
    "forward_256_alibi_split": forward(256, 1, 32), "merge_64": (counts(0, 0), 0), "merge_128": (counts(0, 0), 0),
    "merge_256_alibi": (counts(0, 0), 0),
    "forward_128_cap": forward(128, 1, 64), "forward_256_alibi": forward(256, 1, 32),
    "backward_64": backward(64, 2, 4), "backward_64_free": backward(64, 2, 4), "backward_64_own": backward(64, 2, 4, 16),
    "backward_128": backward(128, 1, 8), "backward_128_free": backward(128, 1, 8),
    "forward_128_compact": forward(128, 2, 32, places=1), "forward_128_cap_compact": forward(128, 1, 64, places=1),
    "forward_80_compact": forward(80, 2, 32, places=1), "forward_80_compact_split": forward(80, 2, 32, places=1),
    "merge_80_compact": (counts(0, 0), 0), "forward_192_128_own_compact": forward(192, 1, 32, 128, places=1),
    "forward_256_alibi_compact": forward(256, 1, 16, places=1),
    "forward_80": forward(80, 2, 64), "forward_96_cap": forward(96, 1, 64), "forward_112": forward(112, 2, 48),
    "forward_80_split": forward(80, 2, 64), "merge_80": (counts(0, 0), 0),
    "forward_192_128": forward(192, 2, 48, 128), "forward_192_128_own": forward(192, 1, 64, 128),
    "backward_80": backward(80, 1, 8), "backward_96_own": backward(96, 1, 8, 16), "backward_112": backward(112, 1, 8),
    "backward_192_128": backward(192, 1, 4, 16, 128), "backward_192_128_free": backward(192, 1, 4, 16, 128),
    "backward_192_128_cap": backward(192, 1, 4, 16, 128),
    "backward_128_cap": backward(128, 1, 8, 16), "backward_256_alibi": backward(256, 1, 4, 16),
    **{f"{when}_sums_{name}": (counts(0, 0), 0) for when in ("start", "finish")
       for name in ("64", "64_own", "128", "128_cap", "256_alibi", "80", "96_own", "112", "192_128", "192_128_cap")},
}
REGISTERS = 255
ARCHITECTURES = ("sm_80", "sm_90a")


def problems(ptxas, ptx, out):
    about = {}
    for target in ARCHITECTURES:
        cubin = f"{out}.{target}.cubin"
        run = subprocess.run([ptxas, f"-arch={target}", "-O3", "-v", "-o", cubin, ptx], capture_output=True, text=True,
                             check=False)
        said = run.stdout + run.stderr
        if run.returncode != 0:
            yield f"ptxas failed:\n{said}"
            return
        with open(f"{cubin}.log", "w", encoding="utf-8") as file:
            file.write(said)
        yield from (f"ptxas warns: {line}" for line in said.splitlines() if re.search(r"\bC75\d\d\b", line))
        about.update({(name, target): text for name, text in re.findall(
            rf"Compiling entry function '(\w+)' for '{target}'(.*?Used \d+ registers)", said, re.DOTALL)})
    code = dict(re.findall(r"\.visible \.entry (\w+)\((.*?)\n}", open(ptx, encoding="utf-8").read(), re.DOTALL))
    if set(about) != {(name, target) for name in KERNELS for target in ARCHITECTURES} or set(code) != set(KERNELS):
        yield f"the kernels compiled are {sorted(about)} and {sorted(code)}, those expected {sorted(KERNELS)}"
        return
    for (name, architecture), text in about.items():
        stack, stores, loads = map(int, re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", text).groups())
        registers = int(re.search(r"Used (\d+) registers", text).group(1))
        print(f"{name}, {architecture}: {registers} registers, {stores} + {loads} bytes spilled")
        if stack or stores or loads:
            yield f"{name} spills on {architecture}: {stack} bytes of stack, {stores} stored, {loads} loaded"
        if registers > REGISTERS:
            yield f"{name} takes {registers} registers on {architecture}, more than {REGISTERS}"
    for name, (matrix, copied) in KERNELS.items():
        found = [len(re.findall(rf"\b{instruction}\b", code[name])) for instruction in
                 (r"mma\.sync\.aligned", r"ldmatrix\.sync\.aligned", r"cp\.async\.cg")]
        print(f"{name}: {found[0]} mma, {found[1]} ldmatrix, {found[2]} cp.async")
        expected = [matrix.mma, matrix.ldmatrix, copied]
        if found != expected:
            yield f"{name} has {found} mma, ldmatrix and cp.async, but its tiles ask for {expected}"


if __name__ == "__main__":
    wrong = list(problems(*sys.argv[1:]))
    print(*wrong, sep="\n")
    sys.exit(1 if wrong else 0)
