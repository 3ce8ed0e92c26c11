#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Plants one bug each into copies of the executors for CUDA, side by side in namespaces of their own.

usage: mutants.py ROOT OUT PARTS

Writes OUT/mutants_0.cu ... and the folders of headers that they include. ROOT is the root of the repository.
"""
import pathlib
import re
import sys

DEVICE, COPIES, STREAMS = "stream_device.cuh", "peer_copies.cuh", "streams.cuh"
HANDLES, MESSAGES, PATIENCE = "handles.cuh", "nccl_messages.cuh", "patience.cuh"
MACHINE, FAILURE, HEADER = "nccl_machine.cuh", "nccl_failure.cuh", "message_header.cuh"
GUARD, GUARDS, RANKS = "communicator_guard.cuh", "device_guards.cuh", "nccl_ranks.cuh"
LAUNCHER = "graph_launcher.cuh"
EXECUTE = "execute.hpp"

# What is wrong, the header, what stands there, what stands there instead. The first is the executor itself.
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
     "run_item(stages, slots(), step, board.compute());\n    board.complete(index, board.compute());",
     "board.complete(index, board.compute());\n    run_item(stages, slots(), step, board.compute());"),
    ("note a pass as complete on another stream", DEVICE, "board.complete(index, board.compute());",
     "board.complete(index, board.stream_at(board.stream_count() - 1));"),
    ("skip the fork", DEVICE, "start_->block(stream_at(index));", "(void)index;"),
    ("skip the join", DEVICE, "end.block(compute());", ""),
    ("join before the last stream", DEVICE,
     "void join() {\n    for (int index = 1; index < stream_count(); ++index) {",
     "void join() {\n    for (int index = 1; index + 1 < stream_count(); ++index) {"),
    ("copy before the other end has come", COPIES, "theirs.come->block(mine.lane);", ""),
    ("let the other end go on before the copy", COPIES, "mine.come->block(theirs.lane);", ""),
    ("copy a word too few", COPIES, "static_cast<std::size_t>(bytes);", "static_cast<std::size_t>(bytes) - 8;"),
    ("copy in the other direction", COPIES,
     "point.receiver.data, point.sender.data, size", "point.sender.data, point.receiver.data, size"),
    ("keep half a message of a step that failed", STREAMS, "machine_->transport->reset();", ""),
    ("start devices before the origin", STREAMS,
     "machine_->boards.front().start_after(origin(), board.compute());", "(void)board;"),
    ("end before the other devices", STREAMS, "board.start_after(board.compute(), origin());", "(void)board;"),
    ("end before the lanes", STREAMS, "board.join();\n      if", "if"),
    ("do not wait for the end", STREAMS, "return machine_->iteration_end.happened();", "return true;"),
    ("run ahead without bound on streams", STREAMS, "board.has_room_for(position_[d])", "true"),
    ("poison nothing", GUARDS, "fill(start, pipelining::detail::poison_byte, bytes, on);", ""),
    ("compare no guards", GUARDS, "if (changed != last)", "if (false)"),
    ("keep what was captured", HANDLES, "cudaError_t const freed = cudaGraphDestroy(captured);",
     "cudaError_t const freed = cudaSuccess;"),
    ("use memory before it is filled", HANDLES, 'check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");', ""),
    ("leave 'not ready' as the last error", HANDLES, "(void)cudaGetLastError();\n    return false;", "return false;"),
    ("swap the slots of a group", MESSAGES, "own.slots().message(step).data, on);",
     "own.slots().message(group[group.size() - 1 - static_cast<std::size_t>(&step - group.data())]).data, on);"),
    ("ungroup", MESSAGES, "bool const several = group.size() > 1", "bool const several = false && group.size() > 1"),
    ("ungroup on one rank", MESSAGES, "bool const several = group.size() > 1",
     "bool const several = device_ != 1 && group.size() > 1"),
    ("send a word too few", MESSAGES, "static_cast<std::size_t>(step.in_bytes)",
     "static_cast<std::size_t>(step.in_bytes) - 8"),
    ("receive a word too few", MESSAGES, "static_cast<std::size_t>(step.out_bytes)",
     "static_cast<std::size_t>(step.out_bytes) - 8"),
    ("swap send and receive", MESSAGES, "if (step.what == operation::send)\n", "if (step.what == operation::receive)\n"),
    ("post on the compute stream", MESSAGES, "cudaStream_t const on = own.board.stream_for(group.front());",
     "cudaStream_t const on = own.board.stream_at(own.board.stream_count() - 1);"),
    ("note messages as complete before they are posted", MESSAGES, "if (several)\n        check(ncclGroupStart()",
     "for (std::size_t k = 0; k < group.size(); ++k)\n"
     "        own.board.complete(first + static_cast<int>(k), on);\n"
     "      group = group;\n      if (several)\n        check(ncclGroupStart()"),
    ("send to the wrong rank", MESSAGES, "int const peer = lane.members().rank_of(step.peer);",
     "int const peer = (lane.members().rank_of(step.peer) + 1) %\n"
     "                     static_cast<int>(lane.members().devices.size());"),
    ("do not connect before the first step", MACHINE, "if (board_.stream_count() > 1)",
     "if (board_.stream_count() > 1000)"),
    ("leave the graph when closing", MACHINE, "iteration_.destroy();\n    messages_.close",
     "messages_.close"),
    ("abort before the graph is destroyed", MACHINE, "if (launched)\n        iteration_ = graph();", ""),
    ("destroy a graph in its launch", MACHINE, "if (launched)\n        iteration_ = graph();", "iteration_ = graph();"),
    ("launch a graph where the rank cannot leave it", MACHINE,
     "launcher_->begin(iteration_, origin(), iteration_end_);",
     "iteration_.launch(origin());\n    iteration_end_.record(origin());"),
    ("abort nothing while a graph is in its launch", MACHINE, "messages_.start_abort();", "(void)0;"),
    ("forget that a launch has failed", LAUNCHER, "std::rethrow_exception(failure);", "(void)failure;"),
    ("wait for a launch far beyond the deadline", LAUNCHER, "if (Clock::now() >= latest) {",
     "if (Clock::now() >= latest + std::chrono::seconds(1)) {"),
    ("leave the end of a graph unrecorded", LAUNCHER, "all.behind->record(all.on);", ""),
    ("launch a graph on streams where the host cannot leave it", STREAMS,
     "launcher_->begin(machine_->iteration, origin(), machine_->iteration_end);",
     "machine_->iteration.launch(origin());\n    machine_->iteration_end.record(origin());"),
    ("keep a failure to oneself", FAILURE, "line_.abort(reason_);", "(void)0;"),
    ("do not look at communicators", MACHINE, "messages_.look();", ""),
    ("do not join the lanes at the end", MACHINE, "board_.join();\n    if (checks_)", "if (checks_)"),
    ("do not fork the lanes at the start", MACHINE, "board_.fork(captured);", ""),
    ("let the branches of a graph go in any order", MACHINE, "options_.one_message_stream || options_.graph ||",
     "options_.one_message_stream ||"),
    ("wait far beyond the deadline", PATIENCE, "std::min(Clock::now() + deadline, latest);",
     "Clock::now() + 1000 * deadline;"),
    ("do not wait until a group is launched", MESSAGES, 'settle(own.waiting, lane, "a group of messages");', ""),
    ("abort one communicator after the other", GUARD, "note(ncclCommAbort(each.handle));",
     "{\n        note(ncclGroupEnd());\n        note(ncclCommAbort(each.handle));\n"
     "        note(ncclGroupStart());\n      }"),
    ("abort the communicator in a launch first", GUARD, "return each.settled;", "return !each.settled;"),
    ("close before the others have ended", MACHINE, 'meet("at the end of its last step");', ""),
    ("end a capture that NCCL still adds to", MACHINE, "while (!messages_.quiet() && Clock::now() < end)",
     "while (false && Clock::now() < end)"),
    ("count blocks as the program caps them", RANKS, "blocks *= 2;", "++blocks;"),
    ("count no registered communicators for the streams", MACHINE, "detail::registered_blocks(options_);", "0;"),
    ("make room for one registered communicator only", RANKS, "blocks += most_blocks(each.max_blocks);",
     "blocks = most_blocks(each.max_blocks);"),
    ("count no lane beside registered communicators", RANKS, "if (registered + own <= processors)",
     "if (registered <= processors)"),
    ("do not wait until the first use is launched", MESSAGES, 'settle(waiting, lane, "the first use of a peer");', ""),
    ("wait for the abort far beyond its deadline", GUARD, "auto const latest = Clock::now() + patience;",
     "auto const latest = Clock::now() + 20 * patience;"),
    ("run ahead without bound", MACHINE, "if (board_.has_room_for(position_))", "if (true)"),
    ("leave a late step to itself", MACHINE, "messages_.arm(", "(void)("),
    ("destroy a graph without looking", MACHINE, "iteration_.destroy();", "iteration_ = graph();"),
    ("compare no numbers of steps", HEADER, "if (expected.words[field] !=",
     "if (field != 1 && expected.words[field] !="),
    ("compare no senders", HEADER, "if (expected.words[field] !=", "if (field != 2 && expected.words[field] !="),
    ("compare no numbers of messages", HEADER, "if (expected.words[field] !=",
     "if (field != 4 && expected.words[field] !="),
    ("compare no checksums", HEADER, "if (expected.words[field] !=", "if (field != 6 && expected.words[field] !="),
    ("sum up half of a message", HEADER, "bool const aligned =", "bytes /= 2;\n  bool const aligned ="),
    ("make headers beside the lane", MESSAGES, "checks_->seal(index, own.slots(), on);",
     "checks_->seal(index, own.slots(), own.board.compute());"),
    ("check messages beside the lane", MESSAGES, "checks_->compare(index, own.slots(), on);",
     "checks_->compare(index, own.slots(), own.board.compute());"),
    ("check nothing in a graph", MACHINE, "checks_->end(origin());", "if (!captured)\n        checks_->end(origin());"),
    ("count no steps in a graph", MACHINE, "checks_->begin(origin());",
     "if (!captured)\n        checks_->begin(origin());"),
    ("do not look at what was found", MACHINE, "if (checks_)\n      trust_messages();", ""),
]

# Mutated by hand above: events recorded again after the post would hide the early ones.
ONLY_EARLY = "note messages as complete before they are posted"
LATE = re.compile(r'(settle\(own\.waiting, lane, "a group of messages"\);\n)(.*?complete\(first.*?\n)', re.DOTALL)


def write(path, text):
    """Leaves a file alone that holds the text already, so that nothing is compiled twice."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def headers_of(root):
    pipe = root / "include" / "pipe"
    files = {path.name: path.read_text(encoding="utf-8") for path in sorted((pipe / "cuda").glob("*.cuh"))}
    files[EXECUTE] = (pipe / "run" / EXECUTE).read_text(encoding="utf-8")
    return files


def mutate(files, mutant):
    name, header, old, new = mutant
    if old:
        if files[header].count(old) == 0:
            sys.exit(f"mutants.py: '{name}' looks for text that {header} does not have: {old}")
        files = dict(files)
        files[header] = files[header].replace(old, new)
        if name == ONLY_EARLY:
            files[header] = LATE.sub(r"\1", files[header])
    return files


def rename(text, number):
    tag = f"m{number}"
    text = re.sub(r"<pipe/cuda/", f"<{tag}/", text)
    text = text.replace("<pipe/run/execute.hpp>", f"<{tag}/execute.hpp>")
    text = re.sub(r"\b(execute_item|execute|execution_device|composing_device)\b(?!\.hpp)", rf"\1_{tag}", text)
    text = re.sub(r"\bnamespace cuda\b", f"namespace cuda_{tag}", text)
    return re.sub(r"(?<!<pipe/)\bcuda::", f"cuda_{tag}::", text)


def driver(text, number):
    text = rename(text, number)
    text = re.sub(r"\b(run_on_ranks|run_on_streams)\b", rf"\1_m{number}", text)
    return text.replace("namespace {", f"namespace m{number} {{").replace("namespace pp = pipelining;", "")


def headers_behind(text, files):
    """The headers among `files` that a source includes, directly or not."""
    found, left = set(), [text]
    while left:
        for path in re.findall(r"<pipe/(?:cuda|run)/([^>]+)>", left.pop()):
            if path in files and path not in found:
                found.add(path)
                left.append(files[path])
    return found


def main():
    root, out, parts = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
    files = headers_of(root)
    tests = root / "tests" / "cuda"
    sources = [(tests / name).read_text(encoding="utf-8") for name in ("streams.cu", "nccl.cu")]
    # Which driver a bug can change; the other is that of the executors without one.
    behind = [headers_behind(text, files) for text in sources]
    planted = [[number if not mutant[2] or mutant[1] in headers else 0 for headers in behind]
               for number, mutant in enumerate(MUTANTS)]
    bodies = [[] for _ in range(parts)]
    for number, mutant in enumerate(MUTANTS):
        for name, text in mutate(files, mutant).items():
            write(out / f"m{number}" / name, rename(text, number))
        includes, code = [], []
        for source, own in zip(sources, planted[number]):
            if own != number:
                continue
            text = driver(source, number)
            includes += re.findall(r"^#include .*$", text, re.MULTILINE)
            code.append(re.sub(r"^(#include .*|// SPDX.*)$", "", text, flags=re.MULTILINE))
        # The functions of the drivers' unnamed namespaces are found from outside of their own.
        code = [re.sub(r"(?ms)^(streams_result|nccl_result) (run_on_\w+)\((.*?)\) \{",
                       rf"\1 \2(\3) {{\n  using namespace m{number};", each) for each in code]
        bodies[number * parts // len(MUTANTS)].append("\n".join(includes + code))
    for part, body in enumerate(bodies):
        write(out / f"mutants_{part}.cu", "namespace pipelining {}\nnamespace pp = pipelining;\n" + "\n".join(body))
    table = '#include <tests/cuda/mutants.hpp>\n\n'
    for number in range(len(MUTANTS)):
        table += f"streams_result run_on_streams_m{number}(streams_case const&);\n"
        table += f"nccl_result run_on_ranks_m{number}(nccl_case const&);\n"
    table += "\nstd::vector<mutant> all_mutants() {\n  return {\n"
    for mutant, (streams, ranks) in zip(MUTANTS, planted):
        table += f'    {{"{mutant[0]}", run_on_streams_m{streams}, run_on_ranks_m{ranks}}},\n'
    write(out / "table.cpp", table + "  };\n}\n")


if __name__ == "__main__":
    main()
