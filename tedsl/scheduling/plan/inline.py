"""Substitute inlined stages into their readers, so that the stages left each own a loop nest.

Used by the lowering, by `regions` and by printing; imports `expr` and `plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tedsl.expr.index_arith import at
from tedsl.expr.mixed_radix import divides, put_together
from tedsl.expr.nodes import Expr, TensorRead
from tedsl.expr.visit import rewrite, substitute, walk
from tedsl.index.intern import Interner
from tedsl.once import once
from tedsl.scheduling.memo import Memory
from tedsl.scheduling.plan import Plan, StagePlan
from tedsl.scheduling.plan.differing import differing
from tedsl.scheduling.plan.links import (
    inlined_names,
    is_inlined,
    of_form,
    operations_read,
    places,
    readers_at,
    substitution,
    tensors_read,
)
from tedsl.scheduling.plan.links import renamed as rename
from tedsl.tensor.tensor import ComputeOp, ExternOp, Operation, Tensor

# What a definition may grow to by substitution before a rule stores a stage instead: how deep it
# is nested, and how many terms it has.  What is read at one place twice is one term, and what is
# read at two places is written twice.
MAX_DEPTH = 100
MAX_TERMS = 4096
# What a call may ask for: a build takes some seconds then, and twice as many terms twice as long.
LARGEST_DEPTH = 1000
LARGEST_TERMS = 2**15


@dataclass(frozen=True, slots=True)
class Size:
    """How deep an expression is nested, and its terms: what is the same in it counts once, and what
    is substituted once for each place that it is read at."""

    depth: int
    terms: int

    @property
    def fits(self) -> bool:
        """True when the rules substitute an expression of this size."""
        return self.depth <= MAX_DEPTH and self.terms <= MAX_TERMS

    @property
    def possible(self) -> bool:
        """True when a call may ask for an expression of this size."""
        return self.depth <= LARGEST_DEPTH and self.terms <= LARGEST_TERMS


@of_form
def body_size(op: Operation) -> Size:
    """The size of the largest body of an operation."""
    return _size(op, {}) if isinstance(op, ComputeOp) else Size(1, 1)


def too_large(plan: Plan, before: Plan | None = None) -> tuple[StagePlan, Size] | None:
    """The first stage whose definition is larger than a call may ask for once inlined stages are
    substituted, and how large that is: counted, not built.

    Args:
        plan: what is judged.
        before: a plan in which none is: what is the same there is not judged again.
    """
    if not inlined_names(plan):
        return None
    numbers = range(len(places(plan).names)) if before is None else _regrown(before, plan)
    sizes: dict[Operation, Size] = {}
    for stage in map(plan.stage_at, numbers):
        own = _substituted(plan, stage.op, sizes)
        if not stage.placement.inlined:
            del sizes[stage.op]  # what is in there is substituted
        if own is not body_size(stage.op) and not own.possible:
            return stage, own
    return None


def _regrown(before: Plan, after: Plan) -> list[int]:
    """The stages of `after` whose definition may be larger than in `before` once inlined stages are
    substituted, in plan order."""
    found = differing(before, after)
    pairs = ((before.stage_at(a), after.stage_at(b), b) for a, b in found.pairs)
    waiting = [number for old, new, number in pairs if not _same_definition(old, new)]
    waiting.extend(found.fresh)
    grown = set(waiting)
    while waiting:
        stage = after.stage_at(waiting.pop())
        if stage.placement.inlined:
            more = [n for n in readers_at(after, stage.op) if n not in grown]
            grown.update(more)
            waiting.extend(more)
    return sorted(grown)


def _same_definition(old: StagePlan, new: StagePlan) -> bool:
    """True when a stage is defined as it was, and inlined if it was."""
    inlined = old.placement.inlined
    return old.op is new.op and inlined is (new.placement.inlined)


def _size(op: ComputeOp, inside: Mapping[Operation, Size]) -> Size:
    """The size of the largest body of `op` with the bodies of `inside` substituted."""
    key = tuple([inside.get(tensor.op) for tensor in tensors_read(op)])
    return _sizes(op).get(key, lambda: _size_with(op, inside))


@of_form
def _sizes(op: Operation) -> Memory:
    return Memory(16)


def _size_with(op: ComputeOp, inside: Mapping[Operation, Size]) -> Size:
    same = Interner()
    terms = 0
    for node in {same.rep(each) for each in walk(*op.bodies)}:
        terms += 1
        if isinstance(node, TensorRead) and node.tensor.op in inside:
            terms += inside[node.tensor.op].terms
    depth: dict[Expr, int] = {}
    stack = list(op.bodies)
    while stack:
        node = stack[-1]
        children = node.children()
        below = [child for child in children if child not in depth]
        if below:
            stack.extend(below)
            continue
        found = [depth[child] for child in children]
        if isinstance(node, TensorRead) and node.tensor.op in inside:
            found.append(inside[node.tensor.op].depth)
        depth[stack.pop()] = 1 + max(found, default=0)
    return Size(max(depth[body] for body in op.bodies), terms)


def may_inline(plan: Plan, name: str) -> bool:
    """True when no definition grows too large if the stage `name` is substituted: neither its own
    nor one that it becomes a part of by way of inlined stages."""
    own = plan.stage(name).op
    sizes: dict[Operation, Size] = {}
    if not _substituted(plan, own, sizes).fits:
        return False
    waiting = [own]
    while waiting:
        for number in readers_at(plan, waiting.pop()):
            reader = plan.stage_at(number)
            if reader.placement.inlined and reader.op not in sizes:
                if not _substituted(plan, reader.op, sizes).fits:
                    return False
                waiting.append(reader.op)
    return True


def _substituted(plan: Plan, op: Operation, sizes: dict[Operation, Size]) -> Size:
    """The size of `op` with inlined stages, and those in `sizes`, substituted."""
    waiting = [op]
    numbers = places(plan).by_op
    while waiting:
        each = waiting[-1]
        inlined = [
            source
            for source in operations_read(each)
            if source in sizes or plan.stage_at(numbers[source]).placement.inlined
        ]
        missing = [source for source in inlined if source not in sizes]
        if missing:
            waiting.extend(missing)
            continue
        waiting.pop()
        inside = {source: sizes[source] for source in inlined}
        whole = _size(each, inside) if inside and isinstance(each, ComputeOp) else body_size(each)
        sizes[each] = whole
    return sizes[op]


def inline_stages(plan: Plan) -> Plan:
    """The plan without INLINE stages: each of their reads is replaced by the body at the read's
    indices.

    Before:  B[i] = A[i] + 1 (inline);  C[i] = B[i] * 2
    After:   C[i] = (A[i] + 1) * 2
    Requires: inlined stages have one output and no reduction (checked by `compute_inline`).
    Ensures: no stage is INLINE; axes of the remaining stages are the same objects.
    """
    if not inlined_names(plan):
        return plan
    kept: list[StagePlan] = []
    for stage in plan.stages:
        if not stage.placement.inlined:
            op = finished(plan, stage.op)
            if op is not stage.op and isinstance(op, (ComputeOp, ExternOp)):
                stage = stage.with_op(op)
            kept.append(stage)
    outputs = tuple(finished(plan, t.op).outputs[t.index] for t in plan.outputs)
    return replace(plan, stages=tuple(kept), outputs=outputs)


def finished(plan: Plan, op: Operation) -> Operation:
    """An operation of a plan as it is in `inline_stages(plan)`; that of an inlined stage with what
    is inlined in it."""
    shared = substitution(plan)
    done = shared.finished
    waiting = [] if op in done else [op]
    while waiting:
        each = waiting[-1]
        missing = [source for source in operations_read(each) if source not in done]
        if missing:
            waiting.extend(missing)
            continue
        waiting.pop()
        if each not in done:
            done[each] = _finished(plan, each, done)
            shared.origin[done[each]] = each
    return done[op]


def name_of(plan: Plan, op: Operation) -> str | None:
    """The name of an operation of `inline_stages(plan)`; None when it is none of them."""
    where = places(plan)
    number = where.by_op.get(substitution(plan).origin.get(op, op))
    if number is None or is_inlined(plan.stage_at(number)):
        return None
    return where.names[number] if finished(plan, plan.stage_at(number).op) is op else None


def sources_of(plan: Plan, op: Operation) -> tuple[str, ...]:
    """The stages that an operation of `inline_stages(plan)` reads, in order of first occurrence."""
    known = substitution(plan).sources
    if op not in known:
        names = (name_of(plan, source) for source in operations_read(op))
        known[op] = tuple(name for name in names if name is not None)
    return known[op]


def needs_of_stage(plan: Plan, op: Operation) -> tuple[str, ...]:
    """The stages that an operation of a plan reads, also by way of inlined ones: more than what is
    left of it reads where those are substituted, since something of them may be nothing then."""
    known = substitution(plan).needs
    waiting = [op]
    while waiting:
        each = waiting[-1]
        inlined = [o for o in operations_read(each) if is_inlined(plan.stage_of(o))]
        missing = [source for source in inlined if source not in known]
        if missing and each not in known:
            waiting.extend(missing)
            continue
        waiting.pop()
        if each not in known:
            found: dict[str, None] = {}
            for source in operations_read(each):
                own = plan.stage_of(source)
                found |= dict.fromkeys(known[source] if is_inlined(own) else (own.name,))
            known[each] = tuple(found)
    return known[op]


def _finished(plan: Plan, op: Operation, done: Mapping[Operation, Operation]) -> Operation:
    """`op` reading what is `done` in place of what that was."""
    bodies: dict[Tensor, ComputeOp] = {}
    renamed: dict[Operation, Operation] = {}
    for tensor in tensors_read(op):
        source = done[tensor.op]
        if isinstance(source, ComputeOp) and is_inlined(plan.stage_of(tensor.op)):
            bodies[tensor] = source
        elif source is not tensor.op:
            renamed[tensor.op] = source
    if isinstance(op, ExternOp):
        return reading_whole(op, renamed)
    return reading(op, bodies, renamed) if isinstance(op, ComputeOp) else op


def reading(
    op: ComputeOp, bodies: Mapping[Tensor, ComputeOp], renamed: Mapping[Operation, Operation]
) -> ComputeOp:
    """`op` reading the finished bodies and the rebuilt operations; the same object when it reads
    neither."""
    read = tensors_read(op)
    within = tuple([(t, bodies[t]) for t in read if t in bodies])
    moved = tuple([(t.op, renamed[t.op]) for t in read if t not in bodies and t.op in renamed])
    if not within and not moved:
        return op
    # The same object for the same operations: plans of one schedule differ in few of them.
    return _seen(op).get((within, moved), lambda: _reading(op, within, moved))


@once
def _seen(op: ComputeOp) -> Memory:
    return Memory(4)


def _reading(
    op: ComputeOp,
    within: tuple[tuple[Tensor, ComputeOp], ...],
    moved: tuple[tuple[Operation, Operation], ...],
) -> ComputeOp:
    bodies, renamed = dict(within), dict(moved)
    if not within:
        tensors = (tensor for tensor in tensors_read(op) if tensor.op in renamed)
        return rename(op, {t: renamed[t.op].outputs[t.index] for t in tensors})
    same, written = Interner(), dict[tuple[Tensor, tuple[Expr, ...]], Expr]()

    def replaced(node: Expr) -> Expr | None:
        if not isinstance(node, TensorRead):
            return None
        source = bodies.get(node.tensor)
        if source is not None:
            key = node.tensor, tuple(map(same.rep, node.indices))
            if key not in written:
                body = source.bodies[node.tensor.index]
                places = at(source.axes, node.indices)
                written[key] = substitute(body, places)
                if divides(written[key]):
                    written[key] = put_together(written[key])
            return written[key]
        producer = renamed.get(node.tensor.op)
        if producer is not None:
            return TensorRead(producer.outputs[node.tensor.index], node.indices)
        return None

    def substituted() -> tuple[Expr, ...]:
        memo: dict[Expr, Expr] = {}
        return tuple(rewrite(body, replaced, memo) for body in op.bodies)

    return op.later(substituted)


def reading_whole(op: ExternOp, renamed: Mapping[Operation, Operation]) -> ExternOp:
    """`op` reading the rebuilt operations; the same object when it reads none."""
    moved = [tensor for tensor in op.inputs if tensor.op in renamed]
    return op.reading({each: renamed[each.op].outputs[each.index] for each in moved})
