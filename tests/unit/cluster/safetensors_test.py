#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Holds our writer and our reader of safetensors files against those of PyPI's package `safetensors`: it reads what we write,
we read what it writes, and of spoiled files we take none that it refuses. Skipped where the package is missing.

usage: safetensors_test.py PROGRAM
"""
import ctypes
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

PROGRAM = sys.argv[1]
DTYPES = {"F64": 8, "I64": 8, "F32": 4, "BF16": 2, "U8": 1}
try:
    import safetensors
except ImportError:
    print(f"safetensors_test.py: skipped: {sys.executable} has no package safetensors; install it (pip install safetensors)")
    sys.exit(77)


def judged(folder, texts):
    """What our reader says of files with these bytes, one line each."""
    paths = [pathlib.Path(folder, f"{i}.safetensors") for i in range(len(texts))]
    for path, text in zip(paths, texts):
        path.write_bytes(text)
    said = subprocess.run([PROGRAM, *map(str, paths)], capture_output=True, check=True).stdout.decode("utf-8", "replace")
    lines = [line for line in said.split("\n") if line.startswith(("good:", "bad:"))]
    assert len(lines) == len(texts), said[:2000]
    return lines


def taken_by_package(text):
    try:
        safetensors.deserialize(text)
        return True
    except safetensors.SafetensorError:
        return False


def check_ours(folder):
    path = pathlib.Path(folder, "ours.safetensors")
    subprocess.run([PROGRAM, "write", str(path)], check=True)
    text = path.read_bytes()
    found = dict(safetensors.deserialize(text))
    expected = {"step": ("I64", [], 8), "none": ("F64", [0, 3], 0), "layers.0.gain": ("F32", [5], 20),
                "layers.0.weight": ("F32", [3, 5], 60), "half": ("BF16", [7], 14), 'position "\\\né': ("U8", [13], 13)}
    assert {name: (t["dtype"], list(t["shape"]), len(t["data"])) for name, t in found.items()} == expected, found
    # The package says where the numbers lie by giving them; we have numbered the bytes in the order of the file.
    order = ["none", "step", "layers.0.gain", "layers.0.weight", "half", 'position "\\\né']
    data = b"".join(bytes(found[name]["data"]) for name in order)
    assert data == bytes(i % 251 for i in range(115)), data
    return text


def written_by_package(tensors, metadata):
    """tensors: name -> (kind, shape, bytes). Newer packages take addresses, older ones bytes."""
    kept = {name: ctypes.create_string_buffer(data, max(1, len(data))) for name, (_, _, data) in tensors.items()}
    if hasattr(safetensors, "TensorSpec"):
        return safetensors.serialize({name: safetensors.TensorSpec(dtype=kind, shape=shape, data_ptr=ctypes.addressof(kept[name]),
                                                                   data_len=len(data))
                                      for name, (kind, shape, data) in tensors.items()}, metadata)
    return safetensors.serialize({name: {"dtype": kind, "shape": shape, "data": data}
                                  for name, (kind, shape, data) in tensors.items()}, metadata)


def check_theirs(folder):
    tensors = {f"t{i}": (kind, [i, 2], bytes(range(2 * i * size)))
               for i, (kind, size) in enumerate({"float32": 4, "uint8": 1, "int64": 8, "bfloat16": 2}.items())}
    for metadata in (None, {"step": "20", 'é"\n': "\x01\\"}):
        line, = judged(folder, [written_by_package(tensors, metadata)])
        assert line.startswith("good:") and all(f" {name} " in line for name in tensors), line


def spoiled(text, dice):
    """Files that differ from a good one in bytes of the header, in its members or in its size."""
    length, = struct.unpack("<Q", text[:8])
    for at in range(8 + length):
        for bit in range(8):
            yield text[:at] + bytes([text[at] ^ 1 << bit]) + text[at + 1:]
    for end in range(0, len(text), 3):
        yield text[:end]
    yield text + b"x"
    header = json.loads(text[8:8 + length])
    for _ in range(600):
        other = json.loads(json.dumps(header))
        name = dice.choice([key for key in other if key != "__metadata__"])
        change = dice.randrange(5)
        if change == 0:
            other[name]["data_offsets"][dice.randrange(2)] += dice.choice([-8, -1, 1, 8, 1 << 62])
        elif change == 1:
            other[name]["dtype"] = dice.choice([*DTYPES, "F31", ""])
        elif change == 2:
            other[name]["shape"] = [dice.choice([0, 1, 3, 5, 1 << 33]) for _ in range(dice.randrange(4))]
        elif change == 3:
            del other[name]
        else:
            other[name][dice.choice(["dtype", "shape", "data_offsets", "more"])] = dice.choice([[], "F32", 3, None, [0, 1, 2]])
        changed = json.dumps(other, separators=dice.choice([(",", ":"), (", ", " : ")])).encode()
        yield struct.pack("<Q", len(changed)) + changed + text[8 + length:]


def check_spoiled(folder, text):
    files = list(spoiled(text, random.Random(39)))
    lines = [line for at in range(0, len(files), 500) for line in judged(folder, files[at:at + 500])]
    taken = [taken_by_package(each) for each in files]
    wrong = [(line, each[:400]) for line, each, good in zip(lines, files, taken) if line.startswith("good:") and not good]
    assert not wrong, wrong[:3]
    strict = sum(line.startswith("bad:") and good for line, good in zip(lines, taken))
    both = sum(line.startswith("good:") for line in lines)
    print(f"{len(files)} spoiled files: both take {both}, we alone refuse {strict}, and we take none that the package refuses")
    assert both > 100 and len(files) - both - strict > 1000


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as there:
        ours = check_ours(there)
        check_theirs(there)
        check_spoiled(there, ours)
