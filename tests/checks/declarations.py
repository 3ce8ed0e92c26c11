# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reads what namespaces and classes of a C++ source declare, without a compiler.

The reader knows brackets, templates, constraints and attributes, no types. It takes every branch of #if.
"""
import bisect
import re
from typing import NamedTuple

from source_text import PIECE

OPEN, CLOSE = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}
CLASSES = {"class", "struct", "union", "enum"}
IS_WORD = re.compile(r"[A-Za-z_]").match
# Words with arguments of their own before a name; and those that say nothing of what is declared.
WITH_ARGUMENTS = {"alignas", "decltype", "explicit", "noexcept", "__launch_bounds__", "__attribute__"}
PASSED_OVER = {"public", "private", "protected", ":", ";", "inline", "constexpr", "consteval", "constinit", "static", "friend",
               "export", "extern", '""'}


class Declaration(NamedTuple):
    kind: str  # concept, alias, using, class, struct, union, enum, function, operator, variable
    name: str
    scope: tuple  # names of the namespaces around it, without inline ones
    in_class: bool  # or with a name of a class before its own
    line: int
    body: int  # lines of a function's body, with those of its braces


class Reader:
    """Walks over the tokens of one source; `found` has the declarations in their order."""

    def __init__(self, text):
        pieces = [m for m in PIECE.finditer(text) if m["token"] or m["text"]]
        self.tokens = [m["token"] or '""' for m in pieces] + [";"]
        self.places = [m.start() for m in pieces] + [len(text)]
        self.line_ends = [m.start() for m in re.finditer("\n", text)]
        self.end_of = self.matched_brackets()
        self.found = []
        self.read(0, len(self.tokens) - 1, (), False)

    def line(self, at):
        return bisect.bisect_left(self.line_ends, self.places[at]) + 1

    def matched_brackets(self):
        ends, opened = {}, []
        for at, token in enumerate(self.tokens):
            if token in OPEN:
                opened.append(at)
            elif token in CLOSE:
                if not opened or OPEN[self.tokens[opened[-1]]] != token:
                    raise ValueError(f"line {self.line(at)}: '{token}' closes nothing")
                ends[opened.pop()] = at
        if opened:
            raise ValueError(f"line {self.line(opened[-1])}: '{self.tokens[opened[-1]]}' is never closed")
        return ends

    def after(self, at):
        """The place after a token, a bracketed group or a list in angle brackets that begins here."""
        if self.tokens[at] in OPEN:
            return self.end_of[at] + 1
        end = at + 1
        if self.tokens[at] == "<":
            while self.tokens[end] != ">":
                if self.tokens[end] == ";":
                    return at + 1  # less than
                end = self.after(end)
            end += 1
        return end

    def after_any_of(self, stops, at):
        while self.tokens[at] not in stops:
            at = self.after(at)
        return at

    def after_statement(self, at):
        return self.after_any_of(";", at) + 1

    def after_constraint(self, at):
        """The place after what follows the word requires: primaries joined by && and ||."""
        if self.tokens[at] == "requires":
            at = self.after(at + 1) if self.tokens[at + 1] == "(" else at + 1
        at = self.after(at)
        while self.tokens[at] in ("::", "<"):
            at = self.after(at) if self.tokens[at] == "<" else at + 2
        return self.after_constraint(at + 1) if self.tokens[at] in ("&&", "||") else at

    def read(self, at, last, scope, in_class):
        """Reads what stands between two places of a namespace or a class."""
        tokens = self.tokens
        while at < last:
            first, second = tokens[at], tokens[at + 1]
            if "namespace" in (first, first == "inline" and second) or tokens[at:at + 3] == ["extern", '""', "{"]:
                brace = self.after_any_of("{;=", at)
                words = [word for word in tokens[at:brace] if word not in ("namespace", "extern", "::", '""')]
                names = [word for i, word in enumerate(words) if word != "inline" and words[i - 1:i] != ["inline"]]
                if tokens[brace] == "{":
                    self.read(brace + 1, self.end_of[brace], (*scope, *names), in_class)
                at = self.after(brace) if tokens[brace] == "{" else self.after_statement(brace)
            elif first in PASSED_OVER or first == "template" and second != "<":
                at += 1
            elif first == "requires":
                at = self.after_constraint(at + 1)
            elif first == "[":
                at = self.after(at)
            elif first == "template" or first in WITH_ARGUMENTS and first != "decltype":
                at = self.after(at + 1) if second in ("<", "(") else at + 1
            else:
                at = self.declaration(at, scope, in_class)

    def declaration(self, at, scope, in_class):
        tokens = self.tokens

        def add(kind, name, body=0, is_own=True):
            self.found.append(Declaration(kind, name, scope, in_class or not is_own, self.line(at), body))

        if tokens[at] in ("concept", "using", "static_assert"):
            end = self.after_statement(at)
            if tokens[at] == "concept":
                add("concept", tokens[at + 1])
            elif tokens[at] == "using" and tokens[at + 1] != "namespace":
                add(*("alias", tokens[at + 1]) if "=" in tokens[at:end] else ("using", tokens[end - 2]))
            return end
        if tokens[at] in CLASSES:
            brace = name = at
            while tokens[brace] not in ("{", ":", ";", "=", "(", "*", "&", "&&"):
                if IS_WORD(tokens[brace]) and tokens[brace] not in ("final", "alignas"):
                    name = brace
                brace = self.after(brace + 1) if tokens[brace] == "alignas" else self.after(brace)
            if tokens[brace] in "{:;":
                if tokens[name - 1] != "::":
                    add(tokens[at], tokens[name])
                brace = self.after_any_of("{;", brace)
                if tokens[brace] == "{" and tokens[at] != "enum":
                    self.read(brace + 1, self.end_of[brace], scope, True)
                return self.after_statement(brace)
        return self.function_or_variable(at, add)

    def function_or_variable(self, at, add):
        tokens, kind, end, name, is_own = self.tokens, "variable", at, "", True
        while tokens[end] not in (";", "=", "[", "{", "(", ":", ","):
            if tokens[end] == "operator":
                kind, is_own, start = "operator", tokens[end - 1] != "::", end
                end = self.tokens.index("(", end + 3 if tokens[end + 1] == "(" else end)
                name = "".join(tokens[start:end])
            elif tokens[end] in WITH_ARGUMENTS and tokens[end + 1] == "(":
                end = self.after(end + 1)
            else:
                if IS_WORD(tokens[end]):
                    name, is_own = tokens[end], tokens[end - 1] != "::"
                end = self.after(end)
        body = 0
        if tokens[end] == "(":
            kind = "operator" if kind == "operator" else "function"
            end = self.after(end)
            while tokens[end] not in ("{", ";", "="):
                if tokens[end] == ":":  # initialisers of members
                    while tokens[end] in (":", ",", "..."):
                        end = self.after(self.after_any_of("({", end + 1)) if tokens[end] != "..." else end + 1
                else:
                    end = self.after_constraint(end + 1) if tokens[end] == "requires" else self.after(end)
            if tokens[end] == "{":
                body = self.line(self.end_of[end]) - self.line(end) + 1
        if name and is_own or body:
            add(kind, name, body, is_own)
        return self.end_of[end] + 1 if body else self.after_statement(end)


def declarations(text):
    """The declarations of namespaces and classes in a source, in their order.

    Raises ValueError where brackets do not match.
    """
    return Reader(text).found
