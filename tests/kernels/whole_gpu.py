# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Whole kernels on a simulated GPU: the second half of scripts/check-kernels.

simulators/whole_gpu walks the library's own launch geometry. Counted figures are held against tests/kernels/whole_gpu.json;
times are advice, next to FlashAttention-3's and to what was measured.
"""
import json
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "simulators/whole_gpu"
CONSTANTS = FOLDER / "constants.txt"
CALIBRATION = FOLDER / "calibration.md"
BUDGET = ROOT / "tests/kernels/whole_gpu.json"
REPORTS = (("h100", ROOT / "benchmarks/results/h100-80gb-hbm3-2026-11-26.md"),
           ("h200", ROOT / "benchmarks/results/h200-2026-11-26.md"))
COUNTED = ("key_parts", "group_parts", "step_cut", "heads_together", "next_asked", "starts_at_0", "is_rounded", "blocks", "resident", "shared_bytes", "pieces", "tiles", "asked",
           "rounds", "busiest", "fullness", "memory_kib")
WAYS = ("forward", "kept", "free")
K = 1024


def shape(dim, batch, heads, key_heads, queries, keys, mask="causal", extent=0):
    return f"{dim} {batch} {heads} {key_heads} {queries} {keys} {mask} {extent}"


# Those that people train, and those of the committed reports.
SHAPES = {
    "square_2k": shape(128, 1, 16, 16, 2 * K, 2 * K), "square_8k": shape(128, 1, 16, 16, 8 * K, 8 * K),
    "square_16k": shape(128, 1, 16, 16, 16 * K, 16 * K), "square_full_8k": shape(128, 1, 16, 16, 8 * K, 8 * K, "full"),
    "llama_2k": shape(128, 1, 32, 8, 2 * K, 2 * K), "llama_8k": shape(128, 1, 32, 8, 8 * K, 8 * K),
    "few_2k": shape(128, 1, 8, 1, 2 * K, 2 * K), "few_8k": shape(128, 1, 8, 1, 8 * K, 8 * K),
    "few_chunk_2k_8k": shape(128, 1, 8, 1, 2 * K, 8 * K), "few_16_2_2k": shape(128, 1, 16, 2, 2 * K, 2 * K),
    "many_2k": shape(128, 4, 32, 32, 2 * K, 2 * K), "many_8k": shape(128, 4, 32, 32, 8 * K, 8 * K),
    "many_shared_8k": shape(128, 4, 32, 8, 8 * K, 8 * K), "fa3_2k": shape(128, 8, 16, 16, 2 * K, 2 * K),
    "chunk": shape(128, 1, 16, 16, 2 * K, 32 * K), "chunk_shared": shape(128, 1, 32, 8, 2 * K, 32 * K),
    "chunk_few": shape(128, 1, 8, 1, 2 * K, 32 * K), "chunk_4": shape(128, 1, 4, 4, 2 * K, 32 * K),
    "chunk_10": shape(128, 1, 10, 10, 2 * K, 32 * K), "chunk_12": shape(128, 1, 12, 12, 2 * K, 32 * K),
    "d64_square_8k": shape(64, 1, 16, 16, 8 * K, 8 * K), "d64_chunk": shape(64, 1, 16, 16, 2 * K, 32 * K),
    "d64_chunk_1k": shape(64, 1, 24, 24, K, 32 * K), "d64_few_2k": shape(64, 1, 8, 1, 2 * K, 2 * K),
    "d256_square_8k": shape(256, 1, 8, 8, 8 * K, 8 * K), "d256_many_2k": shape(256, 4, 32, 32, 2 * K, 2 * K),
    "d80_square_8k": shape(80, 1, 16, 16, 8 * K, 8 * K), "d96_square_8k": shape(96, 1, 16, 16, 8 * K, 8 * K),
    "d112_square_8k": shape(112, 1, 16, 16, 8 * K, 8 * K), "d192_128_square_8k": shape(192, 1, 16, 16, 8 * K, 8 * K),
    "d80_chunk": shape(80, 1, 16, 16, 2 * K, 32 * K), "d192_128_chunk": shape(192, 1, 16, 16, 2 * K, 32 * K),
    "window_1k_32k": shape(128, 1, 16, 16, 32 * K, 32 * K, "window", K),
    "window_4k_32k": shape(128, 1, 16, 16, 32 * K, 32 * K, "window", 4 * K),
    "window_1k_128k": shape(128, 1, 4, 4, 128 * K, 128 * K, "window", K),
    "documents_2k_32k": shape(128, 1, 16, 16, 32 * K, 32 * K, "documents", 2 * K),
    "documents_8k_32k": shape(128, 1, 16, 16, 32 * K, 32 * K, "documents", 8 * K),
    "documents_2k_128k": shape(128, 1, 4, 4, 128 * K, 128 * K, "documents", 2 * K),
    "held_8k": shape(128, 1, 32, 32, 8 * K, 8 * K), "held_chunk": shape(128, 1, 32, 8, 2 * K, 32 * K),
}
HELD = (1, 4, 16)
# Of FlashAttention-3's paper, on an H100: (way, shape, TFLOP/s).
PUBLISHED = [("forward", shape(128, 8, 16, 16, 2 * K, 2 * K), 521), ("forward", shape(128, 2, 16, 16, 8 * K, 8 * K), 590),
             ("forward", shape(128, 1, 16, 16, 16 * K, 16 * K), 616),
             ("forward", shape(128, 8, 16, 16, 2 * K, 2 * K, "full"), 625),
             ("forward", shape(128, 1, 16, 16, 16 * K, 16 * K, "full"), 648),
             ("forward", shape(64, 1, 32, 32, 16 * K, 16 * K, "full"), 497),
             ("forward", shape(256, 1, 8, 8, 16 * K, 16 * K, "full"), 756),
             ("free", shape(128, 1, 16, 16, 16 * K, 16 * K, "full"), 561),
             ("free", shape(64, 1, 32, 32, 16 * K, 16 * K, "full"), 474)]


def build(nvcc, run, folder, over=None):
    """Path of the program, compiled in a folder; `over` holds headers that take the place of the library's."""
    flags = ["-std=c++20", *(["-O0"] if over else ["-O1", "-Xcompiler=-Wall,-Wextra,-Werror,-Wno-unknown-pragmas"])]
    include = [f"-I{path}" for path in (over, ROOT / "include") if path]
    objects = []
    for name in ("geometry.cu", "geometry_other_dims.cu", "peer.cpp", "simulate.cpp", "main.cpp"):
        made = folder / f"{name}.o"
        objects.append(str(made))
        if over is None or name == "geometry.cu":
            run(nvcc, *flags, *include, "-c", str(FOLDER / name), "-o", str(made))
    run(nvcc, "-o", str(folder / "whole_gpu"), *objects)
    return folder / "whole_gpu"


def ask(program, lines, constants=CONSTANTS):
    done = subprocess.run([program, constants], input="\n".join(lines) + "\n", capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"check-kernels: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def line(way, of, held=0, gpu="h100", peer=False, name="-", said=None):
    """A call; what holds multiprocessors is said to it. peer: 1 FlashAttention-3's, 2 ours when the reports were made."""
    return f"{name} {way} {of} {held} {held if said is None else said} {gpu} {int(peer)}"


def calls_of(names=None):
    """Lines of all shapes in all ways, and of forward while multiprocessors are held."""
    for name, of in SHAPES.items():
        if names is None or name in names:
            yield from (line(way, of, name=f"{name}:{way}") for way in WAYS)
            if name.startswith("held"):
                yield from (line("forward", of, held, name=f"{name}:forward_{held}_held") for held in HELD)


def count(program, names=None):
    """{call: its counted figures}."""
    found = {}
    for of in ask(program, [*calls_of(names), "portable"]):
        if of["name"].startswith("portable"):
            found[of["name"]] = {figure: of[figure] for figure in ("shared_bytes", "threads", "resident")}
        else:
            found[of["name"]] = {figure: of[figure] for figure in COUNTED}
    return found


def compare(found, planned):
    """Sentences on figures that are not the committed ones."""
    for name, figures in found.items():
        if name not in planned:
            yield f"{name} has no committed figures; --write makes them"
            continue
        for figure, value in figures.items():
            if value != planned[name].get(figure):
                yield f"{name} has {figure} {value}, committed is {planned[name].get(figure)}"


def measured():
    """(GPU, call's line, TFLOP/s) of the committed reports; not of backward that is kept or whose heads share keys, which had
    other pieces of work in them, nor of many heads of 2k, whose last section was short."""
    for gpu, path in REPORTS:
        for text in path.read_text(encoding="utf-8").splitlines():
            cells = [cell.strip() for cell in text.split("|")[1:-1]]
            way = re.fullmatch(r"forward(?:, (\d+) held)?|backward, (free)", cells[6]) if len(cells) == 11 else None
            if way and float(cells[8]) > 0:
                name, dim, batch, heads, queries, keys = cells[:6]
                if way[2] and len({*heads.split("/")}) > 1 or batch != "1" and queries == "2048":
                    continue
                cut = re.match(r"(window|documents) of (\d+)k", name)
                of = shape(dim, batch, *heads.split("/"), queries, keys, *((cut[1], int(cut[2]) * K) if cut else ()))
                yield gpu, line(way[2] or "forward", of, way[1] or 0, gpu, 2, said=0), float(cells[8])


def errors(program):
    """(what, its line, published or measured, simulated) of FlashAttention-3's points and of ours."""
    points = [("FA3 published", line(way, of, peer=True), rate) for way, of, rate in PUBLISHED]
    points += [(f"ours on an {gpu.upper()}", asked, rate) for gpu, asked, rate in measured()]
    for (what, asked, rate), found in zip(points, ask(program, [asked for _, asked, _ in points])):
        yield what, asked, rate, found["tflops"]


def write_calibration(program):
    text = ["# The simulation against what was published and measured", "",
            "Written by `scripts/check-kernels --write`. TFLOP/s of what the mask keeps. Backward that is kept, or whose heads share",
            "keys, is left out: the reports measured it with other pieces of work, as many heads of 2k. Forward is simulated as it",
            "was then: the next piece waited for outputs to leave.", "",
            "| what | way | dim | sequences | heads | queries x keys | mask | held | known | simulated | error |",
            "| --- | --- | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |"]
    squares = {}
    for what, asked, rate, simulated in errors(program):
        _, way, dim, batch, heads, key_heads, queries, keys, mask, extent, held, *_ = asked.split()
        way = "backward" if what.startswith("FA3") and way == "free" else way
        off = simulated / rate - 1
        squares.setdefault((what, way), []).append(off * off)
        text.append(f"| {what} | {way} | {dim} | {batch} | {heads}/{key_heads} | {queries} x {keys} | {mask}"
                    f"{f' of {extent}' if extent != '0' else ''} | {held} | {rate:.0f} | {simulated:.0f} | {100 * off:+.0f} % |")
    text += ["", "| what | way | points | root of the mean square error |", "| --- | --- | ---: | ---: |"]
    text += [f"| {what} | {way} | {len(of)} | {100 * (sum(of) / len(of)) ** 0.5:.1f} % |" for (what, way), of in squares.items()]
    CALIBRATION.write_text("\n".join(text) + "\n", encoding="utf-8")


def write(program):
    found = count(program)
    lines = [f" {json.dumps(name)}: {json.dumps(found[name])}" for name in found]
    BUDGET.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    write_calibration(program)


def check(program, names=None):
    """Sentences on what is not as committed."""
    planned = json.loads(BUDGET.read_text(encoding="utf-8"))
    found = count(program, names)
    yield from compare(found, planned)
    if names is None:
        yield from (f"{name} is committed, and no longer counted" for name in planned if name not in found)
