"""How a kernel is launched.  Imports `expr` and `ir`."""

from __future__ import annotations

from dataclasses import dataclass

from tedsl.expr.nodes import Expr
from tedsl.ir.nodes import DEFAULT_LAUNCH, Launch


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """What is said of a kernel: options of its launch, and conditions on sizes, each of one more
    version of it; the first that holds at a call decides."""

    launch: Launch = DEFAULT_LAUNCH
    versions: tuple[Expr, ...] = ()

    @property
    def said(self) -> str:
        """What only a kernel has: empty where nothing was said of it."""
        launch = self.launch
        options = (launch.num_warps, launch.num_stages, launch.num_ctas, launch.maxnreg)
        if self.versions:
            return "versions for some sizes"
        return "" if options == (None, None, None, None) else "launch options"

    @property
    def primitive(self) -> str:
        """The primitive that said so."""
        return "specialize" if self.versions else "launch"


PLAIN_KERNEL = KernelPlan()
