# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reads the machine code of kernels, as nvdisasm lists it: instructions, control flow, loops over tiles, and what one
pass of such a loop issues."""
import collections
import dataclasses
import re

INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;?\s*(?:/\* 0x[0-9a-f]{16} \*/)?\s*$")
SECOND_WORD = re.compile(r"^\s+/\* 0x([0-9a-f]{16}) \*/\s*$")
LABEL = re.compile(r"^(\.L_x_\d+):")
FUNCTION = re.compile(r"^\.text\.(\S+):")
WGMMA = re.compile(r"HGMMA\.(\d+)x(\d+)x(\d+)")


@dataclasses.dataclass(slots=True)
class Instruction:
    """One instruction. Control codes are 0 unless the listing was made with -hex."""
    address: int
    predicate: str
    opcode: str  # with all its suffixes
    operands: str
    stall: int = 0
    sets_when_written: int = 7  # a scoreboard 0 ... 5; 7 is none
    sets_when_read: int = 7
    waits_for: int = 0  # a bit for each scoreboard

    @property
    def name(self):
        return self.opcode.split(".", 1)[0]

    @property
    def wgmma(self):
        """(rows, columns, inner) of a product of a warpgroup, or None."""
        found = WGMMA.match(self.opcode)
        return found and tuple(map(int, found.groups()))

    @property
    def is_product(self):
        return self.name in ("HGMMA", "HMMA")

    @property
    def is_exponential(self):
        return self.opcode.startswith("MUFU.EX2")

    @property
    def has_left_in_registers(self):
        return re.match(r"R\d+, R\d+, gdesc", self.operands) is not None

    @property
    def ends_group(self):
        return self.wgmma is not None and "gsb0" in self.operands

    @property
    def groups_left_open(self):
        """What a wait for products leaves under way, or None."""
        found = self.opcode.startswith("WARPGROUP.DEPBAR") and re.search(r"gsb0, 0x(\w+)", self.operands)
        return int(found.group(1), 16) if found else None

    @property
    def words(self):
        """Registers that a load or store moves per lane."""
        if self.name in ("LDSM", "STSM"):
            return int((re.search(r"\.([24])$", self.opcode) or [0, 1])[1])
        return 4 if ".128" in self.opcode else 2 if ".64" in self.opcode else 1


@dataclasses.dataclass
class Block:
    """A basic block: instructions [begin, end) and the blocks that may follow."""
    begin: int
    end: int
    next: list


class Function:
    """A kernel: its instructions, blocks and natural loops {header: blocks}."""

    def __init__(self, name):
        self.name = name
        self.code = []
        self.labels = {}
        self.blocks = []
        self.loops = {}

    def instructions(self, block):
        return self.code[self.blocks[block].begin:self.blocks[block].end]

    def products(self, blocks):
        return sum(i.is_product for b in blocks for i in self.instructions(b))

    def analyse(self):
        self._find_blocks()
        self._find_loops()

    def _find_blocks(self):
        leaders = {0, *self.labels.values()}
        leaders.update(n + 1 for n, i in enumerate(self.code) if i.name in ("BRA", "BRX", "JMP", "EXIT", "RET", "BREAK"))
        starts = sorted(n for n in leaders if n < len(self.code))
        number = {start: n for n, start in enumerate(starts)}
        for begin, end in zip(starts, [*starts[1:], len(self.code)]):
            last, follow = self.code[end - 1], []
            may_fall_through = last.name not in ("BRA", "BRX", "JMP", "EXIT", "RET", "BREAK") or bool(last.predicate)
            if last.name == "BRA":
                target = re.search(r"`\((\.L_x_\d+)\)", last.operands)
                if target and self.labels.get(target.group(1)) in number:
                    follow.append(number[self.labels[target.group(1)]])
                # A second condition stands among the operands.
                may_fall_through |= re.match(r"!?U?P\d\s*,", last.operands) is not None or ".DIV" in last.opcode
            if may_fall_through and end in number:
                follow.append(number[end])
            self.blocks.append(Block(begin, end, follow))

    def _reached(self):
        """Blocks that control reaches, each before those that it dominates."""
        order, seen, path = [], {0}, [(0, iter(self.blocks[0].next))]
        while path:
            block, rest = path[-1]
            onward = next((b for b in rest if b not in seen), None)
            if onward is None:
                order.append(block)
                path.pop()
            else:
                seen.add(onward)
                path.append((onward, iter(self.blocks[onward].next)))
        return order[::-1]

    def _find_loops(self):
        order = self._reached()
        before = {b: [] for b in order}
        for block in order:
            for onward in self.blocks[block].next:
                before[onward].append(block)
        everything = (1 << len(self.blocks)) - 1
        dominators = {b: everything for b in order}  # bit sets
        dominators[order[0]] = 1 << order[0]
        changed = True
        while changed:
            changed = False
            for block in order[1:]:
                common = everything
                for b in before[block]:
                    common &= dominators[b]
                common |= 1 << block
                changed |= common != dominators[block]
                dominators[block] = common
        for block in order:
            for header in self.blocks[block].next:
                if dominators[block] >> header & 1:
                    body = self.loops.setdefault(header, {header})
                    rest = [block]
                    while rest:
                        b = rest.pop()
                        if b not in body:
                            body.add(b)
                            rest += before[b]

    def pass_of(self, header, longest=False):
        """Blocks of one pass of a loop: of all ways from its header back there, that with most products, then with most
        exponentials, then the shortest, or the longest. Loops inside are passed once."""
        body = self.loops[header]
        backwards = {(b, h) for h, blocks in self.loops.items() for b in blocks if h in self.blocks[b].next}
        known = {}
        rest = [header]
        while rest:  # depth first, by hand: listings have thousands of blocks
            block = rest[-1]
            onward = [b for b in self.blocks[block].next if b in body and (block, b) not in backwards]
            unknown = [b for b in onward if b not in known]
            if unknown:
                rest += unknown
                continue
            rest.pop()
            ways = [known[b] for b in onward if known[b] is not None]
            if header in self.blocks[block].next:
                ways.append(((0, 0, 0), ()))
            best = max(ways, key=lambda way: way[0], default=None)
            here = self.instructions(block)
            weight = self.products([block]), sum(i.is_exponential for i in here), len(here) if longest else -len(here)
            known[block] = best and (tuple(map(sum, zip(best[0], weight))), (block, *best[1]))
        return list(known[header][1])


def read_listing(text):
    """{name: Function} of a listing."""
    functions, now, half = {}, None, None
    for line in text.splitlines():
        if found := FUNCTION.match(line):
            now = functions[found.group(1)] = Function(found.group(1))
            half = None
        elif now is None:
            continue
        elif found := LABEL.match(line):
            now.labels[found.group(1)] = len(now.code)
        elif (found := SECOND_WORD.match(line)) and half is not None:
            control = int(found.group(1), 16) >> 41
            half.stall = control & 15
            half.sets_when_written = control >> 5 & 7
            half.sets_when_read = control >> 8 & 7
            half.waits_for = control >> 11 & 63
        elif found := INSTRUCTION.match(line):
            words = re.match(r"(?:@(!?U?P[T0-9]+)\s+)?(\S+)\s*(.*)", found.group(2))
            half = Instruction(int(found.group(1), 16), words.group(1) or "", words.group(2), words.group(3))
            now.code.append(half)
    for function in functions.values():
        function.analyse()
    return functions


class Unreadable(Exception):
    """The loop over tiles is not where it is looked for; the text says what was found."""


def wgmma_loop(function, longest=False):
    """Instructions of one pass over a tile of a kernel with wgmma: of the innermost loops with most products the
    shortest, which is that without a mask; or of that loop the longest pass, with all that seldom has to be done."""
    inner = [h for h, body in function.loops.items() if function.products(body) and not any(
        other != h and other in body and function.products(function.loops[other]) for other in function.loops)]

    def pass_at(header, **which):
        return [i for b in function.pass_of(header, **which) for i in function.instructions(b)]

    passes = [*map(pass_at, inner)]
    if not passes:
        raise Unreadable(f"{function.name} has no loop with products")
    most = max(sum(i.is_product for i in p) for p in passes)
    shortest = min((p for p in passes if sum(i.is_product for i in p) == most), key=len)
    return pass_at(inner[passes.index(shortest)], longest=True) if longest else shortest


def mma_loop(function, share_outside):
    """The same of a kernel with mma.sync. Loops over the head dim may be left in it: they are laid out as often as
    share_outside asks, the share of all products that stands outside of them."""
    inside = {h: function.products(body) for h, body in function.loops.items() if function.products(body)}
    outer = [h for h in inside if any(other != h and other in function.loops[h] for other in inside)]
    if not outer:
        return wgmma_loop(function)
    header = min(outer, key=lambda h: len(function.loops[h]))
    path = function.pass_of(header)
    inner = [h for h in inside if h != header and h in function.loops[header]]
    if any(len(function.loops[h]) != 1 for h in inner):
        raise Unreadable(f"{function.name} has a loop over the head dim that branches")
    once = function.products(path) - function.products(inner)
    times = (once / share_outside - once) / function.products(inner)
    if times != int(times):
        raise Unreadable(f"{function.name} has {once} products outside its loops over the head dim, and "
                         f"{[inside[h] for h in inner]} inside")
    return [i for b in path for _ in range(int(times) if b in inner else 1) for i in function.instructions(b)]


def count_products(path):
    """{kind of tensor instruction: how many}."""
    kinds = collections.Counter()
    for i in path:
        if shape := i.wgmma:
            kinds["m{}n{}k{}".format(*shape) + (" from registers" if i.has_left_in_registers else "")] += 1
        elif i.name == "HMMA":
            kinds["m16n8k16"] += 1
    return dict(kinds)


def flops(path):
    """Of one warp: a fourth of what a warpgroup's products do."""
    return sum(2 * i.wgmma[0] * i.wgmma[1] * i.wgmma[2] // 4 if i.wgmma else 4096 for i in path if i.is_product)


def shared_bytes(path):
    """Bytes that one warp moves through shared memory in a pass: operands of products, loads, stores."""
    total = 0
    for i in path:
        if shape := i.wgmma:  # a fourth of the warpgroup's
            rows, columns, inner = shape
            total += ((0 if i.has_left_in_registers else rows * inner * 2) + columns * inner * 2) / 4
        elif i.name in ("LDSM", "STSM", "LDS", "STS", "ATOMS"):
            total += 128 * i.words
    return total


def count_exponentials(path):
    """(those issued while a product of the same warp is under way, all)."""
    under = every = groups = 0
    is_open = False
    for turn in range(2):  # what is under way at the end of a pass is so at the start of the next
        for i in path:
            if i.wgmma:
                is_open = not i.ends_group
                groups += i.ends_group
            elif i.groups_left_open is not None:
                groups = min(groups, i.groups_left_open)
            elif turn and i.is_exponential:
                every += 1
                under += groups > 0 or is_open
    return under, every


# Instructions whose first operand is not a register that they write.
WITHOUT_RESULT = frozenset(
    "ST STS STG STL STSM RED REDG BRA BAR EXIT BSYNC BSSY SYNCS WARPSYNC NOP FENCE MEMBAR ISETP FSETP HSETP2 PLOP3 DEPBAR "
    "WARPGROUP YIELD R2UR CCTL CCTLL LDGSTS LDGDEPBAR ERRBAR VOTE R2P BREAK RET CALL ELECT PREEXIT WARPARRIVE".split())


def _registers(text):
    found = set()
    for number, wide in re.findall(r"\bR(\d+)(\.64)?\b", text):
        found.update({int(number), int(number) + 1} if wide else {int(number)})
    return found


def written(i):
    """General registers that an ordinary instruction writes."""
    if i.name in WITHOUT_RESULT or i.name.startswith("U"):
        return set()
    operands = [part.strip() for part in i.operands.split(",")]
    first = next((part for part in operands if not re.match(r"!?U?P[T0-9]", part)), "")
    found = re.match(r"R(\d+)", first)
    if not found:
        return set()
    wide = ".WIDE" in i.opcode
    count = i.words if i.name.startswith("LD") else 2 if wide or ".64" in i.opcode else 1
    return set(range(int(found.group(1)), int(found.group(1)) + count))


def read(i):
    """General registers that an ordinary instruction reads."""
    if i.name in WITHOUT_RESULT:
        found = _registers(i.operands)
        if i.name in ("STS", "STG", "STSM", "ST", "STL") and found:
            last = int(re.findall(r"\bR(\d+)\b", i.operands)[-1])
            found.update(range(last, last + i.words))
        return found
    return _registers(i.operands.partition(",")[2])


def touched_products(path):
    """Sentences on registers that an ordinary instruction of a loop touches while a wgmma uses them: real hardware would
    get these wrong, and an interpreter of PTX cannot see them."""
    found, groups, last = {}, [], []
    for _ in range(2):
        for i in path:
            if shape := i.wgmma:
                parts = [part.strip() for part in i.operands.split(",")]
                first = int(parts[0][1:])
                left = int(parts[1][1:]) if i.has_left_in_registers else None
                last.append((i, set(range(first, first + shape[1] // 2)),
                             set() if left is None else set(range(left, left + 4))))
                if i.ends_group:
                    groups.append(last)
                    last = []
            elif i.groups_left_open is not None:
                groups = groups[len(groups) - min(i.groups_left_open, len(groups)):]
            else:
                for product, sums, left in [p for group in groups for p in group] + last:
                    for verb, which, what in (("writes", written(i) & sums, "sums"), ("reads", read(i) & sums, "sums"),
                                              ("writes", written(i) & left, "left operand")):
                        if which:
                            found.setdefault((i.address, what), (
                                f"{i.opcode} at {i.address:#x} {verb} R{min(which)}, {what} of the {product.opcode} at "
                                f"{product.address:#x}, before the wait"))
    return list(found.values())
