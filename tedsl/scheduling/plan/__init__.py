"""What a schedule has decided, as immutable data: the input of the lowering.

`stage_plan` has the plan and its stages, `placement` where a stage is computed, and `kernel_plan`
how a kernel is launched.
"""

from tedsl.scheduling.plan.kernel_plan import PLAIN_KERNEL, KernelPlan
from tedsl.scheduling.plan.placement import (
    AT_ROOT,
    At,
    Cooperative,
    Inlined,
    Kept,
    LastBlock,
    Online,
    OnlineMode,
    Own,
    Partitioned,
    Placement,
    SameGrid,
    SharedLoops,
    at_loop,
    by_itself,
    stored,
)
from tedsl.scheduling.plan.stage_plan import (
    NO_CUTS,
    PLAIN,
    Align,
    Cuts,
    Fuse,
    Mark,
    Plan,
    Relation,
    Skew,
    Split,
    StagePlan,
    Tensorized,
    Unit,
)

__all__ = [
    "AT_ROOT",
    "NO_CUTS",
    "PLAIN",
    "PLAIN_KERNEL",
    "Align",
    "At",
    "Cooperative",
    "Cuts",
    "Fuse",
    "Inlined",
    "Kept",
    "KernelPlan",
    "LastBlock",
    "Mark",
    "Online",
    "OnlineMode",
    "Own",
    "Partitioned",
    "Placement",
    "Plan",
    "Relation",
    "SameGrid",
    "SharedLoops",
    "Skew",
    "Split",
    "StagePlan",
    "Tensorized",
    "Unit",
    "at_loop",
    "by_itself",
    "stored",
]
