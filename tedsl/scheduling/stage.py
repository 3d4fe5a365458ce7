"""`Stage`: the handle through which a user schedules one operation.

Each family of primitives has its file in `methods`, which checks the type of the arguments, notes
where the call stands, and leaves the rest to `primitives`.
"""

from __future__ import annotations

from tedsl.errors import ScheduleError
from tedsl.scheduling.methods.hints import HintMethods
from tedsl.scheduling.methods.layouts import LayoutMethods
from tedsl.scheduling.methods.loops import LoopMethods
from tedsl.scheduling.methods.marks import MarkMethods
from tedsl.scheduling.methods.moves import MoveMethods
from tedsl.scheduling.methods.online import OnlineMethods
from tedsl.scheduling.methods.parts import PartMethods
from tedsl.scheduling.methods.places import PlaceMethods
from tedsl.scheduling.methods.scans import ScanMethods
from tedsl.scheduling.methods.sizes import SpecializeMethods
from tedsl.scheduling.methods.storage import StorageMethods
from tedsl.scheduling.methods.together import TogetherMethods
from tedsl.tensor.signatures import explained_methods


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
):
    """One operation of a schedule and how it runs.  Got from `s[T]`; it stays valid through
    rewrites of the graph.
    """

    __slots__ = ()
