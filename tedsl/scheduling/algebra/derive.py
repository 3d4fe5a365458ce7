"""The derivation and proof of repairs (see `rescaling` for what a repair is).

sympy is loaded at the first derivation.  Equal problems (the same structure, roles and signs of
what occurs, dtypes, reducer and tags' reducers) are solved once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tedsl.expr import build
from tedsl.expr.nodes import Axis, BinaryOp, Cast, Const, Expr, Reducer, Unary, Var
from tedsl.expr.printer import print_expr
from tedsl.expr.visit import map_children, substitute, variables
from tedsl.scheduling.algebra.from_sympy import NotWritten
from tedsl.scheduling.algebra.integer_rescaling import kept_whole, same_whole
from tedsl.scheduling.algebra.numeric_check import TOLERANCE, Trial, adverse, checked
from tedsl.scheduling.algebra.overflow_check import in_range, range_proof
from tedsl.scheduling.algebra.problem import Problem, pose
from tedsl.scheduling.algebra.proof_text import proof_text
from tedsl.scheduling.algebra.rescaling import Condition, Kind, Refusal, Repair, Sign, Tag
from tedsl.scheduling.algebra.rescaling_forms import ORDERED, Derivation, Form, prove, undefined
from tedsl.scheduling.algebra.terms import (
    Clock,
    Mixed,
    Reader,
    Role,
    Stopped,
    Symbols,
    is_zero,
    rounds,
    sympy,
)
from tedsl.scheduling.memo import Memory

_MEMO_SIZE = 512
_POWERS_ONLY = "no exponential of a tag is folded: values grow like powers of tags and elements"


@dataclass(frozen=True, slots=True, eq=False)
class _Solved:
    """A proved form, and how it did on numbers."""

    form: Form
    points: int
    error: float


_solutions = Memory(_MEMO_SIZE)
_zeros = Memory(_MEMO_SIZE)


def derive_repair(
    value: Expr,
    tags: Sequence[Tag],
    reducer: Reducer | BinaryOp,
    over: Collection[Axis],
    *,
    signs: Mapping[Expr, Sign] | None = None,
    consent_casts: bool = False,
    consent_rounding: bool = False,
    defer: bool = True,
    time_limit: float = 2.0,
    where: Expr | None = None,
) -> Repair | Refusal:
    """How the fold of `value` over `over` is computed in one pass with its tags.

    Args:
        value: g, a scalar over the tags' variables and anything else.  What mentions an axis of
            `over` is an element, what does not and is no tag is a parameter; both may be any
            expression (selects, reads, other functions) as long as the tags enter by arithmetic,
            exponentials, roots and logarithms.
        tags: the finished results that `value` reads.
        reducer: what folds, one operator on scalars.
        over: the axes being reduced.
        signs: of sub-expressions without tags (by identity), where more is known than they show.
        consent_casts: take narrowing casts of floats that depend on tags and elements as exact.
        consent_rounding: the same for floor, ceil, round, trunc and casts to integers.
        defer: let factors (addends) of tags alone leave the loop.
        time_limit: seconds of computing after which the derivation gives up, not counting the
            import of sympy.
        where: the condition of the reduction, None for none.

    Returns:
        A proved repair, or the reason why there is none.
    """
    operator = _operator(value, tags, reducer)
    if isinstance(operator, Refusal):
        return operator
    try:
        problem = pose(value, tags, operator, over, signs or {})
    except Mixed as mixed:
        return _refused(mixed, lambda expr: expr)
    key = (problem.key, consent_casts, consent_rounding, defer)
    try:
        found = _solutions.get(
            key, lambda: _solve(problem, consent_casts, consent_rounding, defer, time_limit)
        )
    except Stopped as stopped:
        sympy().core.cache.clear_cache()  # it may hold answers that were being worked out
        return Refusal(
            f"{stopped}; nothing is known about this value",
            hint="raise time_limit=, or write the value with fewer terms",
        )
    if isinstance(found, Mixed):
        return _refused(found, problem.restored, problem.guarded)
    repair = _repair(value, tuple(tags), problem, found)
    return _within_range(repair, over, where, signs or {}, time_limit)


def _operator(value: Expr, tags: Sequence[Tag], reducer: Reducer | BinaryOp) -> BinaryOp | Refusal:
    """What folds, where its partial results can follow the tags."""
    operator = reducer if isinstance(reducer, BinaryOp) else reducer.operator
    used = set(variables(value))
    moving = any(tag.var in used for tag in tags)
    if operator is None or (moving and operator not in (*ORDERED, BinaryOp.ADD)):
        return _wrong_reducer(reducer, operator)
    if moving and isinstance(reducer, Reducer) and not _starts_at_the_end(reducer, operator):
        return Refusal(
            f"the reducer {reducer.name} starts from {print_expr(reducer.identity[0])}, which does "
            "not follow when the tags change",
            hint=f"let it start from the end of {value.dtype}",
        )
    return operator


def _within_range(
    repair: Repair,
    over: Collection[Axis],
    where: Expr | None,
    signs: Mapping[Expr, Sign],
    time_limit: float,
) -> Repair | Refusal:
    """The repair with the lines that show that nothing in it overflows; or what may."""
    if repair.kind is Kind.NONE:
        return repair
    repair = in_range(repair)
    try:
        lines = range_proof(repair, over, where, signs, Clock(time_limit))
    except Stopped as stopped:
        sympy().core.cache.clear_cache()
        return Refusal(f"{stopped}; nothing is known about its range", hint="raise time_limit=")
    if isinstance(lines, Refusal):
        return lines
    tried = adverse(repair, over, where)
    if tried.overflow:
        return Refusal(
            f"the repair of {print_expr(repair.value)} overflows for the elements "
            f"({tried.overflow}), and the definition does not",
            residue=print_expr(repair.update[0]),
            hint="compute the tag in a pass of its own",
        )
    rows = [("range", line) for line in lines or (_POWERS_ONLY,)]
    if tried.done:
        rows.append(("numbers", f"nothing overflows in {tried.done} passes over elements of sizes "
                     "1, 100, 1e4 and mixed (seed 1)"))  # fmt: skip
    return replace(repair, steps=(*repair.steps, *(f"  {a:<10} {b}" for a, b in rows)))


def same_value(
    a: Expr, b: Expr, tags: Sequence[Tag], over: Collection[Axis], *, time_limit: float = 2.0
) -> bool:
    """True when `a` and `b` are proved to be equal over the real numbers, for all tags."""
    try:
        problem = pose(build.sub(a, b), tags, BinaryOp.ADD, over, {})
    except Mixed:
        return False
    try:
        return _zeros.get(problem.key, lambda: _is_zero(problem, time_limit))
    except Stopped:
        return False


def _is_zero(problem: Problem, time_limit: float) -> bool:
    reader = Reader(problem.roles, problem.signs, Symbols(), False, False)
    try:
        with Clock(time_limit).watching():
            zero = is_zero(reader(problem.value), reader.symbols)
            return zero and same_whole(problem, reader)
    except Mixed:
        return False


def _starts_at_the_end(reducer: Reducer, operator: BinaryOp) -> bool:
    """Whether a minimum or maximum of integers starts from the end of their type."""
    start = reducer.identity[0]
    if operator not in ORDERED or not start.dtype.is_integer:
        return True
    ends = start.dtype.info
    end = ends.lowest if operator is BinaryOp.MAX else ends.highest
    return isinstance(start, Const) and start.value == end


def _wrong_reducer(reducer: Reducer | BinaryOp, operator: BinaryOp | None) -> Refusal:
    if operator is BinaryOp.MUL:
        return Refusal(
            "a product follows its tags only together with the number of its factors",
            hint="reduce the sum of the logarithms instead",
        )
    name = reducer.value if isinstance(reducer, BinaryOp) else reducer.name
    return Refusal(
        f"the reducer {name} is no sum, minimum or maximum of scalars, and no tuple of sums",
        hint="its tags may be read by other reductions; let its own sources read none",
    )


def _refused(
    mixed: Mixed, restored: Callable[[Expr], Expr], guarded: Collection[Expr] = ()
) -> Refusal:
    culprit = None if mixed.culprit is None else restored(mixed.culprit)
    residue = "" if mixed.residue is None else print_expr(restored(mixed.residue))
    text = "" if culprit is None else print_expr(culprit)
    hint = mixed.hint
    if mixed.culprit is not None and (lazy := set(guarded) & set(variables(mixed.culprit))):
        reads = ", ".join(print_expr(restored(each)) for each in lazy)
        hint = f"{reads} is read only where a condition holds: use te.select, or read it outside"
    return Refusal(mixed.why.format(text), culprit, residue, hint)


def _solve(
    problem: Problem, casts: bool, rounding: bool, defer: bool, time_limit: float
) -> _Solved | Mixed:
    sympy()
    clock = Clock(time_limit)
    reader = Reader(problem.roles, problem.signs, Symbols(), casts, rounding)
    derivation = Derivation(problem, reader, clock, defer)
    try:
        clock.check("starting")
        with clock.watching():
            form = derivation.form()
            unproved = prove(derivation, form)
        partial = undefined(derivation, form)
        if partial is not None:
            return partial
        form.lines += kept_whole(derivation, form)
    except Mixed as mixed:
        return mixed.with_traceback(None)
    except NotWritten as reason:
        return Mixed(problem.value, f"the repair of {{0}} cannot be written: {reason}")
    if unproved is not None:
        return Mixed(problem.value, f"a repair of {{0}} was found, but not proved: {unproved}")
    form.consented = list(dict.fromkeys(reader.consented))
    numbers = reader.symbols.numbers()
    form.rates = [float(rate.xreplace(numbers)) for rate in form.rates]
    points, error = checked(_trial(problem, form))
    if error > TOLERANCE:
        return Mixed(
            problem.value,
            f"the repair of {{0}} was proved, but differs by {error:.1e} on numbers",
            "please report it",
        )
    return _Solved(form, points, error)


def _trial(problem: Problem, form: Form) -> Trial:
    def exact(node: Expr) -> Expr:
        if isinstance(node, (Cast, Unary)) and rounds(node) and form.consented:
            return exact(node.a)
        return map_children(node, exact)

    def of(role: Role) -> list[Var]:
        found = dict.fromkeys(v for v in variables(problem.value) if problem.roles.get(v) is role)
        return [v for v in found if isinstance(v, Var)]

    return Trial(
        exact(problem.value),
        problem.operator,
        [tag.var for tag in problem.tags],
        problem.old,
        problem.new,
        of(Role.ELEMENT),
        of(Role.PARAMETER),
        problem.signs,
        [exact(each) for each in form.basis],
        form.totals,
        form.update,
        form.finish,
        problem.spans,
    )


def _repair(value: Expr, tags: tuple[Tag, ...], problem: Problem, solved: _Solved) -> Repair:
    """The solution in terms of what was asked."""
    form = solved.form
    names = dict[Expr, Expr]((t, Var(t.name, t.dtype)) for t in form.totals)

    def real(expr: Expr) -> Expr:
        return problem.restored(substitute(expr, names))

    basis = tuple(map(real, form.basis))
    read = set(variables(*basis))
    consented = tuple(print_expr(real(each)) for each in form.consented)
    repair = Repair(
        value,
        tags,
        problem.operator,
        basis,
        tuple(v for v in names.values() if isinstance(v, Var)),
        _variables(problem.restored(v) for v in problem.old),
        _variables(problem.restored(v) for v in problem.new),
        tuple(map(real, form.update)),
        real(form.finish),
        tuple(tuple(map(real, row)) for row in form.matrix),
        tuple(t for t in tags if _is_extrapolated(t) and t.var in read),
        tuple(Condition(real(holds), proof) for holds, proof in form.conditions),
        consented,
        rates=tuple(form.rates),
    )
    return replace(repair, steps=tuple(proof_text(repair, problem, solved.points, form.lines)))


def _is_extrapolated(tag: Tag) -> bool:
    """A sum of floats: integers scaled up to the whole are no integers."""
    return tag.operator is BinaryOp.ADD and tag.var.dtype.is_float


def _variables(exprs: Iterable[Expr]) -> tuple[Var, ...]:
    return tuple(each for each in exprs if isinstance(each, Var))
