"""L2 eviction priorities for kernels that stream more through the cache than it holds.

    load x; load y; store z
    --> load x, evict_last; load y, evict_last; store z

Results that wait to be written are then evicted before inputs are.  Measured on an H200 in kernels
written by hand, with other inputs for each call: a norm of rows of 8192 with a residual 0.260 ->
0.253 ms, layer norm of rows of 4096 floats 0.131 -> 0.128 ms; `cache_variants.py` times it in the
rules' kernels.  Pointwise kernels and reductions without stores of that size do not gain from it
(0.3% and -1% in the mean over their rows), and GEMMs are left alone: their programs share operands,
in a tile order that is chosen for the cache as it is.

A row that a program reduces in pieces and reads again in pieces, in reverse
(`gpu/rows/reverse_second_pass.py`), is of no use after that: its second loads, and the stores, are
evict_first then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tedsl.schedules.analysis.nests import contraction, is_reduction, nbytes_of
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.gpu.rows.reverse_second_pass import read_again, runs_backwards
from tedsl.schedules.knobs import knobs_of
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.kernels.tree import root_of
from tedsl.scheduling.plan import Plan
from tedsl.scheduling.plan.graph import tensors_read
from tedsl.scheduling.plan.inline import inline_stages
from tedsl.scheduling.plan.scan_structure import is_state
from tedsl.tensor.tensor import ComputeOp, Operation, PlaceholderOp, Tensor

# How many times as much as the cache holds a kernel moves that streams.
STREAMED = 4
# Values of the knob: evict_last for inputs; that and evict_first for outputs; the same, but the
# last read of an input that is read twice is evict_first too; evict_last for all; no hints.
READS, APART, UNTIL, ALL, NONE = "reads", "apart", "until_read", "all", "none"


@dataclass(slots=True)
class _Traffic:
    """What the programs of a kernel load and store in memory, in bytes by the names of stages, and
    whether they reduce and contract."""

    reads: dict[str, int] = field(default_factory=dict[str, int])
    stores: dict[str, int] = field(default_factory=dict[str, int])
    folds: bool = False
    multiplies: bool = False

    @property
    def nbytes(self) -> int:
        """All of it once."""
        return sum({**self.reads, **self.stores}.values())


def keep_inputs(s: Schedule) -> None:
    """The knob `evict_last` of each kernel that streams: the L2 eviction priority of its inputs
    and outputs, of those tensors that do not fit into the cache.  It is asked when all else is
    decided."""
    plan, held = inline_stages(s.plan), gpu_of(s).l2_near
    found = _traffic(plan)
    shared = {each for kernel in found.values() if kernel.multiplies for each in kernel.reads}
    for name, kernel in found.items():
        if kernel.multiplies or kernel.nbytes < STREAMED * held or name in s.settled:
            continue
        reads, stores = (
            [each for each, nbytes in moved.items() if nbytes >= held and each not in shared]
            for moved in (kernel.reads, kernel.stores)
        )
        choices = [NONE, *([READS] if reads else []), *([ALL] if stores else [])]
        choices += [APART] if reads and stores else []
        again = {plan.stage_of(tensor.op).name for tensor in read_again(plan, name)}
        choices += [] if again.isdisjoint(reads) else [UNTIL]
        if len(choices) == 1:
            continue
        usual = READS if kernel.folds and reads and stores else NONE
        if UNTIL in choices and runs_backwards(plan, name):
            usual = UNTIL
        what = s.knob(f"{knobs_of(s, s[name])}.evict_last", choices, usual)
        for each in reads if what != NONE else ():
            s[each].evict("last", then="first" if what == UNTIL and each in again else None)
        for each in stores if what in (ALL, APART, UNTIL) else ():
            s[each].evict("last" if what == ALL else "first")


def _traffic(plan: Plan) -> dict[str, _Traffic]:
    """By kernel what it moves."""
    found: dict[str, _Traffic] = {}
    for stage in plan.stages:
        op = stage.op
        if not isinstance(op, ComputeOp):
            continue
        kernel = found.setdefault(root_of(plan, stage).name, _Traffic())
        kernel.folds = kernel.folds or is_reduction(op)
        kernel.multiplies = kernel.multiplies or contraction(op) is not None
        if stage.placement.at_root:
            kernel.stores[stage.name] = _nbytes(op)
        for tensor in tensors_read(op):
            if _in_memory(plan, tensor):
                kernel.reads[plan.stage_of(tensor.op).name] = _nbytes(tensor.op)
    return found


def _nbytes(op: Operation) -> int:
    return sum(map(nbytes_of, op.outputs))


def _in_memory(plan: Plan, tensor: Tensor) -> bool:
    """True for an input, and for what another kernel has stored."""
    if isinstance(tensor.op, PlaceholderOp):
        return not is_state(plan, tensor.op)
    return plan.stage_of(tensor.op).placement.at_root
