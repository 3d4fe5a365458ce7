"""Tensor descriptors: TMA moves whole tiles in place of loads and stores by addresses.

A Store of a pure Load into a SHARED buffer is a descriptor load, and a Store of a SHARED tile to
device memory is a descriptor store, where the hardware allows it.  Elsewhere the same statement
prints as an ordinary load or store, and the reason stands above it as a comment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tedsl.backends.triton.emit.address import plus, to
from tedsl.backends.triton.emit.masks import conjuncts
from tedsl.backends.triton.emit.names import sanitise
from tedsl.backends.triton.emit.program import Param, ParamKind
from tedsl.backends.triton.emit.values import Printer, transpose
from tedsl.backends.triton.emit.writer import Writer
from tedsl.dtypes import DType
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Cast, Compare, CompareOp, Const, Expr
from tedsl.index.intern import INDEX_DTYPES
from tedsl.ir.nodes import Buffer, Load, Scope, Store

ALIGNMENT = 16
RANKS = range(2, 6)
SWIZZLED = 8
"""Rows of a tile in shared memory after which its swizzle starts again.  The tiles of a pipelined
loop lie one after the other, so that the second of fewer rows starts within that pattern, or where
TMA may not write (a multiple of 128 bytes)."""
LARGEST_EXTENT = 2**30
"""Of one dimension: a tile that starts at its end, or before its start, has 32-bit offsets."""
_MOVABLE = frozenset(
    (
        DType.float16,
        DType.bfloat16,
        DType.float32,
        DType.float8_e4m3fn,
        DType.float8_e5m2,
        DType.int8,
        DType.int16,
        DType.int32,
        DType.uint8,
        DType.uint16,
        DType.uint32,
    )
)


@dataclass(frozen=True, slots=True)
class Box:
    """A tile of a buffer: first element (as int32) and extent per dimension; `places` of its tile
    axes."""

    offsets: tuple[Expr, ...]
    extents: tuple[int, ...]
    places: tuple[int, ...]


class Descriptors:
    """The descriptors of one kernel, by buffer and block."""

    def __init__(self, writer: Writer, enabled: bool) -> None:
        self.writer = writer
        self.enabled = enabled
        self.params: dict[tuple[Buffer, tuple[int, ...]], Param] = {}

    def transfer(self, store: Store) -> bool:
        """Print `store` with a descriptor; False when it must be printed as usual."""
        value = store.value
        if not isinstance(value, Load):
            return False
        if store.buffer.scope is Scope.SHARED and value.buffer.scope is Scope.GLOBAL:
            return self._load(store, value)
        if store.buffer.scope is Scope.GLOBAL and value.buffer.scope is Scope.SHARED:
            return self._store(store, value)
        return False

    def _load(self, store: Store, value: Load) -> bool:
        roots = [part for part in (*value.indices, value.mask) if part is not None]
        printer = Printer(self.writer, store.tile, roots)
        box = self._box(printer, value.buffer, value.indices, [value.mask, store.mask])
        if isinstance(box, Box) and math.prod(box.extents[:-1]) % SWIZZLED:
            box = f"its rows are no multiple of {SWIZZLED}, in which shared memory is swizzled"
        if isinstance(box, str):
            self.writer.remark(store.buffer.name, f"by plain loads: {box}")
            return False
        self.writer.before_load(value.buffer)
        name = self._name(value.buffer, box)
        text = f"{name}.load([{self._offsets(printer, box)}])"
        shape = tuple(extent for extent in box.extents if extent != 1)
        if shape != box.extents:
            text = f"tl.reshape({text}, {shape})"
        wanted = printer.block_axes(store.buffer, store.indices)
        if wanted != box.places:
            text = transpose(text, box.places, wanted).text
        local = self.writer.local(store.buffer)
        self.writer.line(f"{local.name} = {text}")
        local.pending, local.defined = None, True
        self.writer.assigned((store.buffer,))
        return True

    def _store(self, store: Store, value: Load) -> bool:
        roots = [part for part in (*store.indices, store.mask) if part is not None]
        printer = Printer(self.writer, store.tile, roots)
        masks = [store.mask, value.mask]
        box = self._box(printer, store.buffer, store.indices, masks)
        if isinstance(box, str):
            self.writer.remark(store.buffer.name, f"by plain stores: {box}")
            return False
        printer.flush(value.buffer)
        text = self.writer.local(value.buffer).name
        held = printer.block_axes(value.buffer, value.indices)
        if held != box.places:
            text = transpose(text, held, box.places).text
        if any(extent == 1 for extent in box.extents):
            text = f"tl.reshape({text}, {box.extents})"
        self.writer.before_store(store.buffer)
        name = self._name(store.buffer, box)
        self.writer.line(f"{name}.store([{self._offsets(printer, box)}], {text})")
        self.writer.assigned((store.buffer,))
        return True

    def _name(self, buffer: Buffer, box: Box) -> str:
        found = self.params.get((buffer, box.extents))
        if found is None:
            name = self.writer.names.fresh(f"{sanitise(buffer.name)}_desc")
            found = Param(ParamKind.DESCRIPTOR, name, buffer=buffer, block=box.extents)
            self.params[buffer, box.extents] = found
        return found.name

    def _offsets(self, printer: Printer, box: Box) -> str:
        """First elements of the box, each under a name when it takes divisions."""
        names = iter(printer.names(box.places))
        wishes = [next(names) if extent > 1 else "at" for extent in box.extents]
        values = [
            printer.value(offset, f"{wish.split('.')[0]}_start")
            for offset, wish in zip(box.offsets, wishes, strict=True)
        ]
        return ", ".join(value.text.text for value in values)

    def _box(
        self,
        printer: Printer,
        buffer: Buffer,
        indices: Sequence[Expr],
        masks: Sequence[Expr | None],
    ) -> Box | str:
        """The box that the indices describe, or why there is none."""
        if not self.enabled:
            return "the target has no tensor descriptors"
        refusal = _unfit(buffer)
        if refusal:
            return refusal
        if buffer in self.writer.passed_on:
            return "programs pass it on to one another"
        offsets: list[Expr] = []
        extents: list[int] = []
        places: list[int] = []
        for index in indices:
            found = _corner(printer, index)
            if found is None:
                return "an index is not one tile axis plus a scalar"
            offset, place = found
            offsets.append(offset)
            extents.append(1 if place is None else printer.tiles[place].extent)
            places += [] if place is None else [place]
        if sorted(places) != list(range(len(printer.tiles))):
            return "the tile is not a box of the buffer"
        unit = ALIGNMENT // buffer.dtype.nbytes
        if extents[-1] < unit:
            return f"a row of the tile has less than {ALIGNMENT} bytes"
        if _divisor(offsets[-1]) % unit:
            return f"a row may start off a multiple of {ALIGNMENT} bytes"
        for mask in masks:
            for part in conjuncts(mask):
                if not _is_bound(printer, part, buffer, indices):
                    return "its mask is more than the bounds of the buffer"
        return Box(tuple(offsets), tuple(extents), tuple(places))


def _unfit(buffer: Buffer) -> str:
    """Why no descriptor of the buffer can exist; empty when one can."""
    if len(buffer.shape) not in RANKS:
        return f"the buffer has {len(buffer.shape)} dimensions, descriptors take 2 to 5"
    if buffer.dtype not in _MOVABLE:
        return f"descriptors do not move {buffer.dtype.value}"
    step = buffer.dtype.nbytes
    for extent in reversed(buffer.shape):
        if not isinstance(extent, Const):
            return "the shape is not constant"
        if extent.value == 0:
            return "the buffer is empty"
        if extent.value > LARGEST_EXTENT:
            return f"its extent {extent.value} is beyond the 32-bit offsets of descriptors"
        step *= int(extent.value)
        if step % ALIGNMENT and extent is not buffer.shape[0]:
            return f"rows are no multiple of {ALIGNMENT} bytes apart"
    return ""


def _corner(printer: Printer, index: Expr) -> tuple[Expr, int | None] | None:
    """(first element, place of the tile axis) of an index `scalar + axis`; None for others."""
    scalar: Expr | None = None
    place: int | None = None
    for term in _summands(index):
        if not printer.info(term).dims:
            scalar = plus(
                scalar, Const(0, DType.int32) if _is_unit(printer, term) else _short(term)
            )
        elif isinstance(term, Axis) and place is None:
            place = printer.place[term]
        else:
            return None
    return (Const(0, DType.int32) if scalar is None else scalar), place


def _short(scalar: Expr) -> Expr:
    """An offset as an int32, which holds it whatever type it is counted in."""
    match scalar:
        case Cast(a=a) if a.dtype is DType.int32:
            return a
        case _:
            return to(scalar, DType.int32)


def _is_unit(printer: Printer, term: Expr) -> bool:
    return isinstance(term, Axis) and term in printer.units


def _summands(expr: Expr) -> list[Expr]:
    match expr:
        case Binary(op=BinaryOp.ADD, a=a, b=b):
            return [*_summands(a), *_summands(b)]
        case Binary(op=BinaryOp.SUB, a=a, b=Const(value=value)):
            return [*_summands(a), Const(-int(value), expr.dtype)]
        case Cast(a=a) if expr.dtype in INDEX_DTYPES and a.dtype in INDEX_DTYPES:
            return _summands(a)
        case _:
            return [expr]


def _divisor(expr: Expr) -> int:
    """A number that divides every value of an integer expression (0 divides only 0)."""
    match expr:
        case Const(value=value):
            return abs(int(value))
        case Binary(op=BinaryOp.MUL, a=a, b=b):
            return _divisor(a) * _divisor(b)
        case Binary(op=BinaryOp.ADD | BinaryOp.SUB | BinaryOp.MIN | BinaryOp.MAX, a=a, b=b):
            return math.gcd(_divisor(a), _divisor(b))
        case Cast(a=a) if a.dtype.is_integer:
            return _divisor(a)
        case _:
            return 1


def _is_bound(printer: Printer, part: Expr, buffer: Buffer, indices: Sequence[Expr]) -> bool:
    """True for `index < extent` of one dimension, which TMA checks by itself; also where the same
    number is missing on both sides."""
    if not (isinstance(part, Compare) and part.op is CompareOp.LT and isinstance(part.b, Const)):
        return False
    asked, less = _without_constant(part.a)
    end = int(part.b.value) - less
    moved = (_without_constant(index) for index in indices)
    return any(
        printer.info(index).number == printer.info(asked).number
        and printer.info(index).dims == printer.info(asked).dims
        and isinstance(extent, Const)
        and extent.value == end + more
        for (index, more), extent in zip(moved, buffer.held or buffer.shape, strict=True)
    )


def _without_constant(expr: Expr) -> tuple[Expr, int]:
    """An index as something plus a number."""
    match expr:
        case Binary(op=BinaryOp.ADD, a=a, b=Const(value=value)):
            return a, int(value)
        case Binary(op=BinaryOp.SUB, a=a, b=Const(value=value)):
            return a, -int(value)
        case _:
            return expr, 0
