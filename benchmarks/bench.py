#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs the benchmarks that need no GPU, keeps their figures in benchmarks/results/performance.json, and writes the pages
that show them. Called by scripts/bench.

usage: bench.py FOLDER_OF_PROGRAMS [--python PROGRAM] [--only PART[,PART...]]
       bench.py FOLDER_OF_PROGRAMS --render
       bench.py FOLDER_OF_PROGRAMS --check [--only PART[,PART...]] [--figures FILE]
                    fails where a ratio is worse than the kept one by more than a tenth, in two runs; writes nothing
       bench.py --check-pages    says which page is not what the figures make
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results/performance.json"
SOLVER = ROOT / "benchmarks/results/solver_peers.json"
PAGE = ROOT / "docs/performance.md"
README = ROOT / "README.md"
MARKS = ("<!-- performance -->\n", "<!-- end of performance -->\n")
SIZES = [(8, 32), (32, 256)]
# Rows that only the file of figures has: they say what others say.
LIKE_OTHERS = ("gpipe", "eager-1f1b", "kfkb, groups of 2", "breadth-first, V = 2", "zb-h2", "zb-auto, limit 2P, unit costs",
               "zb-auto, limit P, 10/12/8, latency 1", "v-auto, limit 1.5 P, 10/12/8, latency 1", "D 64, T 1024",
               "D 64, T 4096", "D 128, T 512", "D 128, T 1024", "D 64, T 512, bfloat16", "D 64, T 1024, bfloat16",
               "D 64, T 2048, bfloat16", "D 64, T 4096, bfloat16", "D 128, T 512, bfloat16", "D 128, T 1024, bfloat16",
               "D 128, T 2048, bfloat16", "128 x 256 x 256", "OneFOneB, 32 x 128", "ZeroBubbleH1, 16 x 64")
SIZES_OF_GPT = ("layers", "width", "heads", "sequence", "microbatches")
ROOT_MAY = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "HWLOC_COMPONENTS": "-gl",
            "OMPI_MCA_rmaps_base_oversubscribe": "1", "GLOO_SOCKET_IFNAME": "lo"}


def lines_of(*command):
    """What a program prints, a JSON object a line; nothing where it is not there."""
    if shutil.which(command[0]) is None:
        print(f"bench: {command[0]} is not here, so its figures are left out", file=sys.stderr)
        return []
    print("bench:", *command, file=sys.stderr)
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=False,
                          env={**os.environ, **ROOT_MAY})
    if done.returncode != 0:
        sys.exit(f"bench: {' '.join(map(str, command))} ended with {done.returncode}: no figures are written")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def has_torch(python):
    return subprocess.run([python, "-c", "import torch.distributed.pipelining"], capture_output=True,
                          check=False).returncode == 0


def making(programs, python):
    torch = has_torch(python)
    found = {}
    for devices, microbatches in SIZES:
        found[f"{devices} {microbatches}"] = {
            "ours": lines_of(f"{programs}/schedule_generation", devices, microbatches, "--json"),
            "torch": lines_of(python, ROOT / "benchmarks/torch_peers.py", "making", devices, microbatches) if torch else []}
    return found


def scale(programs, _python):
    return lines_of(f"{programs}/schedule_generation", "large", 8192, 1024, "--json")


def overhead(programs, python):
    found = []
    for devices in (2, 4, 8, 16):
        found += lines_of(f"{programs}/runner_overhead", devices, 128)
        found += lines_of(f"{programs}/runner_overhead_tbb", devices, 128)
        found += lines_of(f"{programs}/runner_overhead_taskflow", devices, 128)
        if devices > 4:  # processes that poll share cores badly
            continue
        if shutil.which(f"{programs}/runner_overhead_mpi"):
            found += lines_of("mpirun", "-n", devices, f"{programs}/runner_overhead_mpi", devices, 128)
        if has_torch(python):
            found += lines_of(python, ROOT / "benchmarks/torch_peers.py", "overhead", devices, 128)
    return found


def reality(programs, python):
    return {"ours": lines_of(f"{programs}/plan_and_reality"),
            "torch": lines_of(python, ROOT / "benchmarks/torch_peers.py", "reality") if has_torch(python) else []}


def arithmetic(programs, python):
    return {"machine": {**machine(), "load": round(os.getloadavg()[0], 1)}, "ours": lines_of(f"{programs}/host_arithmetic"),
            "torch": lines_of(python, ROOT / "benchmarks/torch_peers.py", "arithmetic") if has_torch(python) else []}


def training(programs, python):
    ours, peers = lines_of(f"{programs}/gpt_training"), []
    models = {tuple(row[key] for key in SIZES_OF_GPT): row["devices"] for row in ours}  # the most devices come last
    for size, devices in models.items() if has_torch(python) else ():
        for count in range(1, devices + 1):
            peers += lines_of(python, ROOT / "benchmarks/torch_peers.py", "training", count, *size)
    return {"machine": machine(), "ours": ours, "torch": peers}


def compile_time(_programs, _python):
    return lines_of(str(ROOT / "benchmarks/compile_time"), "--compilers", "g++,clang++", "--json")


PARTS = {part.__name__: part for part in (making, scale, overhead, reality, arithmetic, training, compile_time)}


def named(rows, key="schedule"):
    return {row[key]: row for row in rows}


def table(head, rows):
    line = "| " + " | ".join(head) + " |\n"
    line += "| --- |" + " ---: |" * (len(head) - 1) + "\n"
    return line + "".join("| " + " | ".join(row) + " |\n" for row in rows)


def seconds_text(seconds):
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"


def whole(row, key):
    """A figure without its fraction; nothing where the run that is kept did not take it."""
    return f"{row[key]:.0f}" if key in row else ""


def making_ratios(found):
    """(size, schedule, our seconds, torch's seconds) where both made the same number of passes."""
    ratios = []
    for size, both in found["making"].items():
        ours = named(both["ours"])
        for peer in both["torch"]:
            own = ours[peer["schedule"]]
            if own["passes"] != peer["passes"]:
                sys.exit(f"bench: {peer['schedule']} at {size}: {own['passes']} passes here, {peer['passes']} in torch")
            ratios.append((size, peer["schedule"], own["seconds"], peer["seconds"]))
    return ratios


def on_all_cores(own):
    """Seconds of a row with its plan made on all cores."""
    return own["seconds"] - (own["lower"] - own["side_by_side"]) * own["passes"] / 1e9


def render_arithmetic(found):
    core = next(row for row in found["ours"] if row["what"] == "core")
    adamw = next(row for row in found["ours"] if row["what"] == "adamw")
    peers = {(row["what"], row["shape"]): row for row in found["torch"]}
    about = found["machine"]
    peaks = [row["peak"] for row in found["ours"] if "peak" in row]
    least, most = min(peaks), max(peaks)
    text = f"""## Arithmetic of one core

Float numbers on one thread (`host_arithmetic`, {about['date']}, {about['processor']}, vector loops `{core['version']}`): shares of the core's peak, which
was {least:.0f} to {most:.0f} GFLOP/s next to each, by processor time, the best of several runs. The load of the {about['cores']} cores was {about['load']}. Attention is
causal, and half of the square is counted. "Backward" of a product is the gradient of its matrix.{
    " PyTorch " + found["torch"][0]["torch"] + " has one thread, too." if found["torch"] else ""}

"""
    rows = []
    for row in found["ours"]:
        if "shape" in row and row["shape"] not in LIKE_OTHERS:
            cells = [f"{row['what']} {row['shape']}"]
            for key in ("forward", "backward"):
                peer = peers.get((row["what"], row["shape"]))
                cells += [f"{100 * row[key] / row.get('peak', core['peak']):.0f} %", f"{row[key] / peer[key]:.2f}" if peer else ""]
            rows.append(cells)
    text += table(["", "forward", "to PyTorch", "backward", "to PyTorch"], rows)
    return text + f"""
AdamW moves {adamw['rate']:.1f} GB/s, {100 * adamw['rate'] / adamw['memory']:.0f} % of a loop that only adds one to the same four arrays.

"""


def training_rows(found):
    """(model, schedule, our tokens a second, PyTorch's or nothing), the schedule empty without a pipeline."""
    key = lambda row: (*(row[each] for each in SIZES_OF_GPT), row["schedule"])
    peers = {key(row): row["tokens"] for row in found["torch"]}
    return [(f"{row['layers']} x {row['width']}, T {row['sequence']}, M {row['microbatches']}", row["schedule"], row["tokens"],
             peers.get(key(row))) for row in found["ours"]]


def render_training(found):
    if not found:
        return ""
    about = found["machine"]
    alone = {model: ours for model, schedule, ours, _ in training_rows(found) if not schedule}
    rows = [["" if schedule else model, schedule or "one thread", f"{ours:,.0f}", f"{peer:,.0f}" if peer else "", f"{ours / peer:.2f}" if peer else "",
             *([f"{ours / alone[model]:.2f}", f"{row['most']:.2f}"] if schedule and "most" in row else ["", ""])]
            for row, (model, schedule, ours, peer) in zip(found["ours"], training_rows(found))]
    return f"""## Training a GPT

Tokens a second of the GPT's best step (`gpt_training`, {about['date']}, {about['processor']}): layers x width, on one thread or in a pipeline of two
threads. PyTorch is eager, one thread a process, over gloo. Last: times one thread, and what the order allows.

""" + table(["model", "schedule", "here", "PyTorch", "ratio", "times", "allowed"], rows) + "\n"


def render_solver():
    """What solver_peers.py has found, where it has run."""
    if not SOLVER.exists():
        return ""
    found = json.loads(SOLVER.read_text(encoding="utf-8"))
    ours, theirs = found["proven"]
    worse = f"longer in {found['worse']}" if found["worse"] else "never longer"
    return f"""## Next to a solver

{found['instances']} random pipelines, {found['seconds']:g} s each on one core (`benchmarks/solver_peers.py`): next to CP-SAT (OR-Tools {found['version']})
`timetable search` is {worse}, shorter in {found['better']}, by up to {found['longest']} %. It proves {ours} of them, CP-SAT {theirs}, in {found['proof_seconds'][0]} and {found['proof_seconds'][1]} s
in the median; {found['both'] if not found['unequal'] else found['both'] - found['unequal']} proven by both have the same makespan.

"""


def render_page(found):
    about = found["machine"]
    *_, largest = found["making"]

    def extent(key):
        figures = sorted(row[key] for row in found["making"][largest]["ours"])
        return f"{figures[0]:.0f} to {figures[-1]:.0f}"

    side_by_side = all("side_by_side" in row for both in found["making"].values() for row in both["ours"])
    text = f"""# Performance

What `scripts/bench` measured on {about['date']}: {about['processor']}, {about['cores']} cores, {about['compiler']}. Ratios within a
row come from one run. See also [kernels](explanation/kernel_speed.md).

## Making a plan

Nanoseconds of one core per pass, the best of nine runs (`schedule_generation`), at {largest.replace(" ", " devices and ")} microbatches. "Plan" is
lowering with its proof of freedom from deadlock, "proof" its part of that{
    ', "all cores" the plan on all, for half a second' if side_by_side else ''}.
Times take {extent("simulate")}, verification {extent("verify")}.
"Bytes" are the most allocated at once, per pass. Then the whole; in the last column order, times and verification, once.

"""
    huge = named(found["scale"])
    keys = {"order": "order", "plan": "lower", "proof": "prove", "all cores": "side_by_side", "bytes": "plan_bytes"}
    if not side_by_side:
        del keys["all cores"]
    text += table(["schedule", *keys, largest.replace(" ", ", "), "8192, 1024"],
                  [[row["schedule"], *(whole(row, key) for key in keys.values()),
                    seconds_text(row["seconds"]),
                    f"{huge[row['schedule']]['seconds']:.1f} s" if row["schedule"] in huge else ""]
                   for row in found["making"][largest]["ours"] if row["schedule"] not in LIKE_OTHERS]) + "\n"
    per_pass = sorted(row["seconds"] / row["passes"] * 1e9 for row in found["scale"])
    held = sorted(row["table_bytes"] for row in found["scale"] if "table_bytes" in row)
    most = max(row["passes"] for row in found["scale"])
    text += f"""Of 8,192 devices these are up to {most:,} passes, {per_pass[0]:.0f} to {per_pass[-1]:.0f} ns each{
        f" and {held[0]:.0f} to {held[-1]:.0f} bytes" if held else ""}.

"""
    ratios = making_ratios(found)
    if ratios:
        version = next(iter(found["making"].values()))["torch"][0]["torch"]
        text += f"""PyTorch {version} makes as many passes, with sends and receives, and neither verifies nor proves them. "Ratio" is
its time to ours{' on one core, and with the plan made on all' if side_by_side else ''}.

"""
        cells = {}
        for size, name, own, peer in ratios:
            own_row = named(found["making"][size]["ours"])[name]
            fastest = [f"{peer / on_all_cores(own_row):.0f}"] if side_by_side else []
            cells.setdefault(name, []).extend([seconds_text(peer), f"{peer / own:.0f}", *fastest])
        text += table(["PyTorch", *(head for size in found["making"] for head in
                                   (size.replace(" ", ", "), "ratio", *(["all cores"] if side_by_side else [])))],
                      [[name, *row] for name, row in cells.items()]) + "\n"
    text += """## What a pass costs next to its work

1F1B with stages that do nothing and 128 microbatches: microseconds per pass of a device, the least of 2001 steps
(`runner_overhead`), and the ratio of the least to the thread runner's. PyTorch has processes over gloo
and 21 steps. oneTBB and Taskflow run a graph without messages.

"""
    devices = sorted({row["devices"] for row in found["overhead"]})
    threads = {row["devices"]: row["least"] for row in found["overhead"] if row["runner"] == "threads"}
    runners = {}
    for row in found["overhead"]:
        runners.setdefault(row["runner"], {})[row["devices"]] = [
            f"{row['least']:.2f}", f"{row['least'] / threads[row['devices']]:.2f}"]
    text += table(["runner", *(head for each in devices for head in (f"{each} devices", "ratio"))],
                  [[runner, *(cell for each in devices for cell in row.get(each, ["", ""]))]
                   for runner, row in runners.items()]) + "\n"
    text += """## Plan and reality

Stages that wait for the time of a pass (20 ms of a device's share of the model), 4 devices, 16 microbatches, on threads
(`plan_and_reality`); PyTorch has processes over gloo. Medians of five steps.

"""
    peers = named(found["reality"]["torch"])
    text += table(["schedule", "planned", "measured", "ratio", "PyTorch's ratio"],
                  [[row["schedule"], seconds_text(row["planned"]), seconds_text(row["measured"]), f"{row['ratio']:.3f}",
                    f"{peers[row['schedule']]['ratio']:.3f}" if row["schedule"] in peers else ""]
                   for row in found["reality"]["ours"]]) + "\n"
    text += render_arithmetic(found["arithmetic"]) + render_training(found.get("training"))
    text += render_solver() + """## Timetables of the compiler

Processor time of a file that makes and verifies one timetable as a constant (`benchmarks/compile_time`).

"""
    compilers = sorted({row["compiler"] for row in found["compile_time"]}, reverse=True)
    cells = {}
    for row in found["compile_time"]:
        name = f"{row['schedule']}, {row['devices']} x {row['microbatches']}" if row["devices"] else row["schedule"] or "headers only"
        if name not in LIKE_OTHERS:
            cells.setdefault(name, {})[row["compiler"]] = f"{row['seconds']:.1f} s, {row['megabytes']:.0f} MB"
    text += table(["timetable", *compilers], [[name, *(row.get(one, "") for one in compilers)] for name, row in cells.items()])
    return text


def render_section(found):
    small = named(found["making"]["32 256"]["ours"])["1f1b"]
    ratios = [peer / own for size, _, own, peer in making_ratios(found) if size == "32 256"]
    reality_ratios = [f"{row['ratio']:.3f}" for row in found["reality"]["ours"]]
    largest = max(found["scale"], key=lambda row: row["passes"])
    memory = f" and {largest['passes'] * largest['table_bytes'] / 1e9:.1f} GB" if "table_bytes" in largest else ""
    overheads = [row for row in found["overhead"] if row["devices"] == 2]
    least = min(row["least"] for row in overheads if row["runner"] == "threads")
    slowest = [f"{row['runner']}: {row['least'] / least:.0f} times as long" for row in overheads
               if row["runner"].startswith("PyTorch")]
    text = f"""- Order, times, verification, plan and proof of 1F1B on 32 devices with 256 microbatches: {seconds_text(small['seconds'])} of one core"""
    if ratios:
        text += f""";
  PyTorch takes {min(ratios):.0f} to {max(ratios):.0f} times as long for the orders that both make, without verification and proof"""
    text += f""".
- {largest['passes'] / 1e6:.0f} million passes ({largest['schedule']}, 8,192 devices) are ordered, timed and verified in {largest['seconds']:.0f} s{memory}.
- Of two devices, a pass on threads costs {least:.1f} us next to its work{''.join(f" ({one})" for one in slowest)}; steps of stages that wait take {" to ".join(sorted({min(reality_ratios), max(reality_ratios)}))} of what is planned.

Measured on {found['machine']['date']} by `scripts/bench`; [all figures](docs/performance.md).
"""
    return text


#: A ratio may be worse than the kept one by this much.
TOLERANCE = 0.1


def ratios(found):
    """What --check compares: {name: (figure, whether more is better)}, all without a unit of this machine's speed."""
    result = {}
    for size, both in found.get("making", {}).items():
        for row in both["ours"]:
            if "plan_bytes" in row:
                result[f"bytes of a pass, {row['schedule']}, {size}"] = (row["plan_bytes"], False)
    for size, name, own, peer in making_ratios(found) if "making" in found else []:
        result[f"making {name}, {size}, PyTorch's time to ours"] = (peer / own, True)
    for row in found.get("scale", []):
        if "table_bytes" in row:
            result[f"bytes of a pass, {row['schedule']}, large"] = (row["table_bytes"], False)
    overhead = {(row["runner"], row["devices"]): row["least"] for row in found.get("overhead", [])}
    for (runner, devices), least in overhead.items():
        if runner != "threads":
            result[f"a pass of {devices} devices, threads to {runner}"] = (overhead["threads", devices] / least, False)
    for row in found.get("reality", {}).get("ours", []):
        result[f"measured to planned, {row['schedule']}"] = (row["ratio"], False)
    arithmetic = found.get("arithmetic", {"ours": [], "torch": []})
    core = {row["what"]: row for row in arithmetic["ours"] if "shape" not in row}
    peers = {(row["what"], row["shape"]): row for row in arithmetic["torch"]}
    for row in arithmetic["ours"]:
        for way in ("forward", "backward") if "shape" in row else ():
            name = f"{row['what']} {row['shape']} {way}"
            result[f"{name}, share of peak"] = (row[way] / row.get("peak", core["core"]["peak"]), True)
            if (row["what"], row["shape"]) in peers:
                result[f"{name}, ours to PyTorch"] = (row[way] / peers[row["what"], row["shape"]][way], True)
    for model, schedule, ours, peer in training_rows(found["training"]) if "training" in found else ():
        if peer:
            result[f"GPT {model} {schedule or 'on one thread'}, ours to PyTorch"] = (ours / peer, True)
    if "adamw" in core:
        result["AdamW, share of bandwidth"] = (core["adamw"]["rate"] / core["adamw"]["memory"], True)
    return result


def compare(kept, found):
    """Prints the ratios of both next to each other. @return the names of those that are worse."""
    before, now = ratios(kept), ratios(found)
    worse = []
    for name, (figure, more_is_better) in before.items():
        if name not in now:
            print(f"skipped   {name}: {figure:.3g}, its peer or program is not here")
            continue
        loss = (figure / now[name][0] if more_is_better else now[name][0] / figure) - 1
        if loss > TOLERANCE:
            worse.append(name)
        print(f"{'worse' if loss > TOLERANCE else 'holds':9} {name}: {figure:.3g} kept, {now[name][0]:.3g} now")
    for name in now.keys() - before.keys():
        print(f"new       {name}: {now[name][0]:.3g}")
    return worse


def check(options, parts):
    """Fails where a ratio of these parts is worse than the kept one in two runs, or in the figures of a file."""
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))
    kept = {part: figures for part, figures in kept.items() if part in parts}
    worse = None
    for _ in range(1 if options.figures else 2):
        found = json.loads(pathlib.Path(options.figures).read_text(encoding="utf-8")) if options.figures else {
            part: PARTS[part](options.programs, options.python) for part in kept}
        again = compare(kept, {part: found[part] for part in kept if part in found})
        worse = again if worse is None else [name for name in worse if name in again]
        if not worse:
            return
    sys.exit(f"bench: worse by more than {TOLERANCE:.0%}: {'; '.join(worse)}. Mend what made it so; where it has to be, run "
             "scripts/bench on an idle machine and commit its figures with the reason")


def with_section(readme, section):
    before, rest = readme.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    return before + MARKS[0] + section + MARKS[1] + after


def pages():
    """Every page that shows figures, and what it should say."""
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {PAGE: render_page(found), README: with_section(README.read_text(encoding="utf-8"), render_section(found))}


def machine():
    processor = next((line.split(":")[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                      if line.startswith("model name")), platform.machine())
    compiler = subprocess.run(["c++", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    return {"date": datetime.date.today().isoformat(), "processor": processor, "cores": os.cpu_count(),
            "compiler": compiler.split("(")[0].strip() + " " + compiler.split()[-1]}


def main():
    parser = argparse.ArgumentParser(description="Runs the benchmarks that need no GPU.")
    parser.add_argument("programs", nargs="?")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--render", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--figures", help="of an earlier run, which --check compares")
    parser.add_argument("--check-pages", action="store_true")
    options = parser.parse_args()
    if options.check_pages:
        stale = [str(page.relative_to(ROOT)) for page, text in pages().items() if page.read_text(encoding="utf-8") != text]
        sys.exit(f"{', '.join(stale)}: not what benchmarks/results/performance.json makes; run scripts/bench --render"
                 if stale else 0)
    if not options.render:
        wrong = [part for part in options.only.split(",") if part not in PARTS]
        if wrong or not (options.programs or options.figures):
            sys.exit(f"bench: there is no part {', '.join(wrong)}; parts are {', '.join(PARTS)}" if wrong else __doc__)
        if options.check:
            return check(options, options.only.split(","))
        found = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
        if options.only != "arithmetic":
            found["machine"] = machine()
        for part in options.only.split(","):
            found[part] = PARTS[part](options.programs, options.python)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
