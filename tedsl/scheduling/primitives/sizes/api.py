"""Runtime sizes: what is assumed of them, and versions of a kernel for some of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tedsl.expr.nodes import Expr
from tedsl.late import late
from tedsl.scheduling.primitives.call import Call, caller
from tedsl.scheduling.primitives.schedule_handle import ScheduleHandle
from tedsl.scheduling.primitives.stage_handle import StageHandle, primitive

if TYPE_CHECKING:
    from tedsl.scheduling.primitives.sizes import rewrite as sizes
else:
    sizes = late("tedsl.scheduling.primitives.sizes.rewrite")


class AssumeMethods(ScheduleHandle):
    """Facts about the sizes of a computation."""

    @primitive
    def assume(self, condition: Expr | bool) -> None:
        """Promise that a condition on runtime sizes holds at every call.

        Args:
            condition: over `te.var` sizes, integers, arithmetic and comparisons, e.g.
                `n % 16 == 0`; a bool where the sizes are constants.

        Requires: some sizes satisfy it together with what was assumed before.  A call whose sizes
            do not is refused before anything runs.  (Halide: `set_estimate` promises nothing;
            TVM has no such primitive.)

        Rewrites:
            for io in 0..ceil(n / 16): for ii in 0..16: if io * 16 + ii < n: f(io * 16 + ii)
            --> s.assume(n % 16 == 0)
            for io in 0..n / 16: for ii in 0..16: f(io * 16 + ii)
        """
        call = Call("assume", "", (condition,), {}, *caller(1))
        self.commit(call, sizes.assume(self.plan, call, condition))


class SpecializeMethods(StageHandle):
    """Versions of a kernel."""

    __slots__ = ()

    @primitive
    def specialize(self, condition: Expr | bool) -> None:
        """Compile the kernel of this stage once more, for calls whose sizes satisfy a condition.

        Several calls make a chain: the first condition that holds decides.
        `kernel.specializations` lists the versions and how often each was taken.

        Args:
            condition: as for `Schedule.assume`; a bool changes nothing, constants are known.

        Requires: a stage at root; some calls take the version and some do not; at most 8 versions.

        Rewrites:
            C: masked(n)
            --> s[C].specialize(n % 16 == 0)
            if n % 16 == 0: C: simplified under n % 16 == 0
            else: C: masked(n)
        """
        call = self._call("specialize", (condition,))
        self._commit(call, sizes.specialize(self.schedule.plan, call, condition))
