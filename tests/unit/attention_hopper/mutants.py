#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Breaks the kernels for Hopper on purpose, by replacing text in a copy of a header.

usage: mutants.py --names             prints lines "KERNEL NAME"
       mutants.py NAME include OUT    writes OUT/pipe/attention/HEADER
"""
import pathlib
import shutil
import sys

KERNEL = "hopper/forward.cuh"
BLOCK = "hopper/forward_block.cuh"
SOFTMAX = "hopper/softmax.cuh"
PRODUCTS = "hopper/products.cuh"
INSTRUCTIONS = "hopper/instructions.cuh"
QUERIES = "hopper/query_gradient.cuh"
KEYS = "hopper/key_gradient.cuh"
GRADIENTS = "hopper/gradient_block.cuh"

# name: header, text that must be there, text in its place
FORWARD = {
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
    "no_barrier_before_the_store": (KERNEL, "show_to_copies();\n    meet_warpgroup(consumer());", "show_to_copies();"),
    "one_arrival_too_few": (KERNEL, "begin_barrier(memory.key_empty(stage), 4 * shape::consumers)",
                            "begin_barrier(memory.key_empty(stage), 4 * shape::consumers - 1)"),
    "lanes_do_not_wait_for_each_other": (INSTRUCTIONS, "__syncwarp();", ""),
    "keys_beyond_the_end": (SOFTMAX, "column < columns && ", ""),
    "last_tile_counts_as_whole": (BLOCK, "key_end == (tile + 1) * Keys &&", "true &&"),
    "rows_beyond_the_end": (KERNEL, "if (column() == 0 && r < work.rows)", "if (column() == 0)"),
    "offset_of_keys_forgotten": (KERNEL, "static_cast<int>(c.p.key_offset) + column_of_tile", "column_of_tile"),
    "second_consumer_sees_the_mask_of_the_first": (KERNEL, "int const row_of_tile = row();",
                                                   "int const row_of_tile = row() % shape::rows;"),
    "old_sums_do_not_shrink": (KERNEL, "output[i] *= state.shrink[i % 4 / 2];", ""),
    "outputs_without_swizzle": (PRODUCTS, "(n % 8 ^ line % 8) * 16", "n % 8 * 16"),
    "other_swizzle_in_descriptors": (PRODUCTS, "std::uint64_t{1} << 62", "std::uint64_t{2} << 62"),
    "rows_of_a_descriptor_too_close": (PRODUCTS, "eight_rows_bytes = 1024", "eight_rows_bytes = 512"),
    "turn_not_handed_on": (KERNEL, "give_turn(next_turn());", ""),
    "turn_handed_to_oneself": (KERNEL, "give_turn(next_turn());", "give_turn(turn);"),
    "nobody_begins": (KERNEL, "give_turn(0);", ""),
    "third_consumer_meets_the_second": (INSTRUCTIONS, "bar.sync 3, 128;", "bar.sync 2, 128;"),
    "next_tile_asked_twice": (KERNEL, "told = next_tile();\n        wait_for_products", "key.advance();\n        told = next_tile();\n        wait_for_products"),
    "work_forgotten": (BLOCK, "blocks - 1 - block", "blocks - block"),
    "heads_of_a_group_mixed_up": (BLOCK, "head / static_cast<int>(p.group())", "head % static_cast<int>(p.key_heads)"),
}

QUERY_GRADIENT = {
    "dq_no_wait_for_a_free_stage": (QUERIES, "wait_for(memory.empty(place.stage), place.parity ^ 1);\n      write", "write"),
    "dq_no_wait_for_a_stage": (GRADIENTS, "wait_for(memory.full(place.stage), place.parity);", ""),
    "dq_no_wait_for_own_tiles": (QUERIES, "walk.wait_for_own();", ""),
    "dq_parity_of_own_tiles_stays": (GRADIENTS, "own_parity ^= 1;", ""),
    "dq_too_few_bytes": (QUERIES, "memory.full(place.stage), 2 * shape::tile_bytes", "memory.full(place.stage), shape::tile_bytes"),
    "dq_values_take_the_place_of_keys": (QUERIES, "memory.step(1, place.stage), maps.value_step", "memory.step(1, place.stage), maps.key_step"),
    "dq_gradients_read_too_early": (QUERIES, "wait_for_products<0>(d);", ""),
    "dq_stage_released_too_early": (QUERIES, "wait_for_products<1>(sum);\n        walk.release(stage);",
                                    "walk.release(stage);\n        wait_for_products<1>(sum);"),
    "dq_own_tiles_released_too_early": (QUERIES, "wait_for_stores_to_read();", ""),
    "dq_no_proxy_fence": (QUERIES, "show_to_copies();", ""),
    "dq_no_barrier_before_the_store": (QUERIES, "show_to_copies();\n    meet_warpgroup(walk.consumer());", "show_to_copies();"),
    "dq_means_read_too_early": (QUERIES, "walk.lane());\n    __syncwarp();", "walk.lane());"),
    "dq_keys_beyond_the_end": (BLOCK, "key_end == (tile + 1) * Keys &&", "true &&"),
    "dq_offset_of_keys_forgotten": (QUERIES, "static_cast<int>(c.p.key_offset) + column_of_tile", "column_of_tile"),
    "dq_without_scale": (QUERIES, "before.x + c.scale * two[0]", "before.x + two[0]"),
    "dq_of_before_is_lost": (QUERIES, "c.p.from == carry::in", "false"),
    "dq_mean_forgotten": (GRADIENTS, "s[i] * (d[i] - base.of[2 * half])", "s[i] * d[i]"),
}
KEY_GRADIENT = {
    "dk_no_wait_for_a_free_stage": (KEYS, "wait_for(memory.empty(place.stage), place.parity ^ 1);\n      if", "if"),
    "dk_no_wait_for_free_own_tiles": (KEYS, "wait_for(memory.own_empty(), own_parity);", ""),
    "dk_own_tiles_released_too_early": (KEYS, "walk.wait_for_own();\n",
                                        "walk.wait_for_own();\n        arrive_warp(walk.memory.own_empty(), walk.lane() == 0);\n"),
    "dk_too_many_bytes": (KEYS, "memory.own_full(), shape::own_bytes", "memory.own_full(), shape::own_bytes + 16"),
    "dk_numbers_not_waited_for": (KEYS, "arrive_warp(memory.full(place.stage), lane == 0);", "if (lane == 0) {\n        arrive(memory.full(place.stage));\n      }"),
    "dk_one_arrival_on_full_stages": (KEYS, "2, // of the copies", "1, // of the copies"),
    "dk_numbers_of_the_first_stage": (KEYS, "walk.memory.numbers(stage)", "walk.memory.numbers(0)"),
    "dk_numbers_swapped": (KEYS, "which * shape::step + walk.column()", "(1 - which) * shape::step + walk.column()"),
    "dk_gradients_read_too_early": (KEYS, "wait_for_products<still_open>(d);", "wait_for_products<2>(d);"),
    "dk_stage_released_too_early": (KEYS, "wait_for_products<1>(of_key);\n      walk.release(stage);",
                                    "walk.release(stage);\n      wait_for_products<1>(of_key);"),
    "dk_rows_beyond_the_end": (KEYS, "if (r < work.rows)", "if (true)"),
    "dk_running_gradient_is_lost": (KEYS, "before.x += factor", "before.x = factor"),
    "dk_without_scale": (KEYS, "of_key, c.scale)", "of_key, 1.0f)"),
    "dk_only_the_first_head_of_the_group": (KEYS, "head = first_head + now.head", "head = first_head"),
    "dk_mask_asked_the_wrong_way": (GRADIENTS, "at.query + (Across ? column : row)", "at.query + (Across ? row : column)"),
    "dk_second_consumer_multiplies_keys_of_the_first": (GRADIENTS, "memory.own_piece(which, consumer())", "memory.own_piece(which, 0)"),
    "dk_offset_of_queries_forgotten": (KEYS, "static_cast<int>(c.p.query_offset) + column_of_tile", "column_of_tile"),
}
KERNELS = {"FORWARD": FORWARD, "QUERY_GRADIENT": QUERY_GRADIENT, "KEY_GRADIENT": KEY_GRADIENT}
MUTANTS = {**FORWARD, **QUERY_GRADIENT, **KEY_GRADIENT}


def main():
    if sys.argv[1:] == ["--names"]:
        for kernel, mutants in KERNELS.items():
            for name in mutants:
                print(kernel, name)
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
