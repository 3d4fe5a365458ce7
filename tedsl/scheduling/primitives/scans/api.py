"""Primitives of scans: env_threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tedsl.late import late
from tedsl.scheduling.handles.thread_axis import ThreadAxis
from tedsl.scheduling.primitives.stage_handle import StageHandle, primitive

if TYPE_CHECKING:
    from tedsl.scheduling.primitives.scans import rewrite as scans
else:
    scans = late("tedsl.scheduling.primitives.scans.rewrite")


class ScanMethods(StageHandle):
    """Primitives that a scan has."""

    __slots__ = ()

    @primitive
    def env_threads(self, threads: ThreadAxis | str | Sequence[ThreadAxis | str]) -> None:
        """Launch threads once, around all steps of a scan.

        Args:
            threads: what loops of its steps are bound to, now or later: `te.thread_axis` or tags.
                An empty list takes the wish back.

        Requires: a stage with a kernel of its own; for others than scans this changes nothing.
            Where elements of different programs need each other, or the stages of the steps are
            not bound alike, each step is a launch as without this call.

        Rewrites:
            for t: for i.outer (blockIdx.x): for i.inner: S[t, i] = f(S[t - 1, i])
            -->
            for i.outer (blockIdx.x): for t: for i.inner: S[t, i] = f(S[t - 1, i])
        """
        given = tuple(threads) if isinstance(threads, (list, tuple)) else (threads,)
        call = self._call("env_threads", (given,))
        self._commit(call, scans.env_threads(self.schedule.plan, call, given))
