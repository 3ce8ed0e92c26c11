# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The figures of the house that scripts/check-house holds against the budgets of docs/house.md."""
import collections
import re
from typing import NamedTuple

import check_layers
import declarations
import source_text

SOURCES = {".hpp", ".cuh", ".cpp", ".cu"}
LESSON = "examples/01_first_pipeline.cpp"
REGISTRY = ["include/pipe/planner/registry/*"]
LONG_FUNCTION, SHORT_HEADER, LONG_HEADER, LONG_LESSON, PARAGRAPH = 60, 80, 600, 200, 3
RAISE = "or raise the budget in this commit, with a line of reason"


class Figure(NamedTuple):
    """What is measured. `items` are what is counted, or its largest parts; `remedy` says what to do about them."""
    name: str
    today: int
    items: list
    remedy: str


def counted(name, items, remedy):
    items = sorted(items)
    return Figure(name, len(items), items, remedy)


def sized(name, lines):
    """A figure that is a sum of lines, by file."""
    longest = [f"{file} ({lines[file]})" for file in sorted(lines, key=lambda file: (-lines[file], file))]
    return Figure(name, sum(lines.values()), longest, f"The longest come first: take out as many lines, {RAISE}")


class House:
    """The texts of a repository, read once."""

    def __init__(self, root):
        self.root = root
        self.pipe = root / "include/pipe"
        self.headers = {name.removeprefix("include/pipe/"): text for name, text in self.sources("include/pipe").items()}
        if "pipe.hpp" not in self.headers:
            raise ValueError(f"{self.pipe} has no pipe.hpp: is {root} the repository?")
        self.programs = {**self.sources("tools"), **self.sources("examples")}
        self.declared = {name: self.read(f"include/pipe/{name}", text) for name, text in self.headers.items()}
        self.includes = {name: included(text) & set(self.headers) for name, text in self.headers.items()}

    def sources(self, folder):
        paths = sorted(path for path in (self.root / folder).rglob("*") if path.suffix in SOURCES)
        return {path.relative_to(self.root).as_posix(): path.read_text(encoding="utf-8") for path in paths}

    def pages(self, *patterns):
        paths = sorted({path for pattern in patterns for path in self.root.glob(pattern)})
        return {path.relative_to(self.root).as_posix(): path.read_text(encoding="utf-8") for path in paths}

    @staticmethod
    def read(name, text):
        try:
            return declarations.declarations(text)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error

    def folders(self):
        """The headers of each folder of include/pipe; those in none are its doors."""
        result = collections.defaultdict(list)
        for name in self.headers:
            result[name.split("/")[0] + "/" if "/" in name else "the doors"].append(name)
        return dict(sorted(result.items()))

    def opened_by(self, names):
        """These headers and all that they include, at any depth."""
        opened, left = set(), set(names)
        while left:
            opened |= left
            left = {target for name in left for target in self.includes[name]} - opened
        return opened

    def public_names(self):
        """Each name that namespaces of the library declare outside `detail`, with the headers that declare it."""
        result = collections.defaultdict(set)
        for header, all_of_it in self.declared.items():
            for one in all_of_it:
                if not one.in_class and one.kind != "operator" and one.scope[:1] == ("pipelining",) and "detail" not in one.scope:
                    result["::".join([*one.scope[1:], one.name])].add(header)
        return result


def included(text):
    return set(re.findall(r"^\s*#\s*include\s*<pipe/([^>]+)>", text, re.MULTILINE))


def group_of(name, header):
    """Which budget a public name counts for. Families of schedules have a header each in schedule/."""
    folder = header.split("/")[0]
    if "/" in header and folder not in check_layers.ROOMS:
        return f"public names of {folder}/"
    is_family = re.fullmatch(r"schedule/(?!schedule\b)\w+\.hpp", header)
    return "public names of schedules" if is_family or name[0].isupper() else "public names of pipe.hpp besides schedules"


def words_of_users(house):
    """The words in code of lessons, tools and the trainer; and in code shown by how-tos and README."""
    words = set()
    for text in house.programs.values():
        words |= source_text.words_of(text)
    for text in house.pages("README.md", "docs/how_to/*.md").values():
        for fence, span in re.findall(r"```\w*\n(.*?)```|`([^`\n]+)`", text, re.DOTALL):
            words |= set(re.findall(r"\w+", fence or span))
    return words


def names_that_nobody_uses(house):
    words = words_of_users(house)
    # A name of the registry's own is not used by standing in it.
    rows = {name.removeprefix("include/pipe/"): source_text.words_of(text) for name, text in house.pages(*REGISTRY).items()}

    def is_used(word, headers):
        return word in words or any(word in row for file, row in rows.items() if file not in headers)

    return {name for name, headers in house.public_names().items() if not is_used(name.split("::")[-1], headers)}


def figures_of_size(house):
    lines = {name: source_text.lines_of_code(text) for name, text in house.headers.items()}

    def figure(what, names):
        return sized(what, {name: lines[name] for name in names})

    yield figure("lines of code of include/pipe", house.headers)
    for folder, names in house.folders().items():
        yield figure(f"lines of code of {folder}", names)
    rooms = {name for name in house.headers if name.split("/")[0] in check_layers.ROOMS}
    lesson = (house.root / LESSON).read_text(encoding="utf-8")
    taught = set(re.findall(r"\bpp::(\w+)", source_text.without_comments(lesson)))
    spine = house.opened_by({header for name, headers in house.public_names().items() if name in taught
                             for header in headers & rooms})
    yield counted("headers of the spine", spine, f"Lesson 01 needs them all: let its headers include less, {RAISE}")
    yield figure("lines of code of the spine", spine)
    yield counted("headers that pipe.hpp opens", house.opened_by({"pipe.hpp"}) - {"pipe.hpp"},
                  f"Let the door or its headers include less, {RAISE}")


def figures_of_names(house):
    names, unused = house.public_names(), names_that_nobody_uses(house)
    groups = collections.defaultdict(set)
    for name, headers in names.items():
        for header in headers:
            groups[group_of(name, header)].add(name)
    for group, members in sorted(groups.items()):
        suspects = sorted(unused & members)
        remedy = f"Nobody uses these: move them into detail, {RAISE}" if suspects else f"Move some into detail, {RAISE}"
        yield Figure(group, len(members), suspects or sorted(members), remedy)
    yield counted("public names that nobody uses", [f"{name} ({', '.join(sorted(names[name]))})" for name in unused],
                  "Use them in a lesson, a how-to, a tool or the trainer, or move them into detail")


def figures_of_shape(house):
    def long_functions(sources):
        return [f"{name}:{one.line} {one.name} ({one.body} lines)" for name, text in sources.items()
                for one in house.read(name, text) if one.body > LONG_FUNCTION]

    def length(text):
        return len(text.splitlines())

    headers = {f"include/pipe/{name}": text for name, text in house.headers.items()}
    split = "Give its parts names of their own"
    yield counted(f"functions over {LONG_FUNCTION} lines in include/pipe", long_functions(headers), split)
    yield counted(f"functions over {LONG_FUNCTION} lines in tools and examples", long_functions(house.programs), split)
    includers = collections.Counter(target for text in [*house.headers.values(), *house.programs.values()]
                                    for target in included(text))
    yield counted(f"headers under {SHORT_HEADER} lines with one includer", [
        name for name, text in house.headers.items()
        if "/" in name and length(text) < SHORT_HEADER and includers[name] <= 1
        and not re.fullmatch(r"schedule/\w+\.hpp", name)
        and not any(one.kind == "concept" for one in house.declared[name])], "Merge each with the header that includes it")
    yield counted(f"headers over {LONG_HEADER} lines", [
        f"{name} ({length(text)} lines)" for name, text in headers.items() if length(text) > LONG_HEADER],
        "Split it by responsibility")
    yield counted(f"lessons over {LONG_LESSON} lines", [
        f"{name} ({length(text)} lines)" for name, text in house.programs.items()
        if re.match(r"examples/\d\d_", name) and length(text) > LONG_LESSON], "Shorten it to one subject")
    yield counted("kinds of training named in timetable, plan, run, view, planner", [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1} {match[0]}"
        for name, text in ((name, source_text.without_comments(text)) for name, text in headers.items())
        if re.match(r"include/pipe/(timetable(?!/adapt/)|plan|run|view|planner)/", name)
        for match in re.finditer(r"\bpass_kind::\w+|\busing enum \w*(::)?pass_kind\b", text)],
                  "Ask the flow for the role, the engine or the word of the kind")
    for folder in ("examples/gpt/", "tools/"):
        yield sized(f"lines of {folder}", {
            name: length(text) for name, text in house.programs.items() if name.startswith(folder)})
    yield counted("includes that the layers forbid", check_layers.problems(house.pipe), "See the table in CONTRIBUTING.md")


def paragraphs(name, text):
    """The paragraphs of a source's //! comments or of a page's prose, each as its first line and its lines."""
    is_page, in_fence, lines = name.endswith(".md"), False, []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if is_page:
            in_fence ^= line.startswith("```")
            words = "" if in_fence or line.startswith(("```", "|", "#", "<", "![")) else line.strip()
        else:
            match = re.match(r"\s*//!(?!<)(.*)", line)
            words = match[1].strip() if match else ""
        if words:
            lines.append(words)
        elif lines:
            yield number - len(lines), lines
            lines = []


def repeated(pieces):
    places = collections.defaultdict(list)
    for where, lines in pieces:
        places[" ".join(" ".join(lines).split())].append((where, len(lines)))
    return {words: [where for where, _ in at] for words, at in places.items()
            if len(at) > 1 and max(length for _, length in at) >= PARAGRAPH}


def figures_of_words(house):
    texts = {**{f"include/pipe/{name}": text for name, text in house.headers.items()}, **house.programs,
             **house.pages("README.md", "CONTRIBUTING.md", "docs/**/*.md", "include/pipe/*/README.md")}
    whole = [(f"{name}:{line}", lines) for name, text in texts.items() for line, lines in paragraphs(name, text)]
    twice = repeated(whole)
    # Commands such as @param begin paragraphs of their own in those that differ.
    parts = [(where, part.split("\n")) for where, lines in whole if " ".join(" ".join(lines).split()) not in twice
             for part in re.split(r"\n(?=@)", "\n".join(lines))]
    twice.update(repeated(parts))
    yield counted("paragraphs of documentation that stand twice", [
        f"{' and '.join(at)} ({words[:40]}...)" for words, at in twice.items()],
                  "Say it in one place and refer to it")
    registry = house.pages(*REGISTRY)
    rows = re.compile(r'\bnamed\(\s*"([\w-]+)"|static constexpr std::string_view \w+ = "([\w-]+)"')
    schedules = {literal or constant for text in registry.values() for literal, constant in rows.findall(text)}
    if not schedules:
        raise ValueError(f"no schedule is in the registry, {' or '.join(REGISTRY)}: tell scripts/check-house how its rows begin")

    def quoted(sources, pattern):
        return [f"{name}:{text.count(chr(10), 0, match.start()) + 1} \"{match[1]}\"" for name, text in sources.items()
                if name not in registry and not name.startswith(("tests/golden/", "tests/frozen/"))
                for match in re.finditer(pattern, text) if match[1] in schedules]

    ask = "Ask the registry for the trait that is meant"
    product = {**{f"include/pipe/{name}": text for name, text in house.headers.items()}, **house.programs}
    tests = {**house.sources("tests"), **house.sources("benchmarks")}
    scripts = house.pages("tests/**/*.py", "benchmarks/**/*.py")
    yield counted("names of schedules in quotes in include, tools, examples", quoted(product, r'"([\w-]+)"'), ask)
    yield counted("names of schedules in quotes in tests, benchmarks",
                  quoted(tests, r'"([\w-]+)"') + quoted(scripts, r'[!=]= *"([\w-]+)"'), ask)


def measure(house):
    return [*figures_of_size(house), *figures_of_names(house), *figures_of_shape(house), *figures_of_words(house)]
