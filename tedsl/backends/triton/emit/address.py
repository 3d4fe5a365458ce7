"""Addresses: a pointer, a scalar offset that is 64-bit where needed, and 32-bit offsets of a tile.

`buffer[i0, i1, ...]` is `buffer + i0 * s0 + i1 * s1 + ...` with row-major strides.  Each index is
split into a scalar part, which moves the pointer, and the part over tile axes:

    small buffer (below 2**31 elements)   X + (i[:, None] * 4096 + j[None, :])
    in a serial loop                      X + k * 64 + (i[:, None] * 4096 + kk[None, :])
    large or of unknown size              X + row.to(tl.int64) * n + (r[:, None] * n + j[None, :])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tedsl.backends.triton.emit.masks import conjuncts
from tedsl.backends.triton.emit.names import sanitise
from tedsl.backends.triton.emit.writer import Value
from tedsl.backends.triton.math import functions as math
from tedsl.backends.triton.math.functions import Text
from tedsl.dtypes import DType
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Cast, Const, Expr
from tedsl.expr.visit import substitute, walk
from tedsl.index.affine import known_multiple, without_remainders
from tedsl.index.width import in_32_bits
from tedsl.ir.layout import SMALL, collapse
from tedsl.ir.nodes import Buffer, Evict, Load
from tedsl.ir.thread_neighbours import neighbours_of

if TYPE_CHECKING:
    from tedsl.backends.triton.emit.values import Printer

LONG = 44


def times(a: Expr, b: Expr) -> Expr:
    """`a * b`, folding constants and factors of 1."""
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(int(a.value) * int(b.value), a.dtype)
    match a, b:
        case Binary(op=BinaryOp.MUL, a=x, b=Const(value=u)), Const(value=v, dtype=dtype):
            return times(x, Const(int(u) * int(v), dtype))
        case _:
            pass
    for x, y in ((a, b), (b, a)):
        if isinstance(x, Const) and x.value == 1:
            return y
        if isinstance(x, Const) and x.value == 0:
            return x
    return Binary(BinaryOp.MUL, a, b)


def plus(a: Expr | None, b: Expr | None) -> Expr | None:
    """`a + b`, where None and 0 are nothing."""
    if a is None or (isinstance(a, Const) and a.value == 0):
        return b
    if b is None or (isinstance(b, Const) and b.value == 0):
        return a
    return Binary(BinaryOp.ADD, a, b)


def to(expr: Expr, dtype: DType) -> Expr:
    """`expr` as an integer of `dtype`."""
    if expr.dtype is dtype:
        return expr
    return Const(expr.value, dtype) if isinstance(expr, Const) else Cast(expr, dtype)


def fits(expr: Expr) -> bool:
    """True of a constant that 32 bits hold."""
    return isinstance(expr, Const) and -(2**31) <= int(expr.value) < 2**31


def strides(shape: Sequence[Expr], dtype: DType) -> list[Expr]:
    """Elements between neighbours along each dimension, as integers of `dtype`."""
    result: list[Expr] = []
    step: Expr = Const(1, dtype)
    for extent in reversed(shape):
        result.append(step)
        step = times(to(extent, dtype), step)
    return result[::-1]


def constant_size(buffer: Buffer) -> int | None:
    """The number of elements, where it is constant."""
    total = 1
    for extent in buffer.shape:
        if not isinstance(extent, Const):
            return None
        total *= int(extent.value)
    return total


def _terms(expr: Expr, printer: Printer) -> list[Expr]:
    """Summands of an index; a factor without tile axes is multiplied in."""
    match expr:
        case Binary(op=BinaryOp.ADD, a=a, b=b):
            return [*_terms(a, printer), *_terms(b, printer)]
        case Binary(op=BinaryOp.SUB, a=a, b=b):
            minus = Const(-1, expr.dtype)
            return [*_terms(a, printer), *(times(t, minus) for t in _terms(b, printer))]
        case Binary(op=BinaryOp.MUL, a=a, b=b):
            for x, factor in ((a, b), (b, a)):
                if printer.info(x).dims and not printer.info(factor).dims:
                    return [times(t, factor) for t in _terms(x, printer)]
            return [expr]
        case _:
            return [expr]


def _reach(expr: Expr, printer: Printer) -> int | None:
    """The largest magnitude of an expression linear in tile axes; None when it is not."""
    match expr:
        case Const(value=value):
            return abs(int(value))
        case Axis() if expr in printer.place:
            return (printer.extent_of(expr) or 1) - 1
        case Axis() if expr in printer.units:
            return 0
        case Binary(op=BinaryOp.ADD | BinaryOp.SUB, a=a, b=b):
            left, right = _reach(a, printer), _reach(b, printer)
            return None if left is None or right is None else left + right
        case Binary(op=BinaryOp.MUL, a=a, b=b):
            left, right = _reach(a, printer), _reach(b, printer)
            return None if left is None or right is None else left * right
        case _:
            return None


def _split(
    index: Expr, printer: Printer, everything: bool, remainders: bool
) -> tuple[Expr | None, Expr | None]:
    """(scalar part, tile part) of an index.

    The scalar part has the summands without tile axes: all of them, or only those that change in a
    serial loop, and with `remainders` those taken off by a division (the others stay with the tile,
    which is then the index as written).
    """
    if not printer.info(index).dims:
        return index, None
    scalar: Expr | None = None
    tile: Expr | None = None
    for term in _terms(index, printer):
        info = printer.info(term)
        moves = everything or info.depth > 0 or (remainders and _is_remainder(term))
        if not info.dims and moves:
            scalar = plus(scalar, term)
        else:
            tile = plus(tile, term)
    return (None, index) if scalar is None else (scalar, tile)


def _is_remainder(term: Expr) -> bool:
    """True for x % c and c * (x % d)."""
    match term:
        case Binary(op=BinaryOp.MUL, a=a, b=Const()):
            return _is_remainder(a)
        case Binary(op=BinaryOp.FLOORMOD):
            return True
        case _:
            return False


def pointer(printer: Printer, buffer: Buffer, indices: Sequence[Expr]) -> Value:
    """The addresses of `buffer[indices]`: a block over the tile axes in the indices."""
    size, given = constant_size(buffer), indices
    large = size is None or size >= SMALL
    shape, indices = collapse(buffer.shape, indices)
    indices = [in_32_bits(index, printer.writer.ranges) for index in indices]
    steps = strides(shape, DType.int32 if not large else DType.int64)
    access = tuple(zip(indices, steps, strict=True))
    base, tiles = _parts(printer, access, large, remainders=False)
    if any(isinstance(n, Binary) and n.op is BinaryOp.FLOORMOD for n in walk(*indices)):
        moved, rest = _parts(printer, access, large, remainders=True)
        aligned = None if moved is None else without_remainders(moved, printer.writer.facts)
        if aligned is not moved:
            base, tiles = aligned, rest
    offset: Expr | None = None
    for tile, step in tiles:
        if len(printer.info(tile).dims) == 1:
            printer.value(tile, name=True)
        offset = plus(offset, _tile_offset(printer, tile, step, large))
    return _sum(printer, buffer, base, offset, _along_narrowed(printer, buffer, given))


def _parts(
    printer: Printer, access: Sequence[tuple[Expr, Expr]], large: bool, remainders: bool
) -> tuple[Expr | None, list[tuple[Expr, Expr]]]:
    """The scalar part of an address, from indices and what a step of each is, and the tile parts of
    the indices with their steps."""
    base: Expr | None = None
    tiles: list[tuple[Expr, Expr]] = []
    for index, step in access:
        scalar, tile = _split(index, printer, large, remainders)
        if scalar is not None:
            wide = to(scalar, DType.int64) if large else to(scalar, DType.int32)
            base = plus(base, times(wide, narrow(step) if isinstance(step, Cast) else step))
        if tile is not None:
            tiles.append((tile, step))
    return base, tiles


def _tile_offset(printer: Printer, tile: Expr, step: Expr, large: bool) -> Expr:
    if not large:
        return times(to(tile, DType.int32), step)
    reach = _reach(tile, printer)
    if reach is None:
        return times(to(tile, DType.int64), step)
    if isinstance(step, Const):
        if reach * int(step.value) < SMALL:
            return times(to(tile, DType.int32), Const(step.value, DType.int32))
        return times(to(tile, DType.int64), step)
    printer.writer.spans.append(times(Const(reach, DType.int64), step))
    return times(to(tile, DType.int32), narrow(step))


def narrow(step: Expr) -> Expr:
    """A 64-bit stride over sizes as 32-bit arithmetic; the launch checks that it fits."""
    match step:
        case Cast(a=a) if a.dtype is DType.int32:
            return a
        case Const(value=value):
            return Const(value, DType.int32)
        case Binary(op=op, a=a, b=b):
            return Binary(op, narrow(a), narrow(b))
        case _:
            return to(step, DType.int32)


def _sum(
    printer: Printer,
    buffer: Buffer,
    base: Expr | None,
    offset: Expr | None,
    narrowed: tuple[Axis, int] | None,
) -> Value:
    text = Text(printer.writer.pointers[buffer])
    if base is not None and not (isinstance(base, Const) and base.value == 0):
        text = _base(printer, buffer, base)
    dims: tuple[int, ...] = ()
    if offset is not None and not (isinstance(offset, Const) and offset.value == 0):
        flat = len(printer.info(offset).dims) == 1
        wishes = () if flat else (f"{sanitise(buffer.name)}_offsets",)
        tile = printer.value(offset, *wishes, name=flat)
        if narrowed is not None:
            tile = _narrow_runs(printer, offset, tile, f"{sanitise(buffer.name)}_runs", *narrowed)
        text = Text(f"{text.text} + {tile.text.at(math.PRODUCT)}", math.SUM)
        dims = tile.dims
    return Value(text, dims, buffer.dtype)


def _along_narrowed(
    printer: Printer, buffer: Buffer, indices: Sequence[Expr]
) -> tuple[Axis, int] | None:
    """The axis along which a thread has neighbours, and how many, where there are to be fewer than
    the widest access to such a block moves."""
    writer = printer.writer
    if not writer.neighbours:
        return None
    found = neighbours_of(buffer, indices, printer.tiles, writer.facts)
    if found is None:
        return None
    block, along, in_a_run = found
    return (along, writer.neighbours[block]) if in_a_run and block in writer.neighbours else None


def _narrow_runs(
    printer: Printer, offset: Expr, tile: Value, wish: str, along: Axis, each: int
) -> Value:
    """Offsets of which Triton thinks that runs start at multiples of `each` at most, which is how
    many neighbours it then gives to a thread."""
    writer, info = printer.writer, printer.info(offset)
    first = substitute(offset, {along: Const(0, along.dtype)})
    least = known_multiple(first, writer.facts, each)
    runs = tuple(least if printer.tiles[d].axis is along else 1 for d in tile.dims)
    number = writer.number(("runs", info.number, runs))
    name = writer.lookup(number)
    if name is None:
        text = f"tl.multiple_of({tile.text.text}, {runs if len(runs) > 1 else least})"
        name = writer.define(text, writer.home(info.depth), number, wish)
    return Value(Text(name), tile.dims, tile.dtype)


def _base(printer: Printer, buffer: Buffer, base: Expr) -> Text:
    """The pointer moved by a scalar; under a name when its text is long."""
    name = printer.writer.pointers[buffer]
    info = printer.info(base)
    key = printer.writer.number(("base", id(buffer), info.number))
    known = printer.writer.lookup(key)
    if known is not None:
        return Text(known)
    moved = printer.value(base)
    text = Text(f"{name} + {moved.text.at(math.SUM)}", math.SUM)
    if len(text.text) < LONG:
        return text
    home = printer.writer.home(info.depth)
    return Text(printer.writer.define(text.text, home, key, f"{sanitise(buffer.name)}_base"))


def load(printer: Printer, expr: Load) -> Value:
    """`tl.load` of a tile or a scalar of a GLOBAL buffer, 0 where its mask is false."""
    printer.writer.before_load(expr.buffer)
    where = pointer(printer, expr.buffer, expr.indices)
    here = set(where.dims)
    own: list[Expr] = []
    rest: list[Expr] = []
    for part in conjuncts(expr.mask):
        (own if here.issuperset(printer.info(part).dims) else rest).append(part)
    text = where.text.text
    if own:
        zero = printer.writer.zero(expr.dtype)
        text = f"{text}, mask={printer.mask(own, where.dims).text}, other={zero}"
    text += eviction(expr.buffer, expr.evict)
    value = Value(Text(f"tl.load({text})"), where.dims, expr.dtype)
    return printer.zero_outside(value, rest)


def eviction(buffer: Buffer, own: Evict | None = None) -> str:
    """The `eviction_policy` of an access: its own priority, or that of the buffer."""
    wish = buffer.evict if own is None else own
    return "" if wish is Evict.NORMAL else f', eviction_policy="evict_{wish.value}"'
