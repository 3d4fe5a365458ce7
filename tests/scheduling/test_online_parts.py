"""What may follow split_online: the parts and what merges them are scheduled again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import online_cases as cases
import pytest
import sympy
from lowering import agrees, placeholders
from online_cases import Rows, axis
from refusals import refused

import tedsl as te
from tedsl.expr.nodes import Binary, BinaryOp, Cast, Const, Unary, UnaryOp
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.online.chain import chain_of, reduce_of
from tedsl.scheduling.primitives.online.chain_rescaling import Consent, derive_chain
from tedsl.scheduling.trace.replay import replay
from tedsl.scheduling.trace.trace import Trace

N, K = 3, 37
CHAINS: dict[str, Callable[[], Rows]] = {
    "softmax": lambda: cases.softmax(N, K),
    "log_sum_exp": lambda: cases.log_sum_exp(N, K),
    "rms_matvec": lambda: cases.normalised_product(N, K),
    "scaled_by_largest": lambda: cases.scaled_by_largest(N, K),
    "entropy": lambda: cases.entropy(N, K),
    "argmax_and_sum": lambda: cases.argmax_and_sum(N, K),
    "variance": lambda: cases.variance(N, K),
}


def parts(rows: Rows) -> Schedule:
    """The chain in ten parts and what merges them."""
    s = te.create_schedule(list(rows.outputs))
    outer, _ = s[rows.last].split(rows.k, factor=4)
    s.split_online(rows.last, outer)
    return s


def split(s: Schedule, name: str, factor: int) -> Any:
    """The outer loop of the reduction of a stage, which covers `factor` elements at a time."""
    outer, _ = s[name].split(s[name].op.reduce_axis[0], factor)
    return outer


NEXT: dict[str, Callable[[Schedule, str], Any]] = {
    "online": lambda s, name: s[name].online(split(s, name, 3)),
    "split_online": lambda s, name: s.split_online(s[name].op.outputs[0], split(s, name, 3)),
    "rfactor": lambda s, name: s.rfactor(s[name].op.outputs[0], split(s, name, 3)),
}


@pytest.mark.parametrize("step", list(NEXT))
@pytest.mark.parametrize("name", list(CHAINS))
def test_what_merges_parts_is_scheduled_again(name: str, step: str) -> None:
    """What leaves the loop is applied once, at the end."""
    rows = CHAINS[name]()
    s = parts(rows)
    NEXT[step](s, rows.last.op.name)
    assert agrees(s)
    again = replay(list(rows.outputs), Trace.from_json(s.trace.to_json()))
    assert str(again) == str(s)


@pytest.mark.parametrize("step", list(NEXT))
@pytest.mark.parametrize("name", list(CHAINS))
def test_parts_are_scheduled_again(name: str, step: str) -> None:
    """Also where a part has several totals; a part that depends on no other part is refused."""
    rows = CHAINS[name]()
    s = te.create_schedule(list(rows.outputs))
    outer, _ = s[rows.last].split(rows.k, factor=8)
    s.split_online(rows.last, outer)
    part = f"{rows.last.op.name}.rf"
    if step != "rfactor" and name in ("rms_matvec", "scaled_by_largest"):
        loop = split(s, part, 3)
        with refused(s, f"{part} depends on no other reduction"):
            s[part].online(loop)
        return
    NEXT[step](s, part)
    assert agrees(s)
    again = replay(list(rows.outputs), Trace.from_json(s.trace.to_json()))
    assert str(again) == str(s)


@pytest.mark.parametrize("name", ["variance", "entropy", "softmax"])
def test_parts_of_parts(name: str) -> None:
    """Three levels, each of them in one pass; what is folded stays as many totals as before."""
    rows = CHAINS[name]()
    s = te.create_schedule(list(rows.outputs))
    last = rows.last.op.name
    s.split_online(rows.last, split(s, last, 16))
    s.split_online(s[f"{last}.rf"].op.outputs[0], split(s, f"{last}.rf", 8))
    for stage in (last, f"{last}.rf", f"{last}.rf.rf"):
        s[stage].online(split(s, stage, 2))
    totals = {"variance": 3, "entropy": 2, "softmax": 1}[name]
    for stage in (f"{last}.rf", f"{last}.rf.rf"):
        reduce = reduce_of(s[stage].op)
        assert reduce is not None
        assert len(reduce.sources) == totals
    assert agrees(s)


def sums_together(reducer: Any) -> te.Schedule:
    """Two folds relative to one maximum, by one reducer."""
    X = te.placeholder((N, K), name="X")
    k, j = axis(K), axis(K)
    m = te.compute((N,), lambda i: te.max(X[i, k], axis=k), name="m")
    T: Any = te.compute(
        (N,),
        lambda i: reducer((te.exp(X[i, j] - m[i]) * X[i, j], te.exp(X[i, j] - m[i])), axis=j),
        name="T",
    )
    Z = te.compute((N,), lambda i: T[0][i] / T[1][i], name="Z")
    return te.create_schedule(Z)


BOTH = te.comm_reducer(
    lambda a, b: (a[0] + b[0], a[1] + b[1]),
    lambda t, u: (te.const(0, t), te.const(0, u)),
    name="both",
)


@pytest.mark.parametrize("step", ["online", "split_online"])
def test_a_tuple_of_sums(step: str) -> None:
    s = sums_together(BOTH)
    NEXT[step](s, "T")
    assert agrees(s)


def test_sums_together_do_not_lag() -> None:
    s = sums_together(BOTH)
    loop = split(s, "T", 3)
    with refused(s, "T cannot follow lazily: its 2 sums are folded together"):
        s["T"].online(loop, rescale_threshold=8.0)


def test_another_tuple_is_refused() -> None:
    mixed = te.comm_reducer(
        lambda a, b: (a[0] + b[0], te.max(a[1], b[1])),
        lambda t, u: (te.const(0, t), te.min_value(u)),
        name="mixed",
    )
    s = sums_together(mixed)
    loop = split(s, "T", 3)
    with refused(s, "the reducer mixed is no sum, minimum or maximum of scalars, and no tuple of"):
        s["T"].online(loop)


@pytest.mark.parametrize("name", ["variance", "entropy"])
def test_repairs_compose(name: str) -> None:
    """h from r to r' after h from q to r is h from q to r': parts may be merged in any order, part
    by part or all at once, and merged again."""
    rows = CHAINS[name]()
    s = te.create_schedule(list(rows.outputs))
    call = Call("proof", rows.last.op.name)
    chain = chain_of(s.plan, s.plan.stage(rows.last.op.name))
    repair = derive_chain(s.plan, call, chain, Consent(), finished=False)[chain.last.name].full
    assert len(repair.basis) > 1
    symbols = {t: sympy.Symbol(f"t{n}", real=True) for n, t in enumerate(repair.totals)}
    q, r, last = ([sympy.Symbol(f"{x}{n}", positive=True) for n in range(len(repair.tags))]
                  for x in "qrs")  # fmt: skip

    def moved(totals: list[Any], old: list[Any], new: list[Any]) -> list[Any]:
        known = dict(
            zip((*repair.totals, *repair.old, *repair.new), (*totals, *old, *new), strict=True)
        )
        return [real(each, known) for each in repair.update]

    start = list(symbols.values())
    once = moved(start, q, last)
    twice = moved(moved(start, q, r), r, last)
    assert all(sympy.simplify(a - b) == 0 for a, b in zip(once, twice, strict=True))
    assert all(sympy.simplify(a - b) == 0 for a, b in zip(moved(start, q, q), start, strict=True))


def real(expr: Any, known: dict[Any, Any]) -> Any:
    """A repair in sympy."""
    if expr in known:
        return known[expr]
    match expr:
        case Const(value=value):
            return sympy.nsimplify(value)
        case Cast(a=a):
            return real(a, known)
        case Unary(op=op, a=a):
            of = {UnaryOp.EXP: sympy.exp, UnaryOp.LOG: sympy.log, UnaryOp.NEG: lambda x: -x}
            return of[op](real(a, known))
        case Binary(op=op, a=a, b=b):
            x, y = real(a, known), real(b, known)
            match op:
                case BinaryOp.ADD:
                    return x + y
                case BinaryOp.SUB:
                    return x - y
                case BinaryOp.MUL:
                    return x * y
                case _:
                    assert op is BinaryOp.DIV
                    return x / y
        case _:
            raise AssertionError(expr)


OTHER: dict[str, Callable[[Schedule], Any]] = {
    "transform_layout": lambda s: s["T"].transform_layout(lambda i: [i // 2, i % 2]),
    "set_precision": lambda s: s["T"].set_precision("float64"),
    "decompose_reduction": lambda s: s.decompose_reduction(
        s["T"].op.outputs[0], s["T"].op.reduce_axis[0]
    ),
    "cache_write": lambda s: s.cache_write(s["T"].op.outputs[0], "local"),
}


def factor_at_the_end() -> tuple[te.Tensor, te.Tensor]:
    """T = sum(x / norm), and a reader of it."""
    X = te.placeholder((N, K), name="X")
    k, j = axis(K), axis(K)
    q = te.compute((N,), lambda i: te.sum(X[i, k] * X[i, k], axis=k), name="q")
    T = te.compute((N,), lambda i: te.sum(X[i, j] * te.rsqrt(q[i] + 1.0), axis=j), name="T")
    return T, te.compute((N,), lambda i: T[i] * 2.0, name="Z")


@pytest.mark.parametrize("name", list(OTHER))
def test_other_steps_keep_what_is_applied_at_the_end(name: str) -> None:
    T, Z = factor_at_the_end()
    s = te.create_schedule(Z)
    outer, _ = s[T].split(T.op.reduce_axis[0], 4)
    s.split_online(T, outer)
    OTHER[name](s)
    assert agrees(s)


def test_a_start_and_an_end_do_not_go_together() -> None:
    T, Z = factor_at_the_end()
    s = te.create_schedule(Z)
    outer, _ = s[T].split(T.op.reduce_axis[0], 4)
    s.split_online(T, outer)
    s.decompose_reduction(s["T"].op.outputs[0], s["T"].op.reduce_axis[0])
    outer = split(s, "T", 3)
    with refused(s, "T starts from init="):
        s["T"].online(outer)


def test_a_member_is_read_before_its_end() -> None:
    """The deviation follows a sum that has a factor of tags: in the loop that sum is read while it
    is folded, so the factor cannot wait for the end."""
    T, _ = factor_at_the_end()
    (X,) = placeholders(te.create_schedule(T))
    j = axis(K)

    def apart(i: Any) -> Any:
        return te.sum((X[i, j] - T[i]) * (X[i, j] - T[i]), axis=j)

    V = te.compute((N,), apart, name="V")
    Z = te.compute((N,), lambda i: V[i] + T[i], name="Z")
    for step in ("online", "split_online"):
        s = te.create_schedule(Z)
        NEXT[step](s, "V")
        assert agrees(s)


def test_what_only_an_unread_inlined_stage_reads_is_no_kernel() -> None:
    """`p` was read by `P`, which was inlined before the parts were made: neither is read now."""
    x = te.placeholder((N, K), name="x")
    j, k, r = axis(K), axis(K), axis(K)
    m = te.compute((N,), lambda i: te.max(x[i, j], axis=j), name="m")
    p = te.compute((N, K), lambda i, j: te.exp(x[i, j] - m[i]), name="p")
    total = te.compute((N,), lambda i: te.sum(p[i, k], axis=k), name="l")
    share = te.compute((N, K), lambda i, j: p[i, j] / total[i], name="P")
    mean = te.compute((N,), lambda i: te.sum(share[i, r] * r, axis=r), name="mean")
    s = te.create_schedule(mean)
    s[share].compute_inline()
    s.split_online(mean, split(s, "mean", 4))
    assert s["p"].plan.placement.inlined
    agrees(s)


@pytest.mark.parametrize("order", ["rows inside", "parts turned"])
def test_parts_that_are_not_folded_from_the_beginning_on(order: str) -> None:
    """Found by drawn schedules: partial sums are scaled up to the whole by how many elements have
    been folded, which is known only where loops over them go from the first to the last."""
    x = te.placeholder((3, 7), name="x")
    k, h = te.reduce_axis((0, 7), "k"), te.reduce_axis((0, 7), "h")
    total = te.compute((3,), lambda i: te.sum(x[i, h], axis=h), name="total")
    off = te.compute((3,), lambda i: te.sum((x[i, k] - total[i]) * (x[i, k] - total[i]), k), "off")
    s = te.create_schedule([off, total])
    outer, inner = s[off].split(k, nparts=2)
    if order == "rows inside":
        s[off].reorder(inner, outer, off.op.axis[0])
    else:
        s[off].reorder(inner, outer)
    s[off].online(outer)
    given = np.random.default_rng(0).integers(-8, 8, (3, 7)).astype(np.float32) / 4
    both = te.build(s, "cpu")(given), te.evaluate([off, total], {x: given})
    for found, wanted in zip(*both, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def conditioned(
    first: Callable[..., te.Expr | None], second: Callable[..., te.Expr | None]
) -> tuple[te.Schedule, te.Tensor]:
    """The entropy of weights e^x, of those for which a condition holds; the sum of the weights is
    of those for which another does."""
    x, m = te.placeholder((4, 64), name="x"), te.placeholder((4, 64), "int32", name="m")
    k, r = te.reduce_axis((0, 64), name="k"), te.reduce_axis((0, 64), name="r")
    total = te.compute(
        (4,), lambda i: te.sum(te.exp(x[i, k]), axis=k, where=first(m, i, k)), name="S"
    )

    def term(i: te.Axis) -> te.Expr:
        return te.exp(x[i, r]) * (x[i, r] - te.log(total[i]))

    T = te.compute((4,), lambda i: te.sum(term(i), axis=r, where=second(m, i, r)), name="T")
    return te.create_schedule(T), T


def _all(m: te.Tensor, i: te.Axis, k: te.Axis) -> None:
    return None


def _known(m: te.Tensor, i: te.Axis, k: te.Axis) -> te.Expr:
    return m[i, k] > 0


def _before(m: te.Tensor, i: te.Axis, k: te.Axis) -> te.Expr:
    return k < 40


def _after(m: te.Tensor, i: te.Axis, k: te.Axis) -> te.Expr:
    return k >= 3


@pytest.mark.parametrize(
    ("first", "second"),
    [(_known, _known), (_known, _all), (_before, _all), (_after, _after), (_after, _before)],
)
def test_a_sum_that_may_have_no_element_yet_is_not_positive(
    first: Callable[..., te.Expr | None], second: Callable[..., te.Expr | None]
) -> None:
    s, T = conditioned(first, second)
    with pytest.raises(te.ScheduleError, match="not known to be positive"):
        s[T].online(s[T].split(s[T].op.reduce_axis[0], factor=16)[0])


def in_parts(s: te.Schedule, T: te.Tensor) -> None:
    """Three parts of 22 elements, and what merges them in one pass."""
    s.split_online(T, s[T].split(s[T].op.reduce_axis[0], nparts=3)[0])
    s[T].online(s[T].split(s[T].op.reduce_axis[0], factor=2)[0])


def test_a_part_may_have_no_element() -> None:
    """The last one begins at 44."""
    s, T = conditioned(_before, _before)
    with pytest.raises(te.ScheduleError, match="not known to be positive"):
        in_parts(s, T)


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
@pytest.mark.parametrize("parts", [False, True])
def test_a_sum_of_the_same_elements_is_positive(target: str, parts: bool) -> None:
    """Each part of a row, the shorter last one too, has its first element in both sums."""

    def some(m: te.Tensor, i: te.Axis, k: te.Axis) -> te.Expr:
        return k < 60

    s, T = conditioned(some, some)
    if parts:
        in_parts(s, T)
    else:
        s[T].online(s[T].split(s[T].op.reduce_axis[0], factor=16)[0])
    rng = np.random.default_rng(0)
    x, m = rng.standard_normal((4, 64), np.float32), np.ones((4, 64), np.int32)
    weights = np.exp(x[:, :60].astype(np.float64))
    logs = np.log(weights.sum(1, keepdims=True))
    wanted = (weights * (x[:, :60] - logs)).sum(1)
    kernel = te.build(s, target=target)
    got = kernel(**{b.name: {"x": x, "m": m}[b.name] for b in kernel.module.inputs})
    np.testing.assert_allclose(got, wanted, rtol=1e-4)


@pytest.mark.parametrize(
    ("fold", "init", "taken"),
    [
        ("sum", 1.0, True),
        ("sum", -1.5, False),
        ("max", -1.5, True),
        ("min", 2.0, True),
        ("min", -1.5, False),
    ],
)
def test_what_a_sum_starts_from_counts(fold: str, init: float, taken: bool) -> None:
    """From -1.5 the logarithm of a partial sum is NaN, that of the whole is not."""
    x, k, r = te.placeholder((4, 64), name="x"), te.reduce_axis((0, 64)), te.reduce_axis((0, 64))
    total = te.compute(
        (4,), lambda i: getattr(te, fold)(te.exp(x[i, k]), axis=k, init=init), name="S"
    )
    T = te.compute(
        (4,), lambda i: te.sum(te.exp(x[i, r]) * (x[i, r] - te.log(total[i])), axis=r), name="T"
    )
    s = te.create_schedule(T)
    loop = s[T].split(r, factor=1)[0]
    if not taken:
        with pytest.raises(te.ScheduleError, match="not known to be positive"):
            s[T].online(loop)
        return
    s[T].online(loop)
    data = np.linspace(-2, 0.2, 256, dtype=np.float32).reshape(4, 64)
    (wanted,) = te.evaluate([T], {x: data})
    np.testing.assert_allclose(te.build(s, target="cpu")(data), wanted, rtol=1e-5)


@pytest.mark.parametrize("read", [False, True])
def test_tags_are_read_inside_of_a_padded_layout(read: bool) -> None:
    """Not at places where no element is, whose results nobody wants."""
    x = te.placeholder((5, 3, 64), name="x")
    k, j = te.reduce_axis((0, 64), name="k"), te.reduce_axis((0, 64), name="j")
    m = te.compute((5, 3), lambda a, b: te.sum(x[a, b, k] * 0.5, axis=k), name="m")
    y = te.compute((5, 3), lambda a, b: te.sum((x[a, b, j] - m[a, b]) * 2.0, axis=j), name="y")
    z = te.compute((5, 3), lambda a, b: y[a, b] + 1.0, name="z") if read else y
    s = te.create_schedule(z)
    s[y].transform_layout(lambda a, b: (a, (b + 8) // 9, (b + 8) % 9))
    _, inner = s[y].split(s[y].op.reduce_axis[0], factor=2)
    s.split_online(s[y], inner, along=[s[m]])
    assert agrees(s, bound=1e-4)
