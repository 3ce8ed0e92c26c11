# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Issue model of a sub-core of a Hopper SM, a fourth of it, that runs the loop over tiles of all its warps.

Each warp issues in order and obeys what ptxas wrote into the control codes: stalls, and waits for the six scoreboards.
A pipe is busy for some cycles after each instruction. Products of warpgroups go through one queue of limited depth to one
tensor unit, and with it through shared memory. What the model leaves out, and how far it is off, is said in
docs/explanation/kernel_speed.md.
"""
import collections
import dataclasses
import random
import re

CYCLES_OF_MMA = 6.3  # of an m16n8k16 on a sub-core of Hopper; from literature
LATENCY_OF_MMA = 33
SHARED_BYTES_PER_CYCLE = 128
FLOPS_PER_CYCLE = 4096  # of an SM, 16-bit operands


@dataclasses.dataclass(frozen=True)
class Use:
    """What an instruction takes: a pipe, for how many cycles, and after how many its result is there."""
    pipe: str
    busy: int
    latency: int


INTEGER_ON_ALU = re.compile(
    r"FMNMX|F2FP|LOP3|IADD|ISETP|FSETP|FSEL|SEL|SHF|LEA|VIADD|PRMT|MOV|IABS|PLOP3|SGXT|BMSK|VOTE|P2R|IMNMX|VIMNMX|POPC|FLO")
UNIFORM = re.compile(r"R2UR|UMOV|UI|UL|US|UP|VOTEU|R2P")


def use_of(i):
    """The Use of an ordinary instruction."""
    if i.name in ("MUFU", "F2F", "I2F", "F2I", "FRND"):
        return Use("powers", 8, 18)
    if i.name in ("FFMA", "FMUL", "FADD", "HFMA2", "HADD2", "HMUL2"):
        return Use("float", 1, 4)
    if i.name == "IMAD":
        return Use("half float", 2, 4)
    if i.name == "LDSM":
        return Use("shared", 4 * i.words, 33)
    if i.name == "STSM":
        return Use("shared", 16, 30)
    if i.name in ("LDS", "STS", "ATOMS"):
        return Use("shared", 4 * i.words, 30)
    if i.name == "SHFL":
        return Use("shared", 4, 24)
    if i.name == "SYNCS":
        return Use("memory", 4, 20)
    if i.name == "LDGSTS":
        return Use("memory", 8, 30)
    if i.name in ("LDG", "LDL", "ATOM", "ATOMG"):
        return Use("memory", 4, 350)
    if i.name in ("RED", "REDG") and i.words > 1:  # through the same lines as shared memory
        return Use("shared", 4 * i.words, 30)
    if i.name in ("STG", "RED", "REDG", "STL", "S2R", "S2UR", "CS2R"):
        return Use("memory", 4, 30)
    if i.name in ("LDC", "ULDC", "LDCU"):
        return Use("memory", 2, 40)
    if UNIFORM.match(i.name):
        return Use("integer", 2, 10)
    if INTEGER_ON_ALU.match(i.name):
        return Use("integer", 2, 6)
    return Use("none", 1, 6)


class Warp:
    """Where a warp is, and what it waits for."""

    def __init__(self, number):
        self.number = number
        self.at = 0
        self.turn = 0
        self.ready = 0.0
        self.issued = 0.0
        self.boards = [0.0] * 6
        self.groups = []  # when each group of products is over
        self.group_end = 0.0
        self.ends = []  # of each pass
        self.arrived = None


class Model:
    """One run: so many warps with the same loop.

    @param depth    products that the tensor unit holds beside the one under way
    @param greedy   whether a warp issues as long as it can, or all in turn
    @param copies   share of shared memory's time that copies take
    @param meeting  "pairs" where named barriers hand a turn from warp to warp, "all" where a barrier is for the block
    """
    SETTLE = 6
    PASSES = 24
    JITTER = 60  # cycles that a warp is late at the start of a pass, in the mean

    def __init__(self, path, warps, depth, greedy, copies, meeting, seed):
        self.path = path
        self.uses = [use_of(i) for i in path]
        self.warps = [Warp(n) for n in range(warps)]
        self.depth = depth
        self.greedy = greedy
        self.copies = copies
        self.meeting = meeting
        self.random = random.Random(seed)
        self.has_wgmma = any(i.wgmma for i in path)
        self.free = collections.defaultdict(float)  # of each pipe
        self.tensor_free = 0.0
        self.shared_free = 0.0
        self.queue = []  # when products of warpgroups start
        self.turns = [int(n == 0) for n in range(warps)]
        self.meetings = {}  # (turn, address): when the last warp arrived, and who has
        self.now = 0.0

    def cycles(self):
        """Of a pass, in the mean over warps and passes."""
        last = None
        while min(warp.turn for warp in self.warps) < self.SETTLE + self.PASSES:
            times = [(time, warp) for warp in self.warps if (time := self.may_issue(warp)) is not None]
            if not times:
                raise RuntimeError("the issue model: all warps wait for each other")
            self.now = max(self.now, min(time for time, _ in times))
            able = [warp for time, warp in times if time <= self.now]
            last = last if self.greedy and last in able else min(able, key=lambda warp: warp.issued)
            self.issue(last)
        spans = [warp.ends[self.SETTLE + self.PASSES - 1] - warp.ends[self.SETTLE - 1] for warp in self.warps]
        return sum(spans) / len(spans) / self.PASSES

    def may_issue(self, warp):
        """When the next instruction of a warp can issue; None where that depends on another warp."""
        i, use = self.path[warp.at], self.uses[warp.at]
        time = max([warp.ready, *(warp.boards[b] for b in range(6) if i.waits_for >> b & 1)])
        if i.wgmma:
            waiting = sorted(start for start in self.queue if start > self.now)
            if len(waiting) >= self.depth:
                time = max(time, waiting[len(waiting) - self.depth])
        elif i.name == "HMMA":
            time = max(time, self.tensor_free)
        elif use.pipe == "half float":
            time = max(time, self.free["half float"], self.free["float"])
        elif use.pipe != "none":
            time = max(time, self.free[use.pipe])
        if (left := i.groups_left_open) is not None and len(warp.groups) > left:
            time = max(time, warp.groups[len(warp.groups) - 1 - left])
        if i.opcode.startswith("BAR.SYNC"):
            if self.meeting == "pairs" and not self.turns[warp.number]:
                return None
            if self.meeting == "all":
                when, here = self.meetings.get((warp.turn, i.address), (0.0, frozenset()))
                if warp.number not in here:
                    when, here = max(when, time, self.now), here | {warp.number}
                    self.meetings[warp.turn, i.address] = when, here
                if len(here) < len(self.warps):
                    return None
                time = max(time, when + 10)
        return time

    def start_product(self, warp, i):
        """Puts a product of a warpgroup into the queue."""
        rows, columns, inner = i.wgmma
        start = max(self.now + 4, self.tensor_free)
        self.queue = [s for s in self.queue if s > self.now - 1] + [start]
        moved = ((0 if i.has_left_in_registers else rows * inner * 2) + columns * inner * 2) / SHARED_BYTES_PER_CYCLE
        # Operands are fetched a little ahead.
        self.shared_free = max(start - 16, self.shared_free) + moved / (1 - self.copies)
        self.tensor_free = max(start + columns / 2 * inner / 16, self.shared_free)
        if i.ends_group:
            warp.groups = [*warp.groups[-7:], self.tensor_free + 20]

    def run_ordinary(self, use):
        """Takes a pipe; gives when the result is there."""
        if self.has_wgmma and use.pipe == "shared":
            self.shared_free = max(self.now, self.shared_free) + use.busy / (1 - self.copies)
        if use.pipe == "half float":
            self.free[use.pipe] = self.now + use.busy
        elif use.pipe != "none":
            self.free[use.pipe] = max(self.free[use.pipe], self.now) + use.busy
        if use.pipe in ("powers", "shared", "memory") and self.free[use.pipe] > self.now + use.busy:
            return self.free[use.pipe] + use.latency - use.busy
        return self.now + use.latency

    def issue(self, warp):
        """Issues the next instruction of a warp, now."""
        i, use = self.path[warp.at], self.uses[warp.at]
        warp.issued = self.now
        if i.wgmma:
            done = self.now + use.latency
            self.start_product(warp, i)
        elif i.name == "HMMA":
            self.tensor_free = self.now + CYCLES_OF_MMA
            done = self.now + LATENCY_OF_MMA
        else:
            done = self.run_ordinary(use)
        if i.sets_when_written < 6:
            warp.boards[i.sets_when_written] = max(warp.boards[i.sets_when_written], done)
        if i.sets_when_read < 6:
            read = self.now + (20 if use.pipe in ("shared", "memory") else 8)
            warp.boards[i.sets_when_read] = max(warp.boards[i.sets_when_read], read)
        if self.meeting == "pairs" and i.opcode.startswith("BAR.SYNC"):
            self.turns[warp.number] -= 1
        elif self.meeting == "pairs" and i.opcode.startswith("BAR.ARV"):
            self.turns[(warp.number + 1) % len(self.warps)] += 1
        warp.ready = self.now + max(1, i.stall)
        # Registers that ordinary instructions read while a wgmma runs cost a slot more.
        slow = self.has_wgmma and self.tensor_free > self.now and use.pipe in ("float", "half float", "integer")
        self.now += 2 if slow else 1
        warp.at += 1
        if warp.at == len(self.path):
            warp.at = 0
            warp.turn += 1
            warp.ends.append(self.now)
            warp.ready += self.random.expovariate(1 / self.JITTER)


@dataclasses.dataclass(frozen=True)
class Cycles:
    """Of one pass; least and most over what the model cannot know: order of warps, depth of the queue."""
    mean: float
    least: float
    most: float


def cycles_of_pass(path, warps, flops, copied, meeting=None):
    """Runs the model under all its assumptions.

    @param warps  of a sub-core
    @param flops  of an SM in one pass
    @param copied bytes that copies bring to shared memory in one pass
    """
    wgmma = any(i.wgmma for i in path)
    copies = min(0.5, copied / SHARED_BYTES_PER_CYCLE / (flops / FLOPS_PER_CYCLE * 1.15))
    runs = [Model(path, warps, depth, greedy, copies, meeting, seed).cycles() for greedy in (True, False)
            for depth, seed in (((1, 1), (2, 2), (4, 4)) if wgmma else ((1, 1), (1, 2)))]
    return Cycles(sum(runs) / len(runs), min(runs), max(runs))
