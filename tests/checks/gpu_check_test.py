#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""scripts/gpu-check and its report, without a GPU: with recorded figures and with programs that stand for CUDA's.

usage: gpu_check_test.py ROOT
"""
import contextlib
import copy
import importlib
import io
import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path()
gpu_report = None


def case(schedule, devices, mode, ratio=1.02):
    return {"schedule": schedule, "devices": devices, "microbatches": 4 * devices, "mode": mode, "passes": 128,
            "planned_span_us": 10000, "measured_span_us": 10000 * ratio, "span_ratio": ratio,
            "span_with_messages_us": 10100, "planned_bubble": 0.1, "delay_own_us": 1.5, "delay_message_us": 6,
            "host_us_per_pass": 9 if mode == "eager" else 0.2}


def pipeline_json():
    return {"program": "pipeline", "gpu": "NVIDIA H200", "processors": 132, "driver": 13000, "runtime": 13000,
            "pass_us": 200, "message_bytes": 1048576, "repeats": 7, "connections": 32, "floor_us": 4.5, "tick_ns": 32,
            "cases": [case(s, d, m) for d in (4, 8) for s in ("1F1B", "Seq1F1B", "V-Half", "ZB-H1")
                      for m in ("eager", "graph")]}


def attention(direction, kernel, chunks, milliseconds=1.0, tax=1.0, right=True):
    return {"kind": "attention", "direction": direction, "kernel": kernel, "dim": 64, "mask": "causal", "tokens": 4096,
            "heads": 16, "key_heads": 8, "chunks": chunks, "milliseconds": milliseconds, "tflops": 400, "tax": tax,
            "error": 0.001, "right": right}


def shape(what, milliseconds):
    return {"name": "held", "dim": 128, "batch": 1, "heads": 32, "key_heads": 8, "queries": 8192, "tokens": 8192, "extent": 0,
            "what": what, "milliseconds": milliseconds, "tflops": 500}


def peer(name, direction, chunks, milliseconds):
    return {"kind": "peer", "peer": name, "direction": direction, "dim": 64, "mask": "causal", "tokens": 4096, "heads": 16,
            "key_heads": 8, "chunks": chunks, "milliseconds": milliseconds, "remark": ""}


def good_run():
    """Files of a run in which everything was run and every target met."""
    ours, theirs = [], []
    for kernel in ("portable", "hopper"):
        for direction in ("forward", "backward"):
            ours += [attention(direction, kernel, 1), attention(direction, kernel, 4, 1.05, 1.05)]
    for direction in ("forward", "backward"):
        theirs += [peer(name, direction, chunks, 2.0) for name in ("torch-flash", "cudnn") for chunks in (1, 4)]
    parts = ("configure", "build", "tests", "pipeline", "attention", "peers", "shapes", "shape-peers", "memcheck", "racecheck", "synccheck",
             "initcheck", "eight-queues", "gpt", "gpt-nccl")
    files = {"parts.tsv": [[name, "0", "3", "60"] for name in parts],
             "environment.tsv": [["name", "NVIDIA H200"], ["driver_version", "580.1"], ["nvcc", "V13.0.88"]],
             "tests.xml": tests_xml({"gpu.streams": "run", "gpu.nccl": "run"}),
             "pipeline.json": pipeline_json(), "attention.jsonl": ours, "peers.jsonl": theirs,
             "eight-queues.json": {**pipeline_json(), "cases": [case("1F1B", 8, "eager")]}, "peers.md": "# Peers\n",
             "pictures/1f1b-4-graph.svg": "<svg/>"}
    files["shapes.jsonl"] = [shape(f"forward, {held} held", 1 + 0.01 * held) for held in (0, 1, 4, 16)]
    files["shape-peers.jsonl"] = [{"kind": "peer", "peer": "cudnn", "direction": "forward", "dim": 128, "batch": 1, "heads": 32,
                                   "key_heads": 8, "tokens": 8192, "milliseconds": 1, "tflops": 612}]
    for tool in ("memcheck", "synccheck", "initcheck"):
        files[f"logs/{tool}.log"] = sanitizer_log("ERROR SUMMARY: 0 errors")
    files["logs/racecheck.log"] = sanitizer_log("RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)")
    return files


def sanitizer_log(summary, cases=3):
    names = ("a small pipeline", "small chunks by the portable*", "small chunks by the fastest*")
    return "".join(f"== {name}\n[doctest] Status: SUCCESS!\n========= {summary}\n" for name in names[:cases])


def tests_xml(tests):
    cases = ""
    for name, status in tests.items():
        inside = {"notrun": '<skipped message="SKIP_RETURN_CODE=77"/><system-out>skipped: no second GPU\n</system-out>',
                  "fail": '<failure message=""/><system-out>CHECK( a == b )</system-out>', "run": "<system-out/>",
                  "unbuilt": '<skipped message="Unable to find executable"/><system-out>Unable to find executable</system-out>'
                  }[status]
        status = "notrun" if status == "unbuilt" else status
        cases += f'<testcase name="{name}" classname="{name}" time="0.5" status="{status}">{inside}</testcase>'
    return f'<?xml version="1.0"?><testsuite name="x">{cases}</testsuite>'


def write(folder, files):
    for name, content in files.items():
        path = pathlib.Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".tsv"):
            content = "".join("\t".join(row) + "\n" for row in content)
        elif name.endswith(".jsonl"):
            content = "".join(json.dumps(line) + "\n" for line in content)
        elif name.endswith(".json"):
            content = json.dumps(content)
        path.write_text(content, encoding="utf-8")


class Folders(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)


class Report(Folders):
    def report(self, files):
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            write(name, files)
            with contextlib.redirect_stdout(io.StringIO()) as said:
                status = gpu_report.main([name, str(self.folder / "out")])
        [json_file] = (self.folder / "out").glob("h200-*-*-*.json") if files.get("environment.tsv") else \
            (self.folder / "out").glob("gpu-*.json")
        whole = json.loads(json_file.read_text(encoding="utf-8"))
        return status, whole, json_file.with_suffix(".md").read_text(encoding="utf-8"), said.getvalue()

    @staticmethod
    def verdicts(whole):
        return {line["name"]: line["verdict"] for line in whole["figures"]}

    def test_all_is_met(self):
        status, whole, text, said = self.report(good_run())
        self.assertEqual(status, 0, text)
        verdicts = self.verdicts(whole)
        self.assertEqual(set(verdicts.values()), {"met", "no target"})
        self.assertEqual(len(verdicts), 16 + 3 + 10 + 3 + 12)
        self.assertIn(f"{len(verdicts) - 4} met, 0 missed, 0 not run, 0 failed", said)
        self.assertIn("# GPU check: NVIDIA H200, ", text)
        self.assertIn("| span over planned span, V-Half, 8 devices, graph | 1.02 | at most 1.05 | met |", text)
        self.assertIn("| host time of a pass, eager, the highest | 9 us |  | no target |", text)
        self.assertIn("| gpu.streams | passed | 0.50 |  |", text)
        self.assertIn("| 1F1B | 8 | 32 | eager, 8 queues | 10000 |", text)
        self.assertIn("\n## Peers\n", text)
        self.assertIn("| forward next to 4 multiprocessors held, over none, the worst | 1.04 | at most 1.05 | met |", text)
        self.assertIn("| held | 128 | 1 | 32/8 | 8192 | 8192 | forward, 16 held | 1.1600 | 500 |  | 612 |", text)
        names = sorted(path.name[len("h200-2026-11-21"):] for path in (self.folder / "out").iterdir())
        self.assertEqual(names, ["-1f1b-4-graph.svg", "-logs.tar.gz", ".json", ".md"])

    def test_what_is_missing_is_not_run(self):
        for name, part, count in (("pipeline.json", "pipeline", 19), ("attention.jsonl", "attention", 10),
                                  ("logs/memcheck.log", "memcheck", 3), ("logs/racecheck.log", "racecheck", 3)):
            for code, reason in (("124", "was cut after"), ("-", "there was no time left for"), ("1", "ended with 1"),
                                 ("0", "did not give it")):
                files = good_run()
                del files[name]
                files["parts.tsv"] = [[row[0], code, *row[2:]] if row[0] == part else row for row in files["parts.tsv"]]
                status, whole, text, _ = self.report(files)
                missing = [line for line in whole["figures"] if line["verdict"] == "not run"]
                self.assertEqual(len(missing), count, (name, code))
                self.assertTrue(all(line["value"] is None and reason in line["why"] for line in missing), missing)
                self.assertEqual(status, 1 if code == "1" else 0, (name, code))
                self.assertIn("not run: ", text)

    def test_every_figure_can_be_missing(self):
        """Whichever number is taken away or is no number, its figure is not met."""
        whole_run = pipeline_json()
        for i, each in enumerate(whole_run["cases"]):
            for broken in (None, float("nan"), "fast", True, ...):
                files = good_run()
                files["pipeline.json"] = copy.deepcopy(whole_run)
                if broken is ...:
                    del files["pipeline.json"]["cases"][i]
                else:
                    files["pipeline.json"]["cases"][i]["span_ratio"] = broken
                verdicts = {}
                with tempfile.TemporaryDirectory() as name:
                    write(name, files)
                    check = gpu_report.Check(name)
                    gpu_report.read_pipeline(check)
                    verdicts = {line["name"]: line["verdict"] for line in check.lines}
                figure = f"span over planned span, {each['schedule']}, {each['devices']} devices, {each['mode']}"
                self.assertEqual(verdicts.pop(figure), "not run", (figure, broken))
                self.assertEqual(set(verdicts.values()), {"met", "no target"})

    def test_peers_that_are_missing(self):
        files = good_run()
        del files["peers.jsonl"]
        files["parts.tsv"][5][1] = "77"
        status, whole, _, _ = self.report(files)
        self.assertEqual(status, 0)
        verdicts = self.verdicts(whole)
        self.assertEqual(verdicts["attention, hopper forward, speed of cudnn, the worst"], "not run")
        self.assertEqual(verdicts["attention, hopper forward, tax of chunking, the worst"], "met")
        files["attention.jsonl"] = [line for line in files["attention.jsonl"]
                                    if (line["kernel"], line["direction"]) != ("hopper", "backward")]
        _, whole, text, _ = self.report(files)
        self.assertIn("not run: bin/attention has no backward of the hopper kernels on this GPU", text)

    def test_the_worst_decides(self):
        files = good_run()
        files["pipeline.json"]["cases"][3]["span_ratio"] = 1.0501
        files["attention.jsonl"][-1].update(tax=1.3)
        status, whole, text, _ = self.report(files)
        self.assertEqual(status, 1)
        missed = [line["name"] for line in whole["figures"] if line["verdict"] == "missed"]
        self.assertEqual(missed, ["span over planned span, Seq1F1B, 4 devices, graph",
                                  "attention, hopper backward, tax of chunking, the worst"])
        self.assertIn("- **missed**: span over planned span, Seq1F1B, 4 devices, graph is 1.05, the target 1.05", text)

    def test_failures(self):
        files = good_run()
        files["tests.xml"] = tests_xml({"gpu.streams": "fail", "gpu.ranks": "notrun", "gpu.nccl": "unbuilt"})
        files["attention.jsonl"][0]["right"] = False
        files["logs/memcheck.log"] = sanitizer_log("ERROR SUMMARY: 3 errors", 2)
        files["parts.tsv"][8][1] = "9"
        status, whole, text, _ = self.report(files)
        self.assertEqual(status, 1)
        self.assertIn("- **failed**: test gpu.streams failed", text)
        self.assertIn("- **failed**: attention is wrong: forward, portable, dim 64, 4096 tokens, 1 chunks", text)
        self.assertIn("| errors that memcheck finds in the stream runner | 3 | at most 0 | **missed** |", text)
        self.assertIn("| errors that memcheck finds in the fastest attention kernels |  | at most 0 | not run: memcheck", text)
        self.assertIn("- **failed**: test gpu.nccl failed", text)
        self.assertIn("| gpu.nccl | failed | 0.50 | Unable to find executable |", text)
        self.assertIn("| gpu.ranks | skipped | 0.50 | no second GPU |", text)

    def test_a_tool_that_does_not_run_here_is_no_failure(self):
        files = good_run()
        files["logs/racecheck.log"] = "========= Error: Device not supported. Please refer to the documentation\n"
        files["parts.tsv"][9][1] = "1"
        status, whole, text, _ = self.report(files)
        self.assertEqual((status, self.verdicts(whole)["errors that racecheck finds in the stream runner"]),
                         (0, "not run"))
        self.assertIn("compute-sanitizer does not run here: ", text)

    def test_a_gpu_that_cuda_cannot_use_is_a_failure(self):
        files = good_run()
        del files["pipeline.json"]
        files["parts.tsv"][3][1] = "77"
        files["logs/pipeline.log"] = "skipped: the driver is too old\n"
        status, _, text, _ = self.report(files)
        self.assertEqual(status, 1)
        self.assertIn("- **failed**: pipeline could not use the GPU: the driver is too old", text)
        self.assertIn("graph |  | at most 1.05 | not run: pipeline was skipped: the driver is too old |", text)

    def test_nothing_at_all(self):
        status, whole, text, _ = self.report({})
        self.assertEqual(status, 0)
        self.assertNotIn("met", self.verdicts(whole).values())
        self.assertIn("0 figures met their target, 0 missed it, 44 were not run.", text)


class Script(Folders):
    """The script with commands of its own before all others in PATH."""

    def setUp(self):
        super().setUp()
        self.commands = self.folder / "commands"
        self.build = self.folder / "build"
        self.put(self.commands / "nvidia-smi", 'case "$*" in -L) echo "GPU 0: NVIDIA H200";; *name,driver*) '
                 'echo "NVIDIA H200, 580.1, 143771 MiB, 9.0, 345 MHz, 3201 MHz, 1980 MHz, 3201 MHz, 700 W";; esac')
        self.put(self.commands / "nvcc", "echo 'Cuda compilation tools, release 13.0, V13.0.88'")
        self.put(self.commands / "cmake", f"echo \"cmake $*\" >>{self.folder}/said")
        self.put(self.commands / "ninja", "")
        self.put(self.commands / "ctest", f"cp {self.folder}/files/tests.xml \"${{@: -1}}\"")
        self.put(self.commands / "compute-sanitizer", "echo '[doctest] Status: SUCCESS!'; echo '========= ERROR SUMMARY: 0 errors'")
        files = good_run()
        write(self.folder / "files", files)
        # Copies the recorded file that its last argument asks for.
        copy_file = f'for i; do case $last in --json) cp {self.folder}/files/${{i##*/}} "$i";; esac; last=$i; done'
        for name in ("pipeline", "attention", "attention_shapes"):
            self.put(self.build / "bin" / name, copy_file)
        self.put(self.build / "bin" / "gpt", f'echo "$* rank $RANK of $WORLD_SIZE" >>{self.folder}/said; echo loss 2.5')

    def put(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/usr/bin/env bash\n" + text + "\n", encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run_check(self, *words, commands=True):
        path = os.environ["PATH"]
        environment = {**os.environ, "PATH": f"{self.commands}:{path}" if commands else path}
        return subprocess.run([ROOT / "scripts/gpu-check", "--out", str(self.folder / "out"), "--build", str(self.build),
                               *words], env=environment, capture_output=True, text=True, check=False, timeout=60)

    def test_without_a_gpu(self):
        self.put(self.commands / "nvidia-smi", "echo 'No devices were found'; exit 6")
        ended = self.run_check()
        self.assertEqual(ended.returncode, 77, ended)
        self.assertEqual(ended.stdout.count("\n"), 1)
        self.assertTrue(ended.stdout.startswith("gpu-check: skipped, there is no NVIDIA GPU here"), ended)
        self.assertFalse((self.folder / "out").exists())

    def test_dry_run_lists_the_parts(self):
        ended = self.run_check("--dry-run", commands=False)
        self.assertEqual(ended.returncode, 0, ended)
        names = [line.split()[0] for line in ended.stdout.splitlines()]
        self.assertEqual(names, [row[0] for row in good_run()["parts.tsv"]])
        self.assertNotIn("WORK", ended.stdout)

    def test_all_parts(self):
        ended = self.run_check()
        [report] = (self.folder / "out").glob("h200-*.md")
        text = report.read_text(encoding="utf-8")
        said = (self.folder / "said").read_text(encoding="utf-8")
        self.assertIn(f"--preset gpu -B {self.build} ", said)
        self.assertIn("--target pipelining.tests.gpu pipeline attention_benchmark", said)
        self.assertIn("- name: NVIDIA H200\n- driver_version: 580.1\n- memory.total: 143771 MiB\n", text)
        self.assertIn("- nvcc: V13.0.88\n", text)
        self.assertIn("| tests | passed |", text)
        self.assertIn("| gpu.streams | passed |", text)
        self.assertIn("| gpt | passed |", text)
        self.assertIn("| gpt-nccl | passed |", text)
        self.assertIn("--backend cuda --schedule zb-h1", said)
        self.assertRegex(said, "--backend nccl .* rank 0 of 1\n")
        self.assertIn("| span over planned span, 1F1B, 4 devices, eager | 1.02 | at most 1.05 | met |", text)
        self.assertIn("| errors that memcheck finds in the portable attention kernels | 0 | at most 0 | met |", text)
        # There is no torch, or no GPU for it.
        self.assertIn("| peers | skipped |", text)
        self.assertIn("speed of cudnn, the worst |  | at least 0.92 | not run: peers was skipped: t", text)
        self.assertEqual(ended.returncode, 0, text)

    def test_a_part_that_hangs_is_cut_and_the_rest_is_told(self):
        self.put(self.build / "bin" / "pipeline", "sleep 60")
        ended = self.run_check("--seconds", "11")
        [report] = (self.folder / "out").glob("h200-*.md")
        text = report.read_text(encoding="utf-8")
        self.assertIn("| pipeline | cut |", text)
        self.assertIn("eager |  | at most 1.05 | not run: pipeline was cut after ", text)
        self.assertIn("not run: there was no time left for ", text)
        self.assertEqual(ended.returncode, 0, text)

    def test_a_part_that_fails(self):
        self.put(self.build / "bin" / "attention", "echo 'attention: 2 results are wrong'; exit 1")
        ended = self.run_check()
        self.assertEqual(ended.returncode, 1)
        self.assertIn("attention: 2 results are wrong", ended.stdout)
        [report] = (self.folder / "out").glob("h200-*.md")
        self.assertIn("- **failed**: attention ended with 1", report.read_text(encoding="utf-8"))

    def test_options(self):
        self.assertIn("'--swim' is no option", self.run_check("--swim").stderr)
        self.assertIn("--seconds wants a number", self.run_check("--seconds", "long").stderr)
        include = self.folder / "include" / "doctest"
        include.mkdir(parents=True)
        (include / "doctest.h").write_text("// a header\n", encoding="utf-8")
        environment = {**os.environ, "DOCTEST_INCLUDE": str(include.parent)}
        ended = subprocess.run([ROOT / "scripts/gpu-check", "--pack", str(self.folder / "pack")], env=environment,
                               capture_output=True, text=True, check=True)
        self.assertEqual(ended.stdout, f"{self.folder}/pack/doctest/doctest.h\n")
        self.assertEqual((self.folder / "pack/doctest/doctest.h").read_text(encoding="utf-8"), "// a header\n")


if __name__ == "__main__":
    ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
    os.environ["GPU_CHECK_DATE"] = "2026-11-21"
    sys.path.insert(0, str(ROOT / "benchmarks"))
    gpu_report = importlib.import_module("gpu_report")
    unittest.main()
