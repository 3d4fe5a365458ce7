"""Where the threads of a scan are launched: env_threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from tedsl.scheduling.handles.thread_axis import GRID, LANES, ThreadAxis
from tedsl.scheduling.plan import Plan
from tedsl.scheduling.primitives.arguments import choice, computed_stage
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.loops.legality import require_own_kernel
from tedsl.tensor.tensor import ScanOp


def env_threads(plan: Plan, call: Call, threads: object) -> Plan:
    """for t: for i.outer (blockIdx.x) --> for i.outer (blockIdx.x): for t."""
    stage, op = computed_stage(plan, call, call.stage)
    many = isinstance(threads, (list, tuple))
    given = list(cast("Sequence[object]", threads)) if many else [threads]
    tags = [thread.tag if isinstance(thread, ThreadAxis) else thread for thread in given]
    named = [choice(plan, call, "thread", tag, (*GRID, *LANES, "vthread")) for tag in tags]
    if isinstance(op, ScanOp):
        return plan.with_stage(replace(stage, env=tuple(dict.fromkeys(named))))
    require_own_kernel(plan, call, stage, "no threads are launched for it")
    return plan  # a kernel is launched once in any case
