"""What a plan with scans needs before its loops are built: rows of their own for every init."""

from __future__ import annotations

from tedsl.expr.nodes import TensorRead
from tedsl.scheduling.plan import Plan
from tedsl.scheduling.plan.graph import data_axis_like, fresh_stage, insert_before, reroute
from tedsl.scheduling.plan.labels import unique_name
from tedsl.scheduling.plan.scan_structure import scan_stages
from tedsl.tensor.tensor import ComputeOp, ExternOp


def separate_inits(plan: Plan) -> Plan:
    """The plan with a copy of each init that cannot be stored in the first rows of its scan: it is
    an output itself, or another scan or an extern has it.

    Before:  Z[t, i] = 0;  a = scan(Z, ...);  b = scan(Z, ...)
    After:   Z[t, i] = 0;  a = scan(Z, ...);  b.init[t, i] = Z[t, i];  b = scan(b.init, ...)
    """
    taken = {tensor.op for tensor in plan.outputs}
    for each in plan.stages:
        if isinstance(each.op, ExternOp):
            taken |= {tensor.op for tensor in each.op.inputs}
    for stage, scan in scan_stages(plan):
        inits = scan.inits
        for init in inits:
            if init.op not in taken:
                continue
            name = unique_name(f"{stage.name}.init", {s.name for s in plan.stages})
            axes = tuple(map(data_axis_like, init.op.axis))
            copy = ComputeOp(name, axes, (TensorRead(init, axes),), init.shape)
            plan = insert_before(plan, stage.name, fresh_stage(name, copy))
            plan = reroute(plan, {init: copy.outputs[0]}, frozenset((stage.name,)))
        taken |= {init.op for init in inits}
    return plan
