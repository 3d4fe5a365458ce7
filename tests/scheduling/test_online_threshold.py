"""online with rescale_threshold=: what is refused and how, what is proved, and what may follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import online_cases as cases
import pytest
from lowering import agrees
from online_cases import Attention, axis

import tedsl as te
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.trace.replay import replay
from tedsl.scheduling.trace.trace import Trace
from tedsl.tensor.tensor import Tensor

N, K = 5, 37
Golden = Callable[..., None]
Fold = Callable[[Any, Any, Any, Any], Any]


def message(s: Schedule, request: Callable[[], Any]) -> str:
    """The text of the refusal, without the line of the call; the schedule stays as it was."""
    before = (str(s), s.trace)
    plan = s.plan
    with pytest.raises(te.ScheduleError, match=r"[\s\S]*\n  do  ") as caught:
        request()
    assert (str(s), s.trace) == before and s.plan is plan
    lines = str(caught.value).splitlines()
    return "\n".join(line for line in lines if not line.startswith("  called"))


def chain(tag: Any, value: Fold, dtype: str = "float32") -> Tensor:
    """T = sum(value(x, r, w, scale)) with r = tag(x) of the row."""
    X = te.placeholder((N, K), dtype, name="X")
    W, scale = te.placeholder((K,), name="W"), te.placeholder((N,), name="scale")
    k, j = axis(K), axis(K)
    r = te.compute((N,), lambda i: tag(X[i, k], axis=k), name="r")
    return te.compute(
        (N,), lambda i: te.sum(value(X[i, j], r[i], W[j], scale[i]), axis=j), name="T"
    )


def softmax() -> Tensor:
    return chain(te.max, lambda x, r, w, s: te.exp(x - r))


def narrow() -> Tensor:
    """Powers of 2 in float16."""
    return chain(te.max, lambda x, r, w, s: te.exp2(x - r).astype("float16").astype("float32"))


def dependent() -> Tensor:
    """x - b with b a maximum that depends on another."""
    X = te.placeholder((N, K), name="X")
    k, j, q = axis(K), axis(K), axis(K)
    a = te.compute((N,), lambda i: te.max(X[i, k], axis=k), name="a")
    b = te.compute((N,), lambda i: te.max(te.exp(X[i, j] - a[i]), axis=j), name="b")
    return te.compute((N,), lambda i: te.sum(X[i, q] - b[i], axis=q), name="T")


REFUSED: dict[str, tuple[Callable[[], Tensor], Any]] = {
    "zero": (softmax, 0.0),
    "negative": (softmax, -1),
    "infinite": (softmax, float("inf")),
    "nan": (softmax, float("nan")),
    "bool": (softmax, True),
    "text": (softmax, "8"),
    "too large": (softmax, 45.0),
    "too large for float16": (
        lambda: chain(
            te.max, lambda x, r, w, s: te.exp2(x - r).astype("float16").astype("float32")
        ),
        8.5,
    ),
    "matrix": (lambda: cases.entropy(N, K).last, 1.0),
    "no order": (lambda: chain(te.sum, lambda x, r, w, s: (x - r) * w), 1.0),
    "integers": (
        lambda: chain(
            te.max, lambda x, r, w, s: te.exp(x.astype("float64") - r.astype("float64")), "int32"
        ),
        1.0,
    ),
    "unknown scale": (lambda: chain(te.max, lambda x, r, w, s: te.exp((x - r) * s)), 1.0),
    "depends on others": (dependent, 1.0),
    "nothing to repair": (lambda: cases.scaled_by_largest(N, K).last, 1.0),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_may_not_lag(name: str, golden: Golden) -> None:
    """The same chain is accepted without a threshold."""
    make, threshold = REFUSED[name]
    T = make()
    s = te.create_schedule(T)
    (k,) = T.op.reduce_axis
    options: dict[str, Any] = {"casts": True, "rescale_threshold": threshold}
    texts = [
        message(s, lambda: s[T].online(k, **options)),
        message(s, lambda: s[T].proof(**options)),
    ]
    golden("\n\n".join(texts))
    s[T].online(k, casts=True)


ACCEPTED: dict[str, tuple[Callable[[], Tensor], float]] = {
    "softmax": (softmax, 8.0),
    "as large as may be": (softmax, 44.36),
    "base 2": (lambda: chain(te.max, lambda x, r, w, s: te.exp2(0.5 * (x - r)) * w), 8),
    "base 10": (lambda: chain(te.max, lambda x, r, w, s: te.power(10.0, x - r) * s), 1.5),
    "float16": (
        lambda: chain(
            te.max, lambda x, r, w, s: te.exp2(x - r).astype("float16").astype("float32")
        ),
        8.0,
    ),
    "minimum": (lambda: chain(te.min, lambda x, r, w, s: te.exp(r - x)), 0.5),
    "shares": (lambda: cases.softmax(N, K).last, 1.0),
    "argmax": (lambda: cases.argmax_and_sum(N, K).last, 1.0),
    "attention": (lambda: Attention(dtype="bfloat16", causal="where").tensors()["O"], 5.5),
}


@pytest.mark.parametrize("name", list(ACCEPTED))
def test_proofs(name: str, golden: Golden) -> None:
    make, threshold = ACCEPTED[name]
    T = make()
    s = te.create_schedule(T)
    golden(s[T].proof(casts=True, rescale_threshold=threshold))
    s[T].online(T.op.reduce_axis[0], casts=True, rescale_threshold=threshold)


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_lowered(target: str, golden: Golden) -> None:
    """One branch for the rows of a program around each repair, and none around the folds."""
    s = Attention(causal="where").schedule(rescale_threshold=8)
    golden(str(te.lower(s, target, check=True)))


def test_source(golden: Golden) -> None:
    """What the branch skips is not computed outside of it."""
    s = Attention().schedule(rescale_threshold=8)
    golden(te.build(s, "triton-interpret", cache=False).source)


def test_printed(golden: Golden) -> None:
    s = Attention(causal="where").schedule(rescale_threshold=8)
    golden(f"{s}\n\n{s.as_python()}")


def lazy_sum() -> tuple[Schedule, tuple[Tensor, ...]]:
    rows = cases.log_sum_exp(N, K)
    s = te.create_schedule(list(rows.outputs))
    outer, _ = s["l"].split(rows.k, 8)
    s.online(rows.last, outer, rescale_threshold=0.25)
    return s, rows.outputs


LATER: dict[str, Callable[[Schedule], Any]] = {
    "nothing": lambda s: s["l"].serial(s["l"].op.axis[0]),
    "split of the loop": lambda s: s["l"].split(s["l"].leaf_iter_vars[1], 2),
    "split of the reference": lambda s: s["m.ref"].split(s["m.ref"].op.axis[0], 1),
    "vectorized member": lambda s: s["m"].vectorize(s["m"].op.reduce_axis[0]),
    "vectorized reference": lambda s: s["m.ref"].vectorize(s["m.ref"].op.axis[0]),
    "unrolled": lambda s: s["l"].unroll(s["l"].leaf_iter_vars[1]),
    "pipelined": lambda s: s["l"].pipeline(s["l"].leaf_iter_vars[1], 2),
    "rows on the grid": lambda s: s["l"].bind(s["l"].op.axis[0], "blockIdx.x"),
    "rows in blocks": lambda s: s["l"].bind(s["l"].split(s["l"].op.axis[0], 4)[0], "blockIdx.x"),
    "inside its reader": lambda s: s["l"].compute_at(s["O"], s["O"].op.axis[0]),
    "input staged": lambda s: s.cache_read(s.plan.stages[0].op.outputs[0], "local", [s["l"]]),
}


@pytest.mark.parametrize("name", list(LATER))
def test_later_steps(name: str) -> None:
    """Whatever is accepted afterwards gives the same numbers, replays, and is undone."""
    s, outputs = lazy_sum()
    before, steps = str(s), len(s.trace)
    LATER[name](s)
    assert agrees(s)
    again = replay(list(outputs), Trace.from_json(s.trace.to_json()))
    assert str(again) == str(s) and again.trace == s.trace
    scope: dict[str, Any] = {"te": te, "O": outputs[0]}
    exec(s.as_python("O"), scope)
    assert str(scope["s"]) == str(s)
    while len(s.trace) > steps:
        s.undo()
    assert str(s) == before


MOVES: dict[str, Callable[[Schedule], Any]] = {
    "compute_root": lambda s: s["m.ref"].compute_root(),
    "compute_inline": lambda s: s["m.ref"].compute_inline(),
    "rfactor": lambda s: s.rfactor(s["l"].op.outputs[0], s["l"].leaf_iter_vars[-1]),
    "cache_write": lambda s: s.cache_write(s["m.ref"].op.outputs[0], "local"),
    "online again": lambda s: s["l"].online(s["l"].leaf_iter_vars[1], rescale_threshold=1.0),
    "online of the reference": lambda s: s["m.ref"].online(s["m.ref"].op.axis[0]),
    "split_online": lambda s: s.split_online(s["l"].op.outputs[0], s["l"].leaf_iter_vars[1]),
    "vectorized loop": lambda s: s["l"].vectorize(s["l"].leaf_iter_vars[1]),
}


@pytest.mark.parametrize("name", list(MOVES))
def test_moves_of_the_reference(name: str) -> None:
    s, _ = lazy_sum()
    assert message(s, lambda: MOVES[name](s))


def test_an_inlined_stage_that_others_read_too() -> None:
    """The shares read x - m with the maximum itself, the sum with the reference."""
    X = te.placeholder((N, K), name="X")
    k, j = axis(K), axis(K)
    m = te.compute((N,), lambda i: te.max(X[i, k], axis=k), name="m")
    apart = te.compute((N, K), lambda i, j: X[i, j] - m[i], name="apart")
    total = te.compute((N,), lambda i: te.sum(te.exp(apart[i, j]), axis=j), name="l")
    shares = te.compute((N, K), lambda i, j: te.exp(apart[i, j]) / total[i], name="Y")
    s = te.create_schedule([shares, m])
    s[apart].compute_inline()
    outer, _ = s[total].split(total.op.reduce_axis[0], 4)
    s[total].online(outer, rescale_threshold=2.0)
    assert agrees(s)
