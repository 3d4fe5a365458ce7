"""A repair on numbers: folds at random tags, repaired to others, against direct folds there.

Runs after the symbolic proof, in double precision, with the same numbers every time.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tedsl.expr.nodes import BinaryOp, Expr, Var
from tedsl.scheduling.repair import Sign
from tedsl.scheduling.samples import NotEvaluated, Number, evaluate

POINTS, _TRIES, _ELEMENTS = 8, 60, 5
TOLERANCE = 1e-8


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """What is evaluated: `value` is g without consented casts and roundings, the rest as in
    `Repair`; `elements` and `parameters` are the other variables."""

    value: Expr
    operator: BinaryOp
    tags: Sequence[Var]
    old: Sequence[Var]
    new: Sequence[Var]
    elements: Sequence[Var]
    parameters: Sequence[Var]
    signs: Mapping[Expr, Sign]
    basis: Sequence[Expr]
    totals: Sequence[Var]
    update: Sequence[Expr]
    finish: Expr


def checked(trial: Trial) -> tuple[int, float]:
    """How many points could be evaluated, and the largest relative error at them."""
    rng = random.Random(0)
    done, worst = 0, 0.0
    for _ in range(_TRIES):
        try:
            worst = max(worst, _error(trial, rng))
        except NotEvaluated:
            continue
        done += 1
        if done == POINTS:
            break
    return done, worst


def _draw(var: Var, trial: Trial, rng: random.Random) -> Number:
    if var.dtype.is_bool:
        return rng.random() < 0.5
    low, high = (-1.5, 1.5) if trial.signs[var] is Sign.ANY else (0.4, 2.5)
    return rng.uniform(low, high) if var.dtype.is_float else rng.randint(round(low), round(high))


def _fold(trial: Trial, expr: Expr, points: Sequence[dict[Expr, Number]]) -> tuple[float, float]:
    """The fold of `expr` over `points`, and the size of what was folded."""
    values = [_real(evaluate(expr, point)) for point in points]
    size = sum(map(abs, values))
    match trial.operator:
        case BinaryOp.ADD:
            return sum(values), size
        case BinaryOp.MIN:
            return min(values), size
        case _:
            return max(values), size


def _real(value: Number) -> float:
    if isinstance(value, complex):
        raise NotEvaluated("a complex value")
    return float(value)


def _error(trial: Trial, rng: random.Random) -> float:
    shared = {v: _draw(v, trial, rng) for v in trial.parameters}
    elements = [{v: _draw(v, trial, rng) for v in trial.elements} for _ in range(_ELEMENTS)]
    before = [_draw(v, trial, rng) for v in trial.tags]
    after = [_draw(v, trial, rng) for v in trial.tags]
    here = dict(zip(trial.tags, before, strict=True))
    there = dict(zip(trial.tags, after, strict=True))
    at_old: list[dict[Expr, Number]] = [{**shared, **here, **each} for each in elements]
    at_new: list[dict[Expr, Number]] = [{**shared, **there, **each} for each in elements]
    known: dict[Expr, Number] = {
        **shared,
        **dict(zip(trial.old, before, strict=True)),
        **dict(zip(trial.new, after, strict=True)),
    }
    scale = 0.0
    for total, expr in zip(trial.totals, trial.basis, strict=True):
        known[total], size = _fold(trial, expr, at_old)
        scale = max(scale, size)
    worst, first = 0.0, 0.0
    for k, (update, expr) in enumerate(zip(trial.update, trial.basis, strict=True)):
        repaired = _real(evaluate(update, known))
        direct, size = _fold(trial, expr, at_new)
        worst = max(worst, abs(repaired - direct) / max(size, scale, 1e-300))
        first = direct if k == 0 else first
    last: dict[Expr, Number] = {**shared, **there, trial.totals[0]: first}
    finished = _real(evaluate(trial.finish, last))
    direct, size = _fold(trial, trial.value, at_new)
    return max(worst, abs(finished - direct) / max(size, 1e-300))
