#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Plants bugs into copies of the executors for CUDA, of which a program chooses one when it runs.

usage: mutants.py ROOT OUT

Writes OUT/pipe/..., the headers with bugs, OUT/planted.cu, the source to compile with OUT before other include paths, and
OUT/names.cpp. ROOT is the root of the repository.
"""
import pathlib
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from planted_headers import edits_of, planted, write  # noqa: E402

DEVICE, COPIES, STREAMS, BOARD = "device_board.cuh", "stream_plan.cuh", "streams.cuh", "device_board.cuh"
HANDLES, MESSAGES, WAIT = "handles.cuh", "nccl_messages.cuh", "rank_wait.cuh"
MACHINE, FAILURE, HEADER = "nccl_machine.cuh", "nccl.cuh", "checked_messages.cuh"
GUARD, GUARDS, RANKS = "communicators.cuh", "device_guards.cuh", "nccl_options.cuh"
LAUNCHER, STREAM_PLAN, NCCL_PLAN = "graph_launcher.cuh", "stream_plan.cuh", "nccl_plan.cuh"
EXECUTE = "execute.hpp"

# What is wrong, the header, what stands there, what stands there instead. Statements are chosen between when the program
# runs; in what has PLANTED, which is true for its bug, the choice is made by hand. The first is the executor itself.
MUTANTS = [
    ("nothing", EXECUTE, "", ""),
    ("drop all waits", EXECUTE, "device.wait_for(wait, step);", "(void)wait;"),
    ("drop the first wait of an item", EXECUTE, "device.wait_for(wait, step);",
     "if (wait != work.waits_of(step).front()) device.wait_for(wait, step);"),
    ("drop the waits of messages", EXECUTE, "device.wait_for(wait, step);",
     "if (step.what == operation::run) device.wait_for(wait, step);"),
    ("drop the waits of passes", EXECUTE, "device.wait_for(wait, step);",
     "if (step.what != operation::run) device.wait_for(wait, step);"),
    ("let the compute stream wait in place of the lane", DEVICE,
     "board.wait_for(earlier, board.stream_for(step));", "board.wait_for(earlier, board.compute());"),
    ("note a pass as complete before it runs", DEVICE,
     "board.enter(index, its);\n    enqueue(step, its);\n    board.leave(index, its);",
     "board.complete(index, its);\n    enqueue(step, its);"),
    ("note a pass as complete on another stream", DEVICE, "board.leave(index, its);",
     "board.leave(index, board.stream_at(board.stream_count() - 1));"),
    # With a plus, so that no later edit finds its text in the new one: each would double what stands there.
    ("copy out before the pass has ended", EXECUTE, "device.wait_for(wait, step);",
     "if (!is_copy(work.over.declared, step) || work.use_at(slot_place::outputs, step).of != slot_class::host_activation) device.wait_for(+wait, step);"),
    ("read what is copied in before it has come", EXECUTE, "device.wait_for(wait, step);",
     "item const& before = steps[static_cast<std::size_t>(wait)];\n"
     "if (is_copy(work.over.declared, step) || !is_copy(work.over.declared, before) || work.use_at(slot_place::outputs, before).of == slot_class::host_activation)\n"
     "  device.wait_for(+wait, step);"),
    ("write what is copied out before it has left", EXECUTE, "device.wait_for(wait, step);",
     "item const& before = steps[static_cast<std::size_t>(wait)];\n"
     "if (is_copy(work.over.declared, step) || !is_copy(work.over.declared, before) || work.use_at(slot_place::outputs, before).of != slot_class::host_activation)\n"
     "  device.wait_for(+wait, step);"),
    ("copy in before it has been copied out and asked for", EXECUTE, "device.wait_for(wait, step);",
     "if (!is_copy(work.over.declared, step) || work.use_at(slot_place::outputs, step).of == slot_class::host_activation) device.wait_for(+wait, step);"),
    ("take a host slot before it is free", EXECUTE, "device.wait_for(wait, step);",
     "if (!is_copy(work.over.declared, step) || !is_copy(work.over.declared, steps[static_cast<std::size_t>(wait)]) ||\n"
     "    work.use_at(slot_place::outputs, step).of != slot_class::host_activation) device.wait_for(+wait, step);"),
    ("gather before it has been asked for, or into a slot that is in use", EXECUTE, "device.wait_for(wait, step);",
     "if (work.over.declared[step.work.kind].calls != stage_call::gather_weights) device.wait_for(+wait, step);"),
    ("use weights before they have been gathered", EXECUTE, "device.wait_for(wait, step);",
     "if (work.over.declared[step.work.kind].calls != stage_call::use_weights) device.wait_for(+wait, step);"),
    ("scatter before the last gradient", EXECUTE, "device.wait_for(wait, step);",
     "if (work.over.declared[step.work.kind].calls != stage_call::scatter_gradients) device.wait_for(+wait, step);"),
    ("copy from the first slot", DEVICE, "memory.input_of(step).data,",
     "memory.at([&] {\n      auto from = memory.work.use_at(rooms::slot_place::inputs, step);\n"
     "      from.index = PLANTED ? 0 : from.index;\n      return from;\n    }()).data,"),
    ("copy into the first slot", DEVICE, "buffer const to = memory.output_of(step);",
     "auto into = memory.work.use_at(rooms::slot_place::outputs, step);\n    into.index = PLANTED ? 0 : into.index;\n"
     "    buffer const to = memory.at(into);"),
    ("copy half of a slot", DEVICE, "static_cast<std::size_t>(to.bytes),",
     "static_cast<std::size_t>(to.bytes) / (PLANTED ? 2 : 1),"),
    ("note a copy as complete before it is enqueued", DEVICE, "if (to.bytes > 0) //",
     "if (PLANTED)\n      board.complete(index, on);\n    if (to.bytes > 0) //",
     "board.leave(index, on);", "if (!PLANTED)\n      board.leave(index, on);"),
    ("keep host slots on the device", BOARD, "host_memory(),\n            guards_",
     "PLANTED ? memory() : host_memory(),\n            guards_"),
    ("keep host slots in pageable memory", HANDLES,
     'check(cudaMallocHost(&memory, static_cast<std::size_t>(bytes)), "cudaMallocHost");',
     "memory = ::operator new(static_cast<std::size_t>(bytes));",
     "//! @brief Memory of the host that devices copy",
     "inline int free_planted(void* memory) {\n  if (PLANTED)\n    ::operator delete(memory);\n  else\n"
     "    (void)cudaFreeHost(memory);\n  return 0;\n}\n//! @brief Memory of the host that devices copy",
     "cudaFreeHost> data_;", "free_planted> data_; // PLANTED"),
    ("skip the fork", BOARD, "start_->block(stream_at(index));", "(void)index;"),
    ("skip the join", BOARD, "end.block(compute());", ""),
    ("join before the last stream", BOARD,
     "void join() {\n    for (int index = 1; index < stream_count(); ++index) {",
     "void join() {\n    for (int index = 1; index + (PLANTED ? 1 : 0) < stream_count(); ++index) {"),
    ("copy before the other end has come", COPIES, "theirs.come->block(mine.lane);", ""),
    ("let the other end go on before the copy", COPIES, "mine.come->block(theirs.lane);", ""),
    ("copy a word too few", COPIES, "static_cast<std::size_t>(bytes);",
     "static_cast<std::size_t>(bytes) - (PLANTED ? 8 : 0);"),
    ("copy in the other direction", COPIES,
     "point.receiver.data, point.sender.data, size",
     "PLANTED ? point.sender.data : point.receiver.data, PLANTED ? point.receiver.data : point.sender.data, size"),
    ("keep half a message of a step that failed", STREAM_PLAN, "transport->reset();", ""),
    ("start devices before the origin", STREAM_PLAN,
     "boards.front().start_after(origin(), board.compute());", "(void)board;"),
    ("end before the other devices", STREAM_PLAN, "board.start_after(board.compute(), origin());", "(void)board;"),
    ("end before the lanes", STREAM_PLAN, "board.join();\n      if", "if (!PLANTED)\n        board.join();\n      if"),
    ("do not wait for the end", STREAMS, "return machine_->iteration_end->happened();", "return true;"),
    ("run ahead without bound on streams", STREAMS, "board.has_room_for(work.position[d])",
     "(PLANTED || board.has_room_for(work.position[d]))"),
    ("poison nothing", GUARDS, "fill(start, rooms::poison_byte, bytes, on);", ""),
    ("take the ends of outputs before they are written", DEVICE,
     "enqueue(step, its);\n    board.leave(index, its);",
     "if (board.guards() != nullptr)\n      board.guards()->after(index, its);\n"
     "    enqueue(step, its);\n    board.complete(index, its);"),
    ("compare no ends of outputs", GUARDS, "check_ends(on);", ""),
    ("compare no guards", GUARDS, "if (changed != found.end())", "if (changed != found.end() && !PLANTED)"),
    ("keep what was captured", HANDLES, "cudaError_t const freed = cudaGraphDestroy(captured);",
     "cudaError_t const freed = PLANTED ? cudaSuccess : cudaGraphDestroy(captured);"),
    ("use memory before it is filled", HANDLES, 'check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");', ""),
    ("leave 'not ready' as the last error", HANDLES, "(void)cudaGetLastError();\n    return false;", "return false;"),
    ("swap the slots of a group", MESSAGES, "own.slots().message(step), on);",
     "own.slots().message(PLANTED ? group[group.size() - 1 - static_cast<std::size_t>(&step - group.data())] : step)"
     ", on);"),
    ("ungroup", MESSAGES, "bool const several = group.size() > 1", "bool const several = group.size() > 1 && !PLANTED"),
    ("ungroup on one rank", MESSAGES, "bool const several = group.size() > 1",
     "bool const several = group.size() > 1 && !(PLANTED && device_ == 1)"),
    ("send a word too few", MESSAGES, "ncclSend(data, count,", "ncclSend(data, count - (PLANTED ? 8 : 0),"),
    ("receive a word too few", MESSAGES, "ncclRecv(data, count,", "ncclRecv(data, count - (PLANTED ? 8 : 0),"),
    ("swap send and receive", MESSAGES, "bool const sends = step.what == operation::send;\n    int const other",
     "bool const sends = step.what == (PLANTED ? operation::receive : operation::send);\n    int const other"),
    ("post on the compute stream", MESSAGES, "cudaStream_t const on = own.board.stream_for(group.front());",
     "cudaStream_t const on = PLANTED ? own.board.stream_at(own.board.stream_count() - 1)\n"
     "                                    : own.board.stream_for(group.front());"),
    ("note messages as complete before they are posted", MESSAGES, "start(lane, several, [&] {",
     "for (std::size_t k = 0; PLANTED && k < group.size(); ++k)\n"
     "      own.board.complete(first + static_cast<int>(k), on);\n"
     "    start(lane, several, [&] {",
     # Recorded again after the post, these would hide the early ones.
     "for (std::size_t k = 0; k < group.size(); ++k)\n      own.board.complete(first",
     "for (std::size_t k = 0; !PLANTED && k < group.size(); ++k)\n      own.board.complete(first"),
    ("send to the wrong rank", MESSAGES, "int const peer = lane.members().rank_of(spread && sends ? device_ : other);",
     "int const peer = (lane.members().rank_of(spread && sends ? device_ : other) + (PLANTED ? 1 : 0)) %\n"
     "                     static_cast<int>(lane.members().devices.size());"),
    ("do not connect before the first step", MACHINE, "if (coming_->lowered.lanes_of(rank_) > 0)",
     "if (coming_->lowered.lanes_of(rank_) > (PLANTED ? 1000 : 0))"),
    ("leave the graph when closing", MACHINE, "for (auto const& each : plans_)\n      each->iteration.destroy();\n    messages_.close",
     "for (auto const& each : plans_)\n      if (!PLANTED)\n        each->iteration.destroy();\n    messages_.close"),
    ("abort before the graph is destroyed", MACHINE, "if (launched)\n        for (auto const& each : plans_)\n          each->iteration = graph();", ""),
    ("destroy a graph in its launch", MACHINE, "if (launched)\n        for (auto const& each : plans_)\n          each->iteration = graph();",
     "for (auto const& each : plans_)\n        each->iteration = graph();"),
    ("launch a graph where the rank cannot leave it", MACHINE,
     "launcher_->begin(run.iteration, origin(), iteration_end_);",
     "run.iteration.launch(origin());\n    iteration_end_.record(origin());"),
    ("abort nothing while a graph is in its launch", MACHINE, "messages_.start_abort();", "(void)0;"),
    ("forget that a launch has failed", LAUNCHER, "std::rethrow_exception(failure);", "(void)failure;"),
    ("wait for a launch far beyond the deadline", LAUNCHER, "[this] { return idle(); }",
     "[this] {\n      if (PLANTED)\n        Clock::sleep_for(std::chrono::seconds(1));\n      return idle();\n    }"),
    ("leave the end of a graph unrecorded", LAUNCHER, "all.behind->record(all.on);", ""),
    ("launch a graph on streams where the host cannot leave it", STREAMS,
     "launcher_->begin(now_->iteration, origin(), *machine_->iteration_end);",
     "now_->iteration.launch(origin());\n    machine_->iteration_end->record(origin());"),
    ("keep a failure to oneself", FAILURE, "where.cause = why.stop.cause;",
     "where.cause = detail::rooms::failure_cause::told;"),
    ("do not look at communicators", MACHINE, "messages_.look();", ""),
    ("do not join the lanes at the end", DEVICE, "void finish() { board.join(); }",
     "void finish() {\n    if (!PLANTED)\n      board.join();\n  }"),
    ("do not fork the lanes at the start", MACHINE, "run.board.fork(captured);", ""),
    ("let the branches of a graph go in any order", NCCL_PLAN, "options.one_message_stream || options.graph ||",
     "options.one_message_stream || (options.graph && !PLANTED) ||"),
    ("wait far beyond the deadline", WAIT, "countdown<Clock> left(deadline);",
     "countdown<Clock> left((PLANTED ? 1000 : 1) * deadline);",
     "step->is_over()", "!PLANTED && step->is_over()"),
    ("do not wait until a group is launched", MESSAGES, 'settle(lane, "a group of messages");', ""),
    ("abort one communicator after the other", GUARD, "note(ncclCommAbort(each.handle));",
     "{\n        note(ncclGroupEnd());\n        note(ncclCommAbort(each.handle));\n"
     "        note(ncclGroupStart());\n      }"),
    ("abort the communicator in a launch first", GUARD, "return a.settled && !b.settled;", "return b.settled && !a.settled;"),
    ("close before the others have ended", MACHINE, 'meet("at the end of its last step");', ""),
    ("end a capture that NCCL still adds to", MACHINE, "return messages_.quiet();", "return PLANTED || messages_.quiet();"),
    ("count blocks as the program caps them", RANKS, "blocks *= 2;", "++blocks;"),
    ("count no registered communicators for the streams", NCCL_PLAN, "registered_blocks(options);",
     "(PLANTED ? 0 : registered_blocks(options));"),
    ("make room for one registered communicator only", RANKS, "blocks += most_blocks(each.max_blocks);",
     "blocks = most_blocks(each.max_blocks);"),
    ("count no lane beside registered communicators", RANKS, "if (registered + own <= processors)",
     "if (registered + (PLANTED ? 0 : own) <= processors)"),
    ("do not wait until the first use is launched", MESSAGES, 'settle(lane, "the first use of a peer");', ""),
    ("wait for the abort far beyond its deadline", GUARD, "countdown<Clock> left(patience);",
     "countdown<Clock> left((PLANTED ? 20 : 1) * patience);"),
    ("run ahead without bound", MACHINE, "wait_until([&] { return run.board.has_room_for(next); });", "(void)0;"),
    ("leave a late step to itself", MACHINE, "messages_.arm(begin);", ""),
    ("destroy a graph without looking", MACHINE, "each->iteration.destroy();", "each->iteration = graph();"),
    ("compare no numbers of steps", HEADER, "if (expected.words[field] !=",
     "if (field != 1 && expected.words[field] !="),
    ("compare no senders", HEADER, "if (expected.words[field] !=", "if (field != 2 && expected.words[field] !="),
    ("compare no numbers of messages", HEADER, "if (expected.words[field] !=",
     "if (field != 4 && expected.words[field] !="),
    ("compare no checksums", HEADER, "if (expected.words[field] !=", "if (field != 6 && expected.words[field] !="),
    ("sum up half of a message", HEADER, "bool const aligned =", "bytes /= 2;\n  bool const aligned ="),
    ("make headers beside the lane", MESSAGES, "checks->seal(index, own.slots(), on);",
     "checks->seal(index, own.slots(), own.board.compute());"),
    ("check messages beside the lane", MESSAGES, "checks->compare(index, own.slots(), on);",
     "checks->compare(index, own.slots(), own.board.compute());"),
    ("check nothing in a graph", MACHINE, "run.checks->end(origin());", "if (!captured)\n        run.checks->end(origin());"),
    ("count no steps in a graph", MACHINE, "run.checks->begin(origin());",
     "if (!captured)\n        run.checks->begin(origin());"),
    ("do not look at what was found", MACHINE, "if (running_->checks)\n      trust_messages();", ""),
]

# Kernels cannot look at a variable of the host: each bug among these is planted into kernels of its own.
KERNELS = re.compile(r"(?ms)^__device__ .*?(?=^static inline checking_kernels)")


def with_kernels(text, edits):
    """The kernels once more for each bug in them."""
    kernels = KERNELS.search(text)
    copies, choices = "", ""
    for number, name, _, old, new in edits:
        if kernels.group().count(old) == 0:
            sys.exit(f"mutants.py: '{name}' looks for text that the kernels do not have: {old}")
        # A name of its own, since the first one is found by the type of its argument, too.
        own = kernels.group().replace(old, new).replace("header_of(", f"header_of_{number}(")
        copies += f"namespace planted_{number} {{\n{own}}}\n"
        choices += f"  if (planted_bug == {number}) {{\n"
        choices += "".join(f"    auto const {at} = reinterpret_cast<void const*>(&planted_{number}::{at}_kernel);\n"
                           for at in ("count_step", "seal", "check"))
        choices += "    return {count_step, seal, check};\n  }\n"
    opening = "static inline checking_kernels kernels_for_checks() {\n"
    return (text[:kernels.end()] + copies + text[kernels.end():]).replace(opening, opening + choices, 1)


def plant(root, out, mutants):
    """Writes the headers that have bugs, where an include path before that of the library finds them."""
    in_kernels, others = [], []
    for number, name, header, old, new in edits_of(mutants):
        folder = "run" if header.endswith(".hpp") else "cuda"
        (in_kernels if header == HEADER else others).append((number, name, f"pipe/{folder}/{header}", old, new))
    texts = planted(root / "include", others)
    if in_kernels:
        path = in_kernels[0][2]
        texts[path] = with_kernels((root / "include" / path).read_text(encoding="utf-8"), in_kernels)
    for path, text in texts.items():
        write(out / path, text.replace("#pragma once\n", "#pragma once\n#include <tests/cuda/planted_bug.hpp>\n", 1))


def write_names(path, function, mutants):
    write(path, "#include <string>\n#include <vector>\n\n// What is wrong, by the number of the bug.\n"
                f"std::vector<std::string> {function}() {{\n  return {{\n"
                + "".join(f'    "{mutant[0]}",\n' for mutant in mutants) + "  };\n}\n")


def main():
    root, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    plant(root, out, MUTANTS)
    write(out / "planted.cu", "#include <tests/cuda/streams.cu>\n#include <tests/cuda/nccl.cu>\n")
    write_names(out / "names.cpp", "names_of_mutants", MUTANTS)


if __name__ == "__main__":
    main()
