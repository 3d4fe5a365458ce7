"""What a repair is derived from, without the names: equal problems are solved once.

Every sub-expression without tags becomes a placeholder that keeps its role, dtype and sign.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tedsl.dtypes import DType
from tedsl.expr.nodes import (
    Axis,
    BinaryOp,
    Const,
    Expr,
    IfThenElse,
    Reduce,
    TensorRead,
    Var,
)
from tedsl.expr.visit import axes_of, map_children, substitute, walk
from tedsl.index.intern import Interner, structure
from tedsl.once import same
from tedsl.scheduling.algebra.rescaling import Sign, Tag
from tedsl.scheduling.algebra.signs import sign_of
from tedsl.scheduling.algebra.terms import Mixed, Role
from tedsl.scheduling.algebra.wrapping import Span, span_of, tag_spans

MAX_NODES = 300


@same
def placeholder(name: str, dtype: DType) -> Var:
    """The variable of that name and dtype, the same one at every call."""
    return Var(name, dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A value over placeholders, and what they stand for.

    `tags`, `old` and `new` are placeholders of the tags, positionally; `leaves` gives what each
    placeholder stands for (for `old` and `new`, too); `guarded` are those that may be read only
    where a condition holds, and so count as elements; `spans` the ranges of placeholders that are
    integers; `key` is equal for equal problems.
    """

    value: Expr
    operator: BinaryOp
    tags: tuple[Tag, ...]
    old: tuple[Var, ...]
    new: tuple[Var, ...]
    roles: Mapping[Expr, Role]
    signs: Mapping[Expr, Sign]
    leaves: Mapping[Expr, Expr]
    guarded: frozenset[Expr]
    spans: Mapping[Expr, Span]
    key: tuple[object, ...]

    def restored(self, expr: Expr) -> Expr:
        """`expr` with what the placeholders stand for."""
        return substitute(expr, self.leaves)


def pose(
    value: Expr,
    tags: Sequence[Tag],
    operator: BinaryOp,
    over: Collection[Axis],
    known: Mapping[Expr, Sign],
) -> Problem:
    """The problem of repairing the fold of `value` over `over`.

    Raises:
        Mixed: tags where they cannot be, or more than `MAX_NODES` nodes.
    """
    maker = _Maker({tag.var for tag in tags}, frozenset(over), known)
    ranges = tag_spans(tags)
    for n, tag in enumerate(tags):
        maker.stand(tag.var, f"r{n}", Role.TAG, tag.sign, ranges.get(tag.var))
    own = tuple(Tag(maker.made[t.var], t.operator, t.sign) for t in tags)
    text = maker.posed(value)
    old = tuple(placeholder(f"r{n}.old", t.var.dtype) for n, t in enumerate(tags))
    new = tuple(placeholder(f"r{n}.new", t.var.dtype) for n, t in enumerate(tags))
    leaves = dict(maker.leaves)
    for tag, before, after in zip(tags, old, new, strict=True):
        leaves[before] = Var(tag.var.name, tag.var.dtype)
        leaves[after] = Var(f"{tag.var.name}'", tag.var.dtype)
        for each in (before, after):
            maker.roles[each] = Role.TAG
            maker.signs[each] = tag.sign
            if tag.var in ranges:
                maker.spans[each] = ranges[tag.var]
    key = (
        operator,
        tuple(t.operator for t in tags),
        tuple(
            (v.name, v.dtype, maker.roles[v], maker.signs[v], maker.spans.get(v))
            for v in maker.placeholders
        ),
        structure({}, text),
    )
    return Problem(
        text,
        operator,
        own,
        old,
        new,
        maker.roles,
        maker.signs,
        leaves,
        frozenset(maker.guarded),
        maker.spans,
        key,
    )


@dataclass(slots=True, eq=False)
class _Maker:
    """Puts placeholders in."""

    tags: set[Var]
    over: frozenset[Axis]
    known: Mapping[Expr, Sign]
    same: Interner = field(default_factory=Interner)
    made: dict[Expr, Var] = field(default_factory=dict[Expr, Var])
    leaves: dict[Expr, Expr] = field(default_factory=dict[Expr, Expr])
    roles: dict[Expr, Role] = field(default_factory=dict[Expr, Role])
    signs: dict[Expr, Sign] = field(default_factory=dict[Expr, Sign])
    placeholders: list[Var] = field(default_factory=list[Var])
    guarded: set[Expr] = field(default_factory=set[Expr])
    spans: dict[Expr, Span] = field(default_factory=dict[Expr, Span])

    def stand(self, expr: Expr, name: str, role: Role, sign: Sign, span: Span | None = None) -> Var:
        """A placeholder for `expr`."""
        var = self.made[self.same.rep(expr)] = placeholder(name, expr.dtype)
        self.leaves[var] = expr
        self.roles[var] = role
        self.signs[var] = sign
        self.placeholders.append(var)
        if expr.dtype.is_integer:
            self.spans[var] = span or span_of(expr, {})
        return var

    def posed(self, value: Expr) -> Expr:
        """`value` over placeholders."""
        if sum(1 for _ in zip(walk(value), range(20 * MAX_NODES), strict=False)) > 10 * MAX_NODES:
            raise Mixed(None, f"the value has more than {10 * MAX_NODES} nodes")
        free = _free(value, self.tags)
        bare = _unguarded(value, free)
        done: dict[Expr, Expr] = {}

        def visit(node: Expr) -> Expr:
            if node not in done:
                done[node] = self.leaf(node, bare) if node in free else inside(node)
            return done[node]

        def inside(node: Expr) -> Expr:
            if isinstance(node, Var):
                return self.made[node]
            if isinstance(node, (TensorRead, Reduce)):
                raise Mixed(node, "{0} reads at a place that depends on tags", "read it first")
            return map_children(node, visit)

        return visit(value)

    def leaf(self, node: Expr, bare: Collection[Expr]) -> Expr:
        """What stands for an expression without tags."""
        if isinstance(node, Const):
            return node
        known = self.made.get(self.same.rep(node))
        if known is not None:
            return known
        moving = bool(axes_of(node) & self.over)
        guarded = node not in bare and any(isinstance(n, TensorRead) for n in walk(node))
        role = Role.ELEMENT if moving or guarded else Role.PARAMETER
        sign = sign_of(node, self.known)
        var = self.stand(node, f"{role.value[0]}{len(self.placeholders)}", role, sign)
        if guarded and not moving:
            self.guarded.add(var)
        return var


def _free(value: Expr, tags: Collection[Var]) -> set[Expr]:
    """The nodes without tags."""
    has: dict[Expr, bool] = {}

    def visit(node: Expr) -> bool:
        if node not in has:
            below = [visit(child) for child in node.children()]
            has[node] = any(below) or node in tags
        return has[node]

    visit(value)
    return {node for node, with_tags in has.items() if not with_tags}


def _unguarded(value: Expr, free: Collection[Expr]) -> set[Expr]:
    """The largest expressions without tags that no condition guards, and which may be read
    elsewhere."""
    found: set[Expr] = set()
    seen: set[Expr] = set()
    stack = [value]
    while stack:
        node = stack.pop()
        if node in free:
            found.add(node)
        elif node not in seen:
            seen.add(node)
            lazy = isinstance(node, IfThenElse)
            stack.extend(node.children()[:1] if lazy else node.children())
    return found
