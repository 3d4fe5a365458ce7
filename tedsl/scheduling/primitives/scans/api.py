"""Primitives of scans: env_threads, associative_scan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tedsl.expr.nodes import Expr
from tedsl.late import late
from tedsl.scheduling.handles.thread_axis import ThreadAxis
from tedsl.scheduling.primitives.stage_handle import StageHandle, primitive
from tedsl.tensor.tensor import Tensor

if TYPE_CHECKING:
    from tedsl.scheduling.primitives.scans import associative
    from tedsl.scheduling.primitives.scans import rewrite as scans
else:
    associative = late("tedsl.scheduling.primitives.scans.associative")
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

    @primitive
    def associative_scan(
        self, block: int | Expr | None = None, step_axis: int = 0
    ) -> Tensor | Any:  # a list only for a scan of several states, which its caller knows
        """Compute a scan as prefixes of an associative combination, side by side.

        Args:
            block: how many steps one fold covers; without it, one covers all of them.
            step_axis: the dimension of what is folded that the steps, or the blocks, become;
                negative counts from the end.

        Returns:
            What is folded: a stage `<stage>.prefix`, over the steps and what lies beside them; a
            list for a scan of several states.  With blocks it starts again with each of them, and
            there are `<stage>.total`, what each comes to, and the scan of these, `<stage>.before`.

        Requires: each step is `state[t - 1] . x[t]`, at one place of the state, where the `.` is
            proved to be associative and commutative and has an identity; one row is given; no loop
            of the scan or its steps has been changed.  Floats are added up in another order, as by
            rfactor.

        Rewrites:
            for t: for i: S[t, i] = S[t - 1, i] + x[t, i]
            -->
            for t: for i: for k: S.prefix[t, i] += x[k, i], where=k <= t
            for t: for i: S[t, i] = S.prefix[t, i]
            and where its loops over t and k are vectorized, a GPU does all of them at once
            (tl.associative_scan).  With block=64, and S.before in the same way again:
            for b: for i: for k: S.total[b, i] += x[b * 64 + k, i]
            for t: for i: for k: S.prefix[t, i] += x[t // 64 * 64 + k, i], where=k <= t % 64
            for t: for i: S[t, i] = S.before[t // 64, i] + S.prefix[t, i]
        """
        call = self._call("associative_scan", (), block=block, step_axis=step_axis or None)
        plan, made = associative.associative_scan(self.schedule.plan, call, block, step_axis)
        self.schedule.commit(call, plan, stages=(made,))
        outputs = self.schedule.plan.stage(made).op.outputs
        return outputs[0] if len(outputs) == 1 else list(outputs)
