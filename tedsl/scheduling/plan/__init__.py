"""What a schedule has decided, as immutable data: the input of the lowering.

- `kernel_plan`: how a kernel is launched; `placement`: where a stage is computed; `stage_plan`: the
  plan and its stages.  These are what `tedsl.scheduling.plan` itself names
- `links`: who reads whom and what is attached where; `following`: stages of which only what they
  read changed; `differing`: in which stages two plans differ; `diff`: the same, for users
- `graph`: from operations to a plan, and readers rebuilt after a rewrite; `copies`: an operation
  once more, under a name of its own
- `relations`: extents and values of axes; `labels`: names of stages and axes
- `scan_structure`: which stages belong to the steps of a scan; `scattered`: reductions whose points
  go where data say
- `bounded_reads`: reads at computed indices stay inside their tensors
- `inline`, `unshare_axes`: the plan with inlined stages substituted, with loops of its own for each
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
    CallersArray,
    Cuts,
    Fuse,
    Mark,
    Plan,
    Relation,
    Scatter,
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
    "CallersArray",
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
    "Scatter",
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
