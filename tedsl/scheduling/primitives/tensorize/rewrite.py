"""tensorize: loops carried out by an intrinsic that the user declared."""

from __future__ import annotations

from tedsl.expr.nodes import AxisKind
from tedsl.ir.nodes import LoopKind
from tedsl.scheduling.kernels.tree import guests
from tedsl.scheduling.plan import Mark, Plan, Tensorized
from tedsl.scheduling.plan.labels import labels, loops_text
from tedsl.scheduling.plan.relations import ranks
from tedsl.scheduling.primitives.arguments import leaf, looped_stage
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.loops.legality import PLAIN, mark_text, require_lanes
from tedsl.scheduling.primitives.marks.rewrite import marked
from tedsl.scheduling.primitives.placement.legality import require_places
from tedsl.scheduling.primitives.scans.legality import require_no_scan
from tedsl.scheduling.regions.match_intrinsic import kinds_text, loops_for
from tedsl.tensor.intrin import TensorIntrin


def tensorize(plan: Plan, call: Call, axis: object, intrin: TensorIntrin) -> Plan:
    """The loops from `axis` inward become one call of the intrinsic."""
    stage = looped_stage(plan, call, call.stage)
    require_no_scan(plan, call, stage, "its loops are those of its steps")
    outer = leaf(plan, call, stage, axis)
    inner = stage.leaf_axes[ranks(stage.leaf_axes)[outer] :]
    for loop in inner:
        if stage.mark(loop) != PLAIN:
            name = labels(stage)[loop]
            raise call.refuse(
                plan,
                f"{name} is already {mark_text(stage.mark(loop))}",
                axis=loop,
                hint=f"undo it with s[{stage.name}].serial({name}) first",
            )
        inside = guests(plan, stage, loop)
        if inside:
            raise call.refuse(
                plan,
                f"{inside[0].name} is computed inside {labels(stage)[loop]}, and an intrinsic has "
                "no inside",
                axis=loop,
                hint=f"first move {inside[0].name} to a loop outside {labels(stage)[outer]}",
            )
    loops = loops_for(inner)
    kinds = [axis.kind is AxisKind.REDUCE for axis in loops]
    if kinds != [axis.kind is AxisKind.REDUCE for axis in intrin.axes]:
        raise call.refuse(
            plan,
            f"from {labels(stage)[outer]} inward the loops are {kinds_text(labels(stage), loops)}, "
            f"the axes of {intrin.name} are {kinds_text({}, intrin.axes)}",
            axis=outer,
            facts=[("loops", loops_text(stage))],
            hint="split and reorder so that exactly the loops of the intrinsic are innermost",
        )
    for loop in inner:
        require_lanes(plan, call, stage, loop)
    after = plan
    for place, loop in enumerate(loops):
        mark = Mark(LoopKind.VECTORIZED, tensorized=Tensorized(intrin, place))
        after = marked(after, after.stage(stage.name), loop, mark)
    require_places(plan, call, after)
    return after
