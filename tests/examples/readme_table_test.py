#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks the table of schedules in README.md against what the timetable tool says.

usage: readme_table_test.py TIMETABLE README [--write]
"""
import json
import pathlib
import subprocess
import sys

TYPES = {
    "gpipe": ("GPipe", "all forward, then all backward"),
    "1f1b": ("OneFOneB", "one forward, one backward in turn"),
    "eager-1f1b": ("EagerOneFOneB", "1F1B with twice the warm-up, which hides messages"),
    "kfkb": ("Grouped<2>", "1F1B of groups of microbatches, which hides messages"),
    "interleaved": ("Interleaved<2>", "Megatron's: two stages per device, half the bubble"),
    "chronos": ("ChronosPipe", "two looped stages per device, three quarters of 1F1B's activations"),
    "hanayo": ("Hanayo<2>", "down the devices and up again, twice; for forward and backward of equal times"),
    "breadth-first": ("BreadthFirst<2>", "stage by stage: fewest gathers of weights"),
    "helix": ("HelixPipe<1, 1>", "attention on other devices than the weights of its layer, for long ones; here as long as the rest, and half stages at the ends as whole ones"),
    "wei-pipe": ("WeiPipe", "microbatches stay on their device, weights travel: for activations that are larger than weights"),
    "round-pipe": ("RoundPipe<8, 24>", "weights on the host, stages dealt out to devices in turn; forward passes run twice"),
    "zb-h1": ("ZeroBubbleH1", "split backward; a device holds 1F1B's activations, and weight inputs beside them"),
    "zb-h2": ("ZeroBubbleH2", "split backward, no bubble on the span"),
    "zb-interleaved": ("ZeroBubbleInterleaved<2>", "split backward on interleaved stages"),
    "zb-auto": ("ZeroBubbleAuto", "split backward, searched for real costs under a memory limit"),
    "v-min": ("VMin", "V shape, about a third of 1F1B's activations on large pipelines"),
    "v-half": ("VHalf", "V shape, about half of them"),
    "v-zb": ("VZeroBubble", "V shape, all of them and no bubble on the span"),
    "v-1f1b": ("OneFOneBV", "V shape with fused backward, about two thirds"),
    "v-auto": ("VAuto<12>", "V shape searched under a memory limit, for real costs"),
    "zb-v": ("ZeroBubbleV", "V shape, hand-made order"),
    "seq1f1b": ("Seq1F1B<4>", "1F1B over 4 chunks of each sequence: a quarter of the bubble"),
    "seq1f1b-interleaved": ("Seq1F1BInterleaved<2, 4>", "the same on interleaved stages"),
    "seq1f1b-zb-h1": ("Seq1F1BZeroBubbleH1<4>", "the same with split backward"),
    "seq1f1b-zb-h2": ("Seq1F1BZeroBubbleH2<4>", "the same with split backward, no bubble on the span"),
    "seq1f1b-zb-interleaved": ("Seq1F1BZeroBubbleInterleaved<2, 4>", "split backward, chunks and interleaved stages"),
    "svpp": ("SVPP<2, 4>", "MEPipe's: split backward, chunks and interleaved stages, with a knob for memory"),
    "slice-v": ("SliceV<4>", "a V over 4 chunks of each sequence: the memory of Seq1F1B, no bubble on the span"),
    "slimpipe": ("SlimPipe<8, 2>", "little more than one microbatch on a device, over as many chunks as devices or more"),
    "chunkflow": ("ChunkFlow<equal_chunks<4>, 4>", "the same for sequences of unequal length, all or the last chunks kept"),
    "chimera": ("Chimera", "microbatches from both ends, each direction in the other's bubble; weights held twice"),
    "bitpipe": ("BitPipe", "the same on two V's; for as many microbatches as devices, blocks of which wait for each other"),
    "dualpipe": ("DualPipe", "microbatches from both ends, weights held twice"),
    "dualpipe-v": ("DualPipeV", "the same folded into a V"),
    "stp": ("STP", "a V of pairs of any two passes, which hide the all-reduces of tensor parallelism"),
}
NEEDS_LIMIT = {"zb-auto": "8", "v-auto": "12"}
LAYERS_PER_DEVICE = {"round-pipe": 3}  # each of which is a stage that goes back; others go forward
HEAD = "| --- | --- | --- | --- | --- | --- | --- |\n"
SKIPPED = {"csv", "v-continuous"}  # a file, and what is v-auto for equal times


def row(tool, name):
    command = [tool, name, "--devices", "8", "--microbatches", "32", "--format", "json"]
    if name in NEEDS_LIMIT:
        command += ["--memory-limit", NEEDS_LIMIT[name]]
    table = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    share = LAYERS_PER_DEVICE.get(name, table["stages"] / table["devices"])
    kept, inputs = (f"{max(table[key]) / share:.2f}".rstrip("0").rstrip(".")
                    for key in ("peak_activations", "peak_weight_inputs"))
    kind, words = TYPES[name]
    return (f"| `{name}` | `{kind}` | {100 * table['bubble_rate']:.1f} % | {100 * table['makespan_bubble_rate']:.1f} % "
            f"| {kept} | {inputs} | {words} |")


def main(tool, readme, write):
    names = [line.split()[0] for line in
             subprocess.run([tool, "--list"], check=True, capture_output=True, text=True).stdout.split("\n\n")[0].splitlines()]
    names = [name for name in names if name not in SKIPPED]
    missing = [name for name in names if name not in TYPES]
    if missing or not names:
        return [f"README.md has no row for {missing}; add them to TYPES in this test and run it with --write"]
    text = readme.read_text(encoding="utf-8")
    head, rest = text.split(HEAD, 1)
    shown, tail = rest.split("<!-- end of table -->", 1)
    expected = "".join(row(tool, name) + "\n" for name in sorted(names, key=list(TYPES).index))
    if write:
        readme.write_text(f"{head}{HEAD}{expected}<!-- end of table -->{tail}", encoding="utf-8")
        return []
    return [] if shown == expected else ["the table in README.md differs; run this test with --write:\n" + expected]


if __name__ == "__main__":
    problems = main(sys.argv[1], pathlib.Path(sys.argv[2]), "--write" in sys.argv)
    print("\n".join(problems))
    sys.exit(1 if problems else 0)
