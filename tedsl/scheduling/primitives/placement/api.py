"""Where a stage is computed: compute_at, compute_inline, compute_root."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tedsl.expr.nodes import Axis
from tedsl.late import late
from tedsl.scheduling.primitives.call import Call, StageName, caller
from tedsl.scheduling.primitives.stage_handle import StageHandle, primitive
from tedsl.tensor.tensor import Operation, Tensor

if TYPE_CHECKING:
    from tedsl.scheduling.handles.stage import Stage
    from tedsl.scheduling.primitives.placement import legality
    from tedsl.scheduling.primitives.placement import rewrite as places
else:
    legality = late("tedsl.scheduling.primitives.placement.legality")
    places = late("tedsl.scheduling.primitives.placement.rewrite")


class PlaceMethods(StageHandle):
    """Primitives that say where a stage is computed."""

    __slots__ = ()

    def legal_places(self) -> tuple[tuple[Stage, Axis], ...]:
        """Every (stage, axis) that `compute_at` would accept now; a stage may also be at root."""
        return tuple(
            (self.schedule[name], axis)
            for name, axis in legality.legal_attach_points(self.schedule.plan, self.name)
        )

    @primitive
    def compute_at(self, stage: Stage | Tensor | Operation | str, axis: Axis) -> None:
        """Compute this stage inside a loop of another, only the region that is read there.

        Args:
            stage: a stage that reads this one, or one whose loop encloses all readers.
            axis: a loop of that stage.

        Requires: every reader runs inside that loop; the loop is not (inside) a vectorized one, nor
            between loops of the grid.  At a loop bound to threads it is computed for all of them,
            at the loop around (see `bind`).  Copies of it that have no place yet go along.
            `legal_places()` lists what is accepted.  The scope becomes `local` where it was
            `global`; `set_scope` after this call chooses another.  A region of no constant size is
            kept in memory: what a GPU cannot do so, `te.build` refuses.

        Rewrites:
            for y: B[y] = f(y)
            for i: for j: C[i, j] = g(B[i], ...)
            --> s[B].compute_at(s[C], i)
            for i:
              B[i] = f(i)
              for j: C[i, j] = g(B[i], ...)
        """
        target = self.schedule.resolve(stage, "compute_at", caller(1))
        file, line = caller(1)
        shown = (("", StageName(self.name)), ("at", axis))
        args = (StageName(target), axis)
        call = Call("compute_at", self.name, args, {}, file, line, shown)
        self._commit(call, places.compute_at(self.schedule.plan, call, target, axis))

    @primitive
    def compute_inline(self) -> None:
        """Substitute this stage into its readers.

        Requires: one output, no reduction, not an output of the schedule, nothing attached in it.

        Rewrites:
            B[i] = A[i] + 1;  C[i] = B[i] * 2
            -->
            C[i] = (A[i] + 1) * 2
        """
        call = self._call("compute_inline", ())
        self._commit(call, places.compute_inline(self.schedule.plan, call))

    @primitive
    def compute_root(self) -> None:
        """Compute this stage by itself before its readers: a kernel of its own.

        Requires: no stage that it reads is attached where this stage was.

        Rewrites:
            for i: { B[i] = f(i); C[i] = g(B[i]) }
            -->
            for i: B[i] = f(i)
            for i: C[i] = g(B[i])
        """
        call = self._call("compute_root", ())
        self._commit(call, places.compute_root(self.schedule.plan, call))
