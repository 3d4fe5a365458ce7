"""Integers beyond what indices can count are refused where they are given, with what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tedsl as te
from tedsl.errors import ExprError, InternalError, ScheduleError, TedslError

NUMBERS = [
    *(2**31 - 1, 2**31, 2**40, 2**59, 2**61, 2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**70, 10**400),
    *(0, -1, -(2**31), -(2**63), -(2**70)),
]
Step = Callable[[te.Schedule, Any, Any, int], object]
STEPS: dict[str, Step] = {
    "storage_align": lambda s, b, c, n: b.storage_align(b.op.axis[0], n, 0),
    "storage_align, offset": lambda s, b, c, n: b.storage_align(b.op.axis[0], 4, n),
    "split": lambda s, b, c, n: c.split(c.op.axis[0], n),
    "split and fuse": lambda s, b, c, n: c.fuse(*c.split(c.op.axis[0], n)),
    "split, nparts": lambda s, b, c, n: c.split(c.op.axis[0], nparts=n),
    "tile": lambda s, b, c, n: c.tile(*c.op.axis, n, n),
    "tile and fuse": lambda s, b, c, n: c.fuse(*c.tile(*c.op.axis, n, n)[2:]),
    "skew": lambda s, b, c, n: c.skew(c.op.axis[1], c.op.axis[0], n, 5),
    "skew, modulus": lambda s, b, c, n: c.skew(c.op.axis[1], c.op.axis[0], 3, n),
    "pipeline": lambda s, b, c, n: c.pipeline(c.op.axis[0], n),
    "prefetch": lambda s, b, c, n: c.prefetch(b.op.output(0), c.op.axis[0], n),
    "pragma": lambda s, b, c, n: c.pragma(c.op.axis[0], "auto_unroll_max_step", n),
    "launch, num_warps": lambda s, b, c, n: c.launch(num_warps=n),
    "launch, maxnreg": lambda s, b, c, n: c.launch(maxnreg=n),
    "launch, num_ctas": lambda s, b, c, n: c.launch(num_ctas=n),
    "divide": lambda s, b, c, n: s.divide(c.op.output(0), c.op.axis[0], n),
    "cut": lambda s, b, c, n: c.cut(c.op.axis[0], n),
    "transform_layout": lambda s, b, c, n: b.transform_layout(lambda i, j: (i // n, j, i % n)),
    "transform_layout, times": lambda s, b, c, n: b.transform_layout(lambda i, j: (i * n, j)),
    "rfactor": lambda s, b, c, n: s.rfactor(
        c.op.output(0), c.split(c.op.reduce_axis[0], nparts=n)[0]
    ),
    "undo": lambda s, b, c, n: s.undo(n),
}


def chain() -> te.Schedule:
    a = te.placeholder((8, 6, 4), "float32", name="A")
    k = te.reduce_axis((0, 4), name="k")
    b = te.compute((8, 6), lambda i, j: a[i, j, 0] + 1.0, name="B")
    c = te.compute((8, 6), lambda i, j: te.sum(b[i, j] * a[i, j, k], axis=k), name="C")
    return te.create_schedule(c)


@pytest.mark.parametrize("step", STEPS)
def test_primitives_refuse_or_carry_out(step: str) -> None:
    """What is accepted is lowered, too; what is refused changes nothing and says what may be."""
    for n in NUMBERS:
        s = chain()
        before = str(s)
        try:
            STEPS[step](s, s["B"], s["C"], n)
        except InternalError:
            raise
        except TedslError as error:
            assert str(s) == before or step in ("split and fuse", "tile and fuse", "rfactor")
            assert "\n" in str(error), f"{n}: no facts or advice"
            continue
        for target in ("cpu", "cuda:sm_90"):
            te.lower(s, target=target, check=True)


def test_a_large_factor_is_refused_with_its_range() -> None:
    s = chain()
    with pytest.raises(ScheduleError, match=r"factor is 1180591620717411303424(.|\n)*2\*\*31 - 1"):
        s["B"].storage_align(s["B"].op.axis[0], 2**70, 0)
    with pytest.raises(ScheduleError, match=r"factor is 1180591620717411303424(.|\n)*2\*\*62"):
        s["C"].split(s["C"].op.axis[0], 2**70)


DEFINITIONS: dict[str, Callable[[int], object]] = {
    "placeholder": lambda n: te.placeholder((n,), "int8"),
    "placeholder, rank 2": lambda n: te.placeholder((n, n)),
    "compute": lambda n: te.compute((n,), lambda i: i.astype("float32"), name="C"),
    "reduce_axis": lambda n: total(te.reduce_axis((0, n))),
    "reduce_axis, both": lambda n: total(te.reduce_axis((-n, n))),
    "reductions": lambda n: total(te.reduce_axis((0, n)), te.reduce_axis((0, n))),
    "const": te.const,
    "const, float32": lambda n: te.const(n, "float32"),
    "const, uint8": lambda n: te.const(n, "uint8"),
    "plus": lambda n: te.var("n") + n,
    "times": lambda n: te.var("n", "float64") * n,
    "power": lambda n: te.power(te.var("n", "float32"), n),
    "shift": lambda n: te.var("n") << n,
    "index": lambda n: reading(n),
    "if": lambda n: te.if_then_else(te.var("n") > n, 1, 2),
    "extern": lambda n: te.extern((n,), [te.placeholder((4,))], lambda i, o: None),
}


def reading(n: int) -> te.Tensor:
    a = te.placeholder((4,), name="A")
    return te.compute((4,), lambda i: a[n] + a[i], name="C")


def total(*axes: te.Axis) -> te.Tensor:
    return te.compute((), lambda: te.sum(axes[0].astype("float32"), axis=list(axes)), name="C")


@pytest.mark.parametrize("name", DEFINITIONS)
def test_definitions_refuse_or_are_lowered(name: str) -> None:
    for n in NUMBERS:
        try:
            made = DEFINITIONS[name](n)
        except InternalError:
            raise
        except TedslError as error:
            assert "\n" in str(error), f"{n}: no facts or advice"
            continue
        if isinstance(made, te.Tensor) and name.split()[0] in ("compute", "index", "reductions"):
            for target in ("cpu", "cuda:sm_90"):
                te.lower(made, target=target, check=True)


def test_an_extent_beyond_any_array_is_refused() -> None:
    with pytest.raises(ExprError, match=r"9223372036854775808 is larger than any array"):
        te.placeholder((2**63,), "float32", name="A")
    with pytest.raises(ExprError, match=r"the shape has 1208925819614629174706176 elements"):
        te.compute((2**40, 2**40), lambda i, j: 1.0, name="C")
    with pytest.raises(ExprError, match=r"has 1208925819614629174706176 points"):
        total(te.reduce_axis((0, 2**40)), te.reduce_axis((0, 2**40)))
