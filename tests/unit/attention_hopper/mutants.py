#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Breaks the kernels for Hopper on purpose, by replacing text in a copy of a header, and compiles each as it is, too.

usage: mutants.py --names                      prints lines "KERNEL HEAD_DIM NAME"
       mutants.py KERNEL HEAD_DIM include OUT  writes OUT/together.cu, all mutants of a kernel
       mutants.py KERNEL HEAD_DIM PTX OUT      writes OUT/NAME.ptx of what nvcc made of it
"""
import pathlib
import shutil
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import planted_kernels  # noqa: E402

KERNEL = "hopper/forward.cuh"
TELLS = "hopper/forward_copies.cuh"
BLOCK = "hopper/forward_block.cuh"
SOFTMAX = "hopper/softmax.cuh"
PRODUCTS = "hopper/products.cuh"
INSTRUCTIONS = "hopper/instructions.cuh"
BACK = "hopper/backward.cuh"
PARTS = "hopper/backward_block.cuh"
COPIES = "hopper/backward_copies.cuh"
STEPS = "hopper/backward_steps.cuh"
WIDE = "hopper/backward_wide.cuh"
WEIGHTS = "hopper/backward_weights.cuh"
KEPT = "kernel/kept_pairs.cuh"
SUMS = "kernel/query_sums.cuh"
ORDER = "kernel/query_order.cuh"

TELL_WORK = "auto const work = work_of<shape::queries>(c.p, order, splits.count, tiles, n);\n    tell_work(memory, query_parity, work);\n    "

EMPTY = "    wait_for(memory.empty(at.stage), at.parity ^ 1);\n"
ASKED = """    if constexpr (Counts) {
      if (is_first_lane) {
        if (int const step = read_slot(memory.sums(at.stage)); step >= 0) {
"""
COUNT = ASKED + "          count_after(sums.after + step, 1);\n"
SLOT = "          write_slot(memory.sums(at.stage), -1);\n"

ADD_QUERIES = "me.steps.add_queries(me.of_query, stage, me.query_column());\n    "
SUMS_OVER = """if constexpr (Consumer::shape::is_wide) {
      wait_for_products<1>(me.of_value);
    }
    wait_for_products<1>(me.of_key);
    walk.release(stage);"""

PREPARE = "    prepare_sums<Shape, query_order::kept>(sums, memory, place.stage, lane);\n"

# name: header, text that must be there, text in its place
FORWARD = {
    "no_wait_for_a_free_key_stage": (TELLS, "wait_for(memory.key_empty(key.stage), key.parity ^ 1);\n      write", "write"),
    "no_wait_for_a_free_value_stage": (TELLS, "wait_for(memory.value_empty(value.stage), value.parity ^ 1);", ""),
    "no_wait_for_keys": (KERNEL, "wait_for(memory.key_full(key.stage), key.parity);", ""),
    "no_wait_for_values": (KERNEL, "wait_for(memory.value_full(value.stage), value.parity);", ""),
    "no_wait_for_queries": (KERNEL, "wait_for(memory.query_full(), query_parity);", ""),
    "no_wait_for_the_first_queries": (KERNEL, "wait_for(memory.query_full(), 0);", ""),
    "wrong_parity_of_empty_stages": (TELLS, "value.parity ^ 1", "value.parity"),
    "parity_stays": (BLOCK, "parity ^= 1;\n    }", "}"),
    "query_parity_stays": (KERNEL, "query_parity ^= 1;", ""),
    "work_told_too_late": (TELLS, TELL_WORK + "arrive_expecting(memory.query_full(), shape::query_bytes);",
                           "arrive_expecting(memory.query_full(), shape::query_bytes);\n    " + TELL_WORK),
    "work_told_too_early": (TELLS, "wait_for(memory.query_empty(), query_parity);\n    query_parity ^= 1;\n    " + TELL_WORK,
                            TELL_WORK + "wait_for(memory.query_empty(), query_parity);\n    query_parity ^= 1;\n    "),
    "end_of_work_told_too_early": (TELLS, "wait_for(memory.query_empty(), query_parity);\n  write", "write"),
    "end_of_work_not_told": (TELLS, "write_slot(memory.work(query_parity ^ 1, work_number::first), no_more_work);", ""),
    "too_few_bytes": (TELLS, "memory.value_full(value.stage), shape::value_bytes", "memory.value_full(value.stage), shape::value_bytes / 2"),
    "too_many_bytes": (TELLS, "memory.query_full(), shape::query_bytes", "memory.query_full(), shape::query_bytes + 16"),
    "slot_told_too_late": (TELLS, "write_slot(memory.slot(key.stage), no_more_tiles);\n    arrive(memory.key_full(key.stage));",
                           "arrive(memory.key_full(key.stage));\n    write_slot(memory.slot(key.stage), no_more_tiles);"),
    "logits_read_too_early": (KERNEL, "wait_for_products<1>(s);", "wait_for_products<2>(s);"),
    "outputs_read_too_early": (KERNEL, "wait_for_products<0>(output);\n          state", "state"),
    "keys_released_too_early": (KERNEL, "wait_for_products<0>(s);\n      release_key();", "release_key();\n      wait_for_products<0>(s);"),
    "values_released_too_early": (KERNEL, "wait_for_products<0>(output);\n        release_value();",
                                  "release_value();\n        wait_for_products<0>(output);"),
    "outputs_replaced_too_early": (KERNEL, "wait_for_stores_to_read();", ""),
    "work_of_two_pieces_in_one_place": (BLOCK, "which * (4 * 5)", "0"),
    "queries_never_released": (KERNEL, "arrive_warp(memory.query_empty(), is_first_lane);", ""),
    "no_proxy_fence": (KERNEL, "show_to_copies();", ""),
    "no_barrier_before_the_store": (KERNEL, "show_to_copies();\n    meet_warpgroup(consumer());", "show_to_copies();"),
    "one_arrival_too_few": (KERNEL, "begin_barrier(memory.key_empty(stage), 4 * shape::consumers)",
                            "begin_barrier(memory.key_empty(stage), 4 * shape::consumers - 1)"),
    "lanes_do_not_wait_for_each_other": (INSTRUCTIONS, "__syncwarp();", ""),
    "keys_beyond_the_end": (KEPT, "column < columns && ", ""),
    "last_tile_counts_as_whole": (BLOCK, "end == (tile + 1) * Keys &&", "true &&"),
    "rows_beyond_the_end": (KERNEL, "if (column() == 0 && r < rows)", "if (column() == 0)"),
    "offset_of_keys_forgotten": (KERNEL, "static_cast<int>(c.p.key_offset) + column_of_tile", "column_of_tile"),
    "second_consumer_sees_the_mask_of_the_first": (KERNEL, "int const row_of_tile = row();",
                                                   "int const row_of_tile = row() % shape::rows;"),
    "old_outputs_do_not_shrink": (SOFTMAX, "output[i] *= shrink;", ""),
    "old_sums_do_not_shrink": (SOFTMAX, "sum[half] *= shrink;", ""),
    "bases_stay": (SOFTMAX, "top >= most", "top >= INT_MAX"),
    "bases_of_the_other_row": (SOFTMAX, "s[i + 1] * factor - base[i % 4 / 2]", "s[i + 1] * factor - base[1 - i % 4 / 2]"),
    "bases_follow_down": (SOFTMAX, "fmaxf(ceilf(top), 0.0f)", "ceilf(top)"),
    "bases_of_empty_rows_stay": (SOFTMAX, "sum_of_row(sum[half]) == 0", "false"),
    "rows_without_a_key_count_as_summed": (SOFTMAX, "most = top == -INFINITY ? INT_MIN : most;", ""),
    "bases_move_by_whole_numbers": (SOFTMAX, "? 0.0f : top;", "? 0.0f : ceilf(top);"),
    "largest_of_one_lane": (SOFTMAX, "top = largest_of_row(top);", ""),
    "logits_do_not_follow_their_base": (SOFTMAX, "s[i] -= move;", ""),
    "sums_shrink_too_much": (SOFTMAX, "(127 - static_cast", "(126 - static_cast"),
    "lanes_decide_alone": (SOFTMAX, "__any_sync(0xffffffffu, top >= most) != 0", "top >= most"),
    "outputs_without_swizzle": (PRODUCTS, "((column / 8 + lane / 16) ^ line % 8)", "(column / 8 + lane / 16)"),
    "outputs_in_another_order": (PRODUCTS, "column / 8 + lane / 16", "column / 8 + (1 - lane / 16)"),
    "outputs_to_the_next_piece": (KERNEL, "write_outputs(rounded, query_parity);\n        }", "write_outputs(rounded, query_parity ^ 1);\n        }"),
    "outputs_before_the_first_piece": (KERNEL, "threadIdx.x % 128 == 0 && of(work_number::rows) > 0", "threadIdx.x % 128 == 0"),
    "last_outputs_not_written": (KERNEL, "if constexpr (leaves_late) {\n      write_outputs(rounded, query_parity);", "if constexpr (leaves_late) {"),
    "no_rows_before_the_first_piece": (KERNEL, "write_slot(memory.work(1, work_number::rows), 0);", ""),
    "other_swizzle_in_descriptors": (PRODUCTS, "std::uint64_t{1} << 62", "std::uint64_t{2} << 62"),
    "rows_of_a_descriptor_too_close": (PRODUCTS, "eight_rows_bytes = 1024", "eight_rows_bytes = 512"),
    "turn_not_handed_on": (KERNEL, "give_turn(next_turn());", ""),
    "turn_handed_to_oneself": (KERNEL, "give_turn(next_turn());", "give_turn(turn);"),
    "nobody_begins": (KERNEL, "give_turn(0);", ""),
    "third_consumer_meets_the_second": (INSTRUCTIONS, "bar.sync 3, 128;", "bar.sync 2, 128;"),
    "next_tile_asked_twice": (KERNEL, "told = next_tile();\n        wait_for_products", "key.advance();\n        told = next_tile();\n        wait_for_products"),
    "work_taken_twice": (BLOCK, "atomicAdd(order.taken, 1u)", "(atomicAdd(order.taken, 1u) | 1u)"),
    "count_of_pieces_stays": (BLOCK, "*order.taken = 0;", ""),
    "last_section_as_long_as_the_others": (BLOCK, "min(order.heads, heads * static_cast<int>(p.batch) - begin)", "order.heads"),
    "band_ends_a_tile_too_early": (BLOCK, "seen.end - keys + Keys - 1", "seen.end - keys"),
    "band_begins_a_tile_too_late": (BLOCK, "(seen.begin - keys) / Keys", "(seen.begin - keys + Keys) / Keys"),
    "heads_of_a_group_mixed_up": (BLOCK, "head / static_cast<int>(p.group())", "head % static_cast<int>(p.key_heads)"),
}

BACKWARD = {
    "back_no_wait_for_a_free_stage": (COPIES, "wait_for_place(place);\n        if", "if"),
    "back_no_wait_for_a_stage": (PARTS, "wait_for(memory.full(place.stage), place.parity);", ""),
    "back_no_wait_for_own_tiles": (STEPS, "wait_for(steps.walk.memory.own_full(), read_slot(parity_of(steps.walk.memory.work())));", ""),
    "back_too_few_bytes": (COPIES, "memory.full(stage), Shape::stage_bytes", "memory.full(stage), Shape::query_tile_bytes"),
    "back_too_many_bytes": (COPIES, "memory.own_full(), Shape::own_bytes", "memory.own_full(), Shape::own_bytes + 16"),
    "back_queries_take_the_place_of_gradients": (COPIES, "maps.output_gradient, from", "maps.query, from"),
    "back_logits_read_too_early": (BACK, "wait_for_products<1>(s);", "wait_for_products<2>(s);"),
    "back_gradients_read_too_early": (BACK, "wait_for_products<still_open>(d);", "wait_for_products<2>(d);"),
    "back_sums_read_too_early": (STEPS, "wait_for_products<groups + 1>(me.of_query);", "wait_for_products<groups + 2>(me.of_query);"),
    "back_stage_released_too_early": (STEPS, "wait_for_products<1>(me.of_key);\n    walk.release(stage);",
                                      "walk.release(stage);\n    wait_for_products<1>(me.of_key);"),
    "back_stage_released_before_the_turn": (STEPS, "wait_for_products<groups + 1>(me.of_query);\n    " + ADD_QUERIES + SUMS_OVER,
                                            "wait_for_products<1>(me.of_key);\n    walk.release(stage);\n    wait_for_products<1>(me.of_query);\n    " + ADD_QUERIES),
    "back_no_proxy_fence": (STEPS, "show_to_copies();", ""),
    "back_consumers_do_not_meet": (STEPS, "show_to_copies();\n    meet_consumers();", "show_to_copies();"),
    "back_gradients_keep_their_place": (BACK, "turn ^= 1;", ""),
    "back_gradients_without_swizzle": (PRODUCTS, "((column / 8 + lane / 16) ^ line % 8)", "(column / 8 + lane / 16)"),
    "back_matrices_in_another_order": (PRODUCTS, "int const line = first + lane % 16;", "int const line = first + lane / 16 * 8 + lane % 8;"),
    "back_consumers_share_one_half": (BACK, "Dim == 64 ? share : 0", "0"),
    "back_keys_of_the_first_consumer": (BACK, "n / 4 * shape::key_tile_bytes +", ""),
    "back_consumers_add_to_one_tile": (STEPS, "static_cast<unsigned>(first * 64 + walk.thread() % 128 * 4)", "static_cast<unsigned>(walk.thread() % 128 * 4)"),
    "back_numbers_not_waited_for": (COPIES, "arrive_warp(memory.full(place.stage), lane == 0);", "if (lane == 0) {\n      arrive(memory.full(place.stage));\n    }"),
    "back_one_arrival_on_full_stages": (PARTS, "begin_barrier(memory.full(stage), 2)", "begin_barrier(memory.full(stage), 1)"),
    "back_numbers_of_the_first_stage": (STEPS, "walk.memory.numbers(stage)", "walk.memory.numbers(0)"),
    "back_numbers_of_the_first_part": (STEPS, "which * shape::step + part * shape::part + walk.column()", "which * shape::step + walk.column()"),
    "back_numbers_swapped": (STEPS, "which * shape::step", "(1 - which) * shape::step"),
    "back_mean_forgotten": (WEIGHTS, "s[i] * (d[i] - base.x)", "s[i] * d[i]"),
    "back_rows_beyond_the_end": (STEPS, "if (r < work.rows)", "if (true)"),
    "back_mask_asked_the_wrong_way": (WEIGHTS, "at.query + column, at.key + row", "at.query + row, at.key + column"),
    "back_second_consumer_multiplies_keys_of_the_first": (PARTS, "Shape::is_wide ? 0 : number), 16)", "0), 16)"),
    "back_offset_of_queries_forgotten": (STEPS, "static_cast<int>(c.p.query_offset) + column_of_tile", "column_of_tile"),
    "back_dk_without_scale": (STEPS, "me.of_key, steps.c.scale", "me.of_key, 1.0f"),
    "back_dq_without_scale": (SUMS, "had.x + c.scale * x", "had.x + x"),
    "back_dq_of_before_is_lost": (SUMS, "c.p.from == carry::in", "false"),
    "back_halves_of_dq_swapped": (SUMS, "int const n = 2 * half;", "int const n = 2 - 2 * half;"),
    "back_sums_start_anywhere": (COPIES, "if (before == 0) {\n    clear_sums<count>", "if (false) {\n    clear_sums<count>"),
    "sums_that_nobody_saw_are_read": (SUMS, "from.starts_at_0 || from.after[number] != 0", "true"),
    "sums_cleared_after_the_turn": (COPIES, PREPARE + "    arrive_warp(memory.turn(), lane == 0);\n", "    arrive_warp(memory.turn(), lane == 0);\n" + PREPARE),
    "turn_given_before_all_lanes_cleared": (COPIES, "arrive_warp(memory.turn(), lane == 0);", "if (lane == 0) {\n      arrive(memory.turn());\n    }"),
    "order_told_too_early": (COPIES, "arrive_warp(memory.told(place.stage), is_first_lane);", ""),
    "order_turn_not_waited_for": (STEPS, "wait_for(walk.memory.turn(), order_parity);", ""),
    "order_handed_on_too_early": (COPIES, "wait_for(memory.added(), parity);", ""),
    "order_parity_stays": (STEPS, "order_parity ^= 1;", ""),
    "part_of_another_head": (ORDER, "static_cast<int>(head + group * part / parts),", "static_cast<int>(head),"),
    "tiles_after_those_cut_begin_anew": (ORDER, "(first_tile + rest % tiles)", "(rest % tiles)"),
    "tiles_after_those_cut_in_ranges": (ORDER, "ranges = 1;", ""),
    "tiles_after_those_cut_without_parts": (ORDER, "parts = group;", "parts = 1;"),
    "pieces_of_tiles_cut_counted_again": (ORDER, "rest -= in_parts;", ""),
    "ranges_overlap": (ORDER, "max(0, end - sums.cut)", "max(0, end - sums.cut - 1)"),
    "empty_pieces_not_passed_on": (COPIES, "write_after(written, work.part);", ""),
    "empty_pieces_passed_on_at_once": (COPIES, "wait_for_tile(written, work.part);", ""),
    "steps_written_while_lanes_read": (COPIES, "__syncwarp(); // all lanes have read the steps", ""),
    "steps_of_the_first_head": (COPIES, "__reduce_max_sync(0xffffffffu, end)", "end"),
    "steps_of_the_whole_tile": (COPIES, "min(__reduce_max_sync(0xffffffffu, end), step(1))", "__reduce_max_sync(0xffffffffu, end)"),
    "parts_not_waited_for": (STEPS, "steps.wait_for_part(slice);", ""),
    "part_not_handed_on": (STEPS, "steps.hand_on_part(slice);", ""),
    "parts_handed_on_before_all_have_added": (STEPS, "sums.has_parts()) {\n      meet_consumers();", "sums.has_parts()) {"),
    "slices_share_a_count": (STEPS, "work) + slice", "work)"),
    "a_slice_has_both_halves": (STEPS, "n >= Count / 4 * slice / slices && ", ""),
    "parts_of_another_tile_counted": (ORDER, "(head * tiles + work.first / Keys)", "(head * tiles)"),
    "last_section_of_keys_as_long_as_the_others": (ORDER, "min(section_of_all, streams - begin)", "section_of_all"),
    "steps_of_a_band_end_too_early": (COPIES, "seen.end - query + Shape::step - 1", "seen.end - query"),
    "steps_of_a_band_begin_too_late": (COPIES, "(seen.begin - query) / Shape::step", "(seen.begin - query + Shape::step) / Shape::step"),
    "tile_before_is_never_the_next": (ORDER, "is_next) ? tile : 0", "is_next) ? 0 : 0"),
    "next_keys_before_the_last_are_multiplied": (COPIES, "wait_for_place(used);", ""),
    "next_piece_told_before_the_last_is_done": (STEPS, "  meet_consumers();\n  if (int const n", "  if (int const n"),
    "work_used_before_it_is_copied": (STEPS, "4 * n));\n  }\n  meet_consumers();", "4 * n));\n  }"),
    "end_of_a_piece_not_released": (STEPS, "steps.walk.release(steps.walk.take());", "steps.walk.take();"),
    "keys_of_the_last_piece": (COPIES, "1 - read_slot(parity)", "read_slot(parity)"),
    "only_one_piece": (COPIES, "tell_end(no_more_tiles);", "tell_end(no_more_pieces);"),
    "stage_refilled_before_its_order_is_read": (PARTS, "4 * Shape::consumers + Keeps", "4 * Shape::consumers"),
    "tile_read_once_the_stage_holds_another": (COPIES, "write_after(sums.after + step, tile);", "write_after(sums.after + step, read_slot(memory.tile(place.stage)));"),
    "next_piece_written_while_lanes_read": (COPIES, "__syncwarp(); // all lanes have read the piece before", ""),
    "next_piece_taken_twice": (COPIES, "is_first_lane ? take_piece(sums) : 0, 0)", "is_first_lane ? take_piece(sums) : 0, 0) / 2"),
    "order_not_waited_for": (COPIES, "wait_for_turn<Order>(sums.after + step, before);", ""),
}
# Of head dim 256: what only these kernels have.
WIDE_FORWARD = {
    "wide_halves_of_the_values_alike": (PRODUCTS, "first / panel_width * rows * panel_row_bytes + n", "n"),
    "wide_sums_of_the_halves_alike": (PRODUCTS, "sum[first / 2]", "sum[0]"),
    "wide_panels_of_keys_too_close": (PRODUCTS, "n / 4 * RightRows * panel_row_bytes", "n / 4 * 64 * panel_row_bytes"),
    "wide_outputs_in_the_place_of_values_in_use": (KERNEL, "wait_for(memory.value_empty(consumer()), value.parity ^ (consumer() < value.stage ? 0 : 1));", ""),
    "wide_outputs_await_values_of_before": (KERNEL, "(consumer() < value.stage ? 0 : 1)", "(consumer() < value.stage ? 1 : 0)"),
    "wide_values_in_the_place_of_outputs": (TELLS, "wait_for(memory.outputs_gone(), query_parity ^ 1);", ""),
    "wide_outputs_gone_before_they_are_read": (KERNEL, "wait_for_stores_to_read();\n        arrive(memory.outputs_gone());", "arrive(memory.outputs_gone());"),
    "wide_outputs_of_consumers_in_one_place": (BLOCK, ": value(consumer);", ": value(0);"),
    "wide_mask_of_the_next_column": (KEPT, "n / 2 * 8 + n % 2", "n / 2 * 8 + n % 2 + 1"),
    "wide_mask_of_the_other_row": (SOFTMAX, "kept[i % 4 / 2] >> ", "kept[1 - i % 4 / 2] >> "),
}
WIDE_BACKWARD = {
    "wide_back_logits_read_too_early": (WIDE, "wait_for_products<1>(s);", "wait_for_products<2>(s);"),
    "wide_back_gradients_read_too_early": (WIDE, "wait_for_products<0>(d);", "wait_for_products<1>(d);"),
    "wide_back_sums_read_too_early": (STEPS, "wait_for_products<groups + 1>(me.of_query);", "wait_for_products<groups + 2>(me.of_query);"),
    "wide_back_stage_released_too_early": (STEPS, SUMS_OVER,
                                           "walk.release(stage);\n    wait_for_products<1>(me.of_value);\n    wait_for_products<1>(me.of_key);"),
    "wide_back_no_wait_for_own_tiles": (STEPS, "wait_for(steps.walk.memory.own_full(), read_slot(parity_of(steps.walk.memory.work())));", ""),
    "wide_back_no_proxy_fence": (STEPS, "show_to_copies();", ""),
    "wide_back_consumers_do_not_meet": (STEPS, "show_to_copies();\n    meet_consumers();", "show_to_copies();"),
    "wide_back_places_stay": (WIDE, "turn ^= 1;", ""),
    "wide_back_weights_in_the_place_of_gradients": (WIDE, "keep(packed, turn, of_weights);", "keep(packed, turn, of_gradients);"),
    "wide_back_queries_of_the_first_consumer": (PARTS, "Shape::is_wide ? number * Shape::part : 0", "0"),
    "wide_back_half_of_the_first_consumer": (WIDE, "tile + column * (bytes / panel_width / piece_bytes)", "tile"),
    "wide_back_panels_too_close": (WIDE, "constexpr int bytes = 64 * panel_row_bytes;", "constexpr int bytes = 32 * panel_row_bytes;"),
    "wide_back_dv_of_queries": (WIDE, "where == of_weights ? 1 : 0", "0"),
    "wide_back_rows_of_another_consumer": (PARTS, "Shape::is_wide ? n % 128 : n", "n"),
    "wide_back_columns_of_the_first_half": (WIDE, "return Share == -1 ? steps.walk.number * 128 : Share * 128;", "return 0;"),
    "wide_back_half_of_the_zeros": (COPIES, "n < Count / 4;", "n < Count / 8;"),
    "sums_rounded_before_all_have_added": (STEPS, "  meet_consumers();\n#pragma unroll 1\n  for (int head", "#pragma unroll 1\n  for (int head"),
    "steps_of_the_next_tile_rounded": (STEPS, "!(has_next && sees(step, tile + 1))", "true"),
    "shares_rounded_twice": (STEPS, "n += 128 * shape::consumers)", "n += 128)"),
    "first_step_rounded_again": (STEPS, "{work.batch, head, step * shape::step, 0}", "{work.batch, head, 0, 0}"),
    "first_head_rounded_again": (STEPS, "{work.batch, head, step * shape::step, 0}", "{work.batch, work.head, step * shape::step, 0}"),
    "wide_back_step_too_close": (STEPS, "(shape::step * shape::query_dim);", "(shape::step * shape::query_dim / 2);"),
}
# Of a free order, at head dim 80: what only these kernels have.
FREE = {
    "free_sums_not_cleared": (COPIES, "clear_sums<count>(sums.sums + static_cast<std::int64_t>(step) * count, lane);", ""),
    "free_sums_told_before_all_lanes_cleared": (COPIES, "__syncwarp(); // all lanes have cleared", ""),
    "free_first_tile_not_waited_for": (COPIES, "wait_for_turn<Order>(sums.after + step, before);", ""),
    "free_tiles_counted_from_the_first": (COPIES, "1 + read_slot(memory.tile(stage))", "1"),
    "free_counted_before_it_has_added": (COPIES, EMPTY + COUNT + SLOT, COUNT + "      }\n    }\n  }\n" + EMPTY + ASKED + SLOT),
    "free_step_counted_twice": (COPIES, "write_slot(memory.sums(at.stage), -1);", ""),
    "free_last_stages_not_counted": (COPIES, "wait_for_place(used);",
                                     "wait_for_place<false>(used);"),
    "free_stages_begin_with_a_step": (PARTS, "write_slot(memory.sums(stage), -1);", ""),
    "free_rounded_before_all_tiles_have_added": (STEPS, "wait_for_tile(steps.sums.after + number, tile + 2);", ""),
    "free_rounded_before_all_threads_know": (STEPS, "tile + 2);\n        }\n        meet_consumers();", "tile + 2);\n        }"),
}
KERNELS = {"FORWARD 64": FORWARD, "BACKWARD 64": BACKWARD, "FORWARD 256": WIDE_FORWARD, "BACKWARD 256": WIDE_BACKWARD,
           "FREE 80": FREE}


def names_of(kernel):
    """Of the kernel as it is, which passes all trials, and of its mutants."""
    return [f"whole_{kernel.lower().replace(' ', '_')}", *KERNELS[kernel]]


def planted(include, name, header, old, new):
    """The header and its text with the mistake."""
    text = (include / "pipe/attention" / header).read_text(encoding="utf-8")
    if old not in text:
        sys.exit(f"{header} no longer has the text that the mutant {name} replaces: {old!r}")
    return f"pipe/attention/{header}", text.replace(old, new)


def main():
    if sys.argv[1:] == ["--names"]:
        for kernel in KERNELS:
            for name in names_of(kernel):
                print(kernel, name)
        return
    kernel = " ".join(sys.argv[1:3])
    source, out = map(pathlib.Path, sys.argv[3:5])
    if source.suffix == ".ptx":
        planted_kernels.split(source.read_text(encoding="utf-8"), names_of(kernel), out)
        return
    shutil.rmtree(out, ignore_errors=True)  # headers that another version of the mutants broke
    sources = ["mutant.cu"] if sys.argv[1] == "FORWARD" else ["mutant.cu", "mutant_sums.cu"]
    planted_kernels.plant(source, [pathlib.Path(__file__).parent / name for name in sources], out,
                          [None, *(planted(source, name, *mutant) for name, mutant in KERNELS[kernel].items())])


if __name__ == "__main__":
    main()
