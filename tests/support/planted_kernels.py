# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels with one planted mistake each, compiled together: nvcc takes longer to read what they include than to compile one.

The headers are copied. Each mutant includes them again, in a namespace of its own, with its mistake in one of them. It has the
kernels of those sources alone that include this header; others are as without the mistake.
"""
import pathlib
import re

INCLUDE = re.compile(r"(?m)^[ \t]*#[ \t]*include[ \t]*([<\"])([^>\"]+)[>\"]")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def plant(include, sources, out, mutants):
    """Writes OUT/together.cu and the headers that it includes from OUT.

    include: the folder of the library; sources: of the kernels, in an order in which they make one source; mutants: (header
    from include, its text with a mistake) in the order of their numbers, or None for the kernels as they are."""
    texts, others = {}, []

    def headers_of(text, found):
        for kind, name in INCLUDE.findall(text):
            if kind == "<" and name.startswith("pipe/"):
                if name not in found:
                    found.add(name)
                    texts.setdefault(name, (include / name).read_text(encoding="utf-8"))
                    headers_of(texts[name], found)
            elif name not in others and not name.endswith(".inc"):  # included again, in the namespaces
                others.append(name)
        return found

    texts_of_sources = [source.read_text(encoding="utf-8") for source in sources]
    headers = [headers_of(text, set()) for text in texts_of_sources]
    for number, (name, text) in enumerate(texts.items()):
        copy = text
        for mutant, planted in enumerate(mutants):
            if planted and planted[0] == name:
                copy = f"#if PLANTED == {mutant}\n{planted[1]}\n#else\n{copy}\n#endif\n"
        guard = f"PLANTED_HAS_{number}"
        write(out / name, f"#ifndef {guard}\n#define {guard}\n{copy.replace('#pragma once', '')}\n#endif\n")
    missing = {planted[0] for planted in mutants if planted} - set(texts)
    if missing:
        raise SystemExit(f"planted_kernels.py: {', '.join(map(str, sources))} do not include {missing}")
    for number, text in enumerate(texts_of_sources):
        # Mangled names say which mutant a kernel is of.
        write(out / f"kernels_{number}.inc", text.replace('extern "C" ', ""))
    write(out / "again.inc", "#undef PLANTED\n" + "".join(f"#undef PLANTED_HAS_{number}\n" for number in range(len(texts))))
    together = "".join(f"#include <{name}>\n" for name in others)  # before all namespaces
    for mutant, planted in enumerate(mutants):
        kernels = "".join(f'#include "kernels_{number}.inc"\n' for number, found in enumerate(headers)
                          if not planted or planted[0] in found)
        together += f'#define PLANTED {mutant}\nnamespace planted_{mutant}x {{\n{kernels}}}\n#include "again.inc"\n'
    write(out / "together.cu", together)


def items_of(ptx):
    """Functions and variables: from a line that begins one to the next such line."""
    starts = [found.start() for found in re.finditer(r"(?m)^\.(visible|extern|weak|func|entry|global|shared|const)\b", ptx)]
    return [ptx[start:end] for start, end in zip(starts, starts[1:] + [len(ptx)])]


def split(ptx, names, folder):
    """Writes FOLDER/NAME.ptx for each mutant, whose kernels have the names that they have in the source. Those that its mistake
    is not in are of the first one, which has none."""
    head = "".join(re.findall(r"(?m)^\.(?:version|target|address_size) .*\n", ptx))
    texts = [head] * len(names)
    kernels = [{} for _ in names]
    called = ""  # by kernels of the first one
    for item in items_of(ptx):
        of = re.search(r"planted_(\d+)x", item.partition("\n")[0])
        if not of:  # what all call
            texts = [text + item for text in texts]
            continue
        number = int(of.group(1))
        kernel = re.match(r"\.visible \.entry (_ZN\d+planted_\d+x(\d+)(\w+))\(", item)
        if kernel:
            name = kernel.group(3)[:int(kernel.group(2))]
            kernels[number][name] = item.replace(kernel.group(1), name)
            continue
        texts[number] += item
        called += "" if number else item
    for name, text, own in zip(names, texts, kernels):
        if not own:
            raise SystemExit(f"planted_kernels.py: there are no kernels of the mutant {name}")
        others = {kernel: item for kernel, item in kernels[0].items() if kernel not in own}
        text += "".join(own.values()) + (called if others else "") + "".join(others.values())
        write(pathlib.Path(folder) / f"{name}.ptx", text)
