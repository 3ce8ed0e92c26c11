#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Plants one mistake in a copy of a header of the attention kernels.

usage: mutants.py --names
       mutants.py NAME include/pipe OUT      writes OUT/pipe/attention/HEADER
"""
import pathlib
import sys

FORWARD, BACKWARD, TILE, SEARCH = "portable/forward_mma.cuh", "portable/backward_mma.cuh", "portable/shared_tile.cuh", "kernel/tile_search.cuh"

# name: (header, which of the places that have the text, the text, what takes its place)
MUTANTS = {
    "no_barrier_before_values": (FORWARD, 0, "__syncthreads();      // and everybody is done with the values", "// "),
    "no_barrier_before_keys": (FORWARD, 0, "__syncthreads();      // and everybody is done with the keys", "// "),
    "waits_for_a_copy_too_few": (FORWARD, 0, "wait_for_copies<1>(); // values", "wait_for_copies<2>();"),
    "no_wait_without_keys": (FORWARD, 0, "wait_for_copies<0>(); // queries, where", "// "),
    "no_warp_barrier_before_store": (FORWARD, 0, "__syncwarp();", ""),
    "keys_beyond_the_end_count": (FORWARD, 0, "row < rows && column < columns && m.keep(at)", "row < rows && m.keep(at)"),
    "ragged_tiles_count_as_whole": (SEARCH, 0, "whole ? cover : tile_cover::partial", "(void(whole), cover)"),
    "log_sum_exp_in_powers_of_two": (FORWARD, 0, "* factor * ln_of_2 +", "* factor +"),
    "heads_take_turns_at_key_heads": (FORWARD, 0, "head / static_cast<int>(p.group())", "head % static_cast<int>(p.key_heads)"),
    "output_stored_dense": (FORWARD, 0, "c.t.output.length_stride,", "static_cast<std::int64_t>(Dim),"),
    "sum_is_not_rescaled": (FORWARD, 0, "sum[r][half] * shrink + added", "sum[r][half] + added"),
    "output_is_not_rescaled": (FORWARD, 0, "shrink != 1.0f", "shrink > 1.0f"),
    "one_row_too_many": (TILE, 0, "begin + step < present", "begin + step <= present"),
    "half_a_swizzle": (TILE, 0, "piece ^ (row & 7)", "piece ^ (row & 3)"),
    "causal_without_itself": ("mask.hpp", 0, "at.key <= at.query;", "at.key < at.query;"),
    "no_barrier_between_key_tiles": (BACKWARD, 0, "__syncthreads(); // the tile is there", "// "),
    "no_barrier_between_query_tiles": (BACKWARD, 1, "__syncthreads(); // the tile is there", "// "),
    "no_wait_for_query_tiles": (BACKWARD, 1, "    wait_for_copies<0>();\n", "    wait_for_copies<1>();\n"),
    "statistics_of_the_other_stage": (BACKWARD, 0, "numbers + stage * shape::queries + place", "numbers + place"),
    "mean_is_forgotten": (BACKWARD, 0, "y = x * (y - of.mean)", "y = x * y"),
    "running_gradient_is_lost": (BACKWARD, 0, "running.x += factor", "running.x = factor"),
    "only_one_head_of_the_group": (SEARCH, 0, "head < static_cast<int>(p.group())", "head < 1"),
}


def mutate(name, source, out):
    header, place, text, other = MUTANTS[name]
    parts = (source / "attention" / header).read_text(encoding="utf-8").split(text)
    if len(parts) < place + 2:
        sys.exit(f"mutants.py: {name}: {header} has the text '{text}' {len(parts) - 1} times, so not at place {place}")
    changed = text.join(parts[: place + 1]) + other + text.join(parts[place + 1 :])
    target = out / "pipe" / "attention" / header
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(changed, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "--names":
        print(";".join(MUTANTS), end="")
    else:
        mutate(sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
