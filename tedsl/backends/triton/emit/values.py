"""Expressions to source text: numbering of equal values, hoisting, broadcasting, rounding.

An expression's block has the tile axes that occur in it, in the order of its statement's tile; it
is broadcast (`[:, None]`) only where it is combined with another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tedsl.backends.triton.emit import address, divisibility, float8
from tedsl.backends.triton.emit.axis_analysis import UNSEEN, Claims, counts
from tedsl.backends.triton.emit.dividends import never_negative
from tedsl.backends.triton.emit.masks import conjunction, conjuncts
from tedsl.backends.triton.emit.names import sanitise
from tedsl.backends.triton.emit.writer import Value, Writer, block_shape, union
from tedsl.backends.triton.math import cheaper_forms
from tedsl.backends.triton.math import functions as math
from tedsl.backends.triton.math.functions import Text
from tedsl.dtypes import DType, Kind
from tedsl.errors import InternalError, LowerError
from tedsl.expr import numerics
from tedsl.expr.fold import wrap
from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Cast,
    Compare,
    Const,
    Expr,
    Select,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.ir.nodes import Buffer, Load, Scope, TileAxis

HALF = (DType.float16, DType.bfloat16)
LINE = 72


@dataclass(frozen=True, slots=True)
class Info:
    """Facts of an expression: value number, axes, the block it can be written in, its size."""

    number: int
    dims: tuple[int, ...]
    depth: int
    size: int
    divides: bool


class Printer:
    """Prints the expressions of one statement.

    Args:
        writer: the kernel's text.
        order: the statement's tile axes; blocks have their dimensions in this order.
        roots: every expression of the statement, so that shared parts are seen.
        holds: conditions that hold in every lane whose value matters.
    """

    def __init__(
        self,
        writer: Writer,
        order: Sequence[TileAxis],
        roots: Sequence[Expr],
        holds: Sequence[Expr] = (),
    ) -> None:
        self.writer = writer
        self.tiles = tuple(tile for tile in order if tile.extent > 1)
        self.place = {tile.axis: n for n, tile in enumerate(self.tiles)}
        self.units = {tile.axis for tile in order if tile.extent == 1}
        self._info: dict[Expr, Info] = {}
        number, extent = self._number, self._extent
        self._claims = Claims(self._dims, extent, number, self._divides_plainly)
        self.holds: frozenset[int] = frozenset()
        self.holds = frozenset(self.info(part).number for part in holds)
        self._info.clear()  # what is loaded for the conditions was seen without them
        self.uses: Counter[int] = Counter()
        seen: set[int] = set()
        for root in roots:
            self._count(root, seen)

    def _count(self, expr: Expr, seen: set[int]) -> None:
        number = self.info(expr).number
        self.uses[number] += 1
        if number in seen:
            return
        seen.add(number)
        if isinstance(expr, Load) and expr.buffer.scope is not Scope.GLOBAL:
            return
        for child in expr.children():
            self._count(child, seen)

    # facts

    def shape(self, dims: Sequence[int]) -> tuple[int, ...]:
        """Extents of the axes."""
        return tuple(self.tiles[place].extent for place in dims)

    def extent_of(self, expr: Expr) -> int | None:
        """The extent of a tile axis; None for anything else."""
        place = self.place.get(expr) if isinstance(expr, Axis) else None
        return None if place is None else self.tiles[place].extent

    def _dims(self, expr: Expr) -> tuple[int, ...]:
        return self.info(expr).dims

    def _number(self, expr: Expr) -> int:
        return self.info(expr).number

    def _extent(self, place: int) -> int:
        return self.tiles[place].extent

    def names(self, dims: Sequence[int]) -> list[str]:
        """Names of the axes."""
        return [self.tiles[place].axis.name for place in dims]

    def info(self, expr: Expr) -> Info:
        """Number, axes and depth of an expression; equal numbers mean equal blocks."""
        found = self._info.get(expr)
        if found is None:
            found = self._info[expr] = self._make_info(expr)
        return found

    def _make_info(self, expr: Expr) -> Info:
        number = self.writer.number
        match expr:
            case Const(value=value, dtype=dtype):
                return Info(number(("const", repr(value), dtype)), (), 0, 0, False)
            case Axis() if expr in self.place:
                key = ("range", self.extent_of(expr), expr.dtype)
                return Info(number(key), (self.place[expr],), 0, 1, False)
            case Axis() if expr in self.units:
                return Info(number(("const", "0", expr.dtype)), (), 0, 0, False)
            case Axis() | Var():
                depth = self.writer.symbol_depth.get(expr)
                if depth is None:
                    raise InternalError(f"{expr.name!r} is not a loop or size of this kernel")
                return Info(number(("symbol", id(expr))), (), depth, 0, False)
            case Load():
                return self._load_info(expr)
            case Unary() | Binary(op=BinaryOp.DIV):
                return self._operator_info(expr, self.writer.accuracy.of(expr))
            case _:
                return self._operator_info(expr)

    def _operator_info(self, expr: Expr, *tag: object) -> Info:
        children = [self.info(child) for child in expr.children()]
        dims = union(*(child.dims for child in children))
        parts = tuple((c.number, tuple(dims.index(d) for d in c.dims)) for c in children)
        op = getattr(expr, "op", None)
        key = (type(expr).__name__, op, expr.dtype, *tag, parts)
        return Info(
            self.writer.number(key),
            dims,
            max((c.depth for c in children), default=0),
            1 + sum(c.size for c in children),
            any(c.divides for c in children)
            or op in (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD, BinaryOp.TRUNCDIV, BinaryOp.TRUNCMOD),
        )

    def _load_info(self, expr: Load) -> Info:
        buffer, writer = expr.buffer, self.writer
        expr = self._needed(expr)
        if buffer.scope is Scope.GLOBAL:
            base = self._operator_info(expr, id(buffer), writer.stores.get(buffer, 0))
            return Info(base.number, base.dims, writer.depth, base.size + 1, False)
        local = writer.local(buffer)
        axes = self.block_axes(buffer, expr.indices)
        base = self._operator_info(expr, id(buffer), local.version)
        return Info(base.number, union(axes, base.dims), local.depth, 0, False)

    def _needed(self, expr: Load) -> Load:
        """The load without the conditions that `zero_outside` drops: as another value, since where
        they do not hold, it is not the 0 that it has to be elsewhere."""
        parts = conjuncts(expr.mask)
        here: frozenset[int] = frozenset()
        if expr.buffer.scope is Scope.GLOBAL:  # of which a load has its own in any case
            here = frozenset(place for index in expr.indices for place in self.info(index).dims)
        own = [bool(here) and here.issuperset(self.info(part).dims) for part in parts]
        kept = [p for p, is_own in zip(parts, own, strict=True) if is_own or not self._held(p)]
        return expr if len(kept) == len(parts) else replace(expr, mask=conjunction(kept))

    def _held(self, part: Expr) -> bool:
        return self.info(part).number in self.holds

    def block_axes(self, buffer: Buffer, indices: Sequence[Expr]) -> tuple[int, ...]:
        """The place in the tile of the axis that indexes each non-unit dimension of a tile value.

        Raises:
            LowerError: the buffer is not read or written as exactly the tile.
        """
        axes: list[int] = []
        for extent, index in zip(buffer.shape, indices, strict=True):
            if not isinstance(extent, Const):
                raise LowerError(f"tile value {buffer.name!r} has a shape that is not constant")
            if extent.value == 1:
                continue
            if not (isinstance(index, Axis) and self.extent_of(index) == extent.value):
                raise LowerError(
                    f"tile value {buffer.name!r} is indexed by something else than its tile",
                    facts=[("extent", str(extent.value)), ("index", type(index).__name__)],
                    hint="a Triton tile cannot be read at a shift: inline the producer (recompute) "
                    "or leave it at root (its own kernel)",
                )
            axes.append(self.place[index])
        if len(set(axes)) != len(axes):
            raise LowerError(f"tile value {buffer.name!r} is read along a diagonal")
        return tuple(axes)

    # text

    def value(self, expr: Expr, *wishes: str, name: bool = False, depth: int = -1) -> Value:
        """Source of an expression.  `name` asks for a variable, called as one of `wishes`.

        Args:
            depth: the block of the expression around this one; a part that can be written farther
                out is (its innermost block by default).
        """
        found = self._found(expr, wishes, name, self.writer.depth if depth < 0 else depth)
        if len(found.dims) != 1 or len(self.tiles) < 2 or not expr.dtype.is_integer:
            return found
        whole = expr.children()[0] if found.core is not None else expr
        return replace(found, loose=self._claims.loose(whole))

    def _found(self, expr: Expr, wishes: tuple[str, ...], name: bool, outer: int) -> Value:
        info = self.info(expr)
        known = self.writer.lookup(info.number)
        if known is not None:
            return Value(Text(known), info.dims, expr.dtype)
        built = self._build(expr, info)
        if built.literal or not self._worth_a_name(expr, info, built, outer, name):
            return built
        wishes = wishes or self._wishes(expr, info)
        home = self.writer.home(info.depth)
        text = self.writer.define(built.text.text, home, info.number, *wishes)
        return Value(Text(text), built.dims, built.dtype)

    def _worth_a_name(self, expr: Expr, info: Info, built: Value, outer: int, name: bool) -> bool:
        if info.size == 0:
            return False
        if isinstance(expr, Load):
            return True
        return (
            name
            or self.uses[info.number] > 1
            or (self.writer.home(info.depth) < outer and (bool(info.dims) or info.divides))
            or len(built.text.text) > LINE
        )

    def _wishes(self, expr: Expr, info: Info) -> tuple[str, ...]:
        if isinstance(expr, Load):
            name = sanitise(expr.buffer.name)
            return (name.lower(), f"{name}_tile" if info.dims else f"{name}_value")
        if len(info.dims) == 1 and expr.dtype.kind is Kind.INT and _only_index(expr):
            (name,) = self.names(info.dims)
            return (name,) if isinstance(expr, Axis) else (name.split(".")[0], name)
        if expr.dtype.is_bool:
            return ("m_" + "".join(n.split(".")[0] for n in self.names(info.dims)), "mask")
        return ("t",)

    def _build(self, expr: Expr, info: Info) -> Value:
        match expr:
            case Const(value=value, dtype=dtype):
                if dtype.is_float8 and float8.byte_of(value, dtype):
                    return Value(Text(self.writer.full((), value, dtype)), (), dtype)
                text = self.writer.zero(dtype) if dtype.is_float8 else math.literal(value, dtype)
                if math.rounds_in_float32(value, dtype):  # what Triton makes of a float literal
                    return Value(Text(f"tl.full((), {text}, tl.float64)"), (), dtype)
                level = math.UNARY if text.startswith("-") else math.ATOM
                return Value(Text(text, level), (), dtype, literal=True)
            case Axis() if expr in self.place:
                return self._range(expr)
            case Axis() if expr in self.units:
                return Value(Text("0"), (), expr.dtype, literal=True)
            case Axis() | Var():
                text = Text(self.writer.symbols[expr])
                return Value(text, (), expr.dtype, literal=expr in self.writer.static)
            case Load():
                return self._load(expr, info)
            case Cast():
                return self._cast(expr, info)
            case Unary():
                return self._unary(expr, info)
            case Binary():
                return self._binary(expr, info)
            case Compare(op=op, a=a, b=b):
                left, right = self._pair(a, b, info)
                return Value(math.compare(op, left, right), info.dims, DType.bool)
            case Select():
                return self._select(expr, info)
            case _:
                raise InternalError(f"{type(expr).__name__} cannot stand in a TILE statement")

    def _range(self, axis: Axis) -> Value:
        text = Text(f"tl.arange(0, {self.extent_of(axis)})")
        return Value(math.cast(text, DType.int32, axis.dtype), (self.place[axis],), axis.dtype)

    def _load(self, expr: Load, info: Info) -> Value:
        if expr.buffer.scope is Scope.GLOBAL:
            return address.load(self, expr)
        self.flush(expr.buffer)
        name = self.writer.local(expr.buffer).name
        axes = self.block_axes(expr.buffer, expr.indices)
        value = Value(Text(name), union(axes), expr.dtype)
        if value.dims != axes:
            value = Value(transpose(name, axes, value.dims), value.dims, expr.dtype)
        return self.zero_outside(value, conjuncts(expr.mask))

    def flush(self, buffer: Buffer) -> None:
        """Write out the constant that `buffer` holds, if its store was postponed."""
        local = self.writer.local(buffer)
        if local.pending is not None:
            constant, local.pending = local.pending, None
            text = self.writer.full(block_shape(buffer), constant.value, buffer.dtype)
            self.writer.line(f"{local.name} = {text}")

    def zero_outside(self, value: Value, parts: Sequence[Expr]) -> Value:
        """`value` where all `parts` hold, else 0; parts that hold where it matters are dropped."""
        parts = [part for part in parts if not self._held(part)]
        if not parts:
            return value
        return self.otherwise(value, parts, Const(0, value.dtype))

    def otherwise(self, value: Value, parts: Sequence[Expr], other: Const) -> Value:
        """`value` where all `parts` hold, else the constant `other`."""
        dims = union(value.dims, *(self.info(part).dims for part in parts))
        mask = self.mask(parts, dims)
        text = self._build(other, self.info(other)).text.text
        if value.literal:
            value = self.typed(value)
        inner = self.expand(value, dims).text
        return Value(Text(f"tl.where({mask.text}, {inner}, {text})"), dims, value.dtype)

    def mask(self, parts: Sequence[Expr], dims: tuple[int, ...]) -> Text:
        """The conjunction of `parts`, at the rank of `dims`, made of one part per set of axes."""
        groups: dict[tuple[int, ...], list[Text]] = {}
        for part in parts:
            info = self.info(part)
            value = self.value(part, name=len(info.dims) == 1)
            texts = groups.setdefault(info.dims, [])
            if value.text not in texts:
                texts.append(value.text)
        terms: list[Text] = []
        for axes, texts in sorted(groups.items(), key=lambda item: len(item[0])):
            text = " & ".join(t.at(math.AND) for t in texts)
            level = math.AND if len(texts) > 1 else texts[0].level
            text = text if len(texts) > 1 else texts[0].text
            terms.append(self.expand(Value(Text(text, level), axes, DType.bool), dims))
        if len(terms) == 1:
            return terms[0]
        return self._named_mask(parts, dims, " & ".join(t.at(math.AND) for t in terms))

    def _named_mask(self, parts: Sequence[Expr], dims: tuple[int, ...], text: str) -> Text:
        """A mask over several axes as a variable, since loads and stores share it."""
        facts = [self.info(part) for part in parts]
        places = tuple(tuple(dims.index(d) for d in fact.dims) for fact in facts)
        key = ("mask", tuple(f.number for f in facts), places, self.shape(dims))
        number = self.writer.number(key)
        name = self.writer.lookup(number)
        if name is None:
            depth = self.writer.home(max(fact.depth for fact in facts))
            axes = "".join(n.split(".")[0] for n in self.names(union(*(f.dims for f in facts))))
            name = self.writer.define(text, depth, number, f"m_{axes}", "mask")
        return Text(name)

    def expand(self, value: Value, dims: tuple[int, ...]) -> Text:
        """The block at the rank of `dims`, ready to be broadcast; scalars stay scalars."""
        if value.dims == dims or not value.dims:
            return value.text
        where = ", ".join(":" if axis in value.dims else "None" for axis in dims)
        block = value.text if value.core is None else value.core
        text = f"{block.at(math.ATOM)}[{where}]"
        if value.loose:
            text = f"tl.multiple_of({text}, {(1,) * len(dims)})"
        if value.core is None:
            return Text(text)
        return Text(f"{text} * {value.scale}", math.PRODUCT)

    def typed(self, value: Value) -> Value:
        """A literal as a scalar of its element type."""
        if not value.literal:
            return value
        text = f"tl.full((), {value.text.text}, {self.writer.type_of(value.dtype)})"
        return Value(Text(text), (), value.dtype)

    def _wide(self, value: Value) -> Value:
        """float16 and bfloat16 as float32; operators compute there."""
        if value.dtype not in HALF:
            return value
        if value.literal:
            return Value(value.text, (), DType.float32, literal=True)
        return Value(math.cast(value.text, value.dtype, DType.float32), value.dims, DType.float32)

    def _rounded(self, text: Text, dims: tuple[int, ...], dtype: DType) -> Value:
        if dtype in HALF:
            text = math.cast(text, DType.float32, dtype)
        return Value(text, dims, dtype)

    def _operand(self, expr: Expr, info: Info) -> Value:
        return self._wide(self.value(expr, depth=info.depth))

    def _pair(self, a: Expr, b: Expr, info: Info, op: BinaryOp | None = None) -> tuple[Text, Text]:
        left, right = self._told(op, self._operand(a, info), self._operand(b, info))
        return self.expand(left, info.dims), self.expand(right, info.dims)

    def _told(self, op: BinaryOp | None, a: Value, b: Value) -> tuple[Value, Value]:
        """Operands of which one has a type, and both where a bare number would change it."""
        bare = op in math.UNTYPED and a.dtype.is_integer and a.dtype.bits < 32
        first = self.typed(a) if bare or b.literal else a
        return first, self.typed(b) if bare else b

    def _cast(self, expr: Cast, info: Info) -> Value:
        rounded = self._rounded_wave(expr.a, expr.dtype)
        if rounded is not None:
            return rounded
        value = self.value(expr.a, depth=info.depth)
        if isinstance(expr.a, Const):
            return self._build(Const(_convert(expr.a, expr.dtype), expr.dtype), info)
        value = self.typed(value)
        source = value.dtype
        if _only_sizes(expr.a) and not expr.dtype.is_bool:
            # Triton passes a size of 1 as a constexpr, which has no method `to`
            source = DType.float32 if expr.dtype.is_float8 else expr.dtype
            text = Text(f"tl.cast({value.text.text}, {math.triton_type(source)})")
        else:
            text = value.text
        return Value(self.writer.cast(text, source, expr.dtype), value.dims, expr.dtype)

    def _unary(self, expr: Unary, info: Info) -> Value:
        if expr.op is UnaryOp.EXP and expr.dtype is DType.float32:
            power = cheaper_forms.in_base_2(expr, self.writer.accuracy, self._dims)
            if power is not None:
                return self._unary(power, info)
        rounded = self._rounded_wave(expr, expr.dtype)
        if rounded is not None:
            return rounded
        value = self.typed(self._operand(expr.a, info))
        if expr.op in math.TWICE and value.text.level != math.ATOM:
            depth = self.info(expr.a).depth
            name = self.writer.define(value.text.text, depth, None, "t")
            value = Value(Text(name), value.dims, value.dtype)
        form = self._form(expr, value)
        if form is not None:
            given = value.text.text
            if form in math.SHARED:
                given = self._shared(form, expr, value)
            text = Text(f"{self.writer.helper(form, math.HELPERS[form])}({given})")
        else:
            text = math.unary(expr.op, value.text, value.dtype)
        return self._rounded(text, value.dims, expr.dtype)

    def _form(self, expr: Unary, of: Value) -> str | None:
        """The helper that computes a function of `of` as accurately as is needed, if there is one
        that costs less."""
        each = prod(self.shape(of.dims)) // self.writer.threads
        allowed = self.writer.accuracy.of(expr)
        return math.cheaper(expr.op, of.dtype, allowed, each, math.is_near(expr.a))

    def _rounded_wave(self, wave: Expr, dtype: DType) -> Value | None:
        """A function that is computed together with another, both rounded to `dtype`; None where
        it has no such form."""
        if not isinstance(wave, Unary) or (wave.op, dtype) not in math.ROUNDED:
            return None
        value = self.typed(self._operand(wave.a, self.info(wave)))
        form = self._form(wave, value)
        if form not in math.SHARED:
            return None
        both, place = math.ROUNDED[wave.op, dtype]
        turn = self._shared(form, wave, value)
        text = f"{self._made_once(both, wave.a, turn, 'waves')}[{place}]"
        return Value(Text(text), value.dims, dtype)

    def _shared(self, form: str, wave: Unary, value: Value) -> str:
        """The name of what a form takes in place of the argument `value`, which may be of float16
        numbers, or of the bfloat16 numbers that it is a cast of."""
        helper, short, near = math.SHARED[form]
        if math.is_near(wave.a):
            return self._made_once(near, wave.a, value.text.text, "turn")
        source = wave.a.a if isinstance(wave.a, Cast) else wave.a
        plain = self.typed(self.value(source)) if source.dtype is DType.bfloat16 else value
        if plain.dtype is DType.bfloat16:
            return self._made_once(short, wave.a, plain.text.text, "turn")
        return self._made_once(helper, wave.a, value.text.text, "turn")

    def _made_once(self, helper: str, of: Expr, text: str, wish: str) -> str:
        """The name of what a helper makes of a value, which several functions take."""
        info = self.info(of)
        number = self.writer.number((helper, info.number))
        known = self.writer.lookup(number)
        if known is not None:
            return known
        call = f"{self.writer.helper(helper, math.HELPERS[helper])}({text})"
        return self.writer.define(call, self.writer.home(info.depth), number, wish)

    def apply(self, op: BinaryOp, a: Value, b: Value) -> Value:
        """`a op b` of two blocks, rounded to their element type."""
        dims, dtype = union(a.dims, b.dims), a.dtype
        left, right = self._told(op, self._wide(a), self._wide(b))
        texts = (self.expand(left, dims), self.expand(right, dims))
        text, helper = math.binary(op, *texts, left.dtype, nonnegative=False)
        if helper is not None:
            self.writer.helpers[helper] = math.HELPERS[helper]
        return self._rounded(text, dims, dtype)

    def _binary(self, expr: Binary, info: Info) -> Value:
        if expr.op is BinaryOp.MUL and expr.dtype.is_integer:
            found = self._scaled(expr, info)
            if found is not None:
                return found
        if expr.op is BinaryOp.DIV:
            product = cheaper_forms.by_reciprocal(expr, self.writer.accuracy, self._dims)
            if product is not None:
                return self._binary(product, info)
        left, right = self._pair(expr.a, expr.b, info, expr.op)
        positive = expr.op in divisibility.DIVISIONS and self._divides_plainly(expr)
        if (
            expr.op in divisibility.DIVISIONS
            and not positive
            and expr.dtype.is_integer
            and info.dims
        ):
            left = self._unseen(left, expr.a)
        dtype = DType.float32 if expr.dtype in HALF else expr.dtype
        text, helper = math.binary(expr.op, left, right, dtype, positive)
        if helper is not None:
            self.writer.helpers[helper] = math.HELPERS[helper]
        if not info.dims:
            text = divisibility.hinted(text, expr, self.writer.facts)
        return self._rounded(text, info.dims, expr.dtype)

    def _divides_plainly(self, expr: Binary) -> bool:
        """Whether both operands of a division are integers that are never negative."""
        return all(never_negative(x, self.writer.ranges) for x in (expr.a, expr.b))

    def _unseen(self, text: Text, expr: Expr) -> Text:
        """The dividend of a quotient that is not as Triton's analysis takes quotients to be."""
        if not counts(expr, self.place.__contains__):
            return text
        name, source = UNSEEN[max(32, expr.dtype.bits)]
        call = f"{self.writer.helper(name, source)}({text.text})"
        return Text(call if expr.dtype.bits >= 32 else f"{call}.to({math.triton_type(expr.dtype)})")

    def _scaled(self, expr: Binary, info: Info) -> Value | None:
        """A block times a scalar, remembered as such."""
        a, b = expr.a, expr.b
        if not self.info(a).dims or self.info(b).dims:
            return None
        left, right = self._operand(a, info), self._operand(b, info)
        scale = right.text.at(math.UNARY)
        text = Text(f"{left.text.at(math.PRODUCT)} * {scale}", math.PRODUCT)
        return Value(text, left.dims, expr.dtype, core=left.text, scale=scale)

    def _select(self, expr: Select, info: Info) -> Value:
        condition = self.typed(self.value(expr.condition, depth=info.depth))
        a, b = self.value(expr.a, depth=info.depth), self.value(expr.b, depth=info.depth)
        if a.literal and b.literal:
            a = self.typed(a)
        texts = [self.expand(v, info.dims).text for v in (condition, a, b)]
        return Value(Text(f"tl.where({', '.join(texts)})"), info.dims, expr.dtype)


def transpose(name: str, axes: tuple[int, ...], wanted: Sequence[int]) -> Text:
    """The block `name` with dimensions `axes` reordered to `wanted`."""
    if len(axes) == 2:
        return Text(f"tl.trans({name})")
    order = ", ".join(str(axes.index(axis)) for axis in wanted)
    return Text(f"tl.permute({name}, ({order}))")


def _only_index(expr: Expr) -> bool:
    """True for integer arithmetic on axes, sizes and constants alone."""
    if isinstance(expr, Load):
        return False
    return expr.dtype.is_integer and all(_only_index(child) for child in expr.children())


def _only_sizes(expr: Expr) -> bool:
    """True when the expression is made of runtime sizes and constants alone."""
    if isinstance(expr, (Axis, Load)):
        return False
    return all(_only_sizes(child) for child in expr.children())


def _convert(constant: Const, dtype: DType) -> bool | int | float:
    value = constant.value
    if constant.dtype.is_float and constant.dtype is not DType.float64:  # as a value of its type
        value = float(numerics.cast(np.float32(value), DType.float32, constant.dtype))
    if dtype.is_bool:
        return bool(value)
    return float(value) if dtype.is_float else wrap(int(value), dtype)
