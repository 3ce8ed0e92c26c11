#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs the files of the timetable tool in torch.distributed.pipelining, on the CPU with one process per device, and holds
every gradient against the same model in one process. Called by scripts/check-with-torch.

usage: check_files.py TIMETABLE [SCHEDULE ...]
"""
import functools
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback
from datetime import timedelta

import torch
import torch.distributed
from torch.distributed.pipelining import PipelineStage, schedules

WIDTH, ROWS = 6, 2
#: Devices and microbatches, fewer and more than there are stages.
SIZES = [(2, 2), (2, 7), (3, 2), (3, 7), (4, 3), (4, 8), (4, 17)]
#: Adapters whose files torch may read, and where they are tried.
ADAPTERS = ["recompute", "recompute-first", "offload", "offload-half", "offload-chunks", "sharded-weights", "gathered-once",
            "weights-on-host"]
ADAPTED_SIZES = [(3, 2), (4, 8)]
MOST_SECONDS = 240
CONTENTS = {"pytorch": "compute_only", "pytorch-comms": "compute_comms"}


def version():
    major, minor = torch.__version__.split(".")[:2]
    if not (major == "2" and 10 <= int(minor) <= 15):
        sys.exit(f"check-with-torch: torch {torch.__version__} is installed; files are written for 2.10 to 2.15")
    return f"{major}.{minor}"


def command_of(tool, name, size, adapter, content):
    devices, microbatches = size
    command = [tool, name, "--devices", str(devices), "--microbatches", str(microbatches), "--format", content]
    if adapter:
        command += ["--with", adapter]
    if adapter.startswith("offload"):
        command += ["--copy-cost", "0.5"]
    if content == "pytorch-comms":
        command += ["--torch", version()]
    if name in ("zb-auto", "v-auto", "v-continuous"):
        command += ["--memory-limit", str(2 * devices)]
    return command


def write_files(tool, names, folder):
    """Files of every schedule that the format has words for, by number of devices: {P: [(label, path, how torch loads it,
    M)]}. Files that are equal, such as those of adapters that only copy, are kept once."""
    files, seen, refused = {}, set(), {}
    known = [line.split()[0] for line in subprocess.run([tool, "--list"], check=True, capture_output=True,
                                                        text=True).stdout.split("\n\n")[0].splitlines()]
    for name in names or known:
        for size, adapter in [(size, "") for size in SIZES] + [(size, adapter) for size in ADAPTED_SIZES for adapter in ADAPTERS]:
            for content, loader in CONTENTS.items():
                label = f"{name} {'with ' + adapter + ' ' if adapter else ''}{size[0]}x{size[1]}"
                made = subprocess.run(command_of(tool, name, size, adapter, content), capture_output=True, text=True,
                                      check=False)
                if made.returncode != 0:
                    refused.setdefault((name, made.stderr.strip()), set()).add(size)
                elif (made.stdout, size) not in seen:
                    seen.add((made.stdout, size))
                    path = pathlib.Path(folder, f"{len(seen)}.csv")
                    path.write_text(made.stdout, encoding="utf-8")
                    files.setdefault(size[0], []).append((label, str(path), loader, size[1]))
    for (name, why), sizes in refused.items():
        print(f"{name}: not written at {', '.join(f'{p}x{m}' for p, m in sorted(sizes))}: {why}")
    return files


def stages_of(path):
    """The stages of every line."""
    rows = []
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        cells = line.replace("(", ",").replace(";", ",").replace(")", ",").split(",")
        rows.append(sorted({int(cell.split("F")[0]) for cell in cells if cell.replace("F", "", 1).isdigit() and "F" in cell}))
    return rows


def make_stage(index):
    torch.manual_seed(index + 1)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH)).double()


def loss_of(output, target):
    return torch.nn.functional.mse_loss(output, target)


def data(microbatches):
    torch.manual_seed(77)
    rows = microbatches * ROWS
    return torch.randn(rows, WIDTH, dtype=torch.float64), torch.randn(rows, WIDTH, dtype=torch.float64)


@functools.cache
def expected_gradients(count, microbatches):
    model = [make_stage(index) for index in range(count)]
    inputs, targets = data(microbatches)
    for x, y in zip(inputs.chunk(microbatches), targets.chunk(microbatches)):
        for stage in model:
            x = stage(x)
        (loss_of(x, y) / microbatches).backward()
    return [[parameter.grad for parameter in stage.parameters()] for stage in model]


def run_file(rank, path, loader, microbatches):
    """Two steps of a file; the largest relative error of a gradient of this rank."""
    rows = stages_of(path)
    count = 1 + max(max(row) for row in rows)
    model = {index: make_stage(index) for index in rows[rank]}
    stages = [PipelineStage(model[index], index, count, torch.device("cpu")) for index in rows[rank]]
    schedule = schedules._PipelineScheduleRuntime(stages, n_microbatches=microbatches, loss_fn=loss_of)
    schedule._load_csv(path, format=loader)
    inputs, targets = data(microbatches)
    expected = expected_gradients(count, microbatches)
    worst = 0.0
    for _ in range(2):
        for module in model.values():
            module.zero_grad(set_to_none=True)
        schedule.step(*([inputs] if 0 in model else []), **({"target": targets} if count - 1 in model else {}))
        for index, module in model.items():
            for found, wanted in zip(module.parameters(), expected[index]):
                worst = max(worst, ((found.grad - wanted).norm() / wanted.norm()).item())
    return worst


def work(rank, devices, folder, files):
    """What one process does: all files, one after the other, and a line about each."""
    logging.getLogger("torch.distributed.pipelining").setLevel(logging.CRITICAL)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting-{devices}", rank=rank, world_size=devices,
                                         timeout=timedelta(seconds=30))
    for name, path, loader, microbatches in files:
        try:
            worst = run_file(rank, path, loader, microbatches)
        except BaseException:  # the other ranks wait for this one: say why, and end the run
            traceback.print_exc()
            print(f"rank {rank} failed in {path}", file=sys.stderr, flush=True)
            os._exit(1)
        errors = [None] * devices
        torch.distributed.all_gather_object(errors, worst)
        if rank == 0:
            verdict = "right" if max(errors) < 1e-9 else "WRONG"
            print(f"{name:40} {loader:14} {verdict}, largest relative error of a gradient {max(errors):.1e}", flush=True)
        if max(errors) >= 1e-9:
            os._exit(1)
    torch.distributed.barrier()
    os._exit(0)


def run_all(devices, folder, files):
    spawn = torch.multiprocessing.get_context("fork")
    processes = [spawn.Process(target=work, args=(rank, devices, folder, files)) for rank in range(devices)]
    for process in processes:
        process.start()
    good = True
    for process in processes:
        process.join(MOST_SECONDS)
        good = good and process.exitcode == 0
        if not good:
            for each in processes:
                each.kill()
    return good


def main():
    tool, *names = sys.argv[1:]
    print("torch", torch.__version__)
    with tempfile.TemporaryDirectory() as folder:
        files = write_files(tool, names, folder)
        for devices, some in files.items():
            if not run_all(devices, folder, some):
                print("check-with-torch: a file failed, or hung", file=sys.stderr)
                return 1
    print(sum(len(some) for some in files.values()), "files right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
