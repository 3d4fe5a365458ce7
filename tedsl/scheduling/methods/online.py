"""Dependent reductions in one pass: online."""

from __future__ import annotations

from tedsl.expr.nodes import Axis
from tedsl.scheduling.call import Call, caller
from tedsl.scheduling.chain_repair import Consent
from tedsl.scheduling.methods.handle import StageHandle, primitive
from tedsl.scheduling.primitives.online import derivations, online


def consent_options(casts: bool, rounding: bool, time_limit: float) -> dict[str, object]:
    """The options that differ from their defaults, for a trace."""
    options = {
        "casts": casts or None,
        "rounding": rounding or None,
        "time_limit": None if time_limit == 2.0 else time_limit,
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
    ) -> None:
        """Compute the reductions that this one depends on in the same loop.

        Args:
            axis: a loop of this stage's reduce axis; each iteration folds one part of the axis into
                all the reductions, after repairing what they hold.
            casts: take casts to narrower floats of values that depend on the other reductions as
                exact.
            rounding: the same for floor, ceil, round, trunc and casts to integers.
            time_limit: seconds for one derivation.

        Requires: a reduction over one axis; the reductions it depends on are at root and reduce
            over the same range; a repair of every dependent one is derived and proved (see
            `scheduling.repair`); around `axis` only serial reduce loops stand inside the data
            loops.  Pointwise stages between them that are at root are attached at `axis`.  Maxima
            and minima start from a finite value, so that what is masked gives no NaN.

        Rewrites:
            for k: m = max(m, x[k])
            for k: l += exp(x[k] - m)
            -->
            for k.outer:
              m' = max(m, x[k.outer * f .. ])
              l = l * exp(m - m') + sum(exp(x[k.outer * f .. ] - m'))
        """
        file, line = caller(1)
        given = consent_options(casts, rounding, time_limit)
        call = Call("online", self.name, (axis,), given, file, line)
        consent = Consent(casts, rounding, time_limit)
        self._commit(call, online(self.schedule.plan, call, axis, consent))

    def proof(self, casts: bool = False, rounding: bool = False, time_limit: float = 2.0) -> str:
        """What `online` would prove for this stage and the reductions it depends on, as text.

        Args:
            casts: as for `online`.
            rounding: as for `online`.
            time_limit: as for `online`.

        Returns:
            For each dependent reduction: its value, how it separates, the repair, and on which
            conditions it holds.

        Raises:
            ScheduleError: `online` would refuse.
        """
        file, line = caller(1)
        call = Call("proof", self.name, (), {}, file, line)
        found = derivations(self.schedule.plan, call, Consent(casts, rounding, time_limit))
        return "\n".join(f"{name}:\n{each.proof}" for name, each in found.items())
