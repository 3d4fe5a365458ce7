"""An estimate of compile time: how long Triton, LLVM and ptxas take over a kernel, from the loop
IR.

They go over every instruction of one thread, and what a thread does is written out for each element
of a tile that it holds and each iteration of an unrolled loop; other loops are written once, also
those that were to be unrolled and would take too long.  So the time follows from the statements:
instructions of a node, times the elements of a thread, times the unrolled iterations.  Where a
thread holds more values than it has registers, the rest is spilled, which the compilers are slow to
arrange.

The constants are fitted to 62 kernels compiled by Triton 3.6 and 3.9 (`tests/benchmarks/effort.py`
compares them again).  Most are estimated within a factor of two, tiles that spill more roughly; its
purpose is to tell a second from a minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tedsl.devices import GPUS
from tedsl.dtypes import DType
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Cast, Const, Expr, Unary, UnaryOp
from tedsl.ir.nodes import (
    Accumulate,
    Dot,
    For,
    Func,
    Load,
    LoopKind,
    Module,
    Stmt,
    Store,
)
from tedsl.ir.visit import own_exprs, sub_stmts, tile_axes

LIMIT = 20.0
"""Seconds that a kernel of a default schedule may take."""
WARPS, THREADS = 4, 32
# Registers of a thread.
REGISTERS = max(gpu.registers_thread for gpu in GPUS)
# Seconds of a kernel whatever it does, of an instruction, and of one among very many of them; how
# many times as long it takes where a thread has values for twice its registers.
KERNEL, EACH, CROWDED, MOVED = 0.65, 1.5e-4, 1.2e-8, 20.0
# Seconds of a pair of loops, of which ptxas compares each with each; and the iterations of a loop
# up to which LLVM writes them out.
PAIR, FEW = 1e-3, 8
# Seconds of a triple of loads or stores of tiles: for each, Triton's pass over their layouts looks
# at all that is connected, again for each.  Fitted to 150 to 600 of them in one loop.
TRIPLE = 2.3e-7
# Computed terms of an unrolled sum from which LLVM may take minutes to schedule them, if a thread
# has several sums; and what is said of it then.
CHAIN, SEVERAL, MINUTES = 49, 4.0, 30.0
# The instructions that an MMA stands for, and its elements.
UNIT, UNIT_POINTS = 6.0, 16 * 8 * 16
# Instructions of a load or store, and bytes of the widest one.
ACCESS, WIDEST = 3.0, 16
_CHEAP = frozenset(
    {UnaryOp.NEG, UnaryOp.NOT, UnaryOp.ABS, UnaryOp.EXP2, UnaryOp.SQRT, UnaryOp.RSQRT, UnaryOp.BITS}
)
_QUICK = frozenset({UnaryOp.EXP, UnaryOp.SIGMOID, UnaryOp.FLOOR, UnaryOp.CEIL, UnaryOp.TRUNC})
_DIVISIONS = frozenset({BinaryOp.FLOORDIV, BinaryOp.FLOORMOD, BinaryOp.TRUNCDIV, BinaryOp.TRUNCMOD})
_FUNCTIONS = frozenset({BinaryOp.POW, BinaryOp.ATAN2})


@dataclass(frozen=True, slots=True)
class Effort:
    """The code of a kernel for one thread: instructions, the 32-bit values of its largest tile
    outside of `tl.dot`, how many computed terms of one sum are unrolled, if the thread has several
    sums, the loops, and the loads and stores of tiles."""

    instructions: float
    values: float
    chain: int = 0
    loops: int = 0
    accesses: int = 0

    @property
    def seconds(self) -> float:
        """How long the compilers take over it, on one core."""
        crowd = max(0.0, self.values / REGISTERS - 1)
        n = self.instructions
        written = KERNEL + EACH * n * (1 + MOVED * crowd * crowd) + CROWDED * n * n
        written += PAIR * self.loops * self.loops + TRIPLE * self.accesses**3
        return written + (MINUTES if self.chain > CHAIN else 0.0)


def seconds(module: Module) -> float:
    """How long the compilers take over the kernels of a module at level TILE, on one core."""
    return sum(effort(f).seconds for f in module.funcs if not f.host_call)


def slowest(module: Module) -> tuple[str, float]:
    """The kernel of a module at level TILE that compilers take longest over, and how long."""
    found = [(f.name, effort(f).seconds) for f in module.funcs if not f.host_call]
    return max(found, key=lambda each: each[1], default=("", 0.0))


def effort(func: Func) -> Effort:
    """What is written out of a kernel at level TILE."""
    threads = THREADS * (func.launch.num_warps or WARPS)
    return written(func.body, threads)


def unrolls(loop: For, threads: int) -> bool:
    """Whether a loop that is to be unrolled is: the compilers are done with it in time."""
    return _unrolled(loop, written(loop.body, threads)) is not None


def _unrolled(loop: For, once: Effort) -> Effort | None:
    """What all iterations together are, if the compilers are done with them in time."""
    count = _iterations(loop)
    if count is None:
        return None
    found = Effort(
        once.instructions * count,
        once.values,
        once.chain * count,
        once.loops * count,
        once.accesses * count,
    )
    return found if found.seconds <= LIMIT else None


def _loops(loop: For, inside: int) -> int:
    """How many loops one with so many `inside` is: LLVM writes it out if there are few iterations
    of little code."""
    count = _iterations(loop)
    return inside + 1 if count is None or count > FEW or inside > 1 else inside * count


def _iterations(loop: For) -> int | None:
    """How often a loop runs, if that is constant; at least 1."""
    if not isinstance(loop.start, Const) or not isinstance(loop.end, Const):
        return None
    return max(1, int(loop.end.value) - int(loop.start.value))


def written(stmt: Stmt, threads: int) -> Effort:
    """What is written out of a statement in a kernel of so many threads."""
    inside = [written(each, threads) for each in sub_stmts(stmt)]
    total = sum(each.instructions for each in inside)
    values = max((each.values for each in inside), default=0.0)
    chain = max((each.chain for each in inside), default=0)
    loops = sum(each.loops for each in inside)
    accesses = sum(each.accesses for each in inside)
    match stmt:
        case For(kind=LoopKind.UNROLLED):
            once = Effort(total, values, chain, loops, accesses)
            return _unrolled(stmt, once) or replace(once, loops=_loops(stmt, loops))
        case For(kind=LoopKind.PROGRAM | LoopKind.VECTORIZED):
            pass
        case For():
            copies = 1 + len(stmt.cuts)
            total *= copies
            loops = copies * _loops(stmt, loops)
        case Store() | Accumulate() | Dot():
            counter = _Counter(stmt, threads)
            total += counter.instructions
            values = max(values, counter.held)
            chain = int(counter.computes)
            accesses = counter.accesses
        case _:
            pass
    return Effort(total, values, chain, loops, accesses)


def _words(dtype: DType) -> float:
    return max(1.0, dtype.nbytes / 4)


class _Counter:
    """The instructions of one statement."""

    def __init__(self, stmt: Store | Accumulate | Dot, threads: int) -> None:
        self.tile = tile_axes(stmt)
        self.among = frozenset(each.axis for each in self.tile)
        self.threads = threads
        self.axes: dict[Expr, frozenset[Axis]] = {}
        self.instructions = 0.0
        self.held = 0.0
        self.computes = False
        self.accesses = 0
        self._visit(own_exprs(stmt), stmt.indices)
        points = self._share(self.among)
        match stmt:
            case Accumulate():
                self.instructions += points * len(stmt.values)
                wide = sum(_words(value.dtype) for value in stmt.values)
                self.held = max(self.held, points * wide)
            case Dot(lhs=lhs):
                if lhs.dtype is DType.float32:  # multiplied and added by each thread
                    self.instructions += points
                else:
                    self.instructions += UNIT * points * self.threads / UNIT_POINTS / self._warps()
            case Store():
                self.accesses += bool(self.tile)
                self.instructions += ACCESS * max(1.0, points * stmt.value.dtype.nbytes / WIDEST)

    def _warps(self) -> float:
        return self.threads / THREADS

    def _share(self, over: frozenset[Axis]) -> float:
        """Elements that a thread has of a value over some axes of the tile."""
        return max(1.0, prod(t.extent for t in self.tile if t.axis in over) / self.threads)

    def _over(self, expr: Expr) -> frozenset[Axis]:
        known = self.axes.get(expr)
        if known is None:
            known = frozenset[Axis]((expr,) if isinstance(expr, Axis) else ())
            for child in expr.children():
                known |= self._over(child)
            self.axes[expr] = known
        return known

    def _visit(self, roots: Sequence[Expr], indices: Sequence[Expr]) -> None:
        """Count each node once; addresses are of one element of each access."""
        seen: set[Expr] = set()
        stack = [root for root in roots if not any(root is index for index in indices)]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            share = self._share(self._over(node))
            if isinstance(node, Load):
                self.accesses += bool(self._over(node) & self.among)
                self.instructions += share + ACCESS * max(1.0, share * node.dtype.nbytes / WIDEST)
                self.held = max(self.held, share * _words(node.dtype))
                stack.extend(() if node.mask is None else (node.mask,))
                continue
            if not isinstance(node, (Const, Axis)):
                self.instructions += share * _weight(node)
                self.held = max(self.held, share * _words(node.dtype))
                sums = isinstance(node, (Unary, Binary)) and node.dtype.is_float
                self.computes |= sums and share >= SEVERAL
            stack.extend(node.children())


def _weight(node: Expr) -> float:
    """Instructions that one element of a node is written as."""
    wide = 4.0 if node.dtype is DType.float64 else 1.0
    match node:
        case Unary(op=op):
            return wide * (1.0 if op in _CHEAP else 5.0 if op in _QUICK else 25.0)
        case Binary(op=op):
            if op in _FUNCTIONS:
                return 60.0 * wide
            if op is BinaryOp.DIV:
                return 5.0 * wide
            return 12.0 if op in _DIVISIONS else 1.0
        case Cast():
            return 1.0
        case _:
            return 1.0


__all__ = ["LIMIT", "Effort", "effort", "seconds"]
