"""Hints about memory, caches and threads: storage_align, double_buffer, prefetch and
set_store_predicate, which TVM scripts state, and evict.  None of them changes a result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tedsl.expr.nodes import Axis, Expr
from tedsl.late import late
from tedsl.scheduling.primitives.call import StageName, caller
from tedsl.scheduling.primitives.stage_handle import StageHandle, primitive
from tedsl.tensor.tensor import Operation, Tensor

if TYPE_CHECKING:
    from tedsl.scheduling.primitives.hints import rewrite as hints
else:
    hints = late("tedsl.scheduling.primitives.hints.rewrite")


class HintMethods(StageHandle):
    """Primitives that say how a result is stored and fetched."""

    __slots__ = ()

    @primitive
    def storage_align(self, axis: Axis, factor: int, offset: int = 0) -> None:
        """Leave room in memory between elements that follow each other along a dimension.

        Args:
            axis: the dimension, a data axis of the definition.
            factor: the distance is a multiple of this many elements ...
            offset: ... plus this many.

        Requires: not an output, whose layout is the caller's; not the last dimension, whose
            elements are next to each other.  Tiles in registers of the GPU have no distances: the
            wish is for workspaces, and for buffers on the CPU.

        Rewrites:
            workspace B[64, 30]
            --> s[B].storage_align(i, 32, 1)
            workspace B[64, 33]
        """
        call = self._call("storage_align", (axis, factor, offset))
        plan = hints.storage_align(self.schedule.plan, call, axis, factor, offset)
        self._commit(call, plan)

    @primitive
    def evict(self, priority: str, then: str | None = None) -> None:
        """Say how long the caches of a GPU keep what is read and stored of this stage.

        What a kernel streams through the second-level cache pushes out what the same cache has yet
        to write: on an H200 a kernel of rows that reads 512 MiB and writes as much takes 0.253 ms
        with inputs that are evicted last, 0.260 ms without.  A line that is evicted last stays
        until others have gone, also when the kernel has ended.

        Args:
            priority: "last", "normal" or "first"; an input or a stage in memory, for what is in
                registers has no lines.
            then: of what a kernel reads again and for the last time, sooner than `priority`: in
                the last of its loop nests that read this stage, and behind it, where an earlier one
                has read it.  A kernel that reads it in one nest says `priority`.

        Requires: for `then` that something reads this stage.  On the GPU every access to memory by
            pointers says it; what the copy engine moves does not, nor does the CPU.

        Rewrites:
            tl.load(A + i); tl.store(B + i, ...)
            --> s[A].evict("last")
            tl.load(A + i, eviction_policy="evict_last"); tl.store(B + i, ...)
        """
        call = self._call("evict", (priority,), then=then)
        self._commit(call, hints.evict(self.schedule.plan, call, priority, then))

    @primitive
    def double_buffer(self) -> None:
        """Compute this stage for the next iteration of the loop that it is attached at, while the
        current one is used: `pipeline` of that loop in two stages.

        Requires: a stage attached at a loop.  On the CPU there is one buffer still, and what the
            next iteration reads is prefetched.

        Rewrites:
            for i: B = f(i); C[i] = g(B)
            -->
            B = f(0); for i: B' = f(i + 1); C[i] = g(B); B = B'
        """
        call = self._call("double_buffer", ())
        self._commit(call, hints.double_buffer(self.schedule.plan, call))

    @primitive
    def prefetch(self, tensor: Tensor | Operation | str, axis: Axis, offset: int = 1) -> None:
        """Fetch what later iterations of a loop read: `pipeline` of that loop.

        Args:
            tensor: what is fetched.
            axis: the loop.
            offset: how many iterations ahead.

        Requires: this stage reads the tensor; a loop without another way of running.  What else the
            loop reads is fetched too, and what happens on each target is that of `pipeline`.

        Rewrites:
            for i: C[i] = f(A[i])
            --> s[C].prefetch(A, i, 1)
            load A[0]; for i: load A[i + 1]; C[i] = f(A[i])
        """
        source = self.schedule.resolve(tensor, "prefetch", caller(1))
        call = self._call("prefetch", (StageName(source), axis, offset))
        plan = hints.prefetch(self.schedule.plan, call, source, axis, offset)
        self._commit(call, plan)

    @primitive
    def set_store_predicate(self, condition: Expr | str) -> None:
        """Let one thread store the result of a reduction over threads, as TVM scripts say.

        Here a program stores each element once by itself, so an accepted condition changes nothing.

        Args:
            condition: `tx.var.equal(0)` for a `tx = te.thread_axis(...)`, or several of them joined
                by `&`; as text `"threadIdx.x == 0"`.

        Requires: no data loop of this stage is bound to such a thread axis, for then results would
            be lost.

        Rewrites: nothing.
        """
        text = hints.predicate_text(condition)
        call = self._call("set_store_predicate", (text,))
        plan = hints.set_store_predicate(self.schedule.plan, call, condition, text)
        self._commit(call, plan)
