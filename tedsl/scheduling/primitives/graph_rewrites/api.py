"""Primitives of the whole schedule that rewrite its graph: cache_read, recompute, cache_write,
divide, rfactor, associative_scan, decompose_reduction, split_online.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, cast, overload

from tedsl.expr.nodes import Axis, Expr
from tedsl.late import late
from tedsl.scheduling.primitives.call import Call, StageName, caller
from tedsl.scheduling.primitives.online.api import consent_options
from tedsl.scheduling.primitives.schedule_handle import ScheduleHandle
from tedsl.scheduling.primitives.stage_handle import primitive
from tedsl.tensor.tensor import Operation, Tensor

if TYPE_CHECKING:
    from tedsl.scheduling.handles.stage import Stage
    from tedsl.scheduling.primitives.graph_rewrites import cache
    from tedsl.scheduling.primitives.graph_rewrites import divide as dividing
    from tedsl.scheduling.primitives.graph_rewrites import recompute as copies
    from tedsl.scheduling.primitives.graph_rewrites import rfactor as factoring
    from tedsl.scheduling.primitives.online import chain_rescaling as chain_repair
    from tedsl.scheduling.primitives.online import rewrite as chains
    from tedsl.scheduling.primitives.online import split as splitting
    from tedsl.scheduling.primitives.reverse_placement import rewrite as moves
    from tedsl.scheduling.primitives.scans import associative
else:
    associative = late("tedsl.scheduling.primitives.scans.associative")
    cache = late("tedsl.scheduling.primitives.graph_rewrites.cache")
    copies = late("tedsl.scheduling.primitives.graph_rewrites.recompute")
    dividing = late("tedsl.scheduling.primitives.graph_rewrites.divide")
    chain_repair = late("tedsl.scheduling.primitives.online.chain_rescaling")
    factoring = late("tedsl.scheduling.primitives.graph_rewrites.rfactor")
    moves = late("tedsl.scheduling.primitives.reverse_placement.rewrite")
    splitting = late("tedsl.scheduling.primitives.online.split")
    chains = late("tedsl.scheduling.primitives.online.rewrite")


class RewriteMethods(ScheduleHandle):
    """Primitives that make new stages."""

    @primitive
    def cache_read(
        self,
        tensor: Tensor | Stage,
        scope: str,
        readers: Tensor | Operation | Stage | str | Sequence[Tensor | Operation | Stage | str],
    ) -> Tensor:
        """Let some readers of a tensor read a staged copy of it.

        Args:
            tensor: an input or a computed tensor.
            scope: where the copy lives while it is attached: `"local"`, `"shared"` or `"global"`.
            readers: the stages that are to read the copy.

        Returns:
            The copy, whose stage is at the place of the tensor's stage where that is attached and
            at root otherwise.

        Requires: each reader reads the tensor.  Splits and marks of the readers stay.

        Rewrites:
            for i: C[i] = f(A[i])
            -->
            for ax0: A.shared[ax0] = A[ax0]
            for i: C[i] = f(A.shared[i])
        """
        site = caller(1)
        source = self._tensor(tensor, "cache_read", site)
        many = cast(
            "Sequence[object]", readers if isinstance(readers, (list, tuple)) else [readers]
        )
        names = tuple(self.resolve(reader, "cache_read", site) for reader in many)
        stage = self.plan.stage_of(source.op).name
        args = (source, scope, tuple(StageName(name) for name in names))
        call = Call("cache_read", stage, args, {}, *site, shown=tuple(("", arg) for arg in args))
        plan, made = cache.cache_read(self.plan, call, source, scope, names)
        self.commit(call, plan, stages=(made,))
        return plan.stage(made).op.outputs[0]

    @primitive
    def recompute(
        self,
        tensor: Tensor | Stage,
        readers: Tensor | Operation | Stage | str | Sequence[Tensor | Operation | Stage | str],
    ) -> Tensor:
        """Let some readers of a tensor read another stage of the same definition.

        What two kernels need can then be computed in both and stored in neither: a stage is at one
        place, and the new one has a place of its own.

        Args:
            tensor: a computed tensor.
            readers: the stages that are to read the new one; at least one reads the old one still.

        Returns:
            The new tensor, whose stage is at root, without splits and marks.

        Requires: each reader reads the tensor; the stage goes along with no loop and is no scan.
            Splits and marks of all stages stay.

        Rewrites:
            for i: B[i] = f(A[i]);  for i: C[i] = g(B[i]);  for i: D[i] = h(B[i])
            -->
            for i: B[i] = f(A[i]);  for i: B.again[i] = f(A[i])
            for i: C[i] = g(B[i]);  for i: D[i] = h(B.again[i])
        """
        site = caller(1)
        source = self._tensor(tensor, "recompute", site)
        many = cast(
            "Sequence[object]", readers if isinstance(readers, (list, tuple)) else [readers]
        )
        names = tuple(self.resolve(reader, "recompute", site) for reader in many)
        stage = self.plan.stage_of(source.op)
        args = (source, tuple(StageName(name) for name in names))
        call = Call("recompute", stage.name, args, {}, *site, shown=tuple(("", a) for a in args))
        plan, made = copies.recompute(self.plan, call, source, names)
        self.commit(call, plan, stages=(made,))
        return plan.stage(made).op.outputs[source.index]

    @overload
    def cache_write(self, tensor: Tensor | Stage, scope: str) -> Tensor: ...
    @overload
    def cache_write(self, tensor: Sequence[Tensor], scope: str) -> list[Tensor]: ...
    @primitive
    def cache_write(
        self, tensor: Tensor | Stage | Sequence[Tensor], scope: str
    ) -> Tensor | list[Tensor]:
        """Compute a stage in a new one, and let it copy the result.

        Args:
            tensor: a computed tensor, or all outputs of one operation as a list.
            scope: where the new stage's result lives while it is attached.

        Returns:
            The tensor of the new stage, which has the body, fresh data axes and the reduce axes;
            a list when a list was given.  Its dimensions are the data loops as they are: a reorder
            before this call gives it another layout, and splits and fuses one in blocks; the stage
            then has the loops of its definition again.

        Requires: the stage is not inlined, nothing is attached in it, and loops that are split or
            fused have no marks.

        Rewrites:
            for i: for k: C[i] += f(i, k)
            -->
            for i.c: for k: C.local[i.c] += f(i.c, k)
            for i: C[i] = C.local[i]
        """
        site = caller(1)
        many = isinstance(tensor, (list, tuple))
        given = cast("Sequence[object]", tensor if many else [tensor])
        tensors = tuple(self._tensor(item, "cache_write", site) for item in given)
        stage = self.plan.stage_of(tensors[0].op).name if given else ""
        args = (tensors if many else tensors[0], scope)
        call = Call("cache_write", stage, args, {}, *site, shown=tuple(("", arg) for arg in args))
        plan, made = cache.cache_write(self.plan, call, tensors, scope)
        self.commit(call, plan, stages=(made,))
        outputs = plan.stage(made).op.outputs
        return list(outputs) if many else outputs[0]

    @primitive
    def divide(
        self, tensor: Tensor | Stage, axis: Axis, at: SupportsIndex | Expr
    ) -> tuple[Tensor, Tensor]:
        """Let two stages compute a result, each by a schedule of its own: what lies before a
        position of an axis, and the rest.

        Both store into the result, at its places; nothing is copied.  A reader that surely reads
        one of them reads that from then on; when none is left that reads the result, it is gone.

        Args:
            tensor: a computed tensor.
            axis: a data axis of its stage.
            at: where the second one starts, an integer or an expression over runtime sizes.

        Returns:
            The tensors of the two stages, named `<stage>.head` and `<stage>.tail`, which are at
            root, or inlined like the stage was.

        Requires: `0 < at <` the extent of the axis.  Nothing else has been said of the stage, and
            nothing is attached at its loops.  While the result itself is read, the two stay at
            root.  Divide a stage before those that it reads: these are then read in pieces.

        Rewrites:
            for i in 0..n: C[i] = f(i)
            --> s.divide(C, i, at)
            for i in 0..at: C[i] = f(i)                  (C.head)
            for i in 0..n - at: C[i + at] = f(i + at)    (C.tail)
        """
        site = caller(1)
        source = self._tensor(tensor, "divide", site)
        stage = self.plan.stage_of(source.op).name
        shown = (("", source), ("axis", axis), ("at", at))
        call = Call("divide", stage, (source, axis, at), {}, *site, shown=shown)
        plan, made = dividing.divide(self.plan, call, axis, at)
        self.commit(call, plan, stages=made)
        head, tail = (plan.stage(name).op.outputs[source.index] for name in made)
        return head, tail

    @primitive
    def rfactor(
        self, tensor: Tensor | Stage, axis: Axis, factor_axis: int = 0, consent: bool = False
    ) -> Tensor | Any:  # a list only for a tuple reduction, which its caller knows
        """Reduce along one loop last: partial results for each of its values, then their reduction.

        Args:
            tensor: the reduction (any output of it).
            axis: a reduce loop of its stage.
            factor_axis: the dimension of the partial results that this loop becomes; negative
                counts from the end.
            consent: accept a `te.comm_reducer` that could be neither proved nor refuted to combine
                in any order.

        Returns:
            The partial results, a stage named `<stage>.rf`; a list for a tuple reduction.  The old
            stage keeps its data axes, loses its splits, and has one new reduce axis: fetch them
            again from `.op`.

        Requires: no mark on the stage's loops and nothing attached at them.

        Rewrites:
            for i: for ko: for ki: B[i] += A[i, ko * f + ki]
            --> s.rfactor(B, ko)
            for ko: for i: for ki: B.rf[ko, i] += A[i, ko * f + ki]
            for i: for ko.v: B[i] += B.rf[ko.v, i]
        """
        site = caller(1)
        source = self._tensor(tensor, "rfactor", site)
        stage = self.plan.stage_of(source.op).name
        options = {"factor_axis": factor_axis or None, "consent": consent or None}
        given = {key: value for key, value in options.items() if value is not None}
        shown = (("", source), ("axis", axis), *given.items())
        call = Call("rfactor", stage, (source, axis), given, *site, shown=shown)
        plan, made = factoring.rfactor(self.plan, call, axis, factor_axis, consent)
        self.commit(call, plan, stages=(made,))
        outputs = plan.stage(made).op.outputs
        return outputs[0] if len(outputs) == 1 else list(outputs)

    @primitive
    def associative_scan(
        self, tensor: Tensor | Stage, block: int | Expr | None = None, step_axis: int = 0
    ) -> Tensor | Any:  # a list only for a scan of several states, which its caller knows
        """Compute a scan as prefixes of an associative combination, side by side.

        Args:
            tensor: the scan (any output of it).
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
            --> s.associative_scan(S)
            for t: for i: for k: S.prefix[t, i] += x[k, i], where=k <= t
            for t: for i: S[t, i] = S.prefix[t, i]
            and where its loops over t and k are vectorized, a GPU does all of them at once
            (tl.associative_scan).  With block=64, and S.before in the same way again:
            for b: for i: for k: S.total[b, i] += x[b * 64 + k, i]
            for t: for i: for k: S.prefix[t, i] += x[t // 64 * 64 + k, i], where=k <= t % 64
            for t: for i: S[t, i] = S.before[t // 64, i] + S.prefix[t, i]
        """
        site = caller(1)
        source = self._tensor(tensor, "associative_scan", site)
        stage = self.plan.stage_of(source.op).name
        options = {"block": block, "step_axis": step_axis or None}
        given = {key: value for key, value in options.items() if value is not None}
        shown = (("", source), *given.items())
        call = Call("associative_scan", stage, (source,), given, *site, shown=shown)
        plan, made = associative.associative_scan(self.plan, call, block, step_axis)
        self.commit(call, plan, stages=(made,))
        outputs = plan.stage(made).op.outputs
        return outputs[0] if len(outputs) == 1 else list(outputs)

    @primitive
    def decompose_reduction(self, tensor: Tensor | Stage, axis: Axis) -> Tensor | Any:
        """Start a reduction in a stage of its own, just before one of its loops.

        Args:
            tensor: the reduction (any output of it).
            axis: the loop before which the results are started.

        Returns:
            What the reduction starts from, a stage named `<stage>.init`; a list for a tuple
            reduction.  The reduction keeps its loops.

        Requires: no reduce loop outside `axis`.  The new stage is attached at the loop around
            `axis`, or stands before the whole nest.

        Rewrites:
            for i: { B[i] = 0; for k: B[i] += f(i, k) }
            --> s.decompose_reduction(B, i)
            for i: B.init[i] = 0
            for i: { B[i] = B.init[i]; for k: B[i] += f(i, k) }
        """
        site = caller(1)
        source = self._tensor(tensor, "decompose_reduction", site)
        stage = self.plan.stage_of(source.op).name
        shown = (("", source), ("axis", axis))
        call = Call("decompose_reduction", stage, (source, axis), {}, *site, shown=shown)
        plan, made = moves.decompose_reduction(self.plan, call, axis)
        self.commit(call, plan, stages=(made,))
        outputs = plan.stage(made).op.outputs
        return outputs[0] if len(outputs) == 1 else list(outputs)

    @primitive
    def split_online(
        self,
        tensor: Tensor | Stage,
        axis: Axis,
        casts: bool = False,
        rounding: bool = False,
        time_limit: float = 2.0,
        along: Tensor | Stage | str | Sequence[Tensor | Stage | str] = (),
    ) -> Tensor | Any:  # a list only for several totals, which its caller knows
        """Compute parts of a chain of dependent reductions by themselves, then merge them.

        Args:
            tensor: the last reduction of the chain (see `Stage.online`).
            axis: a loop of its reduce axis: each value is one part.
            casts: as for `Stage.online`.
            rounding: as for `Stage.online`.
            time_limit: as for `Stage.online`.
            along: other reductions over the same range that are cut alike, although `tensor` does
                not read them: the sum `l` of the weights where `sum(exp(x - m) * v) / l` divides
                behind the sum.

        Returns:
            The partial results of `tensor`, a stage named `<stage>.rf` whose first dimension is the
            part; a list when a repair needs several totals.  Every reduction of the chain has such
            a stage; the old ones merge the parts and have one new reduce axis each.  The partial
            stages are a chain too, over the inner loops: `s[T.rf].online(...)`.

        Requires: as for `Stage.online`; the axis is split; no marks on the loops of the chain's
            stages and nothing attached at them.

        Rewrites:
            for k: m = max(m, x[k])
            for k: l += exp(x[k] - m)
            --> s.split_online(l, ko)
            for ko: for ki: m.rf[ko] = max(m.rf[ko], x[ko * f + ki])
            for ko: for ki: l.rf[ko] += exp(x[ko * f + ki] - m.rf[ko])
            for ko: m = max(m, m.rf[ko])
            for ko: l += l.rf[ko] * exp(m.rf[ko] - m)
        """
        site = caller(1)
        source = self._tensor(tensor, "split_online", site)
        stage = self.plan.stage_of(source.op).name
        many = cast("Sequence[object]", along if isinstance(along, (list, tuple)) else [along])
        names = tuple(self.resolve(each, "split_online", site) for each in many)
        given = consent_options(casts, rounding, time_limit)
        if names:
            given["along"] = tuple(StageName(name) for name in names)
        shown = (("", source), ("axis", axis), *given.items())
        call = Call("split_online", stage, (source, axis), given, *site, shown=shown)
        consent = chain_repair.Consent(casts, rounding, time_limit)
        plan, made = splitting.split_online(self.plan, call, axis, consent, names)
        self.commit(call, plan, stages=made)
        outputs = plan.stage(made[-1]).op.outputs
        return outputs[0] if len(outputs) == 1 else list(outputs)

    def online(
        self,
        tensor: Tensor | Stage,
        axis: Axis,
        casts: bool = False,
        rounding: bool = False,
        time_limit: float = 2.0,
        rescale_threshold: float | None = None,
    ) -> None:
        """`s[tensor].online(axis, ...)`: see `Stage.online`."""
        site = caller(1)
        name = self.resolve(tensor, "online", site)
        given = consent_options(casts, rounding, time_limit, rescale_threshold)
        call = Call("online", name, (axis,), given, *site)
        consent = chain_repair.Consent(casts, rounding, time_limit, rescale_threshold)
        self.commit(call, chains.online(self.plan, call, axis, consent))
