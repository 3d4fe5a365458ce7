"""Strategies for chains of dependent reductions and for schedules that compute them in one pass.

A chain is drawn from templates that can follow (a maximum and sums of exponentials of differences
to it, sums scaled by norms, moments about a mean), with pointwise stages between them, masks, and
now and then a reduction that cannot follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import choices as st
import numpy as np
from choices import event
from drawn_calls import FACTORS, call, steps
from drawn_schedules import attempt, compute_at, schedules
from strategies import Case, Dim, Draw

import tedsl as te
from tedsl.dtypes import DType
from tedsl.errors import ScheduleError
from tedsl.expr.nodes import Axis, Expr
from tedsl.expr.numerics import numpy_dtype
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.plan.graph import is_reduction
from tedsl.tensor.tensor import ComputeOp, Tensor

LENGTHS = (0, 1, 2, 3, 5, 7, 8, 9, 16, 17, 33)
ROWS = (0, 1, 2, 3, 5, 7)
LONG = (1, 7, 8, 16, 33, 56, 64, 128, 129, 256, 1000, 1024)
MANY = (1, 2, 3, 7, 8, 16, 17, 32)
INTEGERS = ("int8", "uint8", "int32", "uint16")
Value = Callable[..., Any]


@st.composite
def chains(draw: Draw, large: bool = False) -> Case:
    """Two to four reductions over one axis, each using results of those before."""
    return _Chain(draw, large).build()


class _Chain:
    """Draws a case: rows of elements, reduced over their last dimension again and again."""

    def __init__(self, draw: Draw, large: bool) -> None:
        self.draw = draw
        self.case = Case(finite=True)
        self.case.number = draw(st.integers(0, 2**16))
        self.random = np.random.default_rng(self.case.number)
        kinds = ("float32",) * 4 + ("float64", "bfloat16", "float8_e4m3fn", *INTEGERS)
        self.dtype = DType(draw(st.sampled_from(kinds)))
        self.wide = DType.float64 if self.dtype is DType.float64 else DType.float32
        if self.dtype.is_integer:
            # What wraps itself, or wider integers in which little does.
            self.wide = self.dtype if self.chance(2, 3) else DType.int64
        rank = draw(st.sampled_from((1, 1, 1, 2)))
        self.rows = tuple(self.dim(MANY if large else ROWS) for _ in range(rank))
        self.length = self.dim(LONG if large else LENGTHS)
        self.names = 0
        self.where = self.mask() if self.chance(1, 3) else None
        self.made: list[Tensor] = []
        self.tops: list[Value] = []
        self.bottoms: list[Value] = []
        self.sums: list[Value] = []
        self.norms: list[Value] = []
        self.positive: list[Value] = []
        self.narrow = False

    def build(self) -> Case:
        element = self.element()
        for tag in self.draw(
            st.lists(
                st.sampled_from(("max", "max", "min", "sum", "norm", "largest")),
                min_size=1,
                max_size=2,
            )
        ):
            self.tag(tag, element)
        last = self.dependent(element)
        for _ in range(self.draw(st.integers(0, 2))):
            last = self.dependent(element)
        if self.chance(1, 3):
            last = self.after(last, element)
        outputs = [last]
        others = [t for t in self.made if t.op is not last.op]
        if self.chance(1, 3):
            outputs.append(self.draw(st.sampled_from(others)))
        self.case.outputs = outputs
        self.case.depth = len(self.made) + 2
        self.case.length = 8 * max(1, self.length.value)
        return self.case

    # Pieces ---------------------------------------------------------------------------------------

    def chance(self, hits: int, out_of: int) -> bool:
        return self.draw(st.integers(1, out_of)) <= hits

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def dim(self, values: Sequence[int]) -> Dim:
        value = self.draw(st.sampled_from(values))
        if self.chance(1, 6):
            var = te.size_var(f"n{len(self.case.sizes)}")
            self.case.sizes[var] = value
            return Dim(var, value)
        return Dim(value, value)

    def placeholder(self, dims: Sequence[Dim], prefix: str = "A") -> Tensor:
        tensor = te.placeholder([d.extent for d in dims], self.dtype, name=self.name(prefix))
        shape = tuple(d.value for d in dims)
        if self.dtype.is_integer:
            data = self.whole(shape)
        else:
            data = self.random.integers(-8, 9, shape) / 4
        self.case.inputs[tensor] = data.astype(numpy_dtype(self.dtype))
        return tensor

    def whole(self, shape: tuple[int, ...]) -> np.ndarray:
        """Integers of all of a type, or near 0 and near its ends."""
        info, dtype = self.dtype.info, numpy_dtype(self.dtype)
        low, high = int(info.lowest), int(info.highest)
        if self.chance(1, 3):
            return self.random.integers(low, high, shape, dtype, endpoint=True)
        near = np.array([0, 1, 2, 5, high, high - 1, low, low + 1], dtype)
        return self.random.choice(near, shape)

    def read(self, tensor: Tensor, *index: Any) -> Any:
        value: Any = tensor[index]
        return value if tensor.dtype is self.wide else value.astype(self.wide)

    def staged(self, dims: Sequence[Dim], value: Value) -> Value:
        """The value itself, or reads of a pointwise stage that holds it."""
        if self.chance(1, 2):
            return value
        made: Any = te.compute([d.extent for d in dims], lambda *i: value(*i), name=self.name("P"))
        self.made.append(made)
        return lambda *i: made[i]

    def element(self) -> Value:
        """What is reduced: an input, changed by functions, perhaps plus another."""
        dims = (*self.rows, self.length)
        first = self.placeholder(dims)
        whole = self.wide.is_integer
        kinds = ("plain", "biased") if whole else ("plain", "scaled", "tanh", "biased", "select")
        kind = self.draw(st.sampled_from(kinds))
        other = self.placeholder(dims) if kind == "biased" else first

        def value(*i: Any) -> Any:
            read = self.read(first, *i)
            match kind:
                case "scaled":
                    return read * 0.5
                case "tanh":
                    return te.tanh(read * 0.5) * 2.0
                case "biased":
                    return read + self.read(other, *i)
                case "select":
                    return te.select(i[-1] <= i[0] + 2, read, te.const(-1e30, self.wide))
                case _:
                    return read

        self.masked = kind == "select"
        return self.staged(dims, value)

    def mask(self) -> Callable[[Axis, Sequence[Expr]], Any]:
        kind = self.draw(st.sampled_from(("stride", "upper", "band", "column")))
        shift = self.draw(st.integers(-2, 9))

        def condition(k: Axis, i: Sequence[Expr]) -> Any:
            here = i[0] + shift
            match kind:
                case "upper":
                    return k <= here
                case "band":
                    return te.all(k <= here, k > here - 5)
                case "column":
                    return k < shift
                case _:
                    return k % 3 != 1

        return condition

    def reduce(self, prefix: str, fold: Any, value: Value, dims: Sequence[Dim] = ()) -> Tensor:
        k = te.reduce_axis((0, self.length.extent), name="k")
        count = len(self.rows)

        def body(*i: Any) -> Any:
            options = {} if self.where is None else {"where": self.where(k, i)}
            return fold(value(i[:count], k, *i[count:]), axis=k, **options)

        shape = [d.extent for d in (*self.rows, *dims)]
        made: Any = te.compute(shape, body, name=self.name(prefix))
        self.made.append(made)
        return made

    def tag(self, kind: str, element: Value) -> None:
        """A reduction that depends on none."""

        def at(i: Any, k: Any) -> Any:
            return element(*i, k)

        if self.masked and kind in ("min", "sum", "norm", "largest"):
            kind = "max"  # else -1e30 is what is found
        if self.wide.is_integer and kind in ("norm", "largest"):
            kind = "sum"
        match kind:
            case "max":
                made = self.reduce("m", te.max, at)
                self.tops.append(self.staged(self.rows, lambda *i: made[i]))
            case "min":
                made = self.reduce("m", te.min, at)
                self.bottoms.append(lambda *i: made[i])
            case "sum":
                made = self.reduce("s", te.sum, at)
                factor = 3 if self.wide.is_integer else 0.125
                self.sums.append(self.staged(self.rows, lambda *i: made[i] * factor))
            case "norm":
                made = self.reduce("q", te.sum, lambda i, k: at(i, k) * at(i, k))
                self.norms.append(self.staged(self.rows, lambda *i: te.sqrt(made[i] + 1.0)))
            case _:
                made = self.reduce("a", te.max, lambda i, k: te.abs(at(i, k)))
                self.norms.append(lambda *i: made[i] + 0.5)

    def dependent(self, element: Value) -> Tensor:
        """A reduction that uses finished ones."""
        dims = (*self.rows, self.length)
        extra = (self.dim((1, 3, 4, 17)),) if self.chance(1, 3) else ()
        weight = (
            self.placeholder((self.length, *extra), "W") if extra or self.chance(1, 3) else None
        )
        kinds: list[tuple[Any, Value]] = self.integers(element)
        for top in () if kinds else self.tops:
            power = self.staged(dims, lambda *i, t=top: te.exp(element(*i) - t(*i[:-1])))
            kinds += [(te.sum, power)] * 3 + [(te.max, power)]
            kinds.append((te.sum, lambda *i, t=top: te.exp2(element(*i) - t(*i[:-1]))))
            kinds.append((te.max, lambda *i, t=top: element(*i) - t(*i[:-1])))
            if not self.masked:
                kinds.append((te.sum, lambda *i, t=top: _times(te.exp, element(*i) - t(*i[:-1]))))
            for total in self.positive:
                share = self.staged(dims, lambda *i, p=power, n=total: p(*i) / n(*i[:-1]))
                kinds += [(te.sum, share)] * 4
            kinds.append((te.sum, lambda *i, t=top: te.sigmoid(element(*i) - t(*i[:-1]))))
        for low in () if kinds and self.wide.is_integer else self.bottoms:
            kinds.append((te.sum, lambda *i, b=low: te.exp(b(*i[:-1]) - element(*i))))
            kinds.append((te.min, lambda *i, b=low: element(*i) - b(*i[:-1])))
        for mean in () if self.wide.is_integer else self.sums:
            apart = self.staged(dims, lambda *i, m=mean: element(*i) - m(*i[:-1]))
            kinds += [(te.sum, lambda *i, a=apart: a(*i) * a(*i)), (te.sum, apart)]
        for norm in self.norms:
            kinds += [(te.sum, lambda *i, n=norm: element(*i) / n(*i[:-1]))] * 2
            kinds.append((te.max, lambda *i, n=norm: element(*i) / n(*i[:-1])))
        fold, value = self.draw(st.sampled_from(kinds))
        narrow = self.dtype is DType.bfloat16 and self.chance(1, 2)
        self.narrow = self.narrow or narrow

        def whole(i: Any, k: Any, *j: Any) -> Any:
            found = value(*i, k)
            if narrow:
                found = found.astype(self.dtype).astype(self.wide)
            return found if weight is None else found * self.read(weight, k, *j).astype(found.dtype)

        if fold is not te.sum:
            weight, extra = None, ()
        made = self.reduce("T", fold, whole, extra)
        if weight is None and fold is te.sum and any(value is p for p in self.powers(kinds)):
            self.positive.append(self.staged(self.rows, lambda *i: made[i] + 0.001))
        return made

    def integers(self, element: Value) -> list[tuple[Any, Value]]:
        """Reductions of integers that use finished ones: none where the elements are floats."""
        if not self.wide.is_integer:
            return []
        kinds: list[tuple[Any, Value]] = []
        for tag in (*self.tops, *self.bottoms, *self.sums):
            apart = self.staged(
                (*self.rows, self.length), lambda *i, t=tag: element(*i) - t(*i[:-1])
            )
            kinds += [(fold, apart) for fold in (te.sum, te.sum, te.max, te.min)]
            kinds.append((te.sum, lambda *i, a=apart: a(*i) * a(*i)))
            kinds += [
                (fold, lambda *i, t=tag: element(*i) * t(*i[:-1])) for fold in (te.sum, te.max)
            ]
            kinds.append((te.sum, lambda *i, a=apart: te.abs(a(*i))))
            kinds.append((te.sum, lambda *i, a=apart: a(*i).astype("int64")))
            kinds.append((te.max, lambda *i, t=tag: te.max(element(*i), t(*i[:-1]))))
        return kinds

    def powers(self, kinds: list[tuple[Any, Value]]) -> list[Value]:
        return [kinds[0][1]] if self.tops and not self.wide.is_integer else []

    def after(self, last: Tensor, element: Value) -> Tensor:
        """A stage that reads the last reduction and others: the output."""
        count = len(self.rows)
        tags = [*self.tops, *self.sums, *self.norms]
        tag = self.draw(st.sampled_from(tags)) if tags else None
        wide = self.chance(1, 2) and len(last.shape) == count

        def body(*i: Any) -> Any:
            row = i[:count]
            found = last[row if wide else i]
            if self.wide.is_integer:
                return found if tag is None else found * 3 + tag(*row).astype(found.dtype)
            if tag is not None:
                found = found * 0.5 + te.tanh(tag(*row))
            return found * te.tanh(element(*i)) if wide else found

        shape = [*last.shape, self.length.extent] if wide else last.shape
        made: Any = te.compute(shape, body, name="Y")
        return made


def _times(function: Value, value: Any) -> Any:
    return function(value) * value


@st.composite
def chain_schedules(draw: Draw, case: Case, max_steps: int = 5) -> Schedule:
    """A schedule in which chains are computed in one pass, or in parts, among other primitives."""
    schedule: Schedule = draw(schedules(case.outputs, 2, case.sizes))
    for _ in range(draw(st.sampled_from((1, 1, 1, 2)))):
        fuse_chain(draw, schedule)
    for _ in steps(draw, max_steps):
        attempt(draw, schedule)
    return schedule


@st.composite
def part_schedules(draw: Draw, case: Case) -> Schedule:
    """A schedule in which a chain is computed in parts, which are scheduled again and again."""
    schedule = te.create_schedule(case.outputs)
    reductions = [e for e in schedule.stages if is_reduction(e.op)]
    stage = reductions[-1]
    kept = {tensor.op for tensor in case.outputs}
    for each in schedule.stages:
        op = each.op
        if isinstance(op, ComputeOp) and not is_reduction(op) and op not in kept:
            each.compute_inline()
            kept = {tensor.op for tensor in schedule.outputs}
    try:
        factor = draw(st.sampled_from((1, 2, 4, 8)))
        outer, _ = stage.split(stage.op.reduce_axis[0], factor)
        schedule.split_online(stage.op.outputs[0], outer, casts=True)
    except ScheduleError as error:
        event(f"refused {error.primitive} of the whole")
    for _ in range(draw(st.integers(1, 4))):
        found = [e for e in schedule.stages if is_reduction(e.op)]
        try:
            again(draw, schedule, draw(st.sampled_from(found)), {"casts": True})
        except ScheduleError as error:
            event(f"refused {error.primitive} again")
    return schedule


def fuse_chain(draw: Draw, s: Schedule) -> None:
    """Online or split_online of a reduction, usually the last, on a loop of its axis."""
    stages = [e for e in s.stages if isinstance(e.op, ComputeOp)]
    reductions = [e for e in stages if is_reduction(e.op)]
    if not reductions:
        return
    stage = reductions[-1] if draw(st.integers(0, 2)) else draw(st.sampled_from(reductions))
    try:
        if draw(st.integers(0, 3)) == 0:
            compute_at(draw, s, stage)
        axis = _reduce_loop(draw, s, stage)
        options: dict[str, Any] = {"casts": True} if draw(st.integers(0, 3)) else {}
        if draw(st.integers(0, 2)):
            lazy = _lag(draw)
            call(s, stage.online, axis, **options, **lazy)
            event(f"accepted {'lazy ' if lazy else ''}online")
        else:
            more: dict[str, Any] = {}
            if draw(st.integers(0, 2)) == 0:
                more = {"along": [draw(st.sampled_from(reductions))]}
            made: Any = call(s, s.split_online, stage.op.outputs[0], axis, **options, **more)
            event(f"accepted split_online{' along' if more else ''}")
            part = s[made[0] if isinstance(made, list) else made]
            for _ in range(draw(st.integers(0, 2))):
                again(draw, s, draw(st.sampled_from((part, stage))), options)
    except ScheduleError as error:
        event(f"refused {error.primitive}")


def _lag(draw: Draw) -> dict[str, Any]:
    """A threshold behind which repairs may lag, now and then one that is refused."""
    if draw(st.booleans()):
        return {}
    return {"rescale_threshold": draw(st.sampled_from((0.25, 0.5, 2.0, 4.0, 8.0, 8, 40.0, 100.0)))}


def again(draw: Draw, s: Schedule, stage: Stage, options: dict[str, Any]) -> None:
    """Parts, or what merges them, in one pass, in parts, or with a factored loop."""
    axis = _reduce_loop(draw, s, stage)
    match draw(st.sampled_from(("online", "online", "split_online", "rfactor"))):
        case "online":
            call(s, stage.online, axis, **options, **_lag(draw))
        case "split_online":
            call(s, s.split_online, stage.op.outputs[0], axis, **options)
        case _:
            call(s, s.rfactor, stage.op.outputs[0], axis)
    event("accepted again")


def _reduce_loop(draw: Draw, s: Schedule, stage: Stage) -> Axis:
    axes = [a for a in stage.leaf_iter_vars if a.kind == "reduce"]
    axis: Axis = draw(st.sampled_from(axes or list(stage.leaf_iter_vars) or [Axis("nowhere")]))
    for _ in range(draw(st.sampled_from((0, 1, 1, 1, 2)))):
        option = "factor" if draw(st.integers(0, 2)) else "nparts"
        made: Any = call(s, stage.split, axis, **{option: draw(st.sampled_from(FACTORS))})
        axis = made[0] if draw(st.integers(0, 4)) else made[1]
        if draw(st.integers(0, 2)) == 0:
            call(s, stage.vectorize, made[1])
    if draw(st.integers(0, 4)) == 0:
        call(s, stage.reorder, *draw(st.permutations(list(stage.leaf_iter_vars)))[:3])
    return axis
