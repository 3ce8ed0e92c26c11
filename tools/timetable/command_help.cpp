// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/view/append.hpp>

#include <string>

#include "command_line.hpp"

namespace examples {

std::string describe_setting(command const& asked) {
  // A time as it was given; means have more digits than anybody reads.
  auto const time = [&asked](double value) {
    std::string text;
    if (asked.measured)
      pipelining::append_significant(text, value, 4);
    else
      pipelining::append(text, value);
    return text;
  };
  std::string text;
  pipelining::append(
    text, asked.choice.devices, " devices, ", asked.choice.microbatches, " microbatches; ");
  if (asked.measured)
    pipelining::append(text, "costs from ", asked.cost_file, ", in the mean ");
  pipelining::append(
    text, "a device's share of the model takes forward ", time(asked.cost.forward));
  pipelining::append(text, ", backward_input ", time(asked.cost.backward_input));
  pipelining::append(text, ", backward_weight ", time(asked.cost.backward_weight));
  pipelining::append(text, "; a message takes ", time(asked.cost.communication), "\n");
  return text;
}

std::string help_text() {
  return "usage: timetable NAME --devices P --microbatches M [option ...]\n"
         "       timetable csv FILE [option ...]\n"
         "       timetable compare --devices P --microbatches M [option ...]\n"
         "       timetable search --devices P --microbatches M --memory X [option ...]\n"
         "       timetable choose --help\n"
         "       timetable systems OPTIONS OF CHOOSE\n"
         "       timetable blocks [--devices P] [--legs N] [--chunks C,...] [--format "
         "text|svg|cpp]\n"
         "       timetable gaps --devices P --microbatches M [--cost F,I,W[,COMM]]\n"
         "       timetable reproduce TABLE\n"
         "       timetable --list\n"
         "\n"
         "Prints the timetable of a pipeline schedule: which device runs which pass when. FILE is\n"
         "a schedule in the format of torch.distributed.pipelining, with or without messages.\n"
         "compare prints one line of figures for every schedule; its costs, limits and peaks are\n"
         "those of a device's share of the model for a whole microbatch, so that all do the same\n"
         "work. systems prints a table of all of them for one model, as choose takes it: time,\n"
         "memory and messages. blocks prints the least bubble that building blocks give for their\n"
         "memory. search makes better orders of its own; its costs and its limit are those of a\n"
         "share, too.\n"
         "\n"
         "  --devices P            devices of the pipeline\n"
         "  --microbatches M       microbatches of one step\n"
         "  --cost F,I,W[,COMM]    times of one forward, one backward for the input and one\n"
         "                         for the weights of one stage (of one chunk where there are\n"
         "                         chunks), and of one message; a fused backward takes I + W;\n"
         "                         default 1,1,1,0\n"
         "  --cost FILE            times that were measured, of every stage and chunk; see\n"
         "                         docs/how_to/measure_and_plan_again.md\n"
         "  --format FORMAT        text (default), csv (one line per pass), json, svg,\n"
         "                         html (a page to zoom into, with sliders for the times),\n"
         "                         trace (for ui.perfetto.dev and chrome://tracing), pytorch or\n"
         "                         pytorch-comms (a FILE without and with messages), calls (of\n"
         "                         CUDA and NCCL), or memory (slots and where they lie)\n"
         "  --against NAME         of html: a second schedule below, with the same work\n"
         "  --torch VERSION        of pytorch-comms: the version that reads the file, 2.10 to\n"
         "                         2.15 (default)\n"
         "  --policy POLICY        of calls and memory: one communicator for the pipeline, for\n"
         "                         each pair of devices (default) or for each directed edge; or\n"
         "                         exchange: one, in which shards of a vocabulary exchange at "
         "once\n"
         "  --bytes M[,A,W,S,G,T,R] of calls, memory and html: sizes of a message, an activation,\n"
         "                         what is kept for the weights, the state of a sequence and its\n"
         "                         gradient, the gradient of a tied weight, a row of totals\n"
         "  --with WHAT            the schedule in an adapter: recompute, recompute-first (the\n"
         "                         first stage of every device alone), offload, offload-half,\n"
         "                         offload-chunks (what hides behind the next chunk),\n"
         "                         vocabulary-1 or vocabulary-2 (embedding and output layer in a\n"
         "                         shard per device, one or two barriers), vocabulary-interlaced\n"
         "                         (all devices do it at once), sharded-weights\n"
         "                         (gathered for every visit of a stage), gathered-once,\n"
         "                         weights-on-host (of the last stage of every device), or of\n"
         "                         slimpipe attention-exchange (devices take over attention of\n"
         "                         each other, with --tokens and --attention-ratio)\n"
         "  --gather T, --scatter T\n"
         "                         of such weights: time of a gather of a stage's weights (or of\n"
         "                         a load), and of a scatter of its gradients; default 0\n"
         "  --recompute-cost T     of recompute: time of a recompute; default: as a forward pass\n"
         "  --copy-cost T          of offload: time of a copy to the host, or back\n"
         "  --offloaded-stages K   of offload: only activations of the first K stages of a device\n"
         "  --vocabulary-cost E,S,T,G[,BROADCAST,REDUCE]\n"
         "                         times of the passes of shards (default 1 each) and of their\n"
         "                         exchanges (default: as messages)\n"
         "  --limit-seconds N      give a search up after this time\n"
         "  --width N              columns of text; default: those of the terminal, else 100\n"
         "  --iterations N         say how long N iterations take in a row, with a barrier at the\n"
         "                         optimizer's step and with its validation in the next iteration\n"
         "\n"
         "Options of search:\n"
         "\n"
         "  --memory X             what a device may hold, in microbatches of its share of the "
         "model\n"
         "  --seconds N            the time it may take; default 10\n"
         "  --moves N              the changes that it may try, for the same result on any "
         "machine\n"
         "  --seed N               other numbers give other orders; default 1\n"
         "  --goal GOAL            makespan (default) or span, the papers' denominator\n"
         "  --whole-backward       backward passes in one piece\n"
         "  --like NAME            only on the placement of this schedule\n"
         "  --format header        the order as a C++ type\n"
         "\n"
         "Options of some schedules (--list says which and what the default is):\n"
         "\n"
         "  --chunks C             chunks of a sequence\n"
         "  --tokens S             tokens of a sequence; chunks get equal work, --cost is the\n"
         "                         mean over them (by default 1 for a forward pass, and what\n"
         "                         the work takes for the others), and their lengths are\n"
         "                         printed; with\n"
         "  --attention-ratio A    forward work of attention over that of all else, for S tokens\n"
         "  --even                 chunks of equal length instead\n"
         "  --stages-per-device V  stages of the model on each device\n"
         "  --group N              microbatches that travel together\n"
         "  --forwards N           forward passes of a device before its first backward pass, at "
         "most\n"
         "  --forward-stages N     stages that go forward, in equal shares all layers but the "
         "last\n"
         "  --backward-stages N    stages that go back, of a layer each, whose time --cost is\n"
         "  --chunk-counts C,C,... chunks of the microbatches in turn, from the first again behind "
         "the "
         "last\n"
         "  --keep K               chunks of a microbatch whose activations are kept, at most\n"
         "  --memory-limit X       activations of a device, in microbatches of one stage\n"
         "  --eager                forward passes as early as possible, to hide messages\n"
         "  --unfused              overlapped pairs as two passes\n"
         "  --pair-cost T          time of an overlapped pair; default: the sum of both passes\n"
         "  --all-reduce T         what a forward pass or backward_input that runs alone waits "
         "for\n"
         "                         its tensor parallel group; hidden in a pair and a whole "
         "backward\n";
}

} // namespace examples
