# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the simulation says of the aims of the attention kernels on a whole GPU: advice, decides nothing."""
import pathlib
import re
import tempfile

import whole_gpu
from whole_gpu import HELD, K, SHAPES, line

FEW = ("few_2k", "few_8k", "few_chunk_2k_8k", "few_16_2_2k", "llama_2k", "llama_8k", "chunk_few", "d64_few_2k")
MANY = ("many_2k", "many_8k", "fa3_2k", "d256_many_2k")
SQUARES = ("square_2k", "square_8k", "square_16k", "llama_2k", "llama_8k", "many_2k", "many_8k")
BANDS = ("window_1k_32k", "window_4k_32k", "window_1k_128k", "documents_2k_32k", "documents_8k_32k", "documents_2k_128k")
ROUNDS = ("chunk_10", "chunk_12", "d64_chunk", "d64_chunk_1k")
# (what, shapes, way, speed over FlashAttention-3's at least)
AIMS = (("backward, few key heads, free", FEW, "free", 1.0), ("backward, few key heads, kept", FEW, "kept", 0.9),
        ("forward, 96 and more streams", MANY, "forward", 1.0), ("backward, 96 and more streams, free", MANY, "free", 1.0),
        ("backward, causal squares, kept", SQUARES, "kept", 0.9))
SHORT = ("square_2k", "llama_2k", "few_2k", "fa3_2k", "many_2k")


class Table:
    def __init__(self, program):
        self.program = program
        self.rows = []

    def ask(self, lines, constants=whole_gpu.CONSTANTS):
        return whole_gpu.ask(self.program, lines, constants)

    def add(self, what, figures, target, at_most=True):
        """figures: {shape: figure}; the worst counts."""
        worst = (max if at_most else min)(figures, key=figures.get)
        met = figures[worst] <= target if at_most else figures[worst] >= target
        every = ", ".join(f"{name} {figure:.2f}" for name, figure in figures.items())
        self.rows.append(f"{'met   ' if met else 'MISSED'} {what}: {figures[worst]:.3f}, the aim is "
                         f"{'at most' if at_most else 'at least'} {target} ({every})")

    def speeds(self, names, way):
        """{shape: time of FlashAttention-3 over ours}."""
        ours = self.ask([line(way, SHAPES[name]) for name in names])
        theirs = self.ask([line(peer_way(way), SHAPES[name], peer=True) for name in names])
        return {name: b["nanoseconds"] / a["nanoseconds"] for name, a, b in zip(names, ours, theirs)}


def peer_way(way):
    return "forward" if way == "forward" else "free"


def set_to(folder, values):
    """A copy of the constants with some of them changed."""
    text = whole_gpu.CONSTANTS.read_text(encoding="utf-8")
    for name, value in values.items():
        text, count = re.subn(rf"(?m)^({re.escape(name)}\s+)\d+", rf"\g<1>{value}", text)
        assert count == 1
    path = pathlib.Path(folder) / "constants.txt"
    path.write_text(text, encoding="utf-8")
    return path


def constant(name):
    return int(re.search(rf"(?m)^{re.escape(name)}\s+(\d+)", whole_gpu.CONSTANTS.read_text(encoding="utf-8"))[1])


def least_time(table, way, of):
    """Nanoseconds that a call takes at least, whoever does which piece when: the passes of its loop, spread evenly, and what
    pieces add. Blocks start once. A tile of keys in backward ends and rounds. A tile of queries in forward ends, and without a
    place for its outputs alone the next one waits as FlashAttention-3's. Nothing waits for memory or a block."""
    dim, batch, heads, key_heads, queries, keys = map(int, of.split()[:6])
    multiprocessors, cycle = constant("multiprocessors"), 1e6 / constant("h100.kilohertz")
    nothing = ("own.forward.start", "own.forward.between", "peer.forward.between", "own.forward.end", "own.backward.start",
               "own.backward.end", "hand_on", "launch", "other_kernel")
    with tempfile.TemporaryDirectory() as folder:
        constants = set_to(folder, {**dict.fromkeys(nothing, 0), "multiprocessors": 1, "cache_rate": 10**15,
                                    "h100.memory_rate": 10**15})
        time = table.ask([line(way, of)], constants)[0]["nanoseconds"] / multiprocessors + constant("launch") / 1000
    if way == "forward":
        pieces = batch * heads * queries / (192 if dim < 128 else 128) / multiprocessors
        between = constant("peer.forward.between") if dim == 256 else 0
        return time + cycle * (constant("own.forward.start") + pieces * constant("own.forward.end") + (pieces - 1) * between)
    numbers = batch * heads * queries * dim  # of dQ; the kernel before reads two elements for each
    tiles = batch * key_heads * keys / (64 if dim > 128 else 128)
    rounding = 3 / 4 * numbers / (batch * key_heads * keys * dim)  # 6 bytes of each, next to 8 of each of dK and dV
    ends = (1 + rounding) * constant("own.backward.end")
    return (time + constant("other_kernel") / 1000 + numbers * 4e3 / constant("h100.memory_rate")
            + cycle * (constant("own.backward.start") + tiles / multiprocessors * ends))


def missed(program):
    """{(shape, way): (speed over FlashAttention-3's, what it is at most)} of the aims that are not met."""
    table, found = Table(program), {}
    for _, names, way, aim in AIMS:
        for name, speed in table.speeds(names, way).items():
            if speed < aim:
                of = SHAPES[name]
                theirs = table.ask([line(peer_way(way), of, peer=True)])[0]["nanoseconds"]
                found[name, way] = speed, theirs / least_time(table, way, of)
    return found


def held(table):
    for name in ("held_8k", "held_chunk"):
        times = [of["nanoseconds"] for of in table.ask([line("forward", SHAPES[name], n) for n in (0, *HELD)])]
        for n, time in zip(HELD, times[1:]):
            table.add(f"forward next to {n} multiprocessors held, over none", {name: time / times[0]}, 1.05 if n <= 4 else 1.2)


def between(table):
    with tempfile.TemporaryDirectory() as folder:
        lines = [line("forward", SHAPES[name]) for name in SHORT]
        none = set_to(folder, {"own.forward.between": 0, "peer.forward.between": 0})
        ours, best = table.ask(lines), table.ask(lines, none)
    table.add("time between pieces at 2k, share of the whole",
              {name: 1 - b["nanoseconds"] / a["nanoseconds"] for name, a, b in zip(SHORT, ours, best)}, 0.02)


def blocks(table):
    portable = [of for of in table.ask(["portable"]) if "on_100_kib" in of["name"]]
    table.add("portable kernels, shared memory of a block in KiB, of 99",
              {of["name"][9:]: of["shared_bytes"] / K for of in portable}, 99)
    forward = [of for of in portable if "forward" in of["name"]]
    table.add("portable forward, blocks of a multiprocessor with 100 KiB",
              {of["name"][9:]: of["resident"] for of in forward}, 2, False)


def rows(program):
    """Sentences: met or missed, by how much."""
    table = Table(program)
    held(table)
    for what, names, way, aim in AIMS:
        table.add(f"{what}, of FA3", table.speeds(names, way), aim, False)
    for way in ("forward", "kept"):
        found = table.ask([line(way, SHAPES[name]) for name in BANDS])
        table.add(f"windows and documents, {way}, tiles asked over tiles worked",
                  {name: of["asked"] / of["tiles"] for name, of in zip(BANDS, found)}, 1.05)
    found = table.ask([line("forward", SHAPES[name]) for name in ROUNDS])
    table.add("1.2 to 1.7 rounds of pieces, fullness",
              {name: of["fullness"] / 1000 for name, of in zip(ROUNDS, found)}, 0.9, False)
    between(table)
    blocks(table)
    table.rows += [f"{name}, {way}: {speed:.3f} of FA3, {most:.3f} at most"
                   for (name, way), (speed, most) in missed(program).items()]
    return table.rows


def every_shape(program):
    """Sentences: predicted rates of each shape, next to FlashAttention-3's where its order is known."""
    for name, of in SHAPES.items():
        has_peer = "window" not in of and "documents" not in of and of.split()[0] in ("64", "128", "256")
        lines = [line(way, of) for way in whole_gpu.WAYS]
        lines += [line(way, of, peer=True) for way in ("forward", "free")] if has_peer else []
        rates = [found["tflops"] for found in whole_gpu.ask(program, lines)]
        text = f"{name}: predicted TFLOP/s " + ", ".join(f"{way} {rate:.0f}" for way, rate in zip(whole_gpu.WAYS, rates))
        if has_peer:
            text += (f"; FA3 {rates[3]:.0f} and {rates[4]:.0f}: {rates[0] / rates[3]:.2f}, {rates[1] / rates[4]:.2f}, "
                     f"{rates[2] / rates[4]:.2f} of it")
        yield text
