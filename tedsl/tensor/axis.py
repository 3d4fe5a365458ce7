"""Iteration variables and runtime scalars that users name: `reduce_axis`, `var`, `size_var`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

from tedsl.dtypes import TABLE, DType
from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.index_arith import LARGEST, whole_number
from tedsl.expr.naming import check_name
from tedsl.expr.nodes import (
    Axis,
    AxisKind,
    Const,
    Expr,
    IfThenElse,
    Range,
    Reduce,
    TensorRead,
    Var,
)
from tedsl.expr.promote import DTypeLike, as_dtype
from tedsl.expr.visit import axes_of, reads, substitute, walk
from tedsl.late import late
from tedsl.slips import also

if TYPE_CHECKING:
    from tedsl.index import bounds as bounds_of_indices
    from tedsl.index import facts as facts_of_indices
    from tedsl.index import linear as linear_form
    from tedsl.tensor.tensor import ComputeOp
else:
    bounds_of_indices = late("tedsl.index.bounds")
    facts_of_indices = late("tedsl.index.facts")
    linear_form = late("tedsl.index.linear")

INT32_MAX = int(TABLE[DType.int32].highest)


def var(name: str = "tindex", dtype: DTypeLike = DType.int32) -> Var:
    """A runtime scalar: a symbolic size, or a number given at the call.

    Args:
        name: what it prints as.
        dtype: its type; sizes are int32 or int64.
    """
    check_name(name, "runtime scalar")
    return Var(name, as_dtype(dtype))


def size_var(name: str = "size", dtype: DTypeLike = DType.int32) -> Var:
    """A runtime scalar that is known to be at least 0."""
    check_name(name, "size")
    return Var(name, as_dtype(dtype), lower=0)


def reduce_axis(dom: Sequence[Expr | int] | Range, name: str = "rv", thread_tag: str = "") -> Axis:
    """The axis of a reduction, over `lo <= k < hi`.

    Args:
        dom: `(lo, hi)`, or a `Range`; `lo` need not be 0, both may be symbolic, or use the data
            axes of the definition: `(0, i + 1)`.  They may be read: `(first[i], first[i + 1])`;
            then the terms have to read an element at the axis itself, `x[..., k]`, of which there
            are no more than that dimension is long.  All of them are run through.
        name: what it prints as.
        thread_tag: must be empty: `s[T].bind(axis, thread)` binds loops.

    Returns:
        An axis for `te.sum` and its like; also an integer expression.

    Raises:
        ExprError: `hi < lo`, a bound that is no int32 or int64, or one over axes of which no
            extreme value is known.
    """
    if thread_tag:
        raise ExprError(
            f"reduce_axis {name!r} was given the thread {thread_tag!r}",
            hint=f"leave it out, and bind the loop in the schedule: s[T].bind({name}, thread)",
        )
    check_name(name, "reduce_axis")
    if isinstance(dom, Range):
        low, high = dom.min, build.add(dom.min, dom.extent)
    elif isinstance(dom, (tuple, list)) and len(dom) == 2:
        low, high = dom
    else:
        raise ExprError(
            f"reduce_axis {name!r} was given {dom!r}",
            hint="give the half-open range as a pair: te.reduce_axis((0, n), name='k')",
        )
    subject = f"reduce_axis {name}"
    begin, end = (as_extent(each, subject, axes=True) for each in (low, high))
    if reads(begin, end):
        dtype = DType.int64 if DType.int64 in (begin.dtype, end.dtype) else DType.int32
        return Axis(name, AxisKind.REDUCE, None, dtype, begin, end)
    least, most = _free(begin, subject, highest=False), _free(end, subject, highest=True)
    extent = build.sub(most, least)
    if isinstance(least, Const) and isinstance(most, Const):
        extent = as_extent(int(most.value) - int(least.value), subject)
    if isinstance(extent, Const) and extent.value < 0:
        raise ExprError(
            f"reduce_axis {name!r} has the range {least} .. {most}, of negative extent",
            hint="give (lo, hi) with lo <= hi",
        )
    types = least.dtype, most.dtype, extent.dtype
    dtype = DType.int64 if DType.int64 in types else DType.int32
    domain = Range(build.cast(least, dtype), build.cast(extent, dtype))
    ends = None if least is begin else begin, None if most is end else end
    return Axis(name, AxisKind.REDUCE, domain, dtype, *ends)


def _free(bound: Expr, subject: str, *, highest: bool) -> Expr:
    """The most, or the least, that a bound may be, whatever the axes in it are."""
    axes = axes_of(bound)
    if not axes:
        return bound
    facts = facts_of_indices.Facts()
    for axis in axes:
        if axis.domain is None or axes_of(axis.domain.min, axis.domain.extent):
            raise ExprError(
                f"a bound depends on {axis.name}, whose own range is not known by itself",
                subject=subject,
                hint="use the axes of the definition; restrict a reduction with where=",
            )
        facts = facts.with_axis(axis, axis.domain.min, axis.domain.extent)
    find = bounds_of_indices.upper_bound if highest else bounds_of_indices.lower_bound
    found = find(bound, axes, facts)
    if found is None:
        raise ExprError(
            f"no largest value of {bound} is known" if highest else f"no least one of {bound}",
            subject=subject,
            hint="use sums and products of the axes; restrict a reduction with where=",
        )
    return found


def with_extents(
    sources: Sequence[Expr], axes: Sequence[Axis], where: Expr | None
) -> tuple[tuple[Expr, ...], tuple[Axis, ...]]:
    """The terms and the axes of a reduction, with an axis of known extent for each of those whose
    bounds are read: a read whose index moves with the axis finds another element at each point, so
    there are no more of them than that dimension is long.

        sum(x[w], w = lo .. hi)  ==  sum(x[lo + v], v = 0 .. size of x, where v < hi - lo)

    Raises:
        ExprError: no read says how many points there are at most.
    """
    mapping: dict[Expr, Expr] = {}
    made: list[Axis] = []
    for axis in axes:
        made.append(axis)
        if axis.domain is None and axis.begin is not None and axis.end is not None:
            most = None if where is not None else _longest(axis, sources)
            made[-1] = _counted(axis, axis.begin, axis.end, most)
            mapping[axis] = build.add(axis.begin, made[-1])
    return tuple(substitute(source, mapping) for source in sources), tuple(made)


def _counted(axis: Axis, begin: Expr, end: Expr, most: Expr | None) -> Axis:
    """An axis v from 0 to `most`, with begin + v for each point of `axis`."""
    bounds = [node for node in walk(begin, end) if isinstance(node, Axis)]
    if most is None or any(each.domain is None for each in bounds):
        raise ExprError(
            f"no largest value of {build.sub(end, begin)} is known, and no read of the terms says "
            "how many there are",
            subject=f"reduce_axis {axis.name}",
            hint="read an element at the axis itself, x[..., k], outside of te.if_then_else; or "
            f"give the most that there may be, te.reduce_axis((0, most), name={axis.name!r}), and "
            f"where={axis.name} < {end}",
        )
    extent = build.cast(most, DType.int64 if most.dtype is DType.int64 else axis.dtype)
    domain = Range(build.const(0, extent.dtype), extent)
    return Axis(axis.name, axis.kind, domain, extent.dtype, None, build.sub(end, begin))


def _longest(axis: Axis, sources: Sequence[Expr]) -> Expr | None:
    """The smallest known extent of the dimensions that are read at places which move with the axis;
    None where there is none."""
    found: list[Expr] = []
    for read in _certain(sources):
        for index, extent in zip(read.indices, read.tensor.shape, strict=True):
            form = linear_form.linear(index)
            inner = [atom for atom in form.terms if any(n is axis for n in walk(atom))]
            if len(inner) == 1 and inner[0] is axis:
                found.append(extent)
    return min(found, key=_size, default=None)


def _size(extent: Expr) -> float:
    return getattr(extent, "value", float("inf"))


def _certain(sources: Sequence[Expr]) -> Iterator[TensorRead]:
    """The reads that happen at every point: those behind no condition."""
    stack = list(sources)
    while stack:
        node = stack.pop()
        if isinstance(node, TensorRead):
            yield node
        if isinstance(node, IfThenElse):
            stack.append(node.condition)
        elif not isinstance(node, Reduce):
            stack.extend(node.children())


def data_axis(name: str, extent: Expr) -> Axis:
    """A data axis over `0 <= i < extent`."""
    check_name(name, "axis")
    zero = Const(0, extent.dtype)
    return Axis(name, AxisKind.DATA, Range(zero, extent), extent.dtype)


def as_extent(value: object, subject: str, *, axes: bool = False) -> Expr:
    """A size or bound as an int32 or int64 expression, which may be one over `axes`.

    Raises:
        ExprError: anything else, a number beyond `LARGEST`, or an expression over axes where that
            is not allowed.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # N / 32, as scripts of TVM's have it
    number = whole_number(value.value if isinstance(value, Const) else value)
    if number is not None and abs(number) > LARGEST:
        raise ExprError(
            f"{number} is larger than any array",
            subject=subject,
            facts=[("allowed", "sizes and bounds up to 2**62")],
            hint="give a smaller number",
        )
    if isinstance(value, Const) and value.dtype in (DType.int32, DType.int64):
        return value
    if isinstance(value, SupportsIndex) and number is not None:
        return Const(number, DType.int32 if abs(number) <= INT32_MAX else DType.int64)
    if isinstance(value, Expr) and value.dtype in (DType.int32, DType.int64):
        for node in walk(value):
            if isinstance(node, Axis) and not axes:
                raise ExprError(
                    f"a size depends on the axis {node.name}",
                    subject=subject,
                    hint="sizes use only numbers and te.var; restrict a reduction with where=",
                )
        return value
    kind = f"{value.dtype} expression" if isinstance(value, Expr) else type(value).__name__
    raise ExprError(
        f"{value!r} ({kind}) is no size",
        subject=subject,
        hint="give an int, or an int32 or int64 expression such as te.var('n')",
    )


class NoAxes(tuple[Axis, ...]):
    """The reduce axes of an operation that has none: to ask for one of them says where they are."""

    operation: ComputeOp

    def __new__(cls, operation: ComputeOp) -> NoAxes:
        made = super().__new__(cls)
        made.operation = operation
        return made

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return ()
        name = self.operation.name
        read = (node.tensor.op for body in self.operation.bodies for node in walk(body)
                if isinstance(node, TensorRead))  # fmt: skip
        split = [op.name for op in dict.fromkeys(read) if getattr(op, "reduce_axes", ())]
        hint = "a te.compute whose body is a reduction has them"
        if split:
            hint = f"the reduction is in stage {split[0]}: s[{split[0]!r}].op.reduce_axis"
        raise also(ExprError, IndexError)(f"{name} has no reduce axis", hint=hint)

    def __reduce__(self) -> tuple[Any, ...]:
        return NoAxes, (self.operation,)
