# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Splits C++ sources into tokens, texts, comments and directives, and counts lines of code."""
import re

PIECE = re.compile(
    r"""(?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)
    |(?P<text>R"(?P<mark>[^()\s\\]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')
    |(?P<directive>(?m:^)[ \t]*\#(?:\\\n|[^\n/]|/(?![/*]))*)
    |(?P<token>\d(?:'?[\w.])*|\w+|::|->|\.\.\.|<=>|<<|<=|&&|\|\||[^\w\s])""", re.DOTALL | re.VERBOSE)


def without_comments(text):
    """The text with each comment gone but for its line ends."""
    return PIECE.sub(lambda m: "\n" * m[0].count("\n") if m["comment"] else m[0], text)


def lines_of_code(text):
    """The number of lines with more than blanks and comments."""
    return sum(1 for line in without_comments(text).splitlines() if line.strip())


def words_of(text):
    """The words of the code, without those in comments, directives and quotes."""
    return {m["token"] for m in PIECE.finditer(text) if m["token"]}
