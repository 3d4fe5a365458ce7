"""Names out of records: knobs and traces of two programs that differ only in names become equal.

Knob names begin with the name of a stage; here that name gives way to the stage's number in the
computation (`C.width` is `#3.width`) and back.  A trace is numbered likewise, so that equal
numbered traces mean equal schedules.  Imports `scheduling`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from tedsl.autotune.search_space.space import Choice, Decisions
from tedsl.scheduling.handles.schedule import create_schedule
from tedsl.tensor.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Naming:
    """The names of a computation's stages, in an order that depends on the graph alone."""

    stages: tuple[str, ...]

    @staticmethod
    def of(outputs: Sequence[Tensor]) -> Naming:
        """The naming of the computation of `outputs`."""
        return Naming(tuple(stage.name for stage in create_schedule(outputs).stages))

    def anonymous(self, knob: str) -> str:
        """`C.width` as `#3.width`; a name that begins with no stage stays."""
        owners = [s for s in self.stages if knob == s or knob.startswith(f"{s}.")]
        if not owners:
            return knob
        stage = max(owners, key=len)
        return f"#{self.stages.index(stage)}{knob[len(stage) :]}"

    def named(self, knob: str) -> str:
        """The inverse of `anonymous`."""
        number, dot, rest = knob[1:].partition(".")
        if not knob.startswith("#") or not number.isdigit() or int(number) >= len(self.stages):
            return knob
        return f"{self.stages[int(number)]}{dot}{rest}"

    def named_all(self, decisions: Decisions) -> dict[str, Choice]:
        """Decisions by the knobs' own names."""
        return {self.named(name): value for name, value in decisions.items()}


def number_trace(trace: str) -> str:
    """The JSON of a trace with every name of a stage, axis or size replaced by its number."""
    numbers: dict[str, int] = {}

    def number(name: object) -> object:
        if not isinstance(name, str) or not name:
            return name
        return f"@{numbers.setdefault(name, len(numbers))}"

    def value(item: Any) -> Any:
        if isinstance(item, list):
            return [value(each) for each in cast("list[Any]", item)]
        if not isinstance(item, dict):
            return item
        reference = cast("dict[str, Any]", item)
        return {
            kind: [number(part) for part in cast("list[Any]", inner)]
            if isinstance(inner, list)
            else number(inner)
            for kind, inner in reference.items()
        }

    steps: list[Any] = [
        [
            step["primitive"],
            number(step["stage"]),
            [value(item) for item in step["args"]],
            {key: value(item) for key, item in step["kwargs"].items()},
            [number(name) for name in step["results"]],
        ]
        for step in json.loads(trace)["steps"]
    ]
    return json.dumps(steps, separators=(",", ":"), sort_keys=True)
