# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels with one planted mistake each, compiled together: nvcc takes longer to read what they include than to compile one.

The headers are copied. Each mutant includes them again, in a namespace of its own, with its mistake in one of them.
"""
import pathlib
import re

INCLUDE = re.compile(r"(?m)^[ \t]*#[ \t]*include[ \t]*([<\"])([^>\"]+)[>\"]")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def plant(include, source, out, mutants):
    """Writes OUT/together.cu and the headers that it includes from OUT.

    include: the folder of the library; source: of the kernels; mutants: (header from include, its text with a mistake) in
    the order of their numbers, or None for the kernels as they are."""
    texts, others, waiting = {}, [], []

    def found(text):
        for kind, name in INCLUDE.findall(text):
            if kind == "<" and name.startswith("pipe/"):
                waiting.append(name)
            elif name not in others and not name.endswith(".inc"):  # included again, in the namespaces
                others.append(name)

    text_of_source = source.read_text(encoding="utf-8")
    found(text_of_source)
    while waiting:
        name = waiting.pop()
        if name not in texts:
            texts[name] = (include / name).read_text(encoding="utf-8")
            found(texts[name])
    for number, (name, text) in enumerate(texts.items()):
        copy = text
        for mutant, planted in enumerate(mutants):
            if planted and planted[0] == name:
                copy = f"#if PLANTED == {mutant}\n{planted[1]}\n#else\n{copy}\n#endif\n"
        guard = f"PLANTED_HAS_{number}"
        write(out / name, f"#ifndef {guard}\n#define {guard}\n{copy.replace('#pragma once', '')}\n#endif\n")
    missing = {planted[0] for planted in mutants if planted} - set(texts)
    if missing:
        raise SystemExit(f"planted_kernels.py: {source} does not include {missing}")
    # Mangled names say which mutant a kernel is of.
    write(out / "kernels.inc", text_of_source.replace('extern "C" ', ""))
    write(out / "again.inc", "#undef PLANTED\n" + "".join(f"#undef PLANTED_HAS_{number}\n" for number in range(len(texts))))
    together = "".join(f"#include <{name}>\n" for name in others)  # before all namespaces
    for mutant in range(len(mutants)):
        together += f'#define PLANTED {mutant}\nnamespace planted_{mutant}x {{\n#include "kernels.inc"\n}}\n#include "again.inc"\n'
    write(out / "together.cu", together)


def items_of(ptx):
    """Functions and variables: from a line that begins one to the next such line."""
    starts = [found.start() for found in re.finditer(r"(?m)^\.(visible|extern|weak|func|entry|global|shared|const)\b", ptx)]
    return [ptx[start:end] for start, end in zip(starts, starts[1:] + [len(ptx)])]


def split(ptx, names, folder):
    """Writes FOLDER/NAME.ptx for each mutant, whose kernels have the names that they have in the source."""
    head = "".join(re.findall(r"(?m)^\.(?:version|target|address_size) .*\n", ptx))
    texts = [head] * len(names)
    for item in items_of(ptx):
        of = re.search(r"planted_(\d+)x", item.partition("\n")[0])
        if not of:  # what all call
            texts = [text + item for text in texts]
            continue
        kernel = re.match(r"\.visible \.entry (_ZN\d+planted_\d+x(\d+)(\w+))\(", item)
        if kernel:
            item = item.replace(kernel.group(1), kernel.group(3)[:int(kernel.group(2))])
        texts[int(of.group(1))] += item
    for name, text in zip(names, texts):
        if ".entry " not in text or text.count(".entry ") != texts[0].count(".entry "):
            raise SystemExit(f"planted_kernels.py: there are not all kernels of the mutant {name}")
        write(pathlib.Path(folder) / f"{name}.ptx", text)
