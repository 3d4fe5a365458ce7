"""Legality of another layout or another element type of a stage: transform_layout,
set_precision.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

from tedsl.dtypes import DType
from tedsl.errors import ExprError, ScheduleError
from tedsl.expr.build import as_expr
from tedsl.expr.index_arith import untyped
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Cast, Const, Expr, Reduce, Var
from tedsl.expr.promote import as_dtype, promote_types
from tedsl.expr.visit import axes_of, walk
from tedsl.index.digits import Inverse, Point, collision, negative
from tedsl.scheduling.handles.index_map import IndexMap
from tedsl.scheduling.kernels.tree import guests
from tedsl.scheduling.plan import Plan, StagePlan
from tedsl.scheduling.plan.graph import is_output, runtime_sizes
from tedsl.scheduling.plan.labels import labels, loops_text
from tedsl.scheduling.plan.scan_structure import role
from tedsl.scheduling.primitives.call import Call, kind_of
from tedsl.scheduling.primitives.loops.legality import PLAIN, mark_text
from tedsl.scheduling.primitives.placement.legality import require_not_read_whole
from tedsl.scheduling.primitives.scans.legality import require_no_scan
from tedsl.tensor.tensor import ComputeOp

_OPERATORS = frozenset(
    {BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.FLOORDIV, BinaryOp.FLOORMOD}
)
_ALLOWED = "axes, ints and sizes with + - * // %"


def require_own_buffer(plan: Plan, call: Call, stage: StagePlan, what: str) -> None:
    """The result of an output belongs to the caller, who knows its type."""
    if is_output(plan, stage.op):
        raise call.refuse(
            plan,
            f"{stage.name} is an output of the schedule: the caller expects {what}",
            hint=f'use cache = s.cache_write({stage.name}, "global") and then '
            f"{call.primitive} of the cache",
        )
    require_not_stored_for_others(plan, call, stage, what)


def require_not_stored_for_others(plan: Plan, call: Call, stage: StagePlan, what: str) -> None:
    """No extern and no scan expects the result of the stage as it is."""
    require_not_read_whole(plan, call, stage)
    require_no_scan(plan, call, stage, f"its steps read what they store, which has {what}")
    part = role(plan, stage.op)
    if part is not None:
        raise call.refuse(
            plan,
            f"{stage.name} is stored in the rows of the scan {part[1].name}, which give it {what}",
            hint=f'use cache = s.cache_write({stage.name}, "local") and then '
            f"{call.primitive} of the cache",
        )


def require_fresh_loops(plan: Plan, call: Call, stage: StagePlan) -> None:
    """The data loops are replaced, hence before anything is said of them."""
    if stage.aligned:
        name = labels(stage)[stage.aligned[0].axis]
        raise call.refuse(
            plan,
            f"{name} is aligned (storage_align), and this call gives {stage.name} other dimensions",
            hint="call transform_layout first, then storage_align of a new dimension",
        )
    inside = guests(plan, stage)
    known = labels(stage)
    marked = [axis for axis in stage.root_axes if stage.mark(axis) != PLAIN]
    if inside:
        why = f"{inside[0].name} is attached in {stage.name}"
    elif stage.relations:
        why = f"the loops of {stage.name} have been split or fused"
    elif any(a is not b for a, b in zip(stage.leaf_axes, stage.root_axes, strict=True)):
        why = f"the loops of {stage.name} have been reordered"
    elif marked:
        why = f"{known[marked[0]]} is {mark_text(stage.mark(marked[0]))}"
    else:
        return
    raise call.refuse(
        plan,
        f"{why}, and its loops would be replaced by those of the new layout",
        facts=[("loops", loops_text(stage))],
        hint=f"call {call.primitive} first; it returns the new axes to be scheduled",
    )


def index_map(plan: Plan, call: Call, op: ComputeOp, fn: object) -> IndexMap:
    """The map that `fn` is, called with the data axes."""
    names = ", ".join(axis.name for axis in op.axes)
    example = f"give a function of the {len(op.axes)} data axes: lambda {names}: (...)"
    if not callable(fn):
        raise call.refuse(plan, f"expected a function, got {kind_of(fn)}", hint=example)
    try:
        inspect.signature(fn).bind(*op.axes)
    except (TypeError, ValueError) as error:
        reason = f"the function does not take the {len(op.axes)} data axes {names}: {error}"
        raise call.refuse(plan, reason, hint=example) from error
    made: object = cast("Callable[..., Any]", fn)(*op.axes)
    several = isinstance(made, (list, tuple))
    given = cast("Sequence[object]", made) if several else (made,)
    if not given:
        raise call.refuse(
            plan, "the function returned no index", hint="return at least one, e.g. a constant 0"
        )
    sizes = set(runtime_sizes(plan).values())
    allowed = {*op.axes, *sizes}
    return IndexMap(op.axes, tuple(_index(plan, call, each, allowed, example) for each in given))


def _index(plan: Plan, call: Call, value: object, allowed: set[Axis | Var], example: str) -> Expr:
    try:
        expr = as_expr(cast("Any", value))
    except ExprError as error:
        raise call.refuse(
            plan, f"the function returned {kind_of(value)} as an index", hint=example
        ) from error
    for node in walk(expr):
        fits = isinstance(node, (Const, Cast)) and node.dtype.is_integer
        fits = fits or (isinstance(node, Binary) and node.op in _OPERATORS)
        if not fits and not (isinstance(node, (Axis, Var)) and node in allowed):
            raise call.refuse(
                plan,
                f"the index {expr} has the part {node}",
                facts=[("allowed", _ALLOWED)],
                hint="make indices of the function's arguments",
            )
    return untyped(expr)


def not_invertible(plan: Plan, call: Call, chosen: IndexMap) -> ScheduleError:
    """Two elements at one place, an index below 0, or a form that is not understood."""
    clash = collision(chosen.axes, chosen.indices)
    low = None if clash is not None else negative(chosen.axes, chosen.indices)
    if clash is not None:
        first, second, image, sizes = clash
        return call.refuse(
            plan,
            f"two elements would have one place: {_point(call, first)} and "
            f"{_point(call, second)} both go to [{_listed(image)}]{_with(sizes)}",
            hint="keep all digits of each axis: i // 4 and i % 4, or i * extent(j) + j",
        )
    if low is not None:
        point, image, sizes = low
        return call.refuse(
            plan,
            f"{_point(call, point)} would go to [{_listed(image)}], below 0{_with(sizes)}",
            hint="add an offset so that every index is at least 0",
        )
    return call.refuse(
        plan,
        "no inverse of the map was found",
        facts=[("allowed", "permutations, i // 4 and i % 4, i * extent(j) + j, shifts i + 3")],
        hint="write the map with these, step by step in several calls if need be",
    )


def require_elements(plan: Plan, call: Call, way_back: Inverse) -> None:
    """Of an output no axis is padding but for one point: where its element is stored would not
    depend on the axis."""
    moving, held = axes_of(*way_back.values.values()), axes_of(*way_back.conditions)
    alone = [axis.name for axis in way_back.axes if axis in held and axis not in moving]
    if alone:
        raise call.refuse(
            plan,
            f"{call.stage} is an output, and all its elements are at one point of {alone[0]}",
            hint="put 0 where an axis of one element is: lambda i, j: (i // 4, i % 4, 0)",
        )


def _point(call: Call, point: Point) -> str:
    return f"{call.stage}[{_listed(point.values())}]"


def _listed(values: Sequence[int] | Any) -> str:
    return ", ".join(str(value) for value in values)


def _with(sizes: dict[str, int]) -> str:
    named = ", ".join(f"{name} = {value}" for name, value in sizes.items())
    return f" (for {named})" if named else ""


def precision(plan: Plan, call: Call, op: ComputeOp, dtype: object) -> DType:
    """The new element type: floats for floats, integers that hold all of the old ones."""
    try:
        chosen = as_dtype(cast("Any", dtype))
    except ExprError as error:
        raise call.refuse(
            plan, error.reason, facts=error.facts, hint="give the name of an element type"
        ) from error
    folds = isinstance(op.bodies[0], Reduce)
    if chosen.is_float8 and folds:
        raise call.refuse(
            plan,
            f"{op.name} is a reduction, and nothing is computed in {chosen.value}",
            hint=f'use cache = s.cache_write({op.name}, "local") for what is accumulated, and '
            f"set_precision of {op.name}, which then only stores it",
        )
    for old in op.output_dtypes:
        inside = (
            chosen.is_integer
            and old.is_integer
            and chosen.info.lowest <= old.info.lowest
            and chosen.info.highest >= old.info.highest
        )
        if not (chosen.is_float and old.is_float) and not inside:
            allowed = [
                each.value
                for each in DType
                if (each.is_float and old.is_float and not (each.is_float8 and folds))
                or (
                    each.is_integer
                    and old.is_integer
                    and each.info.lowest <= old.info.lowest
                    and each.info.highest >= old.info.highest
                )
            ]
            raise call.refuse(
                plan,
                f"{op.name} is {old.value}: as {chosen.value} it would not only be rounded",
                facts=[("allowed", ", ".join(allowed) or "none")],
                hint="give another float for a float, or a wider integer for an integer; "
                "what changes the values belongs into the definition, as .astype",
            )
    return chosen


def require_wider(plan: Plan, call: Call, op: ComputeOp, dtype: DType, compute: object) -> bool:
    """Whether to compute in `dtype` too, which holds all values of the floats it replaces."""
    if compute is not True and compute is not False:
        raise call.refuse(
            plan,
            f"compute is {kind_of(compute)}",
            facts=[("allowed", "True, False")],
            hint="pass compute=True to compute in the new type, too",
        )
    if not compute:
        return False
    for old in op.output_dtypes:
        if not old.is_float:
            raise call.refuse(
                plan,
                f"{op.name} is {old.value}, and only floats are computed in other types",
                hint="leave compute=True out: a wider integer changes no value",
            )
        if promote_types(old, dtype) is not dtype:
            raise call.refuse(
                plan,
                f"{op.name} is {old.value}, and {dtype.value} does not hold all of its values",
                facts=[("allowed", "a float that is as wide")],
                hint="pass compute=True with a wider float; a narrower type is only stored",
            )
    return True
