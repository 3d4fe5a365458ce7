"""One use of a primitive: what was asked, where in the user's code, and how a refusal of it reads.

Imports `errors`, `expr` and the plan.  Nothing here is formatted unless a refusal is raised.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from tedsl.dtypes import DType
from tedsl.errors import Fact, ScheduleError
from tedsl.expr.nodes import Axis, Const, Expr, Var
from tedsl.scheduling.handles.index_map import IndexMap
from tedsl.scheduling.plan import Plan
from tedsl.scheduling.plan.labels import axis_text
from tedsl.tensor.tensor import Operation, Tensor


@dataclass(frozen=True, slots=True)
class StageName:
    """A stage as an argument of a primitive."""

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """A primitive, the stage it is for (empty for primitives of the whole schedule), and its
    arguments as given.

    `shown` are the arguments of the error's subject where they differ from those given (`at=C.k`).
    """

    primitive: str
    stage: str
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict[str, object])
    file: str = ""
    line: int = 0
    shown: tuple[tuple[str, object], ...] | None = None

    @property
    def site(self) -> str:
        """`blur.py:31`."""
        return (
            f"{self.file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{self.line}" if self.file else ""
        )

    def subject(self, plan: Plan) -> str:
        """`split(C.i, factor=0)`."""
        shown = self.shown
        if shown is None:
            first = [] if self.args and isinstance(self.args[0], Axis) else [self.stage]
            shown = (
                *(("", StageName(name)) for name in first if name),
                *(("", arg) for arg in self.args),
                *self.kwargs.items(),
            )
        parts = [f"{key}={text(plan, value)}" if key else text(plan, value) for key, value in shown]
        return f"{self.primitive}({', '.join(parts)})"

    def refuse(
        self,
        plan: Plan,
        reason: str,
        *,
        axis: Axis | None = None,
        facts: Sequence[Fact] = (),
        hint: str = "",
    ) -> ScheduleError:
        """The error for this call."""
        return ScheduleError(
            reason,
            primitive=self.primitive,
            stage=self.stage,
            axis="" if axis is None else axis_text(plan, axis),
            subject=self.subject(plan),
            facts=facts,
            hint=hint,
            called=self.site,
        )


_PASSED = (
    *("primitive_call", "explained_call", "decide", "_tile", "_reorder"),
    *("postponed_call", "say", "split", "fuse", "_compute_at", "_bound_inside"),
)
_FILES = ("stage_handle.py", "signatures.py", "auto_choices.py", "tvm/te.py")


def caller(depth: int) -> tuple[str, int]:
    """File and line of the frame `depth` calls up, those that only pass a call on left out."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    for _ in range(depth):
        frame = frame.f_back or frame
        while frame.f_code.co_name in _PASSED and frame.f_code.co_filename.endswith(_FILES):
            frame = frame.f_back or frame
    return frame.f_code.co_filename, frame.f_lineno


def text(plan: Plan, value: object) -> str:
    """An argument as it stands in an error."""
    match value:
        case Axis():
            return axis_text(plan, value)
        case StageName(name=name):
            return name
        case IndexMap() | DType():
            return str(value)
        case Tensor() | Operation():
            return value.name
        case Const():
            return str(value.value)
        case Var():
            return value.name
        case Expr():
            return str(value)
        case str():
            return f'"{value}"'
        case tuple() | list():
            items = cast("Sequence[object]", value)
            return "[" + ", ".join(text(plan, item) for item in items) + "]"
        case _:
            return repr(value)


def kind_of(value: object) -> str:
    """An argument of a wrong type, for an error: its value when that is short, and its type."""
    kind = type(value).__name__
    if isinstance(value, (Tensor, Operation)):
        return f"{kind} {value.name}"
    if isinstance(value, (bool, int, float, str)) or value is None:
        return f"{value!r} of type {kind}"
    return f"a value of type {kind}"
