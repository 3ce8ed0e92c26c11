#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Plants mistakes in copies of the headers of the attention kernels, one in each.

usage: mutants.py --names
       mutants.py include OUT      writes OUT/together.cu, all mutants, and before them the kernels as they are
       mutants.py PTX OUT          writes OUT/NAME.ptx of what nvcc made of it
"""
import pathlib
import shutil
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import planted_kernels  # noqa: E402

FORWARD, WORK, SOFTMAX = "portable/forward_mma.cuh", "portable/forward_block.cuh", "portable/forward_softmax.cuh"
BACKWARD, TILE, SEARCH = "portable/backward_mma.cuh", "portable/shared_tile.cuh", "kernel/tile_search.cuh"
BLOCK = "portable/backward_block.cuh"
KEPT, SUMS = "kernel/kept_pairs.cuh", "kernel/query_sums.cuh"

# name: (header, which of the places that have the text, the text, what takes its place)
MUTANTS = {
    "no_barrier_before_values": (FORWARD, 0, "__syncthreads();                            // and everybody is done with the values", "// "),
    "no_barrier_before_keys": (FORWARD, 0, "__syncthreads();      // and everybody is done with the keys", "// "),
    "no_wait_for_keys": (FORWARD, 0, "wait_for_copies<shape::value_places - 1>(); // keys", "wait_for_copies<shape::value_places>();"),
    "no_wait_for_keys_of_a_compact_block": (FORWARD, 0, "wait_for_copies<shape::value_places - 1>(); // keys", "wait_for_copies<1>();"),
    "compact_values_of_the_next_keys": (FORWARD, 0, "block.copy_late_values(now / 2)", "block.copy_late_values(now / 2 + 1)"),
    "compact_values_copied_once": (FORWARD, 0, "block.copy_late_values(now / 2);", "if (now / 2 == block.first_tile()) block.copy_late_values(now / 2);"),
    "no_wait_for_values": (FORWARD, 0, "wait_for_copies<0>(); // values", "wait_for_copies<1>();"),
    "values_copied_over_those_in_use": (FORWARD, 0, "block.copy_keys(next / 2, other_values)", "block.copy_keys(next / 2, values)"),
    "work_read_before_it_is_told": (FORWARD, 0, "__syncthreads(); // the work is told", ""),
    "no_wait_without_keys": (FORWARD, 0, "wait_for_copies<0>(); // queries, where", "// "),
    "no_warp_barrier_before_store": (SOFTMAX, 0, "__syncwarp();", ""),
    "keys_beyond_the_end_count": (KEPT, 0, "row < rows && column < columns && m.keep(here)", "row < rows && m.keep(here)"),
    "ragged_tiles_count_as_whole": (SEARCH, 0, "whole ? cover : tile_cover::partial", "(void(whole), cover)"),
    "log_sum_exp_in_powers_of_two": (SOFTMAX, 0, "* factor * ln_of_2 +", "* factor +"),
    "heads_take_turns_at_key_heads": (WORK, 0, "head / static_cast<int>(p.group())", "head % static_cast<int>(p.key_heads)"),
    "output_stored_dense": (SOFTMAX, 0, "c.t.output.length_stride,", "static_cast<std::int64_t>(Dim),"),
    "sum_is_not_rescaled": (SOFTMAX, 0, "sum[r][half] *= shrink[r][half];", ""),
    "output_is_not_rescaled": (SOFTMAX, 0, "grows || top != most[r][half]", "false"),
    "weights_in_units_of_the_tile_before": (SOFTMAX, 0, "0.0f : top * factor", "0.0f : most[r][half] * factor"),
    "mask_of_the_first_rows_alone": (SOFTMAX, 0, "kept[half] >> (2 * n + e)", "kept[0] >> (2 * n + e)"),
    "one_row_too_many": (TILE, 0, "step < present", "step <= present"),
    "half_a_swizzle": (TILE, 0, "piece ^ (row & 7)", "piece ^ (row & 3)"),
    "causal_without_itself": ("mask.hpp", 0, "at.key <= at.query;", "at.key < at.query;"),
    "no_barrier_between_steps": (BACKWARD, 0, "__syncthreads(); // the queries are there", "// "),
    "no_barrier_before_dq": (BACKWARD, 0, "__syncthreads(); // the gradients are there", "// "),
    "no_wait_for_queries": (BACKWARD, 0, "      wait_for_copies<0>();\n      __syncthreads(); // the queries", "      wait_for_copies<1>();\n      __syncthreads(); //"),
    "numbers_of_the_other_stage": (BACKWARD, 0, "m.numbers(n % 2u)", "m.numbers(1 - n % 2u)"),
    "queries_of_the_other_stage": (BACKWARD, 0, "m.queries(n % 2u)", "m.queries(1 - n % 2u)"),
    "mean_is_forgotten": (BACKWARD, 0, "y = x * (y - mean[e])", "y = x * y"),
    "keys_beyond_the_end_weigh": (BACKWARD, 0, "row < rows && column < columns && c.m.keep(at)", "column < columns && c.m.keep(at)"),
    "mask_asked_the_wrong_way": (BACKWARD, 0, "first.query + column, first.key + row", "first.query + row, first.key + column"),
    "ragged_keys_count_as_whole": (BLOCK, 0, "found.cover == tile_cover::full && rows == shape::keys", "found.cover == tile_cover::full"),
    "running_gradient_is_lost": (BACKWARD, 0, "before.x += factor", "before.x = factor"),
    "dk_without_scale": (BACKWARD, 0, "of_key, block.c.scale)", "of_key, 1.0f)"),
    "gradients_of_all_parts_in_one_place": (BACKWARD, 0, "lane(), part * shape::part / 8)", "lane(), 0)"),
    "dq_of_the_first_queries_alone": (BACKWARD, 0, "block.warp() % row_groups * 4", "0"),
    "dq_of_the_first_columns_alone": (BACKWARD, 0, "block.first_piece() + block.warp() / row_groups * 4", "block.first_piece()"),
    "warps_add_to_one_tile": (BACKWARD, 0, "(block.half() * shape::warps + block.warp()) * (32 * 32)", "block.warp() % 2 * (32 * 32)"),
    "left_tile_not_transposed": (TILE, 0, "load_matrices_across(a[r]", "load_matrices(a[r]"),
    "sums_read_in_another_order": (SUMS, 0, "sixteen_rows % 2 * 4 + eight_columns % 4", "eight_columns % 4 * 2 + sixteen_rows % 2"),
    "lanes_and_numbers_swapped": (SUMS, 0, "is_lane_first ? numbers[lane][n] : numbers[n][lane]", "numbers[lane][n]"),
    "sums_start_anywhere": (SUMS, 0, "sums[n] = {0, 0, 0, 0};", ""),
    "steps_share_their_slots": (BLOCK, 0, "n % 4u * 16", "n % 2u * 16"),
    "first_keys_of_the_first_block": (BLOCK, 0, "write_slot(memory.work(2), work.first)", "write_slot(memory.work(2), 0)"),
    "order_not_waited_for": (BACKWARD, 0, "wait_for_tile(block.after(n), block.before(n));", ""),
    "order_handed_on_too_early": (BACKWARD, 0, "__syncthreads();\n    hand_on(n - 1);", "hand_on(n - 1);\n    __syncthreads();"),
    "only_one_head_of_the_group": (SEARCH, 0, "head < static_cast<int>(p.group())", "head < 1"),
}


def planted(include, name, header, place, text, other):
    """The header and its text with the mistake."""
    parts = (include / "pipe/attention" / header).read_text(encoding="utf-8").split(text)
    if len(parts) < place + 2:
        sys.exit(f"mutants.py: {name}: {header} has the text '{text}' {len(parts) - 1} times, so not at place {place}")
    return f"pipe/attention/{header}", text.join(parts[: place + 1]) + other + text.join(parts[place + 1 :])


def main():
    if sys.argv[1] == "--names":
        print(";".join(MUTANTS), end="")
        return
    source, out = map(pathlib.Path, sys.argv[1:3])
    if source.suffix == ".ptx":
        planted_kernels.split(source.read_text(encoding="utf-8"), ["none", *MUTANTS], out)
        return
    shutil.rmtree(out, ignore_errors=True)  # headers that another version of the mutants broke
    planted_kernels.plant(source, [pathlib.Path(__file__).parent / f"mutants_{of}.cu" for of in ("forward", "backward", "sums")], out,
                          [None, *(planted(source, name, *mutant) for name, mutant in MUTANTS.items())])


if __name__ == "__main__":
    main()
