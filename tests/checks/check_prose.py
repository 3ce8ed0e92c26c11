#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Measures the prose of README, docs and docstrings: words, length of sentences, words that make a sentence be read twice.

Prose are the paragraphs and list items of Markdown, without code, tables and headings. `--list N` prints the longest sentences.
A docstring of a header begins with a noun or a verb.

usage: check_prose.py REPOSITORY [--list N]
"""
import pathlib
import re
import sys

#: Mean words of a sentence, at most; figures here only fall.
MEANS = {"README.md": 11.7, "docs": 14.6}
#: Words of a sentence, at most: as above.
LONGEST = 45
#: Words of README, changelog and docs, tables and code among them.
MOST_WORDS = 48_000
#: Places with hard words: as above, to fall to 0.
MOST_HARD = 1
#: What is hard to read, and in place of what it stands.
HARD = {
    r"\b(and|or|but|than|as|of|to|is|are|by|in|with|for|from|like|than) that of\b": "name the thing again",
    r"\b(and|or|but|than|as|to|is|are|by|in|with|for|from|like) those of\b": "name the things again",
    r"(?:^|[.:;] )[Ww]hat (is|are|was|has|have|takes|comes|goes|lies|stands) [^.?]{1,60} (is|are|has|have|takes?|comes?|goes?|gets?) ":
        "begin with the thing",
    r"\balone\b(?! can| is| are)": "only",
    r"\bbeside\b": "next to",
}
#: Docstrings that begin with a pronoun, at most.
MOST_PRONOUNS = 0
PRONOUN = re.compile(r"(?:@(?:brief|file)\s+)?((?:What|Who|Whoever|Whatever|Which|It|Its|They|Their|This|That|These|Those|Everybody|Nobody)\b.*)")
#: A row after a blank line that is no head of a table.
STRAY_ROW = re.compile(r"(?<=\n\n)(\|[^\n]*)\n(?!\|[-:| ]+\|\n)")


def prose(text):
    """The paragraphs and items of a page."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^```.*?^```$", "\n", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if not re.match(r"\s*(\||#|!\[|>|={3}|-{3})", line)]
    text = re.sub(r"(?m)^\s*([-*]|\d+\.) ", "\n\n", "\n".join(lines))
    for part in re.split(r"\n\s*\n", text):
        part = " ".join(part.split())
        part = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", part)
        part = re.sub(r"`[^`]*`", "code", part).replace("**", "").replace("*", "")
        if part:
            yield part


def sentences(text):
    for part in prose(text):
        for each in re.split(r"(?<=[.!?])\s+(?=[A-Z\"'(0-9c])", part):
            if len(each.split()) >= 3:
                yield each


def docstrings(text):
    """The first line of each docstring of a header, and the number of that line."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        before, mark, words = line.partition("//!")
        own_line = bool(mark) and not before.strip()
        if mark and not (own_line and inside):
            yield number, words.removeprefix("<").strip()
        inside = own_line


def pronouns(root):
    """Docstrings that begin with a pronoun."""
    for path in sorted((root / "include").glob("**/*.[hc][pu][ph]")):
        for number, words in docstrings(path.read_text(encoding="utf-8")):
            if found := PRONOUN.match(words):
                yield f"{path.relative_to(root).as_posix()}:{number}: '{found[1]}' (begin with a noun or a verb)"


def main(root, listed):
    pages = [root / "README.md", *sorted(path for path in (root / "docs").glob("**/*.md") if path.parent.name != "site")]
    counted = sum(len(path.read_text(encoding="utf-8").split()) for path in [*pages, root / "CHANGELOG.md"] if path.exists())
    lengths = {"README.md": [], "docs": []}
    problems, hard, long = [], [], []
    if counted > MOST_WORDS:
        problems.append(f"README, changelog and docs have {counted} words, and may have {MOST_WORDS}: say each thing once")
    for path in pages:
        name = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        problems += [f"{name}: a row after a blank line is in no table: {row[1]}" for row in STRAY_ROW.finditer(text)]
        for each in sentences(text):
            words = len(each.split())
            lengths["README.md" if name == "README.md" else "docs"].append(words)
            long.append((words, name, each))
            if words > LONGEST:
                problems.append(f"{name}: a sentence of {words} words: {each[:80]}...")
            for pattern, better in HARD.items():
                if found := re.search(pattern, each):
                    hard.append(f"{name}: '{found[0].strip()}' ({better}): {each[:160]}")
    if listed:
        print(f"{counted} words, at most {MOST_WORDS}")
    for where, all_lengths in lengths.items():
        mean = sum(all_lengths) / len(all_lengths)
        if listed:
            print(f"{where}: {len(all_lengths)} sentences, mean {mean:.1f} words, at most {MEANS[where]}")
        if mean > MEANS[where]:
            problems.append(f"{where}: sentences have {mean:.1f} words in the mean, and may have {MEANS[where]}; --list 40 shows the longest")
    if len(hard) > MOST_HARD:
        problems += [*hard, f"{len(hard)} places have hard words, and {MOST_HARD} may: write the new ones anew"]
    if len(begun := list(pronouns(root))) > MOST_PRONOUNS:
        problems.append(f"{len(begun)} docstrings begin with a pronoun, and {MOST_PRONOUNS} may; --list 1 names them")
    for words, name, each in sorted(long, reverse=True)[:listed]:
        print(words, name, each)
    if listed:
        print(len(hard), "places with hard words:", *hard, sep="\n")
        print(len(begun), "docstrings that begin with a pronoun:", *begun, sep="\n")
    return problems


if __name__ == "__main__":
    found_problems = main(pathlib.Path(sys.argv[1]), int(sys.argv[3]) if "--list" in sys.argv else 0)
    print("\n".join(found_problems), end="\n" if found_problems else "")
    sys.exit(1 if found_problems else 0)
