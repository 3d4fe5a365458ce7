"""TVM's module `te`: the names of `tedsl`, and what its scripts may say in another order.

Here a definition is judged when it is made and a primitive when it is called; there both are judged
when the whole is lowered.  So in this module a place or a mark that is refused waits for the calls
to come, and is tried again after each; `te.lower` and `te.build` refuse what still waits.  Reads
that are outside for some sizes, which are known at a call only, give 0 there, with a warning.
Imports the definitions and the handles.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, cast

from tedsl.errors import ExprError, ScheduleError
from tedsl.expr.build import as_expr
from tedsl.expr.nodes import Axis
from tedsl.ir.nodes import LoopKind
from tedsl.runtime.like_module import convert
from tedsl.scheduling.handles import schedule as handles
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.handles.thread_axis import ThreadAxis
from tedsl.scheduling.plan.graph import producers_first
from tedsl.scheduling.primitives.loops.legality import PLAIN
from tedsl.scheduling.primitives.marks.rewrite import PRAGMAS
from tedsl.scheduling.primitives.stage_handle import Axes
from tedsl.slips import also
from tedsl.target import Target
from tedsl.tensor import compute as definitions
from tedsl.tensor import reduce as reductions
from tedsl.tensor import tags as scopes
from tedsl.tensor.bounds_check import guarded
from tedsl.tensor.intrin import TensorIntrin
from tedsl.tvm.modules import of_te

__all__ = ["comm_reducer", "compute", "create_schedule", "tag_scope"]
__path__: Sequence[str] = ()
_PLACES = ("compute_at", "compute_inline", "compute_root")
_MARKS = ("bind", "parallel", "tensorize", "unroll", "vectorize")
_Call = partial[Any]


def compute(
    shape: Any,
    fcompute: Callable[..., Any],
    name: str = "compute",
    tag: str = "",
    attrs: Mapping[str, Any] | None = None,
    varargs_names: Sequence[str] | None = None,
) -> Any:
    """`te.compute`, in which reads outside for some sizes give 0.

    Args:
        shape: as there.
        fcompute: as there.
        name: as there.
        tag: as there.
        attrs: as there; numbers become constants, whose `value` scripts ask for.
        varargs_names: as there.

    Raises:
        ExprError: as there; of reads outside, those for which no size is to blame.
    """

    @wraps(fcompute)
    def element(*axes: Any) -> Any:
        result: Any = fcompute(*axes)
        several = isinstance(result, (tuple, list))
        given = tuple(map(as_expr, cast("Sequence[Any]", result if several else (result,))))
        bodies, errors = guarded(name, axes, given)
        for error in errors:
            text = f"compute {name}: {error.reason}; such elements are 0"
            warnings.warn(text, RuntimeWarning, 4)
        return bodies if several else bodies[0]

    notes = {key: convert(value) for key, value in (attrs or {}).items()}
    return definitions.compute(shape, element, name, tag, notes, varargs_names)


def comm_reducer(
    fcombine: Callable[..., Any], fidentity: Callable[..., Any], name: str = "reduce"
) -> Any:
    """`te.comm_reducer`, which is believed to be associative and commutative as its name says: an
    argmax that does not break ties by the index may give that of another equal element."""
    return reductions.comm_reducer(fcombine, fidentity, name, believed=True)


class _Scope(scopes.TagScope):
    def __enter__(self) -> scopes.TagScope:
        if scopes.current_tag():
            raise also(ExprError, ValueError)(
                f"the tag {self.tag!r} is inside {scopes.current_tag()!r}",
                subject="tag_scope",
                hint="TVM refuses nested scopes; in tedsl's own te the inner one counts",
            )
        return super().__enter__()


def tag_scope(tag: str) -> scopes.TagScope:
    """`te.tag_scope`, of which none may be inside another.

    Raises:
        ExprError: when it is entered inside another; a ValueError too.
    """
    return _Scope(tag)


def create_schedule(ops: Any) -> Schedule:
    """`te.create_schedule`, with a schedule whose places and marks may be said in any order."""
    made = handles.create_schedule(ops)
    return _Schedule(made.plan)


class _Stage(Stage):
    """A stage whose places and marks wait where they are refused; a loop that is taken apart loses
    its mark."""

    __slots__ = ()

    def split(self, parent: Any, factor: Any = None, nparts: Any = None) -> Any:
        """`Stage.split`."""
        self._unmark(parent)
        return super().split(parent, factor, nparts)

    def fuse(self, *args: Any) -> Any:
        """`Stage.fuse`."""
        self._unmark(*args)
        return super().fuse(*args)

    def pragma(self, axis: Any, pragma_type: str, pragma_value: Any = None) -> None:
        """`Stage.pragma`, or nothing, with a warning, for a remark that only TVM knows."""
        if pragma_type in PRAGMAS:
            super().pragma(axis, pragma_type, pragma_value)
        else:
            text = f"nothing here is done by the pragma {pragma_type!r}"
            warnings.warn(text, RuntimeWarning, 3)

    def _unmark(self, *loops: Any) -> None:
        plan = self.plan
        for loop in loops:
            if isinstance(loop, Axis) and loop in self.leaf_iter_vars and plan.mark(loop) != PLAIN:
                self.serial(loop)


def _grid(stage: Stage) -> tuple[Axis, ...]:
    """The loops of a stage that are bound to the grid."""
    loops = stage.leaf_iter_vars
    return Axes(each for each in loops if stage.plan.mark(each).kind is LoopKind.PROGRAM)


def _compute_at(stage: Stage, host: Any, axis: Any) -> None:
    """`Stage.compute_at`; at a loop of the grid, at the innermost one: between them nothing
    runs."""
    grid = _grid(stage.schedule[host])
    Stage.compute_at(stage, host, grid[-1] if axis in grid else axis)


def _has_no_code(intrin: Any) -> bool:
    return isinstance(intrin, TensorIntrin) and intrin.cpu is None and intrin.gpu is None


def _postponed(name: str) -> Callable[..., None]:
    strict: Any = _compute_at if name == "compute_at" else getattr(Stage, name)

    @wraps(getattr(Stage, name))
    def postponed_call(self: Stage, *args: Any, **options: Any) -> None:
        schedule: Any = self.schedule
        if any(isinstance(each, ThreadAxis) for each in args) and name == "compute_at":
            text = f"{self.name} at a thread of env_threads is computed before, for all threads"
            warnings.warn(text, RuntimeWarning, 2)
            return
        schedule.say(name, self.name, partial(strict, self, *args, **options))

    return postponed_call


for _name in (*_PLACES, *_MARKS):
    setattr(_Stage, _name, _postponed(_name))


class _Schedule(Schedule):
    """A schedule that keeps the calls that are refused, and tries them again after others."""

    def __init__(self, plan: Any) -> None:
        super().__init__(plan)
        self._waiting: dict[tuple[str, str, int], tuple[_Call, ScheduleError]] = {}

    def __getitem__(self, key: Any) -> Stage:
        return _Stage(self, super().__getitem__(key).name)

    def copy(self, *, decided: bool = True, target: Target | None = None) -> Schedule:
        """As `Schedule.copy`.

        Raises:
            ScheduleError: a call still waits: no other has made it legal.
        """
        for _, error in self._waiting.values():
            raise error
        copied: Any = super().copy(decided=decided, target=target)
        copied._waiting = {}
        return copied

    def say(self, primitive: str, stage: str, call: _Call) -> None:
        """Make a call, or let it wait.  A place of a stage takes the place of one that waits."""
        if primitive in _PLACES:
            for key in [key for key in self._waiting if key[0] == "place" and key[1] == stage]:
                del self._waiting[key]
        kind = "place" if primitive in _PLACES else primitive
        try:
            call()
        except ScheduleError as error:
            given = [*call.args[1:], *call.keywords.values()]
            if primitive == "bind" and self._bound_inside(self[stage], given[0], call):
                return
            if primitive == "tensorize" and _has_no_code(given[-1]):
                text = f"tensorize({stage}): {error.reason}; its loops run as they are"
                warnings.warn(text, RuntimeWarning, 4)
                return
            reader = next((each for each in given if isinstance(each, Stage)), None)
            if reader is not None and self[stage].op not in producers_first(reader.op.outputs):
                raise  # no other call puts it there: they are of different groups
            self._waiting[kind, stage, len(self._steps)] = call, error

    def _bound_inside(self, stage: Stage, axis: Any, call: _Call) -> bool:
        """Whether a loop is bound to the grid after what is attached at other loops of the grid has
        moved in to it."""
        before = len(self._steps)
        try:
            for each in self.stages:
                if each.attach_stage == stage and each.attach_ivar in _grid(stage):
                    each.compute_at(stage, axis)
            call()
        except ScheduleError:
            if len(self._steps) > before:
                self.undo(len(self._steps) - before)
            return False
        return True

    def commit(self, *args: Any, **options: Any) -> Any:
        """As `Schedule.commit`; then the calls that wait are tried again."""
        made = super().commit(*args, **options)
        waiting, self._waiting = self._waiting, {}
        for key, (call, error) in waiting.items():
            try:
                call()
            except ScheduleError:
                self._waiting[key] = call, error
        return made


__getattr__ = of_te
