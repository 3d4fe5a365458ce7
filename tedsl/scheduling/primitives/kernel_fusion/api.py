"""Several stages in one kernel: compute_with, compute_last; several programs for one stage:
compute_across."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tedsl.expr.nodes import Axis
from tedsl.late import late
from tedsl.scheduling.primitives.call import Call, StageName, caller
from tedsl.scheduling.primitives.stage_handle import StageHandle, primitive
from tedsl.tensor.tensor import Operation, Tensor

if TYPE_CHECKING:
    from tedsl.scheduling.handles.stage import Stage
    from tedsl.scheduling.primitives.kernel_fusion import rewrite as together
else:
    together = late("tedsl.scheduling.primitives.kernel_fusion.rewrite")


class TogetherMethods(StageHandle):
    """Primitives that let stages run together that are not attached in each other."""

    __slots__ = ()

    @primitive
    def compute_with(
        self, stage: Stage | Tensor | Operation | str, axis: Axis | None = None
    ) -> None:
        """Compute this stage together with one that it does not depend on: horizontal fusion.

        Args:
            stage: the leader, whose loops run.
            axis: the innermost shared loop of the leader.  Without it no loop is shared: both are
                one kernel, whose grid has the programs of the one and then those of the other
                (a fused launch of many small kernels; on the CPU one parallel loop over both).

        Requires: both at root, or both attached at one loop; neither reads the other, directly or
            not.  With an axis, this stage's outermost loops have as many iterations as the
            leader's, one by one; they run as the leader's do, and stages attached at them move to
            the leader's.  Loops of a reduction may be shared: its start stands before them, its
            result after.  `compute_root` or `compute_at` of this stage takes it back.

        Rewrites:
            for i: { for j: B[i] += f(A[i, j]) }
            for i: { for j: C[i] max= g(A[i, j]) }
            --> s[C].compute_with(s[B], j)
            for i: { for j: { B[i] += f(A[i, j]); C[i] max= g(A[i, j]) } }
        """
        file, line = caller(1)
        target = self.schedule.resolve(stage, "compute_with", (file, line))
        args = (StageName(target),) if axis is None else (StageName(target), axis)
        shown = (("", StageName(self.name)), ("leader", StageName(target)))
        shown = shown if axis is None else (*shown, ("axis", axis))
        call = Call("compute_with", self.name, args, {}, file, line, shown)
        self._commit(call, together.compute_with(self.schedule.plan, call, target, axis))

    @primitive
    def compute_last(self, stage: Stage | Tensor | Operation | str) -> None:
        """Compute this stage in the kernel of one that it reads, by the last programs to arrive: a
        reduction in parts and what merges them become one launch.

        Each program of the kernel counts itself, in memory, at the tile of this stage that it feeds
        (a program of the grid that this stage has now).  The one that completes the count sees what
        all of them stored and computes the tile; the results do not depend on which it is.  On the
        CPU both stages stay parallel loops, one after the other.

        Args:
            stage: the leader, whose kernel it is: the parts.

        Requires: both at root.  The leader's grid has this stage's grid loops, outermost and as
            long, and further ones, over the programs that feed one tile.  All that this stage
            reads of the kernel is stored by the programs of its own tile.  Launch options and
            versions are the leader's.  `compute_root` of this stage takes it back.

        Rewrites:
            for i in program[0], p in program[1]: P[p, i] = f(p, i)
            for i in program[0]: S[i] = sum(p)(P[p, i])
            --> s[S].compute_last(s[P])
            for i in program[0], p in program[1]:
                P[p, i] = f(p, i)
                last of all p at i: S[i] = sum(p)(P[p, i])
        """
        file, line = caller(1)
        target = self.schedule.resolve(stage, "compute_last", (file, line))
        shown = (("", StageName(self.name)), ("leader", StageName(target)))
        call = Call("compute_last", self.name, (StageName(target),), {}, file, line, shown)
        self._commit(call, together.compute_last(self.schedule.plan, call, target))

    @primitive
    def compute_across(
        self, stage: Stage | Tensor | Operation | str, axis: Axis, part: Axis, program: Axis
    ) -> None:
        """Compute this stage inside a loop of another, each part of it by one of the programs of
        that one, which wait for one another: rows that several programs share, in one launch.

        Each program stores its part in device memory, counts itself and waits until all programs
        that differ in `program` alone have done so; then it reads the parts of all.  What it holds
        in registers stays there meanwhile: a row is read once.  The kernel is launched so that the
        device refuses it unless all its programs run at the same time (a cooperative launch).
        Several such stages that do not need each other's results share one wait.  On the CPU, where
        nothing waits, each iteration computes all parts itself.

        Args:
            stage: the stage in whose loop it is computed, as for `compute_at`; its programs run.
            axis: a loop of it, inside those of the grid.
            part: an axis of this stage, over the parts.
            program: the loop of the grid whose iterations compute one part each.

        Requires: as for `compute_at`, but that other kernels may read this stage where all of it is
            computed.  It is no reduction (`cache_read` of one passes its results on).  As many
            programs as parts.  The grid has a constant size, small enough for the device: the other
            loops around the place are serial and not pipelined (but for the loop itself, in two
            stages: `double_buffer` of what is copied there fetches the next iteration's while
            programs wait), and neither their lengths nor any condition depend on `program`.  What
            is read of this stage does not either.

        Rewrites:
            for g in program[0], p in program[1]: for t: S[t, p] = f(P[:, t])
            --> s[P].compute_across(s[S], t, q, p)
            for g in program[0], p in program[1]: for t:
                P[p, t] = f(p, t)
                meet all p at g
                S[t, p] = f(P[:, t])
        """
        file, line = caller(1)
        target = self.schedule.resolve(stage, "compute_across", (file, line))
        args = (StageName(target), axis, part, program)
        shown = (("", StageName(self.name)), ("at", axis), ("part", part), ("program", program))
        call = Call("compute_across", self.name, args, {}, file, line, shown)
        self._commit(
            call, together.compute_across(self.schedule.plan, call, target, axis, part, program)
        )
