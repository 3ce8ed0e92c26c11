#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What doxygen reads in place of a file. Line numbers stay.

Headers: the inline namespace, which users never write, is left out, and members that every type of a kind has get the
words for them from here, once, unless they have their own. Pages: links to files keep their words only.

usage: filter.py FILE
"""
import pathlib
import re
import sys

# What a declaration begins with, after attributes and specifiers; and its words.
CONTRACTS = [
    (r"friend .*\boperator==\(.*= default", "Compares every member."),
    (r"friend .*\boperator==\(", "Compares the values."),
    (r"friend .*\boperator<=>\(", "Orders by value."),
    (r"\w+\((\w+)&& other\) noexcept", "Takes over what `other` has, and leaves it empty."),
    (r"\w+& operator=\(\w+&& other\) noexcept", "Takes over what `other` has, and leaves it empty."),
    (r"\w+\((\w+)&&\) noexcept = default", "Takes over what the other has."),
    (r"\S+ get\(\) const noexcept", "What this owns, for calls that want the bare handle."),
    (r"operator (plan|timetable)_view\(\) const", "The same as a view, valid as long as this is."),
    (r"(plan|timetable)_view view\(\) const", "The same as a view, valid as long as this is."),
    (r"(plan|timetable)_view view = ", "The same as a view, valid for ever."),
    (r"operator bool\(\) const noexcept", "True when nothing is wrong."),
    # Schedules.
    (r"shape arrange\(int devices, int microbatches\) const",
     "The extents that it gives a pipeline. @throws std::invalid_argument where it cannot run one like that."),
    (r"void order\(shape const& extents, int device, row_writer& out\) const",
     "Writes the passes of one device in their order."),
    (r"void order\(", "Writes the passes of one device in their order."),
    (r"void generate\(", "Writes the order of every device for these costs. @param rows [P]"),
    (r"int chunks_of\(shape const& ?\w*, int microbatch\) const", "The chunks of a microbatch."),
    (r"flow declared = ", "The flow that it is a schedule of."),
    (r"bool fused = ", "Whether its backward passes are fused."),
    (r"bool searches_unit_costs = ", "Whether a search may improve on its order when all times are equal."),
    (r"(void )?start\(detail::timeline& line", "Writes the order that a search starts from."),
    (r"bool fused\(\)", "Whether its backward passes are fused."),
    (r"effort how = ", "How much is searched."),
    (r"walk steps\(\) const", "The walk that orders a device."),
    (r"(int|(detail::)?parameter<.*>) chunks( = |\{\})", "Chunks of a sequence."),
    (r"(int|(detail::)?parameter<.*>) stages_per_device( = |\{\})", "Stages of a device."),
    (r"(int|(detail::)?parameter<.*>) group( = |\{\})", "Microbatches that pass a stage together; 0 leaves it to the schedule."),
    (r"(int|(detail::)?parameter<.*>) stagger( = |\{\})",
     "Forward passes by which the warm-up of a device exceeds that of the next."),
    # Masks and scores of attention.
    (r"bool keep\(pair_position", "Whether the query sees the key."),
    (r"tile_cover cover\(tile_position", "Whether all, some or none of the pairs of a tile are seen."),
    (r"Real value\(Real s, pair_position", "The logit of a scaled product."),
    (r"Real derivative\(Real", "The derivative of the logit by the scaled product."),
    # Costs and sizes.
    (r"double duration\(pass const& what\) const", "The time of a pass."),
    (r"double latency\(\) const", "The time of a message."),
    (r"(detail::)?group_times groups\(\) const", "The times of the exchanges of groups of stages."),
    (r"std::span<double const> links\(\) const", "The times of messages by link, [P P]; empty where all are equal."),
    # Rules of adapters.
    (r"bool operator\(\)\(shape const&", "Whether the activation of this forward pass is recomputed."),
    (r"void operator\(\)\(int( device)?, std::vector<idle_activation>& all\) const",
     "Says of each activation of a device whether, and when, it moves."),
    (r"Schedule of\{\}", "The schedule that it changes."),
    (r"Rule rule\{\}", "Which activations it is about."),
    (r"Counts counts\{\}", "The chunks of each microbatch."),
    (r"double pair_duration\(", "The time of an overlapped pair."),
    (r"std::int64_t bytes\(slot_class", "The size of a buffer of a class for a pass."),
]
SPECIFIERS = re.compile(r"^(\[\[nodiscard\]\]|PIPELINING_HOST_DEVICE|static|inline|constexpr|explicit)\s+")


def declaration(lines, at):
    """The declaration that begins in a line, without specifiers; two lines, as long ones are broken."""
    text = lines[at].strip()
    if at + 1 < len(lines):
        text += " " + lines[at + 1].strip()
    while match := SPECIFIERS.match(text):
        text = text[match.end():]
    return text


def documented(lines, at):
    above = at - 1
    while above >= 0 and lines[above].strip().startswith("template <"):
        above -= 1
    return lines[above].strip().startswith("//!") or "//!<" in lines[at] or (
        at + 1 < len(lines) and "//!<" in lines[at + 1] and not lines[at].rstrip().endswith(";"))


def with_words(text):
    lines = text.split("\n")
    result = list(lines)
    for at in range(len(lines)):
        stripped = lines[at].strip()
        if not stripped or stripped.startswith(("//", "#", "return", "template", "if", "for", "}")):
            continue
        rest = declaration(lines, at)
        for rule, words in CONTRACTS:
            if re.match(rule, rest) and not documented(lines, at):
                place = at
                while place > 0 and lines[place - 1].strip().startswith("template <"):
                    place -= 1
                result[place] = f"/*! {words} */ {result[place].strip()}"
                break
    return "\n".join(result)


def as_page(path, text):
    if path.name == "README.md":
        # Pages are known by their file name only, so READMEs say that they are pages.
        text = re.sub(r"\A# ", f"@page readme_{path.resolve().parent.name} ", text)
    return re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:)[^)\s]+\)", r"\1", text)


def main(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        text = as_page(path, text)
    else:
        text = with_words(re.sub(r"\bnamespace pipelining::inline v\d+_\d+\b", "namespace pipelining", text))
    sys.stdout.write(text)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
