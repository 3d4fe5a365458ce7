"""What may be printed into addresses and masks, so that Triton's analysis of them is never wrong.

Triton decides how wide an access is from what its analysis (AxisInfo) says of each dimension of a
block: into runs of how many neighbours it falls (contiguity), what divides the first element of
each run (divisibility), and over how many neighbours it is the same (constancy).  The analysis
never asks for proof, and is wrong of some expressions; an access is then wider than its addresses
or its mask allow, which a CPU and Triton's interpreter do not show.  Seen in Triton 3.6 to 3.9:

1.  `a % b` of neighbours is taken to count up, and `a // b` to stay the same, between multiples of
    what divides both.  Both hold at and above zero only: -8 % 8, -7 % 8 is 0, -7, and
    -8 // 8, -7 // 8 is -1, 0.
2.  A sum, a difference, a choice, a remainder or a shift of blocks that count up may itself not
    count up.  The analysis then says "runs of one", and leaves what divided the first of each run
    as what divides every element: of 64 - i, 64.  Along the dimension itself no harm is done, since
    an access is never wider than a run.  But a block that gets another dimension, `[:, None]`,
    passes the number on to it (to Triton 3.8).

The contract, which this module and `values` enforce:

1.  The dividend of a printed `//` or `%` is proved to be non-negative (`dividends.never_negative`);
    `dividends.shift_dividends` moves it up where its bounds are known.  Any other dividend over the
    axes of a tile goes through `unseen`, of whose result the analysis says nothing.
2.  A block of one dimension that gets another says itself that nothing divides it along that
    (`tl.multiple_of`, whose word counts), where its own number may be one of those above.
3.  Of hints that say more than the analysis there are none but products with constants
    (`divisibility`), and what the launcher says of arguments is looked at again at every call.
    Those that say less are for threads to have fewer neighbours (`ir.thread_neighbours`).

What is compared with a constant is the other's business: runs, divisors and constancies of
comparisons are right where those of their operands are, also below zero, since Triton takes no run
to be longer than what divides its first element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import gcd

from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Cast,
    Compare,
    Const,
    Expr,
    Select,
    Unary,
    UnaryOp,
)
from tedsl.ir.nodes import Load, Scope

UNSEEN: dict[int, tuple[str, str]] = {
    32: (
        "unseen",
        '''
@triton.jit
def unseen(x):
    """`x`, of whose neighbours Triton's analysis of addresses concludes nothing."""
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x.to(tl.int32)], tl.int32, True, 1)
''',
    ),
    64: (
        "unseen_64",
        '''
@triton.jit
def unseen_64(x):
    """`x`, of whose neighbours Triton's analysis of addresses concludes nothing."""
    return tl.inline_asm_elementwise("mov.b64 $0, $1;", "=l,l", [x], tl.int64, True, 1)
''',
    ),
}
"""By the bits of the type that comes out."""

_QUOTIENTS = (BinaryOp.FLOORDIV, BinaryOp.TRUNCDIV)
_REMAINDERS = (BinaryOp.FLOORMOD, BinaryOp.TRUNCMOD)
_ANY = 1 << 30  # divides zero, and what the analysis may think of an unknown number
_MOST_UNKNOWNS = 4


@dataclass(frozen=True, slots=True)
class Claim:
    """What the analysis says of a block of one dimension, and whether its `divides` may be that of
    runs which are no more (`loose`)."""

    run: int
    divides: int
    same: int
    loose: bool = False


class Claims:
    """The analysis of expressions over one axis of a tile, as Triton makes it.

    Args:
        dims: the axes of the tile that an expression is over.
        extent: of one of them.
        number: equal for equal expressions.
        plain: whether a division is printed as `//` or `%`, its operands non-negative.
    """

    def __init__(
        self,
        dims: Callable[[Expr], tuple[int, ...]],
        extent: Callable[[int], int],
        number: Callable[[Expr], int],
        plain: Callable[[Binary], bool],
    ) -> None:
        self._dims = dims
        self._extent = extent
        self._number = number
        self._plain = plain
        self._loose: dict[int, bool] = {}

    def loose(self, expr: Expr) -> bool:
        """Whether the analysis may say of an integer block of one dimension that its elements are
        multiples of what they are no multiples of."""
        number = self._number(expr)
        if number not in self._loose:
            self._loose[number] = self._decide(expr)
        return self._loose[number]

    def _decide(self, expr: Expr) -> bool:
        unknown = list(dict.fromkeys(self._unknowns(expr)))
        if len(unknown) > _MOST_UNKNOWNS:
            return not isinstance(expr, Axis)
        for values in product((1, _ANY), repeat=len(unknown)):
            claim = self._claim(expr, dict(zip(unknown, values, strict=True)))
            if claim.loose and claim.run == 1:
                return True
        return False

    def _unknowns(self, expr: Expr) -> Iterator[int]:
        """The scalars in it of which it is not known what divides them."""
        match expr:
            case Const() | Load():
                return
            case Binary(op=BinaryOp.ADD | BinaryOp.SUB | BinaryOp.MUL) | Cast():
                pass
            case _ if not self._dims(expr):
                yield self._number(expr)
                return
            case _:
                pass
        for child in expr.children():
            yield from self._unknowns(child)

    def _claim(self, expr: Expr, unknown: Mapping[int, int]) -> Claim:
        if not self._dims(expr):
            return Claim(1, self._scalar(expr, unknown), _ANY)
        match expr:
            case Axis():
                return Claim(self._extent(self._dims(expr)[0]), _ANY, 1)
            case Cast(a=a) if a.dtype.is_integer and expr.dtype.is_integer:
                return self._claim(a, unknown)
            case Binary():
                whole = self._extent(self._dims(expr)[0])
                a, b = self._claim(expr.a, unknown), self._claim(expr.b, unknown)
                return self._binary(expr, a, b, whole)
            case Unary(op=UnaryOp.NEG):
                return _difference(Claim(1, _ANY, _ANY), self._claim(expr.a, unknown))
            case Select(a=a, b=b):
                return _choice(self._claim(a, unknown), self._claim(b, unknown))
            case Load(buffer=buffer) if buffer.scope is not Scope.GLOBAL:
                return Claim(1, _ANY, 1, loose=True)
            case Load() | Cast() | Compare() | Unary(op=UnaryOp.NOT | UnaryOp.ABS):
                return Claim(1, 1, 1)
            case _:
                return Claim(1, _ANY, 1, loose=True)

    def _scalar(self, expr: Expr, unknown: Mapping[int, int]) -> int:
        match expr:
            case Const(value=value):
                return int(value) & -int(value) or _ANY
            case Cast(a=a):
                return self._scalar(a, unknown)
            case Binary(op=BinaryOp.ADD | BinaryOp.SUB, a=a, b=b):
                return gcd(self._scalar(a, unknown), self._scalar(b, unknown))
            case Binary(op=BinaryOp.MUL, a=a, b=b):
                return min(_ANY, self._scalar(a, unknown) * self._scalar(b, unknown))
            case _:
                return unknown.get(self._number(expr), 1)

    def _binary(self, expr: Binary, a: Claim, b: Claim, whole: int) -> Claim:
        same = gcd(a.same, b.same)
        match expr.op:
            case BinaryOp.ADD:
                run = max(gcd(a.same, b.run), gcd(a.run, b.same))
                return _lost(a, b, Claim(run, gcd(a.divides, b.divides), same))
            case BinaryOp.SUB:
                return _difference(a, b)
            case BinaryOp.MUL:
                divides = min(_ANY, _once(a) * _once(b))
                loose = any(x.loose and x.run == 1 for x in (a, b))
                return Claim(1, divides, same, loose)
            case BinaryOp.AND | BinaryOp.OR | BinaryOp.XOR:
                return Claim(1, 1, same)
            case BinaryOp.MIN | BinaryOp.MAX:
                divides = gcd(a.divides, b.divides)
                if a.run != b.run:
                    divides = gcd(divides, a.run, b.run)
                return Claim(gcd(a.run, b.run), divides, same, a.loose or b.loose)
            case BinaryOp.SHL | BinaryOp.SHR:
                return Claim(1, _ANY, same, loose=a.loose or a.run > 1)
            case op if op in (*_QUOTIENTS, *_REMAINDERS):
                if not self._plain(expr):
                    return Claim(1, 1, 1)
                return _quotient(a, b, whole) if op in _QUOTIENTS else _remainder(a, b, whole)
            case _:
                return Claim(1, _ANY, 1, loose=True)


def _lost(a: Claim, b: Claim, found: Claim) -> Claim:
    """What is said of a result whose runs may be shorter than those of its operands."""
    loose = a.loose or b.loose or max(a.run, b.run) > found.run
    return Claim(found.run, found.divides, found.same, loose)


def _difference(a: Claim, b: Claim) -> Claim:
    divides = gcd(a.divides, b.divides)
    return _lost(a, b, Claim(gcd(a.run, b.same), divides, gcd(a.same, b.same)))


def _choice(a: Claim, b: Claim) -> Claim:
    return _lost(a, b, Claim(1, gcd(a.divides, b.divides), 1))


def _once(x: Claim) -> int:
    """What divides all elements, as a product takes it."""
    return 1 if x.run > 1 else x.divides


def _quotient(a: Claim, b: Claim, whole: int) -> Claim:
    same = gcd(a.same, b.same)
    if a.run == whole and b.same >= whole:
        same = max(same, gcd(a.run, a.divides, b.divides))
    return Claim(1, _once(a), same, a.loose and a.run == 1)


def _remainder(a: Claim, b: Claim, whole: int) -> Claim:
    run = gcd(a.run, a.divides, b.divides) if a.run == whole and b.same >= whole else 1
    loose = a.loose or 1 < a.run < whole
    return Claim(run, gcd(a.divides, b.divides), gcd(a.same, b.same), loose)


def counts(expr: Expr, axes: Callable[[Expr], bool]) -> bool:
    """Whether an integer expression is made of axes of the tile, or of tile values that may be,
    and not only of what is read from memory."""
    if isinstance(expr, Load):
        return expr.buffer.scope is not Scope.GLOBAL
    return axes(expr) or any(counts(child, axes) for child in expr.children())
