"""`Stage`: the handle through which a user schedules one operation.

Each family of primitives has its folder in `primitives`: its `api` checks the type of the
arguments, notes where the call stands, and leaves the rest to `legality` and `rewrite`.
"""

from __future__ import annotations

from tedsl.counterparts import STAGE
from tedsl.errors import ScheduleError
from tedsl.scheduling.primitives.graph_rewrites.api import RewriteMethods
from tedsl.scheduling.primitives.hints.api import HintMethods
from tedsl.scheduling.primitives.kernel_fusion.api import TogetherMethods
from tedsl.scheduling.primitives.layouts.api import LayoutMethods
from tedsl.scheduling.primitives.loops.api import LoopMethods
from tedsl.scheduling.primitives.marks.api import MarkMethods
from tedsl.scheduling.primitives.online.api import OnlineMethods
from tedsl.scheduling.primitives.partition.api import PartMethods
from tedsl.scheduling.primitives.placement.api import PlaceMethods
from tedsl.scheduling.primitives.reverse_placement.api import MoveMethods
from tedsl.scheduling.primitives.scans.api import ScanMethods
from tedsl.scheduling.primitives.sizes.api import SpecializeMethods
from tedsl.scheduling.primitives.stage_attributes import FactMethods
from tedsl.scheduling.primitives.storage.api import StorageMethods
from tedsl.shown import InNotebook
from tedsl.slips import suggests
from tedsl.tensor.signatures import explained_methods

_OF_SCHEDULES = {
    name: f"s.{name}(T, ...): it is a method of the schedule"
    for name in vars(RewriteMethods)
    if not name.startswith("_")
}


@suggests(ScheduleError, {**_OF_SCHEDULES, **STAGE}, "a stage")
@explained_methods(ScheduleError)
class Stage(
    LoopMethods,
    MarkMethods,
    PlaceMethods,
    MoveMethods,
    LayoutMethods,
    OnlineMethods,
    ScanMethods,
    StorageMethods,
    TogetherMethods,
    SpecializeMethods,
    PartMethods,
    HintMethods,
    FactMethods,
    InNotebook,
):
    """One operation of a schedule and how it runs.  Got from `s[T]`; it stays valid through
    rewrites of the graph.
    """

    __slots__ = ()
