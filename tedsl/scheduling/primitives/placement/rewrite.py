"""Where a stage is computed and kept: compute_at, compute_inline, compute_root, set_scope,
launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tedsl.errors import Fact, InternalError
from tedsl.ir.nodes import Scope
from tedsl.scheduling.invariants.lane_counts import require_all_lanes
from tedsl.scheduling.kernels.tree import guests, hosts, loops_around
from tedsl.scheduling.plan import (
    At,
    Cooperative,
    Inlined,
    Kept,
    KernelPlan,
    Online,
    Own,
    Plan,
    StagePlan,
    stored,
)
from tedsl.scheduling.plan.graph import is_output, is_reduction
from tedsl.scheduling.plan.labels import axis_text
from tedsl.scheduling.plan.thread_loops import attached, outside_threads
from tedsl.scheduling.primitives.arguments import (
    MOST_STAGES,
    choice,
    computed_stage,
    leaf,
    looped_stage,
    positive,
)
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.loops.legality import require_leader, require_own_kernel
from tedsl.scheduling.primitives.online.legality import require_own_place
from tedsl.scheduling.primitives.placement.legality import (
    places_text,
    require_not_read_whole,
    require_places,
)
from tedsl.scheduling.primitives.scans.legality import require_no_scan

SCOPES = tuple(scope.value for scope in Scope)
LAUNCH_LIMITS = {"num_warps": 32, "num_stages": MOST_STAGES, "num_ctas": 16, "maxnreg": 255}
"""The most that CUDA allows of a block's warps, a cluster's blocks and a thread's registers."""
# Memories of one warp, or of the tensor cores: registers of the program that holds the tile.
TVM_SCOPES = {
    "warp": Scope.LOCAL,
    "wmma.matrix_a": Scope.LOCAL,
    "wmma.matrix_b": Scope.LOCAL,
    "wmma.accumulator": Scope.LOCAL,
}


def scope_of(plan: Plan, call: Call, scope: object) -> Scope:
    """A scope by its name, or by the name that TVM scripts use: what follows a dot names a
    buffer of an accelerator, and is dropped (`local.acc_buffer`, `shared.dyn`)."""
    if isinstance(scope, str) and scope in TVM_SCOPES:
        return TVM_SCOPES[scope]
    if isinstance(scope, str) and scope.partition(".")[0] in SCOPES:
        return Scope(scope.partition(".")[0])
    return Scope(choice(plan, call, "scope", scope, (*SCOPES, *TVM_SCOPES)))


def _require_not_output(plan: Plan, call: Call, stage: StagePlan) -> None:
    if is_output(plan, stage.op):
        raise call.refuse(
            plan,
            f"{stage.name} is an output of the schedule and stays at root",
            facts=[("legal", "root")],
            hint=f"use s.cache_write({stage.name}, scope) and move the cache stage, "
            "or attach the stages that it reads to it",
        )


def compute_at(plan: Plan, call: Call, target: str, axis: object) -> Plan:
    """The stage is computed inside a loop of `target`, only as much as is read there."""
    after = attached(plan, placed(plan, call, target, axis))
    require_places(plan, call, after)
    require_all_lanes(plan, call, after, call.stage)
    return after


def placed(plan: Plan, call: Call, target: str, axis: object) -> StagePlan:
    """The stage, attached at a loop of `target`, whether its readers are inside or not."""
    stage, _ = computed_stage(plan, call, call.stage)
    _require_not_output(plan, call, stage)
    require_not_read_whole(plan, call, stage)
    require_own_place(plan, call, stage)
    if target == stage.name:
        raise call.refuse(
            plan,
            f"{target} cannot be computed inside itself",
            facts=[("legal", lambda: places_text(plan, stage.name))],
            hint="name a stage that reads it",
        )
    require_no_scan(plan, call, stage, "it is computed as a whole, in a kernel of its own")
    host = looped_stage(plan, call, target)
    loop = leaf(plan, call, host, axis)
    scope = Scope.LOCAL if stage.scope is Scope.GLOBAL else stage.scope
    return replace(stage, placement=At(target, loop, kernel=stage.placement.kernel), scope=scope)


def compute_inline(plan: Plan, call: Call) -> Plan:
    """The stage is substituted into its readers."""
    stage, op = computed_stage(plan, call, call.stage)
    _require_not_output(plan, call, stage)
    require_not_read_whole(plan, call, stage)
    require_own_place(plan, call, stage)
    require_no_scan(plan, call, stage, "its rows follow from each other")

    legal: Fact = ("legal", lambda: places_text(plan, stage.name))

    if is_reduction(op):
        raise call.refuse(
            plan,
            f"{stage.name} is a reduction and cannot be substituted into an expression",
            facts=[legal],
            hint=f"use compute_at to compute {stage.name} inside a loop of its reader",
        )
    if op.num_outputs > 1:
        raise call.refuse(
            plan,
            f"{stage.name} has {op.num_outputs} outputs, which are computed together",
            facts=[legal],
            hint=f"use compute_at, or define the outputs of {stage.name} as computes of their own",
        )
    inside = guests(plan, stage)
    if inside:
        guest = inside[0]
        at = "" if guest.placement.axis is None else axis_text(plan, guest.placement.axis)
        raise call.refuse(
            plan,
            f"{guest.name} is attached at {at}, a loop that would be gone",
            hint=f"first move {guest.name} (compute_root or compute_at elsewhere)",
        )
    after = plan.with_stage(replace(stage, placement=Inlined()))
    require_places(plan, call, after)
    return after


def compute_root(plan: Plan, call: Call) -> Plan:
    """The stage has its own loop nest: its own kernel."""
    stage, _ = computed_stage(plan, call, call.stage)
    require_own_place(plan, call, stage)
    after = plan.with_stage(replace(stage, placement=Own(stage.placement.kernel)))
    require_places(plan, call, after)
    require_all_lanes(plan, call, after, stage.name)
    return after


def _stored(plan: Plan, call: Call, stage: StagePlan, kept: Kept) -> Plan:
    """The plan with the stage stored outside of the loop that it is computed in."""
    place, name = stage.placement, stage.name
    outside = stored(place, kept)
    if outside is not None:
        after = plan.with_stage(replace(stage, placement=outside))
        for host, _ in hosts(plan, stage):
            after = outside_threads(after, host.name)
        return after
    match place:
        case Online():
            reason = f"{name} goes along with a reduction, which stores what it has folded so far"
            hint = f"leave the storage of {name} as it is"
        case Cooperative():
            reason = f"{name} is computed across programs, in memory that all of them read"
            hint = f"call s[{name}].compute_at again"
        case _:
            reason = f"{name} is not computed inside a loop of another stage"
            hint = f"call s[{name}].compute_at first"
    around = ", ".join(axis_text(plan, loop) for loop in loops_around(plan, stage)) or "no loop"
    raise call.refuse(plan, reason, axis=kept.axis, facts=[("around", around)], hint=hint)


def store_at(plan: Plan, call: Call, target: str, axis: object) -> Plan:
    """The stage is stored inside a loop around the one that it is computed in."""
    stage, _ = computed_stage(plan, call, call.stage)
    loop = leaf(plan, call, looped_stage(plan, call, target), axis)
    return _stored(plan, call, stage, Kept(loop))


def store_root(plan: Plan, call: Call) -> Plan:
    """The stage is stored outside all loops of the kernel that it is computed in."""
    stage, _ = computed_stage(plan, call, call.stage)
    return _stored(plan, call, stage, Kept())


def rolling_buffer(plan: Plan, call: Call) -> Plan:
    """The stage has memory only for the window of it that is read at a time, and where it has not
    been stored anywhere, outside of the loop that it is computed in."""
    stage, _ = computed_stage(plan, call, call.stage)
    around = loops_around(plan, stage)
    kept = stage.placement.kept or Kept(around[-2] if len(around) > 1 else None)
    return _stored(plan, call, stage, replace(kept, rolling=True))


def set_scope(plan: Plan, call: Call, scope: object) -> Plan:
    """Where the result of an attached stage lives."""
    stage, _ = computed_stage(plan, call, call.stage)
    chosen = scope_of(plan, call, scope)
    if stage.placement.inlined:
        raise call.refuse(
            plan,
            f"{stage.name} is inlined into its readers, no result of it is kept",
            hint=f"call s[{stage.name}].compute_at first",
        )
    if is_output(plan, stage.op) and chosen is not Scope.GLOBAL:
        raise call.refuse(
            plan,
            f"{stage.name} is an output of the schedule and lives in device memory",
            hint=f"use s.cache_write({stage.name}, {chosen.value!r}) to compute it elsewhere first",
        )
    return plan.with_stage(replace(stage, scope=chosen))


def launch(plan: Plan, call: Call, options: Mapping[str, object]) -> Plan:
    """Launch options of the kernel of a root stage; those not given stay."""
    stage, _ = computed_stage(plan, call, call.stage)
    require_own_kernel(plan, call, stage, "it has no launch of its own")
    require_leader(plan, call, stage)
    given = {
        key: positive(plan, call, key, value, most=LAUNCH_LIMITS[key])
        for key, value in options.items()
        if value is not None
    }
    for key in ("num_warps", "num_ctas"):
        number = given.get(key, 1)
        if number & (number - 1):
            powers = (1 << n for n in range(LAUNCH_LIMITS[key].bit_length()))
            raise call.refuse(
                plan,
                f"{key} is {number}",
                facts=[("allowed", ", ".join(map(str, powers)))],
                hint=f"give a power of two as {key}",
            )
    kernel = stage.placement.kernel
    chosen = replace(kernel, launch=replace(kernel.launch, **given))
    return plan.with_stage(in_kernel(stage, chosen))


def in_kernel(stage: StagePlan, kernel: KernelPlan) -> StagePlan:
    """The stage that has a kernel of its own, with another one."""
    place = stage.placement
    if not isinstance(place, (Own, At)):
        raise InternalError(f"{stage.name} has no kernel of its own")
    return replace(stage, placement=replace(place, kernel=kernel))
