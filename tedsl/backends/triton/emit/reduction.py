"""Reductions: `Accumulate` as an element-wise update of a tile, or `tl.reduce` over tile axes, or
`tl.associative_scan` along one, and one update after it.

Masked lanes carry the reducer's identity.  Minima and maxima of floats propagate NaN, which
Triton's own `tl.max` does not, so they go through `tl.reduce`.  A reducer over a tuple, or one that
is no single operator, becomes a combine function of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tedsl.backends.triton.emit import address
from tedsl.backends.triton.emit.masks import conjuncts, guard_loads
from tedsl.backends.triton.emit.names import Names, sanitise
from tedsl.backends.triton.emit.values import HALF, Printer
from tedsl.backends.triton.emit.writer import Value, Writer, block_shape, union
from tedsl.backends.triton.math import functions as math
from tedsl.backends.triton.math.functions import Text
from tedsl.dtypes import DType
from tedsl.errors import LowerError
from tedsl.expr.nodes import Binary, BinaryOp, Cast, Const, Expr, Reducer, Unary, UnaryOp
from tedsl.ir.nodes import Accumulate, Buffer, For, Load, LoopKind, Scope, Stmt
from tedsl.ir.visit import buffers_written, walk_stmts

_NAN_FUNCTIONS = {BinaryOp.MAX: "max_nan", BinaryOp.MIN: "min_nan", BinaryOp.MUL: "product"}
_INTEGER_FUNCTIONS = {
    BinaryOp.ADD: "tl.sum",
    BinaryOp.MAX: "tl.max",
    BinaryOp.MIN: "tl.min",
    BinaryOp.XOR: "tl.xor_sum",
}


@dataclass(frozen=True, slots=True)
class Update:
    """An `Accumulate` with its axes sorted out: `kept` index the result, `reduced` do not; a
    running fold goes `along` one that is kept."""

    stmt: Accumulate
    printer: Printer
    kept: tuple[int, ...]
    reduced: tuple[int, ...]
    parts: tuple[Expr, ...]
    along: int | None = None

    @property
    def joins(self) -> bool:
        """True when points of the tile meet each other, and not only what was there."""
        return bool(self.reduced) or self.along is not None


def zero_outside(expr: Expr, part: Expr, printer: Printer) -> bool:
    """True when `expr` is surely 0 in the lanes where `part` is false."""
    match expr:
        case Load(buffer=buffer, mask=mask) if buffer.scope is Scope.GLOBAL:
            info = printer.info(part)
            axes = {axis for index in expr.indices for axis in printer.info(index).dims}
            return axes.issuperset(info.dims) and any(
                printer.info(own).number == info.number for own in conjuncts(mask)
            )
        case Cast(a=a) | Unary(op=UnaryOp.NEG | UnaryOp.ABS | UnaryOp.SQRT, a=a):
            return zero_outside(a, part, printer)
        case Binary(op=BinaryOp.ADD | BinaryOp.SUB | BinaryOp.MUL, a=a, b=b):
            return zero_outside(a, part, printer) and zero_outside(b, part, printer)
        case _:
            return False


def updated_again(body: Stmt) -> frozenset[Buffer]:
    """The buffers that one iteration of a loop with this body updates more than once."""
    found = Counter[Buffer]()
    for stmt in walk_stmts(body):
        if isinstance(stmt, Accumulate):
            found.update(stmt.buffers)
        elif isinstance(stmt, For) and stmt.kind is LoopKind.UNROLLED:
            found.update(buffers_written(stmt.body))
    return frozenset(buffer for buffer, count in found.items() if count > 1)


def accumulate(writer: Writer, stmt: Accumulate) -> None:
    """Print one `Accumulate`: into LOCAL buffers, or into GLOBAL ones read and written back, or
    atomically."""
    values = tuple(guard_loads(value) for value in stmt.values)
    parts = tuple(conjuncts(stmt.mask))
    local = stmt.buffers[0].scope is not Scope.GLOBAL
    roots = (*(() if local else stmt.indices), *values, *parts)
    tile = tuple(t for t in stmt.tile if t.extent > 1)
    printer = Printer(writer, stmt.tile, roots, parts)
    if local:
        kept = printer.block_axes(stmt.buffers[0], stmt.indices)
        if len(kept) == len(tile):
            units = tuple(t for t in stmt.tile if t.extent == 1)
            tile = tuple(tile[place] for place in kept)
            printer = Printer(writer, (*tile, *units), roots, parts)
            kept = tuple(range(len(tile)))
    else:
        kept = union(*(printer.info(index).dims for index in stmt.indices))
    reduced = tuple(place for place in range(len(tile)) if place not in kept)
    along = next((place for place, t in enumerate(tile) if t.axis is stmt.along), None)
    update = Update(stmt, printer, kept, reduced, parts, along)
    single = len(values) == 1 and stmt.reducer.operator is not None
    results = _single(update, values[0]) if single else _several(update, values)
    if local:
        _into_locals(update, results)
    elif stmt.atomic:
        _atomically(update, results[0])
    else:
        _into_memory(update, results)


def _single(update: Update, value: Expr) -> list[Value]:
    """The value of an operator reducer, masked and reduced."""
    printer, reducer = update.printer, update.stmt.reducer
    op, identity = reducer.operator, reducer.identity[0]
    if op is None or not isinstance(identity, Const):
        raise LowerError(f"reducer {reducer.name!r} has an identity that is not a constant")
    parts = [
        p for p in update.parts if not (op is BinaryOp.ADD and zero_outside(value, p, printer))
    ]
    value, scale = _unscaled(value, op, identity) if update.reduced else (value, None)
    found = printer.value(_apart(update, value))
    if parts and (update.joins or not update.stmt.atomic):
        found = printer.otherwise(found, parts, identity)
    if not update.joins:
        return [found]
    (found,) = _broadcast(update, [found])
    if update.along is not None:
        return [_running_single(update, found, op)]
    found = _reduce(update, found, op)
    if scale is not None:
        found = printer.apply(BinaryOp.MUL, found, printer.value(scale))
    return [found]


def _unscaled(value: Expr, op: BinaryOp, identity: Const) -> tuple[Expr, Const | None]:
    """The largest (or least) element of a block times a constant, as the constant times that of
    the block: rounding keeps the order, so both are the same number.

    max(j)(x[j] * c) = max(j)(x[j]) * c,  c > 0
    """
    if op not in (BinaryOp.MAX, BinaryOp.MIN) or abs(identity.value) != float("inf"):
        return value, None
    match value:
        case Binary(op=BinaryOp.MUL, a=a, b=Const(value=scale) as factor):
            pass
        case Binary(op=BinaryOp.MUL, a=Const(value=scale) as factor, b=a):
            pass
        case _:
            return value, None
    exact = value.dtype in (DType.float32, DType.float64) and 0 < scale < float("inf")
    return (a, factor) if exact else (value, None)


def _apart(update: Update, value: Expr) -> Expr:
    """A sum of products that is no `Dot`, as Triton leaves it.

    Its combiner makes `tl.sum(a[:, :, None] * b[None, :, :], axis=1)` a product of matrices, of
    float32 rounded to TF32, and of fewer than eight terms (with 3.6) several times as large; it
    does not look for `b * a`.  (Issue 9609 of Triton asks about its precision.)
    """
    if not isinstance(value, Binary) or value.op is not BinaryOp.MUL or not update.reduced:
        return value
    a, b = (update.printer.info(factor).dims for factor in (value.a, value.b))
    as_matrices = len(a) == len(b) == 2 and a[1] == b[0]
    return replace(value, a=value.b, b=value.a) if as_matrices else value


def _broadcast(update: Update, values: list[Value]) -> list[Value]:
    """The values as blocks of one shape over all axes along which they meet (and others that
    occur)."""
    printer = update.printer
    along = () if update.along is None else (update.along,)
    dims = union(update.reduced, along, *(value.dims for value in values))
    result: list[Value] = []
    for value in values:
        value = printer.typed(value)
        if value.dims != dims:
            inner = printer.expand(value, dims).text
            text = Text(f"tl.broadcast_to({inner}, {printer.shape(dims)})")
            value = Value(text, dims, value.dtype)
        result.append(value)
    return result


def _wide(value: Value, op: BinaryOp) -> tuple[Value, BinaryOp]:
    """What Triton folds: 16-bit floats as float32, bools as integers."""
    if value.dtype in HALF:
        text = math.cast(value.text, value.dtype, DType.float32)
        return Value(text, value.dims, DType.float32), op
    if value.dtype.is_bool:
        text = math.cast(value.text, value.dtype, DType.int32)
        op = {BinaryOp.OR: BinaryOp.MAX, BinaryOp.AND: BinaryOp.MIN}.get(op, op)
        return Value(text, value.dims, DType.int32), op
    return value, op


def _reduce(update: Update, value: Value, op: BinaryOp) -> Value:
    """Reduce the reduced axes of one block, innermost first."""
    writer, dtype = update.printer.writer, value.dtype
    value, op = _wide(value, op)
    text, kind = value.text, value.dtype
    call = _function(writer, op, kind)
    dims = list(value.dims)
    for axis in reversed([axis for axis in dims if axis in update.reduced]):
        place = dims.index(axis)
        text = Text(call.format(x=text.text, axis=_axis(writer, dims, place)))
        dims.remove(axis)
    return Value(_narrow(text, kind, dtype), tuple(dims), dtype)


def _narrow(text: Text, kind: DType, dtype: DType) -> Text:
    """What was folded as `kind`, again of its own dtype: Triton adds up short integers in 32
    bits."""
    if kind is not dtype or (dtype.is_integer and dtype.bits < 32):
        return math.cast(text, DType.float32 if kind.is_float else DType.int32, dtype)
    return text


def _running_single(update: Update, value: Value, op: BinaryOp) -> Value:
    """The running fold of one block by an operator."""
    writer, dtype = update.printer.writer, value.dtype
    value, op = _wide(value, op)
    place = value.dims.index(update.along or 0)
    if op is BinaryOp.ADD:
        text = f"tl.cumsum({value.text.text}, axis={place})"
    else:
        name = _operator(writer, op, value.dtype)
        text = f"tl.associative_scan({value.text.text}, {place}, {name})"
    return Value(_narrow(Text(text), value.dtype, dtype), value.dims, dtype)


def _axis(writer: Writer, dims: Sequence[int], place: int) -> int | None:
    """The axis to reduce; None, for all of them, says the last one in the way that is needed."""
    return None if len(dims) == 1 and writer.has_tensor_memory else place


def _function(writer: Writer, op: BinaryOp, dtype: DType) -> str:
    """The call that reduces one axis, as a format of `x` and `axis`."""
    if op is BinaryOp.ADD or (not dtype.is_float and op in _INTEGER_FUNCTIONS):
        return _INTEGER_FUNCTIONS[op] + "({x}, axis={axis})"
    return "tl.reduce({x}, {axis}, " + _operator(writer, op, dtype) + ")"


def _operator(writer: Writer, op: BinaryOp, dtype: DType) -> str:
    """The name of an emitted function that combines two values."""
    name = _NAN_FUNCTIONS.get(op) if dtype.is_float or op is BinaryOp.MUL else None
    if name is not None:
        writer.helpers[name] = math.HELPERS[name]
        return name
    name = f"reduce_{op.name.lower()}"
    text, _ = math.binary(op, Text("a"), Text("b"), dtype, nonnegative=False)
    writer.helpers[name] = _helper(name, "a, b", text.text, f"`a {op.value} b`.")
    return name


def _helper(name: str, params: str, result: str, doc: str) -> str:
    return f'\n@triton.jit\ndef {name}({params}):\n    """{doc}"""\n    return {result}\n'


def _several(update: Update, values: Sequence[Expr]) -> list[Value]:
    """The values of a tuple or custom reducer, masked and reduced by its own function."""
    printer, reducer = update.printer, update.stmt.reducer
    found = [printer.value(value) for value in values]
    if not update.joins:
        return found
    if update.parts:
        masked: list[Value] = []
        for value, identity in zip(found, reducer.identity, strict=True):
            if not isinstance(identity, Const):
                raise LowerError(f"reducer {reducer.name!r} has an identity that is not a constant")
            masked.append(printer.otherwise(value, update.parts, identity))
        found = masked
    found = [_short(printer, v, var.name) for v, var in zip(found, reducer.rhs, strict=True)]
    found = _broadcast(update, found)
    name = combine_function(printer.writer, reducer)
    dims = list(found[0].dims)
    texts = [value.text.text for value in found]

    def combined(function: str, place: int | None) -> list[str]:
        fresh = [printer.writer.names.fresh(f"{sanitise(v.name)}_part") for v in reducer.lhs]
        joined = ", ".join(texts)
        operand = f"({joined})" if len(texts) > 1 else joined
        printer.writer.line(f"{', '.join(fresh)} = {function}({operand}, {place}, {name})")
        return fresh

    if update.along is not None:
        texts = combined("tl.associative_scan", dims.index(update.along))
    for axis in reversed([axis for axis in dims if axis in update.reduced]):
        place = dims.index(axis)
        texts = combined("tl.reduce", _axis(printer.writer, dims, place))
        dims.remove(axis)
    return [
        Value(Text(text), tuple(dims), value.dtype)
        for text, value in zip(texts, found, strict=True)
    ]


def _short(printer: Printer, value: Value, wish: str) -> Value:
    """The value under a name, unless its text is short."""
    if len(value.text.text) < 24:
        return value
    name = printer.writer.define(value.text.text, printer.writer.depth, None, wish)
    return Value(Text(name), value.dims, value.dtype)


def combine_function(writer: Writer, reducer: Reducer) -> str:
    """The name of the emitted function that combines two tuples of a reducer."""
    key = f"combine_{sanitise(reducer.name)}"
    inner = Writer(Names())
    for var in (*reducer.lhs, *reducer.rhs):
        inner.symbols[var] = inner.names.fresh(var.name)
        inner.symbol_depth[var] = 0
    printer = Printer(inner, (), reducer.combine)
    results: list[str] = []
    for expr, var in zip(reducer.combine, reducer.lhs, strict=True):
        value = printer.typed(printer.value(expr))
        results.append(math.cast(value.text, value.dtype, var.dtype).text)
    params = ", ".join(inner.symbols[var] for var in (*reducer.lhs, *reducer.rhs))
    lines = [f'    """Combine two partial results of {sanitise(reducer.name)}."""']
    lines += inner.blocks[0].lines
    lines.append(f"    return {', '.join(results)}")
    body = "\n".join(lines)
    name, number = key, 1
    while True:
        text = f"\n@triton.jit\ndef {name}({params}):\n{body}\n"
        if writer.helpers.setdefault(name, text) == text:
            break
        name, number = f"{key}_{number}", number + 1
    writer.helpers.update(inner.helpers)
    return name


def _combined(update: Update, old: list[Value], new: list[Value]) -> list[Value]:
    """`reducer(old, new)`, element by element."""
    printer, reducer = update.printer, update.stmt.reducer
    op = reducer.operator
    if op is not None:
        return [printer.apply(op, old[0], new[0])]
    name = combine_function(printer.writer, reducer)
    operands = [printer.typed(v) for v in (*old, *new)]
    dims = union(*(v.dims for v in operands))
    call = f"{name}({', '.join(printer.expand(v, dims).text for v in operands)})"
    if len(old) == 1:
        return [Value(Text(call), dims, old[0].dtype)]
    fresh = [printer.writer.names.fresh(f"{sanitise(v.name)}_next") for v in reducer.lhs]
    printer.writer.line(f"{', '.join(fresh)} = {call}")
    return [Value(Text(n), dims, v.dtype) for n, v in zip(fresh, old, strict=True)]


def _into_locals(update: Update, results: list[Value]) -> None:
    """Update the variables of the buffers."""
    printer, stmt = update.printer, update.stmt
    writer, reducer = printer.writer, stmt.reducer
    locals_ = [writer.local(buffer) for buffer in stmt.buffers]
    masked = bool(update.parts) and not update.joins and reducer.operator is None
    fresh = not masked and all(
        local.pending is not None and _same(local.pending, identity)
        for local, identity in zip(locals_, reducer.identity, strict=True)
    )
    if fresh:
        for local in locals_:
            local.pending = None
        new = results
    else:
        for buffer in stmt.buffers:
            printer.flush(buffer)
        old = [
            Value(Text(local.name), update.kept, buffer.dtype)
            for local, buffer in zip(locals_, stmt.buffers, strict=True)
        ]
        in_place = old[0].dtype not in HALF and not old[0].dtype.is_bool
        if reducer.operator is BinaryOp.ADD and in_place:
            term = printer.expand(_ordered(results[0], update.kept), update.kept).text
            again = update.reduced and stmt.buffers[0] in writer.updated_again
            # Triton's pass TritonGPUOptimizeThreadLocality fails on a sum of what is loaded that
            # is added to anything but the variable of the loop; a sum plus 0.0 is no such sum.
            zero = " + 0.0" if again and old[0].dtype.is_float else ""
            writer.line(f"{locals_[0].name} += {term}{zero}")
            writer.assigned(stmt.buffers)
            return
        old = [_ordered(each, sorted(update.kept)) for each in old]
        new = _combined(update, old, results)
        if masked:
            mask = printer.mask(update.parts, old[0].dims).text
            new = [
                Value(Text(f"tl.where({mask}, {n.text.text}, {o.text.text})"), n.dims, n.dtype)
                for n, o in zip(new, old, strict=True)
            ]
    for local, buffer, value in zip(locals_, stmt.buffers, new, strict=True):
        text = whole(printer, _ordered(value, update.kept), update.kept, block_shape(buffer))
        writer.line(f"{local.name} = {text}")
        local.defined = True
    writer.assigned(stmt.buffers)


def _ordered(value: Value, order: Iterable[int]) -> Value:
    """`value` with its dimensions in that order: of the buffer, or of the tile."""
    wanted = tuple(axis for axis in order if axis in value.dims)
    if wanted == value.dims:
        return value
    places = ", ".join(str(value.dims.index(axis)) for axis in wanted)
    return Value(Text(f"tl.permute({value.text.text}, ({places}))"), wanted, value.dtype)


def whole(printer: Printer, value: Value, dims: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """`value` as a block of exactly `shape`, so that a variable keeps one type."""
    if value.literal:
        return f"tl.full({shape}, {value.text.text}, {printer.writer.type_of(value.dtype)})"
    if value.dims == dims:
        return value.text.text
    return f"tl.broadcast_to({printer.expand(value, dims).text}, {shape})"


def _same(a: Const, b: Expr) -> bool:
    return isinstance(b, Const) and repr(a.value) == repr(b.value)


def _into_memory(update: Update, results: list[Value]) -> None:
    """Read, combine and write back elements of a GLOBAL buffer that this program owns."""
    printer, stmt = update.printer, update.stmt
    writer = printer.writer
    own = _own_parts(update)
    places: list[tuple[Buffer, Value, str]] = []
    old: list[Value] = []
    for buffer in stmt.buffers:
        writer.before_load(buffer)
        where = address.pointer(printer, buffer, stmt.indices)
        mask = f", mask={printer.mask(own, where.dims).text}" if own else ""
        name = writer.define(f"tl.load({where.text.text}{mask})", writer.depth, None, "old")
        old.append(Value(Text(name), where.dims, buffer.dtype))
        places.append((buffer, where, mask))
    new = _combined(update, old, results)
    for (buffer, where, mask), value in zip(places, new, strict=True):
        writer.before_store(buffer)
        text = printer.expand(value, where.dims).text
        writer.line(f"tl.store({where.text.text}, {text}{mask})")
    writer.assigned(stmt.buffers)


def _own_parts(update: Update) -> list[Expr]:
    """The conditions on the elements that are written."""
    kept = set(update.kept)
    own = [p for p in update.parts if kept.issuperset(update.printer.info(p).dims)]
    if len(own) < len(update.parts) and not update.reduced:
        name = update.stmt.buffers[0].name
        raise LowerError(f"a mask of {name!r} has axes that do not index it")
    return own


_ATOMICS = {
    BinaryOp.ADD: "atomic_add",
    BinaryOp.MAX: "atomic_max",
    BinaryOp.MIN: "atomic_min",
    BinaryOp.AND: "atomic_and",
    BinaryOp.OR: "atomic_or",
    BinaryOp.XOR: "atomic_xor",
}


def _atomically(update: Update, result: Value) -> None:
    """Combine a result with elements that other programs combine theirs with.

    Triton orders floats as integers in atomic minima and maxima, so a NaN goes in as the extreme
    integer.
    """
    printer, stmt = update.printer, update.stmt
    writer, buffer, op = printer.writer, stmt.buffers[0], stmt.reducer.operator
    if op is None or op not in _ATOMICS:
        raise LowerError(f"Triton has no atomic update for reducer {stmt.reducer.name!r}")
    where = address.pointer(printer, buffer, stmt.indices)
    own = _own_parts(update)
    mask = f", mask={printer.mask(own, where.dims).text}" if own else ""
    text = printer.expand(printer.typed(result), where.dims).text
    if buffer.dtype.is_float and op in (BinaryOp.MAX, BinaryOp.MIN):
        name = f"nan_wins_{op.value}"
        writer.helpers[name] = math.HELPERS[name]
        text = f"{name}({text}, tl.int{buffer.dtype.bits})"
    writer.line(f'tl.{_ATOMICS[op]}({where.text.text}, {text}{mask}, sem="relaxed")')
    writer.assigned(stmt.buffers)
