"""What the families of primitives of a whole schedule share.  Imports the plan and the calls."""

from __future__ import annotations

from tedsl.scheduling.plan import Plan
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.stage_handle import Made
from tedsl.tensor.tensor import Tensor


class ScheduleHandle:
    """What the families of primitives of a schedule need of it."""

    @property
    def plan(self) -> Plan:
        """What has been decided so far, as immutable data."""
        raise NotImplementedError

    def resolve(self, key: object, subject: str, site: tuple[str, int]) -> str:
        """The name of the stage that `key` stands for."""
        raise NotImplementedError

    def commit(self, call: Call, plan: Plan, made: Made = (), stages: tuple[str, ...] = ()) -> Made:
        """Take over the plan that a primitive made.  Not for users: primitives call it."""
        raise NotImplementedError

    def _tensor(self, key: object, subject: str, site: tuple[str, int]) -> Tensor:
        """The tensor of now that `key` (a tensor of now or of before a rewrite) stands for."""
        op = self.plan.stage(self.resolve(key, subject, site)).op
        return op.outputs[key.index if isinstance(key, Tensor) else 0]
