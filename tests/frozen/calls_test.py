#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs the calls of the timetable tool in calls.txt, in order and in one folder, and compares what they print.

A line has a hash of standard output, the exit status, and the words of the call. `> FILE` at its end keeps what it printed
for later calls. The folder has costs.json. What is said to standard error may change.

usage: calls_test.py TIMETABLE           exits with 1 and names the calls that differ
       calls_test.py TIMETABLE --write   writes hashes and exit statuses of calls.txt anew
"""
import hashlib
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def run(tool, folder, call):
    words, _, target = call.partition(" > ")
    done = subprocess.run([tool, *shlex.split(words)], cwd=folder, capture_output=True, timeout=120, check=False)
    if target:
        (folder / target).write_bytes(done.stdout)
    return hashlib.sha256(done.stdout).hexdigest()[:16], str(done.returncode)


def main():
    file = HERE / "calls.txt"
    lines = file.read_text(encoding="utf-8").splitlines()
    written, wrong = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        shutil.copy(HERE / "costs.json", folder)
        for line in lines:
            if line.startswith("#"):
                written.append(line)
                continue
            was_hash, was_status, call = line.split(" ", 2)
            digest, status = run(sys.argv[1], folder, call)
            written.append(f"{digest} {status} {call}")
            if (digest, status) != (was_hash, was_status):
                wrong.append(f"timetable {call}: " + (f"ended with {status}, not with {was_status}" if status != was_status
                                                      else "prints something else"))
    if sys.argv[2:] == ["--write"]:
        file.write_text("\n".join(written) + "\n", encoding="utf-8")
        return 0
    calls = sum(not line.startswith("#") for line in lines)
    print("\n".join([*wrong, f"{calls} calls, {len(wrong)} differences"]))
    return 1 if wrong or not calls else 0


if __name__ == "__main__":
    sys.exit(main())
