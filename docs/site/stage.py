#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Puts the pages of the site into a folder, as the site has them: links to files that are no pages keep their words only,
and headings have the addresses that Markdown files of a repository give them.

A program that a page shows whole has a link to Compiler Explorer where PIPELINING_HEADER_URL says from where that gets the
header that scripts/amalgamate writes.

usage: stage.py FOLDER
"""
import base64
import json
import os
import pathlib
import re
import shutil
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


def is_page(file):
    return file.is_file() and file.is_relative_to(ROOT) and (
        file.relative_to(ROOT).parts[0] == "docs" and file.suffix in (".md", ".svg", ".html")
        or file.relative_to(ROOT).as_posix() in TOP)


def link(path):
    def rewrite(match):
        words, target = match[1], match[2]
        if "://" in target or target.startswith(("#", "mailto:")):
            return match[0]
        name, _, place = target.partition("#")
        file = (path.parent / name).resolve()
        if not is_page(file):
            return words
        if file == ROOT / "README.md":
            target = target.replace("README.md", "index.md")
        return f"[{words}]({target})"

    return rewrite


def explorer(fence, header):
    """A code fence, and below it a link that runs it, if it is a program of the library and the standard one only."""
    code = fence.removeprefix("```cpp\n").removesuffix("```")
    if not header or "int main(" not in code or "#include <pipe/" not in code:
        return fence
    source = re.sub(r"#include <pipe/[^>]+>", f"#include <{header}>", code, count=1)
    source = re.sub(r"#include <pipe/[^>]+>\n", "", source)
    compiler = {"id": "g122", "options": "-std=c++20 -O1 -pthread"}
    state = {"sessions": [{"id": 1, "language": "c++", "source": source, "compilers": [], "executors": [{"compiler": compiler}]}]}
    place = urllib.parse.quote(base64.b64encode(json.dumps(state).encode()), safe="")
    return f"{fence}\n\n[Run it in Compiler Explorer](https://godbolt.org/clientstate/{place})"


def staged(path, header=os.environ.get("PIPELINING_HEADER_URL", "")):
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"<!-- .*?-->\n?", "", text, flags=re.DOTALL)
    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    parts[::2] = [re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", link(path), part) for part in parts[::2]]
    parts[1::2] = [explorer(part, header) for part in parts[1::2]]
    return "".join(parts)


def main(folder):
    shutil.rmtree(folder, ignore_errors=True)
    for path in [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").glob("**/*.md"))]:
        if "site" in path.relative_to(ROOT).parts:
            continue
        relative = path.relative_to(ROOT).as_posix()
        to = folder / ("index.md" if relative == "README.md" else relative)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(staged(path), encoding="utf-8")
    shutil.copytree(ROOT / "docs/images", folder / "docs/images")
    shutil.copy(ROOT / "docs/site/site.css", folder / "site.css")
    (folder / "api.md").write_text("# API\n\nEvery public name, from the comments of the headers, with a search of its own: "
                                   "<a href=\"api/index.html\">the API</a>.\n", encoding="utf-8")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
