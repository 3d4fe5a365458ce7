"""How one tile statement is cut: which axis becomes SIMD lanes, how wide, what is unrolled.

The SIMD axis is the one over which most accesses have stride 1 or 0.  Its extent is cut into chunks
of native vectors and one narrower tail.  The other axes are unrolled while the statement stays
small, so that register tiles get constant addresses, and loops otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tedsl.backends.cpu.emit.affine import Dependence, step_along
from tedsl.backends.cpu.emit.frame import Frame
from tedsl.backends.cpu.emit.llvm_text import I64, Value, const
from tedsl.backends.cpu.emit.memory import Accessor, register_bits
from tedsl.backends.cpu.emit.values import Lanes, Pos
from tedsl.expr.nodes import Axis, Const, Expr, Unary
from tedsl.expr.visit import walk
from tedsl.ir.nodes import Buffer, Load, TileAxis
from tedsl.processor import machine

UNROLL_POINTS = 64
UNROLL_COST = 320


@dataclass(frozen=True, slots=True)
class Cut:
    """One statement's plan: SIMD axis (or None), lanes per chunk, the other axes outermost first.

    `partner` is another axis along which loads that step through memory over the lanes are
    contiguous: blocks of both axes are loaded along it and transposed in registers.
    """

    lanes: TileAxis | None
    width: int
    others: tuple[TileAxis, ...]
    cost: int
    in_registers: bool
    partner: TileAxis | None = None

    @property
    def chunks(self) -> int:
        """Chunks along the SIMD axis, counting the tail."""
        return -(-self.lanes.extent // self.width) if self.lanes is not None else 1

    @property
    def points(self) -> int:
        """Vectors in the whole tile."""
        total = self.chunks
        for t in self.others:
            total *= t.extent
        return total


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def cut(
    frame: Frame,
    tile: Sequence[TileAxis],
    targets: Sequence[tuple[Buffer, tuple[Expr, ...]]],
    sources: Sequence[Expr],
) -> Cut:
    """Choose the SIMD axis and width of a statement that writes `targets` from `sources`."""
    axes = [t for t in tile if t.extent > 1]
    depends = Dependence([t.axis for t in axes])
    nodes = list(walk(*sources))
    accesses = [(n.buffer, n.indices) for n in nodes if isinstance(n, Load)]
    in_registers = any(b in frame.register_tiles for b, _ in (*targets, *accesses))
    cost = sum(_node_cost(n) for n in nodes) + len(targets)
    if not axes:
        return Cut(None, 0, (), cost, in_registers)
    ranked = sorted(
        range(len(axes)),
        key=lambda i: (_score(frame, depends, axes[i], targets, accesses), i),
    )
    chosen = axes[ranked[-1]]
    bits = [register_bits(b.dtype) for b, _ in targets]
    bits += [register_bits(n.dtype) for n in _computed(sources) if chosen.axis in depends(n)]
    native = machine().lanes(max(bits, default=32))
    width = min(native, _power(chosen.extent))
    others = tuple(t for t in axes if t is not chosen)
    plan = Cut(chosen, width, others, cost, in_registers)
    if in_registers or width < 4 or chosen.extent < width:
        return plan
    return replace(plan, partner=_partner(frame, depends, plan, accesses))


def _partner(
    frame: Frame,
    depends: Dependence,
    plan: Cut,
    accesses: Sequence[tuple[Buffer, tuple[Expr, ...]]],
) -> TileAxis | None:
    """The axis to transpose with, if some load wants it."""
    for buffer, indices in accesses:
        poly = frame.offset(buffer, indices)
        lanes = plan.lanes.axis if plan.lanes is not None else None
        if lanes not in depends.poly(poly) or step_along(depends, poly, lanes) in (1, -1):
            continue
        for t in plan.others:
            if t.extent >= plan.width and step_along(depends, poly, t.axis) == 1:
                return t
    return None


def _computed(sources: Sequence[Expr]) -> Iterator[Expr]:
    """The nodes whose values are computed; indices of loads only make addresses."""
    seen: set[Expr] = set()
    stack = list(sources)
    while stack:
        node = stack.pop()
        if node in seen or isinstance(node, Const):
            continue
        seen.add(node)
        yield node
        if not isinstance(node, Load):
            stack.extend(node.children())
        elif node.mask is not None:
            stack.append(node.mask)


def _node_cost(node: Expr) -> int:
    """About how many vector instructions a node takes."""
    if isinstance(node, Unary):
        return 25 if node.op.value in _HEAVY else 1
    return 0 if isinstance(node, (Const, Axis)) else 1


_HEAVY = frozenset(
    [
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "tanh",
        "sigmoid",
        "erf",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "asinh",
        "acosh",
        "atanh",
    ]
)


def _score(
    frame: Frame,
    depends: Dependence,
    axis: TileAxis,
    targets: Sequence[tuple[Buffer, tuple[Expr, ...]]],
    accesses: Sequence[tuple[Buffer, tuple[Expr, ...]]],
) -> tuple[int, int, int]:
    """Higher is better: few strided accesses, then many contiguous ones, then enough lanes."""
    strided = contiguous = 0
    for weight, group in ((3, targets), (2, accesses)):
        for buffer, indices in group:
            poly = frame.offset(buffer, indices)
            if axis.axis not in depends.poly(poly):
                continue
            if step_along(depends, poly, axis.axis) in (1, -1):
                contiguous += weight
            else:
                strided += weight
    return (-strided, contiguous, min(axis.extent, 16))


class Walker:
    """Runs a body over the points of a tile, moving an accessor along."""

    def __init__(self, accessor: Accessor, plan: Cut) -> None:
        self.accessor = accessor
        self.plan = plan
        self.fn = accessor.fn

    @contextmanager
    def _at(self, axis: Axis, pos: Pos) -> Generator[None]:
        before = self.accessor.at.get(axis)
        self.accessor.at[axis] = pos
        yield
        if before is None:
            del self.accessor.at[axis]
        else:
            self.accessor.at[axis] = before

    def budget(self) -> int:
        """How many vector points may be unrolled."""
        if self.plan.in_registers:
            return UNROLL_POINTS
        return max(1, min(16, UNROLL_COST // max(self.plan.cost, 1)))

    def over(self, axes: Sequence[TileAxis], unroll: int, body: Callable[[], None]) -> None:
        """Run `body` at every position of `axes`, unrolling innermost axes up to `unroll`
        points."""
        if not axes:
            body()
            return
        first, rest = axes[0], axes[1:]
        inner = 1
        for t in rest:
            inner *= t.extent
        if first.extent * inner <= unroll:
            for p in range(first.extent):
                with self._at(first.axis, Pos(None, p)):
                    self.over(rest, unroll, body)
            return
        with (
            self.fn.loop(const(first.extent, I64), hint=NO_UNROLL) as index,
            self.accessor.memo.scope(),
            self._at(first.axis, Pos(index, 0)),
        ):
            self.over(rest, unroll, body)

    def chunks(self, unroll: int, body: Callable[[int], None], whole_tail: bool = False) -> None:
        """Run `body(copy)` at every chunk of the SIMD axis; `copy` counts the unrolled copies.

        With `whole_tail` the last chunk is as wide as the others, with fewer lanes that count.
        """
        lanes, width = self.plan.lanes, self.plan.width
        if lanes is None:
            body(0)
            return
        full = lanes.extent // width
        copies = _copies(full, unroll)
        done = 0
        if full > copies:
            loops = full // copies
            done = loops * copies
            with (
                self.fn.loop(const(done * width, I64), width * copies, hint=NO_UNROLL) as index,
                self.accessor.memo.scope(),
            ):
                for c in range(copies):
                    self._chunk(lanes, Pos(index, c * width), width, c, body)
        for c in range(done, full):
            self._chunk(lanes, Pos(None, c * width), width, (c - done) % copies, body)
        rest = lanes.extent - full * width
        if rest:
            tail = width if whole_tail else _power(rest)
            self._chunk(lanes, Pos(None, full * width), tail, 0, body, rest)

    def everywhere(self, point: Callable[[int], None]) -> None:
        """Run `point` over the whole tile, unrolled as far as the budget goes."""
        if self.plan.partner is not None:
            self._blocks(self.plan.partner, point)
            return
        budget, chunks = self.budget(), self.plan.chunks
        if chunks <= budget:
            self.over(self.plan.others, budget // chunks, lambda: self.chunks(chunks, point))
        else:
            copies = max(1, min(4, budget))
            self.over(self.plan.others, 1, lambda: self.chunks(copies, point))

    def _blocks(self, partner: TileAxis, point: Callable[[int], None]) -> None:
        """Run `point` over square blocks of the SIMD axis and its partner, and what is left."""
        width = self.plan.width
        others = tuple(t for t in self.plan.others if t is not partner)
        whole = partner.extent // width * width

        def rows(base: Value | None, first: int, count: int) -> None:
            def chunk(copy: int) -> None:
                for p in range(first, first + count):
                    with self._at(partner.axis, Pos(base, p)):
                        point(copy)

            self.accessor.partner = partner.axis if count == width else None
            self.chunks(1, chunk)
            self.accessor.partner = None

        def block() -> None:
            if whole == width:
                rows(None, 0, width)
            else:
                with (
                    self.fn.loop(const(whole, I64), width, hint=NO_UNROLL) as index,
                    self.accessor.memo.scope(),
                ):
                    rows(index, 0, width)
            if partner.extent > whole:
                rows(None, whole, partner.extent - whole)

        self.over(others, 1, block)

    def _chunk(
        self,
        lanes: TileAxis,
        pos: Pos,
        width: int,
        copy: int,
        body: Callable[[int], None],
        live: int = 0,
    ) -> None:
        accessor = self.accessor
        with self._at(lanes.axis, pos):
            accessor.lanes = Lanes(lanes.axis, width, live or width) if width > 1 else None
            body(copy)
            accessor.lanes = None


def _copies(full: int, unroll: int) -> int:
    """How many chunks one iteration takes: a divisor of all chunks when one is near `unroll`."""
    if full <= unroll:
        return max(full, 1)
    for n in range(unroll, unroll // 2, -1):
        if full % n == 0:
            return n
    return max(unroll, 1)


NO_UNROLL = '!"llvm.loop.unroll.disable"'


def masked(accessor: Accessor, mask: Expr | None, body: Callable[[Value | None], None]) -> None:
    """Run `body` where the statement's mask holds: a branch when all lanes agree, else a lane
    mask."""
    if mask is None:
        body(None)
        return
    value = accessor.eval(mask)
    if value.type.lanes:
        body(value)
        return
    if value.const is not None:
        if value.const:
            body(None)
        return
    with accessor.fn.when(value), accessor.memo.scope():
        body(None)
