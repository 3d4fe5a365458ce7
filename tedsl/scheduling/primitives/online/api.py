"""Dependent reductions in one pass: online."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tedsl.expr.nodes import Axis
from tedsl.late import late
from tedsl.scheduling.primitives.call import Call, caller
from tedsl.scheduling.primitives.stage_handle import StageHandle, primitive

if TYPE_CHECKING:
    from tedsl.scheduling.primitives.online import chain_rescaling as chain_repair
    from tedsl.scheduling.primitives.online import rewrite as chains
else:
    chain_repair = late("tedsl.scheduling.primitives.online.chain_rescaling")
    chains = late("tedsl.scheduling.primitives.online.rewrite")


def consent_options(
    casts: bool, rounding: bool, time_limit: float, rescale_threshold: float | None = None
) -> dict[str, object]:
    """The options that differ from their defaults, for a trace."""
    options = {
        "casts": casts or None,
        "rounding": rounding or None,
        "time_limit": None if time_limit == 2.0 else time_limit,
        "rescale_threshold": rescale_threshold,
    }
    return {key: value for key, value in options.items() if value is not None}


class OnlineMethods(StageHandle):
    """Primitives for chains of reductions that use each other's results."""

    __slots__ = ()

    @primitive
    def online(
        self,
        axis: Axis,
        casts: bool = False,
        rounding: bool = False,
        time_limit: float = 2.0,
        rescale_threshold: float | None = None,
    ) -> None:
        """Compute the reductions that this one depends on in the same loop.

        Args:
            axis: a loop of this stage's reduce axis; each iteration folds one part of the axis into
                all the reductions, after repairing what they hold.
            casts: take casts to narrower floats of values that depend on the other reductions as
                exact.
            rounding: the same for floor, ceil, round, trunc and casts to integers.
            time_limit: seconds for one derivation.
            rescale_threshold: repair lazily, as published kernels do (8 in base 2, about
                5.5 in base e).  What has been folded stays relative to a reference, a stage
                `<tag>.ref`, until the tag is more than this ahead of it, in the unit of the tag;
                iterations in which no element of the reference moves skip the repairs by a branch.
                The results are the same but for rounding, and tags that are outputs stay exact.

        Requires: a reduction over one axis, or over several that were fused, all of them and in
            order, and are one axis from then on; the reductions it depends on are at root and
            reduce over the same range, or ranges; a repair of every dependent one is derived and
            proved (see `scheduling.algebra.rescaling`); around `axis` only serial reduce loops
            stand inside the data loops.  Pointwise stages between them that are at root are
            attached at `axis`.  Maxima and minima start from a finite value, so that what is masked
            gives no NaN.
            `rescale_threshold` is above 0 and finite, tags are maxima or minima of floats that
            depend on no tags themselves, and repairs factors exp(a * (r' - r)) with known a, which
            bounds what totals grow to: half of the exponents of each float they pass through is
            enough.

        Rewrites:
            for k: m = max(m, x[k])
            for k: l += exp(x[k] - m)
            -->
            for k.outer:
              m' = max(m, x[k.outer * f .. ])
              l = l * exp(m - m') + sum(exp(x[k.outer * f .. ] - m'))
            --> with rescale_threshold=8
            for k.outer:
              m = max(m, x[k.outer * f .. ])
              m.ref' = select(m - m.ref > 8, m, m.ref)
              if m.ref' != m.ref: l = l * exp(m.ref - m.ref')
              l += sum(exp(x[k.outer * f .. ] - m.ref'))
            l = l * exp(m.ref - m)
        """
        file, line = caller(1)
        given = consent_options(casts, rounding, time_limit, rescale_threshold)
        call = Call("online", self.name, (axis,), given, file, line)
        consent = chain_repair.Consent(casts, rounding, time_limit, rescale_threshold)
        self._commit(call, chains.online(self.schedule.plan, call, axis, consent))

    def proof(
        self,
        casts: bool = False,
        rounding: bool = False,
        time_limit: float = 2.0,
        rescale_threshold: float | None = None,
    ) -> str:
        """What `online` would prove for this stage and the reductions it depends on, as text.

        Args:
            casts: as for `online`.
            rounding: as for `online`.
            time_limit: as for `online`.
            rescale_threshold: as for `online`.

        Returns:
            For each dependent reduction: its value, how it separates, the repair, and on which
            conditions it holds.

        Raises:
            ScheduleError: `online` would refuse.
        """
        file, line = caller(1)
        call = Call("proof", self.name, (), {}, file, line)
        consent = chain_repair.Consent(casts, rounding, time_limit, rescale_threshold)
        found = chains.proofs(self.schedule.plan, call, consent)
        return "\n".join(f"{name}:\n{proof}" for name, proof in found.items())
