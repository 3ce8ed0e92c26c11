#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes the report of scripts/gpu-check: every figure next to its target, and a verdict for each.

usage: gpu_report.py FOLDER OUT

FOLDER holds what the parts of the check have left: parts.tsv, environment.tsv, tests.xml, *.json, *.jsonl, logs/. Writes
OUT/GPU-DATE.md, .json, -logs.tar.gz and pictures. A figure that is not there is "not run", with the reason, and never met.

Exit status: 0 when nothing failed and no target was missed, else 1.
"""
import datetime
import importlib
import json
import os
import pathlib
import re
import shutil
import sys
import tarfile
import xml.etree.ElementTree

MET, MISSED, NOT_RUN, TOLD = "met", "missed", "not run", "no target"
SPAN_TARGET = 1.05
SCHEDULES = ("1F1B", "Seq1F1B", "V-Half", "ZB-H1")
DEVICES = (4, 8)
MODES = ("eager", "graph")
PICTURES = ("1f1b-4-graph.svg", "v-half-8-graph.svg", "v-half-8-planned.svg", "seq1f1b-8-graph.trace.json")
HELD = {1: 1.05, 4: 1.05, 16: 1.2}  # multiprocessors, and the most that forward may take of its time next to them
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
SANITIZED = {"a small pipeline": "the stream runner", "small chunks by the portable*": "the portable attention kernels",
             "small chunks by the fastest*": "the fastest attention kernels"}


class Part:
    """How one part of the check ended."""

    def __init__(self, name, code="-", seconds="0", most="0"):
        self.name, self.seconds, self.most = name, int(seconds), int(most)
        self.code = None if code == "-" else int(code)
        self.said = ""  # the sentence of a part that was skipped

    def verdict(self):
        if self.code is None:
            return "not run"
        return {0: "passed", 77: "skipped", 124: "cut", 137: "cut"}.get(self.code, "failed")

    def why(self):
        """Why a figure of this part is missing."""
        verdict = self.verdict()
        if verdict == "not run":
            return f"there was no time left for {self.name}"
        if verdict == "cut":
            return f"{self.name} was cut after {self.seconds} s"
        if verdict == "failed":
            return f"{self.name} ended with {self.code}, see logs/{self.name}.log"
        if verdict == "skipped":
            return f"{self.name} was skipped" + (f": {self.said}" if self.said else "")
        return f"{self.name} passed, but did not give it"


class Check:
    """The folder that the parts have left, and the figures in it."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.parts = {name: Part(name, *rest) for name, *rest in self.table("parts.tsv")}
        self.environment = {row[0]: row[1] if len(row) > 1 else "" for row in self.table("environment.tsv")}
        self.lines = []  # of figures: name, value, unit, target, verdict, why
        self.failures = []

    def table(self, name):
        path = self.folder / name
        if not path.exists():
            return []
        return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if line]

    def log(self, name):
        try:
            return (self.folder / "logs" / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def part(self, name):
        return self.parts.get(name, Part(name))

    def read(self, name, lines=False):
        """A JSON file, or None where it is missing or was cut; of JSON lines those that are whole."""
        try:
            text = (self.folder / name).read_text(encoding="utf-8")
        except OSError:
            return None
        if not lines:
            try:
                return json.loads(text)
            except ValueError:
                return None
        found = []
        for line in text.splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                break
        return found

    def figure(self, name, value, unit, target=None, at_most=True, why=""):
        """Adds a figure. Without a number it is not run; without a target it is only told."""
        number = value if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value else None
        if number is None:
            verdict = NOT_RUN
        elif target is None:
            verdict = TOLD
        else:
            verdict = MET if (number <= target if at_most else number >= target) else MISSED
        self.lines.append({"name": name, "value": number, "unit": unit, "target": target, "at_most": at_most,
                           "verdict": verdict, "why": why if number is None else ""})

    def count(self, verdict):
        return sum(line["verdict"] == verdict for line in self.lines)


def read_parts(check):
    for part in check.parts.values():
        found = re.search(r"skipped[:,] (.*)", check.log(part.name))
        part.said = found[1] if found else ""
        if part.verdict() == "failed":
            check.failures.append(f"{part.name} ended with {part.code}")
        if part.verdict() == "skipped" and part.name not in ("peers", "shape-peers"):  # nvidia-smi lists a GPU, or nothing had been run
            check.failures.append(f"{part.name} could not use the GPU: {part.said}")


def read_tests(check):
    """Tests by name: passed, failed or skipped, and what they said."""
    path = check.folder / "tests.xml"
    try:
        cases = xml.etree.ElementTree.parse(path).iter("testcase")
    except (OSError, xml.etree.ElementTree.ParseError):
        return []
    found = []
    for case in cases:
        said = (case.findtext("system-out") or "").strip()
        skipped = case.find("skipped")
        left_out = skipped is not None and "SKIP_RETURN_CODE" in skipped.get("message", "")
        status = "skipped" if left_out else "passed" if case.get("status") == "run" else "failed"
        sentence = re.search(r"skipped: (.*)", said)
        found.append({"name": case.get("name"), "status": status, "seconds": float(case.get("time") or 0),
                      "said": sentence[1] if sentence else said[-400:] if status == "failed" else ""})
        if status == "failed":
            check.failures.append(f"test {case.get('name')} failed")
    return found


def read_pipeline(check):
    data = check.read("pipeline.json") or {}
    cases = {(c.get("schedule"), c.get("devices"), c.get("mode")): c for c in data.get("cases", [])}
    why = check.part("pipeline").why()
    for schedule in SCHEDULES:
        for devices in DEVICES:
            for mode in MODES:
                case = cases.get((schedule, devices, mode), {})
                check.figure(f"span over planned span, {schedule}, {devices} devices, {mode}", case.get("span_ratio"), "",
                             SPAN_TARGET, why=why)
    for mode in MODES:
        costs = [c["host_us_per_pass"] for c in cases.values() if c.get("mode") == mode and "host_us_per_pass" in c]
        check.figure(f"host time of a pass, {mode}, the highest", max(costs) if costs else None, "us", why=why)
    check.figure("host time of a launch, a record and a wait: the floor", data.get("floor_us"), "us", why=why)
    return data


def attention_module():
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    sys.dont_write_bytecode = True
    try:
        return importlib.import_module("attention_peers")
    except ImportError:
        return None


def read_attention(check):
    peers = attention_module()
    ours = [line for line in check.read("attention.jsonl", True) or [] if isinstance(line, dict)]
    theirs = [line for line in check.read("peers.jsonl", True) or [] if isinstance(line, dict)]
    wrong = [line for line in ours if line.get("kind") == "attention" and not line.get("right")]
    for line in wrong:
        check.failures.append(f"attention is wrong: {line['direction']}, {line['kernel']}, dim {line['dim']}, "
                              f"{line['tokens']} tokens, {line['chunks']} chunks: error {line['error']}")
    if peers is None:
        check.figure("attention", None, "", why="benchmarks/attention_peers.py is not here")
        return
    rows = list(peers.compare(ours, theirs))
    for kernel, direction, what, bound in peers.TARGETS:
        tax = what == "tax"
        of_kernel = [row for row in rows if row["kernel"] == kernel and row["direction"] == direction]
        found = [row[what] for row in of_kernel if row[what]]
        why = check.part("attention").why() if not ours else \
            f"bin/attention has no {direction} of the {kernel} kernels on this GPU" if not of_kernel else \
            check.part("attention" if tax else "peers").why()
        name = f"attention, {kernel} {direction}, " + ("tax of chunking" if tax else f"speed of {what}") + ", the worst"
        check.figure(name, (max if tax else min)(found) if found else None, "", bound, tax, why)


def shape_of(line):
    return tuple(line.get(name) for name in ("name", "dim", "batch", "heads", "key_heads", "queries", "tokens", "extent"))


def read_shapes(check):
    """Times of shapes that people train; of those next to a kernel that holds multiprocessors, their ratio to none held."""
    lines = [line for line in check.read("shapes.jsonl", True) or [] if isinstance(line, dict)]
    times = {(shape_of(line), line["what"]): line["milliseconds"] for line in lines}
    for held, bound in HELD.items():
        ratios = [time / times[shape, "forward, 0 held"] for (shape, what), time in times.items()
                  if what == f"forward, {held} held"]
        check.figure(f"forward next to {held} multiprocessors held, over none, the worst", max(ratios) if ratios else None, "",
                     bound, why=check.part("shapes").why())
    return lines


def read_sanitizers(check):
    """Errors that compute-sanitizer has counted; one that could not run on this device is not run."""
    for tool in TOOLS:
        part = check.part(tool)
        log = check.log(tool)
        why = part.why()
        if re.search(r"Device not supported|command not found", log):
            why = "compute-sanitizer does not run here: " + log.strip().splitlines()[-1][:120]
            check.failures = [f for f in check.failures if not f.startswith(f"{tool} ended")]
        for case, what in SANITIZED.items():
            said = log.partition(f"== {case}\n")[2].split("\n== ")[0]
            counts = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)", said)
            ran = "[doctest] Status: SUCCESS!" in said or "[doctest] Status: FAILURE!" in said
            # racecheck takes no account of order through a third warp, which these kernels rest on.
            target = None if tool == "racecheck" and what == "the fastest attention kernels" else 0
            check.figure(f"errors that {tool} finds in {what}", sum(map(int, counts)) if counts and ran else None, "", target,
                         why=why)


def number(value):
    return "" if value is None else f"{value:.4g}"


def markdown(check, tests, pipeline, date):
    gpu = check.environment.get("name") or "unknown GPU"
    yield f"# GPU check: {gpu}, {date}"
    yield ""
    counted = {s: sum(t["status"] == s for t in tests) for s in ("passed", "failed", "skipped")}
    yield f"{check.count(MET)} figures met their target, {check.count(MISSED)} missed it, {check.count(NOT_RUN)} were not " \
          f"run. {counted['passed']} tests passed, {counted['failed']} failed, {counted['skipped']} were skipped."
    yield ""
    for failure in check.failures:
        yield f"- **failed**: {failure}"
    for line in check.lines:
        if line["verdict"] == MISSED:
            yield f"- **missed**: {line['name']} is {number(line['value'])}{line['unit']}, the target " \
                  f"{number(line['target'])}"
    yield ""
    yield "## Machine"
    yield ""
    for name, value in check.environment.items():
        yield f"- {name}: {value or 'not known'}"
    yield ""
    yield "## Figures"
    yield ""
    yield "| figure | measured | target | verdict |"
    yield "| --- | ---: | ---: | --- |"
    for line in check.lines:
        target = "" if line["target"] is None else ("at most " if line["at_most"] else "at least ") + number(line["target"])
        unit = f" {line['unit']}" if line["unit"] and line["value"] is not None else ""
        verdict = f"**{line['verdict']}**" if line["verdict"] == MISSED else line["verdict"]
        yield f"| {line['name']} | {number(line['value'])}{unit} | {target} | " \
              f"{verdict}{': ' + line['why'] if line['why'] else ''} |"
    yield ""
    yield "## Parts"
    yield ""
    yield "| part | result | seconds | most |"
    yield "| --- | --- | ---: | ---: |"
    for part in check.parts.values():
        yield f"| {part.name} | {part.verdict()} | {part.seconds} | {part.most} |"
    yield ""
    yield "## Tests"
    yield ""
    if not tests:
        yield f"None: {check.part('tests').why()}."
    else:
        yield "| test | result | seconds | |"
        yield "| --- | --- | ---: | --- |"
        for test in tests:
            yield f"| {test['name']} | {test['status']} | {test['seconds']:.2f} | {' '.join(test['said'].split())[:300]} |"
    yield ""
    yield from pipeline_lines(check, pipeline)
    yield from shape_lines(check)
    yield from attention_lines(check)


def shape_lines(check):
    lines = check.read("shapes.jsonl", True)
    if not lines:
        return
    peers = check.read("shape-peers.jsonl", True) or []
    yield "## Shapes of attention"
    yield ""
    yield "TFLOP/s of what the mask keeps; bf16. Peers are PyTorch's, for causal squares."
    yield ""
    yield "| shape | dim | sequences | heads | queries | keys | what | ms | TFLOP/s | torch-flash | cuDNN |"
    yield "| --- " + "| ---: " * 5 + "| --- " + "| ---: " * 4 + "|"
    for line in lines:
        found = {p["peer"]: p["tflops"] for p in peers if p["direction"] == line["what"].split(",")[0] and all(
            p[name] == line[name] for name in ("dim", "batch", "heads", "key_heads", "tokens"))}
        whole = line["queries"] == line["tokens"] and not line["extent"]
        cells = [line["name"], line["dim"], line["batch"], f"{line['heads']}/{line['key_heads']}", line["queries"],
                 line["tokens"], line["what"], f"{line['milliseconds']:.4f}", f"{line['tflops']:.0f}",
                 *(f"{found[peer]:.0f}" if whole and peer in found else "" for peer in ("torch-flash", "cudnn"))]
        yield "| " + " | ".join(map(str, cells)) + " |"
    yield ""


def pipeline_lines(check, data):
    yield "## The stream runner"
    yield ""
    if not data.get("cases"):
        yield f"Not measured: {check.part('pipeline').why()}."
        yield ""
        return
    yield f"Passes of {data['pass_us']} us, messages of {data['message_bytes']:.0f} bytes, medians of {data['repeats']}, " \
          f"{data['connections']} hardware queues, a clock with ticks of {data['tick_ns']:.0f} ns. The floor of the host, a launch, a record and a wait, is " \
          f"{data['floor_us']:.2f} us. Delays are from the end of what a pass waits for last to its start."
    yield ""
    yield "| schedule | devices | microbatches | mode | planned span, us | measured | ratio | with the messages' time | " \
          "delay, us | behind a message, us | host, us a pass |"
    yield "| --- | ---: | ---: | --- " + "| ---: " * 7 + "|"
    more = (check.read("eight-queues.json") or {}).get("cases", [])
    for case, mark in [(c, "") for c in data["cases"]] + [(c, ", 8 queues") for c in more]:
        yield f"| {case['schedule']} | {case['devices']} | {case['microbatches']} | {case['mode']}{mark} | " \
              f"{case['planned_span_us']:.0f} | {case['measured_span_us']:.0f} | {case['span_ratio']:.3f} | " \
              f"{case['measured_span_us'] / case['span_with_messages_us']:.3f} | {case['delay_own_us']:.2f} | " \
              f"{case['delay_message_us']:.2f} | {case['host_us_per_pass']:.2f} |"
    yield ""


def attention_lines(check):
    """The comparison that attention_peers.py has written, one level deeper."""
    try:
        text = (check.folder / "peers.md").read_text(encoding="utf-8")
    except OSError:
        return
    yield from re.sub(r"^#", "##", text, flags=re.MULTILINE).splitlines()


def write(check, out, name, tests, pipeline, date):
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.md").write_text("\n".join(markdown(check, tests, pipeline, date)).rstrip() + "\n", encoding="utf-8")
    whole = {"gpu": check.environment.get("name"), "date": date, "environment": check.environment,
             "figures": check.lines, "failures": check.failures, "tests": tests,
             "parts": [{"name": p.name, "result": p.verdict(), "seconds": p.seconds} for p in check.parts.values()],
             "pipeline": pipeline, "eight_queues": check.read("eight-queues.json"),
             "attention": check.read("attention.jsonl", True), "peers": check.read("peers.jsonl", True),
             "shapes": check.read("shapes.jsonl", True), "shape_peers": check.read("shape-peers.jsonl", True)}
    (out / f"{name}.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    with tarfile.open(out / f"{name}-logs.tar.gz", "w:gz") as tar:
        tar.add(check.folder, name)
    for picture in PICTURES:
        if (check.folder / "pictures" / picture).exists():
            shutil.copy(check.folder / "pictures" / picture, out / f"{name}-{picture}")


def main(words):
    if len(words) != 2:
        sys.exit(__doc__)
    check = Check(words[0])
    read_parts(check)
    tests = read_tests(check)
    pipeline = read_pipeline(check)
    read_attention(check)
    read_shapes(check)
    read_sanitizers(check)
    date = os.environ.get("GPU_CHECK_DATE") or datetime.date.today().isoformat()
    gpu = re.sub(r"[^a-z0-9]+", "-", (check.environment.get("name") or "gpu").lower().replace("nvidia", "")).strip("-")
    write(check, pathlib.Path(words[1]), f"{gpu}-{date}", tests, pipeline, date)
    bad = len(check.failures) + check.count(MISSED)
    print(f"gpu-check: {check.count(MET)} met, {check.count(MISSED)} missed, {check.count(NOT_RUN)} not run, "
          f"{len(check.failures)} failed; {pathlib.Path(words[1]) / f'{gpu}-{date}.md'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
