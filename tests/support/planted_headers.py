# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Headers with planted bugs, of which a program chooses one when it runs: `planted_bug` is its number, 0 is none.

A mutant is (what is wrong, header, what stands there, what stands there instead, further pairs of these...). Statements
are chosen between when the program runs; in what has PLANTED, which is true for its bug, the choice is made by hand.
"""
import sys


def write(path, text):
    """Always anew: a source that is as old as it was would not be compiled again when a header with bugs has changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def edits_of(mutants):
    """Number, name, header, old and new text of every edit, the longest old text first: others may be part of it."""
    edits = [(number, mutant[0], mutant[1], mutant[at], mutant[at + 1])
             for number, mutant in enumerate(mutants) for at in range(2, len(mutant), 2) if mutant[at]]
    return sorted(edits, key=lambda edit: -len(edit[3]))


def chosen_between(number, old, new):
    """Old and new text in one, of which the program chooses."""
    planted = f"(planted_bug == {number})"
    if "PLANTED" in new:
        return new.replace("PLANTED", planted)
    if not old.endswith((";", "}")):
        sys.exit(f"planted_headers.py: not a statement, so its new text must say what is PLANTED: {old}")
    return f"{{ if {planted} {{ {new} }} else {{ {old} }} }}"


def planted(include, edits):
    """The texts of the headers with all edits, by their path from the folder `include`."""
    texts = {}
    for number, name, path, old, new in edits:
        text = texts.setdefault(path, (include / path).read_text(encoding="utf-8"))
        if text.count(old) == 0:
            sys.exit(f"planted_headers.py: '{name}' looks for text that {path} does not have: {old}")
        texts[path] = text.replace(old, chosen_between(number, old, new))
    return texts
