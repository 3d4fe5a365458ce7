"""What a schedule has decided, as immutable data: the input of the lowering.

`stage_plan` has the plan and its stages, `placement` where a stage is computed.
"""

from tedsl.scheduling.plan.placement import (
    AT_ROOT,
    At,
    Inlined,
    Online,
    OnlineMode,
    Own,
    Placement,
    at_loop,
)
from tedsl.scheduling.plan.stage_plan import (
    NO_CUTS,
    PLAIN,
    Across,
    Align,
    Cuts,
    Fuse,
    Join,
    Kept,
    Mark,
    Pieces,
    Plan,
    Relation,
    Skew,
    Split,
    StagePlan,
    Tensorized,
    Unit,
    apart,
)

__all__ = [
    "AT_ROOT",
    "NO_CUTS",
    "PLAIN",
    "Across",
    "Align",
    "At",
    "Cuts",
    "Fuse",
    "Inlined",
    "Join",
    "Kept",
    "Mark",
    "Online",
    "OnlineMode",
    "Own",
    "Pieces",
    "Placement",
    "Plan",
    "Relation",
    "Skew",
    "Split",
    "StagePlan",
    "Tensorized",
    "Unit",
    "apart",
    "at_loop",
]
