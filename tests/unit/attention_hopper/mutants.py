#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Breaks the kernels for Hopper on purpose, by replacing text in a copy of a header.

usage: mutants.py --names
       mutants.py NAME include OUT    writes OUT/pipe/attention/HEADER
"""
import pathlib
import shutil
import sys

KERNEL = "forward_hopper.cuh"
BLOCK = "hopper_block.cuh"
SOFTMAX = "hopper_softmax.cuh"
PRODUCTS = "hopper_products.cuh"
INSTRUCTIONS = "hopper.cuh"

# name: header, text that must be there, text in its place
MUTANTS = {
    "no_wait_for_a_free_key_stage": (KERNEL, "wait_for(memory.key_empty(key.stage), key.parity ^ 1);\n      write", "write"),
    "no_wait_for_a_free_value_stage": (KERNEL, "wait_for(memory.value_empty(value.stage), value.parity ^ 1);", ""),
    "no_wait_for_keys": (KERNEL, "wait_for(memory.key_full(key.stage), key.parity);", ""),
    "no_wait_for_values": (KERNEL, "wait_for(memory.value_full(value.stage), value.parity);", ""),
    "no_wait_for_queries": (KERNEL, "wait_for(memory.query_full(), query_parity);", ""),
    "wrong_parity_of_empty_stages": (KERNEL, "value.parity ^ 1", "value.parity"),
    "parity_stays": (BLOCK, "parity ^= 1;\n    }", "}"),
    "query_parity_stays": (KERNEL, "query_parity ^= 1;\n      visit_tiles", "visit_tiles"),
    "too_few_bytes": (KERNEL, "memory.value_full(value.stage), shape::key_bytes", "memory.value_full(value.stage), shape::key_bytes / 2"),
    "too_many_bytes": (KERNEL, "memory.query_full(), shape::query_bytes", "memory.query_full(), shape::query_bytes + 16"),
    "slot_told_too_late": (KERNEL, "write_slot(memory.slot(key.stage), no_more_tiles);\n    arrive(memory.key_full(key.stage));",
                           "arrive(memory.key_full(key.stage));\n    write_slot(memory.slot(key.stage), no_more_tiles);"),
    "logits_read_too_early": (KERNEL, "wait_for_products<1>(s);", "wait_for_products<2>(s);"),
    "outputs_read_too_early": (KERNEL, "wait_for_products<0>(output);\n        release_value();\n        take_weights(s);",
                               "take_weights(s);\n        wait_for_products<0>(output);\n        release_value();"),
    "keys_released_too_early": (KERNEL, "wait_for_products<0>(s);\n      release_key();", "release_key();\n      wait_for_products<0>(s);"),
    "values_released_too_early": (KERNEL, "wait_for_products<0>(output);\n        release_value();",
                                  "release_value();\n        wait_for_products<0>(output);"),
    "queries_released_too_early": (KERNEL, "wait_for_stores_to_read();", ""),
    "no_proxy_fence": (KERNEL, "show_to_copies();", ""),
    "no_barrier_before_the_store": (KERNEL, "show_to_copies();\n    meet_warpgroup(consumer);", "show_to_copies();"),
    "one_arrival_too_few": (KERNEL, "begin_barrier(memory.key_empty(stage), 4 * shape::consumers)",
                            "begin_barrier(memory.key_empty(stage), 4 * shape::consumers - 1)"),
    "lanes_do_not_wait_for_each_other": (INSTRUCTIONS, "__syncwarp();", ""),
    "keys_beyond_the_end": (SOFTMAX, "column < columns && ", ""),
    "last_tile_counts_as_whole": (KERNEL, "end == (tile + 1) * shape::keys &&", "true &&"),
    "rows_beyond_the_end": (KERNEL, "if (column == 0 && r < work.rows)", "if (column == 0)"),
    "offset_of_keys_forgotten": (KERNEL, "static_cast<int>(c.p.key_offset) + column_of_tile", "column_of_tile"),
    "second_consumer_sees_the_mask_of_the_first": (KERNEL, "int const row_of_tile = consumer * shape::rows + row;",
                                                   "int const row_of_tile = row;"),
    "old_sums_do_not_shrink": (KERNEL, "output[i] *= state.shrink[i % 4 / 2];", ""),
    "outputs_without_swizzle": (KERNEL, "(n % 8 ^ panel_row % 8) * 16", "n % 8 * 16"),
    "other_swizzle_in_descriptors": (PRODUCTS, "std::uint64_t{1} << 62", "std::uint64_t{2} << 62"),
    "rows_of_a_descriptor_too_close": (PRODUCTS, "eight_rows_bytes = 1024", "eight_rows_bytes = 512"),
    "work_forgotten": (BLOCK, "blocks - 1 - block", "blocks - block"),
    "heads_of_a_group_mixed_up": (BLOCK, "head / static_cast<int>(p.group())", "head % static_cast<int>(p.key_heads)"),
}


def main():
    if sys.argv[1:] == ["--names"]:
        print(*MUTANTS, sep="\n")
        return 0
    name, include, out = sys.argv[1], *map(pathlib.Path, sys.argv[2:4])
    header, old, new = MUTANTS[name]
    text = (include / "pipe/attention" / header).read_text(encoding="utf-8")
    if old not in text:
        print(f"{header} no longer has the text that the mutant {name} replaces: {old!r}", file=sys.stderr)
        return 1
    shutil.rmtree(out, ignore_errors=True)  # a header that another version of the mutant broke
    target = out / "pipe/attention" / header
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text.replace(old, new), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
