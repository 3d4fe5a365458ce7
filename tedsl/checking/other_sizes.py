"""Other sizes than those that are tuned for, where a kernel of symbolic sizes has to be right too.

One kernel serves all sizes, so one that may win is also run where all sizes are odd and where all
are one.  Triton compiles it anew for these: `other_calls` says for which, so that it is done where
many compile and not where one measures.  Problems that are one computation at several sizes share
the runs.  Imports `random_inputs` and numpy.
"""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr.nodes import Expr
from tedsl.reference.evaluate import evaluate_scalar
from tedsl.runtime.arrays.views import NUMPY_DTYPES
from tedsl.workload.extents import Extents
from tedsl.workload.workload import Workload

ODD = (7, 33, 13, 17, 5, 9, 3)
SMALL_WORK = 4_000_000
"""Points that a run at other sizes may have."""


def other_sizes(workload: Workload) -> list[Extents]:
    """All odd and all one, where sizes are symbolic and the computation has a meaning there."""
    variables = workload.variables
    odd = {v.name: ODD[n % len(ODD)] for n, v in enumerate(variables)}
    wanted = (odd, {v.name: 1 for v in variables}) if variables else ()
    return [Extents(workload, sizes) for sizes in wanted if _is_small(workload, sizes)]


def _is_small(workload: Workload, sizes: dict[str, int]) -> bool:
    if any(v.lower is not None and sizes[v.name] < v.lower for v in workload.variables):
        return False
    size = Extents(workload, sizes)
    shapes = [size.shape(t) for op in workload.operations for t in op.outputs]
    work = sum(size.points(op) for op in workload.computes)
    return work <= SMALL_WORK and not any(min(shape, default=1) < 0 for shape in shapes)


def serves(assumptions: Sequence[Expr], size: Extents) -> bool:
    """True when the assumptions of a schedule hold at some sizes."""
    known = {var.name: value for var, value in size.values.items()}
    named = {var.name: var for var in size.workload.variables}
    scalars = {named[name]: NUMPY_DTYPES[named[name].dtype].type(v) for name, v in known.items()}
    return all(bool(evaluate_scalar(condition, scalars)) for condition in assumptions)


def other_calls(workload: Workload, assumptions: Sequence[Expr]) -> list[dict[str, int]]:
    """The sizes, by name, at which a kernel that assumes so much is run besides its own."""
    return [
        {var.name: value for var, value in size.values.items()}
        for size in other_sizes(workload)
        if serves(assumptions, size)
    ]
