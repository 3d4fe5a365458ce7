"""Repairs that lag behind: totals relative to references, which follow their tags in jumps.

A reference s to a tag r starts as r does, and becomes r where r has moved away from it by more than
a threshold; the totals are folds of g(s, c), and h moves them only then.

    exact      h(fold g(s, c), s, r) = fold g(r, c) for every s: one last repair gives the result
    bounded    h(t, r, r') = t * exp(sum of a * (r' - r)), so while |r - s| <= threshold a total is
               at most exp(sum of |a| * threshold) times what it would be at r

The reference is compared, not the value before: a tag that creeps never leaves it behind.  Imports
`algebra` and the chain's derivations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tedsl.dtypes import DType
from tedsl.expr.build import select
from tedsl.expr.nodes import (
    Binary,
    BinaryOp,
    Compare,
    CompareOp,
    Const,
    Expr,
    Reduce,
    Reducer,
    TensorRead,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.expr.printer import print_expr
from tedsl.expr.visit import rewrite
from tedsl.scheduling.algebra.associativity import component_operator
from tedsl.scheduling.algebra.rescaling import Kind, Refusal, Repair
from tedsl.scheduling.plan import Plan
from tedsl.scheduling.primitives.graph_rewrites.cache import data_axis
from tedsl.scheduling.primitives.online.chain import Chain, TagReads, expanded, reduce_of
from tedsl.scheduling.primitives.online.chain_rescaling import Derived
from tedsl.tensor.tensor import ComputeOp, Operation, Tensor

_ORDERED = (BinaryOp.MAX, BinaryOp.MIN)
_POWERS = (UnaryOp.EXP, UnaryOp.EXP2)


@dataclass(frozen=True, slots=True, eq=False)
class Lag:
    """That a chain may lag by `threshold`: which operator makes each tag that is followed by
    reference, and the lines of the proof by stage."""

    threshold: float
    operators: Mapping[Tensor, BinaryOp]
    proofs: Mapping[str, str]


def lag_of(derived: Mapping[str, Derived], threshold: float) -> Lag | tuple[str, Refusal]:
    """How the repairs of a chain may lag, or which stage's may not and why.

    Args:
        derived: the repairs, by stage.
        threshold: finite and above 0.
    """
    operators: dict[Tensor, BinaryOp] = {}
    proofs: dict[str, str] = {}
    for name, each in derived.items():
        repair = each.full
        if repair.kind is Kind.NONE:
            continue
        own = reduce_of(each.owner)
        if own is not None and len(own.sources) > 1:
            return name, Refusal(
                f"its {len(own.sources)} sums are folded together, and the last repair of what "
                "lags gives one value",
                hint="leave rescale_threshold= out",
            )
        for read, tag in zip(each.tags.reads, repair.tags, strict=True):
            if tag not in repair.moving:
                continue
            operator = _order(read.tensor, derived)
            if isinstance(operator, Refusal):
                return name, operator
            operators[read.tensor] = operator
        bound = _bound(repair, threshold)
        if isinstance(bound, Refusal):
            return name, bound
        proofs[name] = "\n".join(f"  {label:<10} {text}" for label, text in bound)
    if not operators:
        reason = "no total is repaired, so there is nothing to delay"
        return next(iter(derived), ""), Refusal(reason, hint="leave rescale_threshold= out")
    return Lag(threshold, operators, proofs)


def _order(tag: Tensor, derived: Mapping[str, Derived]) -> BinaryOp | Refusal:
    """The operator of a tag that only rises or only falls."""
    own = reduce_of(tag.op)
    body = tag.op.bodies[tag.index] if isinstance(tag.op, ComputeOp) else None
    if own is None or not isinstance(body, Reduce) or not tag.dtype.is_float:
        return Refusal(
            f"{tag.name} is {tag.dtype.value}, of which a difference may overflow",
            hint=f"let {tag.name} be a maximum of floats",
        )
    operator = own.reducer.operator or component_operator(own.reducer, body.index)
    if operator is None or operator not in _ORDERED:
        return Refusal(
            f"{tag.name} is neither a maximum nor a minimum: it has no order in which to move on, "
            "and a reference would follow it in every iteration",
            hint="leave rescale_threshold= out",
        )
    if any(each.owner is tag.op for each in derived.values()):
        return Refusal(
            f"{tag.name} depends on other reductions itself, and may move back as they move on",
            hint="leave rescale_threshold= out",
        )
    return operator


def _bound(repair: Repair, threshold: float) -> list[tuple[str, str]] | Refusal:
    """The lines of the proof that totals stay exact and finite."""
    if repair.kind is Kind.MATRIX:
        return Refusal(
            f"its {len(repair.basis)} totals are repaired by a matrix, which mixes them: no factor "
            "bounds what they grow to behind the tags",
            hint="leave rescale_threshold= out, or compute the reduction in a pass of its own",
        )
    if not repair.rates:
        return Refusal(
            "its repair is no exponential of known multiples of the differences of its tags, so "
            "that no threshold bounds what it delays",
            residue=print_expr(repair.update[0]),
            hint="let the tag be a maximum of all that is in the exponent, scales included",
        )
    rate = sum(abs(a) for a in repair.rates)
    bits, dtype = rate * threshold / math.log(2.0), narrowest(repair)
    allowed = math.ceil(math.log2(dtype.info.highest)) / 2
    if bits > allowed:
        return Refusal(
            f"behind its tags by {threshold:g} it may grow by 2^{bits:.4g}, more than half of "
            f"the exponents of {dtype.value} (2^{allowed:g})",
            hint=f"give a threshold of at most {_below(allowed * math.log(2.0) / rate)}",
        )
    names = [tag.var.name for tag in repair.moving]
    apart = " and ".join(f"|{n} - {n}.ref| <= {threshold:g}" for n in names)
    return [
        ("lazy", f"{', '.join(f'{n}.ref' for n in names)} for the tags while {apart}"),
        ("(iv)", "h(h(t, r, s), s, r') = h(t, r, r') and h(t, r, r) = t: the differences expand "
         "to 0"),
        ("bound", f"h(t) = t * exp(sum of a * (r' - r)): by at most exp({rate:.6g} * {threshold:g})"
         f" = 2^{bits:.4g}; 2^{allowed:g} is half of the exponents of {dtype.value}"),
    ]  # fmt: skip


def _below(limit: float) -> str:
    """A short number that is at most `limit`."""
    digits = 3 - math.ceil(math.log10(limit))
    return f"{math.floor(limit * 10**digits) / 10**digits:g}"


def narrowest(repair: Repair) -> DType:
    """The float of the smallest range that what grows behind the tags passes through."""
    moving = {tag.var for tag in repair.moving}
    depends: dict[Expr, tuple[bool, bool]] = {}

    def visit(node: Expr) -> tuple[bool, bool]:
        """Whether a node depends on tags, and whether it grows with them."""
        if node not in depends:
            below = [visit(child) for child in node.children()]
            tags = node in moving or any(has for has, _ in below)
            power = isinstance(node, Unary) and node.op in _POWERS
            power = power or (isinstance(node, Binary) and node.op is BinaryOp.POW)
            depends[node] = tags, (tags and power) or any(grows for _, grows in below)
        return depends[node]

    for each in repair.basis:
        visit(each)
    found = [node.dtype for node, (_, grows) in depends.items() if grows and node.dtype.is_float]
    found.extend(total.dtype for total in repair.totals)
    return min(found, key=lambda dtype: dtype.info.highest)


def reference_to(name: str, tag: Tensor, operator: BinaryOp, threshold: float) -> ComputeOp:
    """s[i] = r[i], as an operation that keeps the s of the iteration before unless r has moved on
    from it by more than `threshold`."""
    data = tuple(data_axis(axis.name, n) for axis, n in zip(tag.op.axis, tag.shape, strict=True))
    dtype = tag.dtype
    kept, new = Var("kept", dtype), Var("new", dtype)
    rising = operator is BinaryOp.MAX
    ahead = Binary(BinaryOp.SUB, *((new, kept) if rising else (kept, new)))
    far = Compare(CompareOp.GT, ahead, Const(threshold, dtype))
    start = Const(dtype.info.lowest if rising else dtype.info.highest, dtype)
    reducer = Reducer("follow", (kept,), (new,), (select(far, new, kept),), (start,))
    body = Reduce(reducer, (TensorRead(tag, data),), ())
    return ComputeOp(name, data, (body,), tag.shape)


def following(value: Expr, plan: Plan, chain: Chain, references: Mapping[Tensor, Tensor]) -> Expr:
    """`value` with references for the tags, also in what the plan inlines into it."""
    members: set[Operation] = {stage.op for stage in chain.members}
    whole = expanded(value, members, plan)
    moved = rewrite(whole, lambda node: _referred(node, references))
    return value if moved is whole else moved


def referred(tags: TagReads, references: Mapping[Tensor, Tensor]) -> Sequence[Expr]:
    """The reads of the tags, or of the references to them."""
    return [rewrite(read, lambda node: _referred(node, references)) for read in tags.reads]


def _referred(node: Expr, references: Mapping[Tensor, Tensor]) -> Expr | None:
    if isinstance(node, TensorRead) and node.tensor in references:
        return TensorRead(references[node.tensor], node.indices)
    return None
