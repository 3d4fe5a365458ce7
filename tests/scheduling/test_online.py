"""online and split_online: what is refused and how, what is proved, and what may follow."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import online_cases as cases
import pytest
from lowering import agrees
from online_cases import Attention, axis, fused
from refusals import refused

import tedsl as te
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.trace.replay import replay
from tedsl.scheduling.trace.trace import Trace
from tedsl.tensor.tensor import Tensor

N, K = 5, 37
Golden = Callable[..., None]
Request = Callable[[Schedule], Any]


def message(s: Schedule, request: Callable[[], Any]) -> str:
    """The text of the refusal, without the line of the call; the schedule stays as it was."""
    before = (s.plan, str(s), s.trace)
    with pytest.raises(te.ScheduleError, match=r"[\s\S]*\n  do  ") as caught:
        request()
    assert (s.plan, str(s), s.trace) == before
    assert s.plan is before[0]
    lines = str(caught.value).splitlines()
    return "\n".join(line for line in lines if not line.startswith("  called"))


def dependent(fold: Any, value: Callable[[Any, Any, Any], Any], **options: Any) -> Tensor:
    """T = fold(value(x, m, w)) with m the maximum of the row."""
    X, W = te.placeholder((N, K), name="X"), te.placeholder((K,), name="W")
    k = axis(K)
    m = te.compute((N,), lambda i: te.max(X[i, k], axis=k), name="m")
    j = axis(K)
    return te.compute((N,), lambda i: fold(value(X[i, j], m[i], W[j]), axis=j, **options), name="T")


def near_the_maximum() -> Tensor:
    """The sum of what is within 1 of the maximum: a `where` that reads it."""
    X = te.placeholder((N, K), name="X")
    k, j = axis(K), axis(K)
    m = te.compute((N,), lambda i: te.max(X[i, k], axis=k), name="m")
    return te.compute(
        (N,),
        lambda i: te.sum(te.exp(X[i, j] - m[i]), axis=j, where=X[i, j] > m[i] - 1.0),
        name="T",
    )


UNPROVED: dict[str, Callable[[], Tensor]] = {
    "sigmoid": lambda: dependent(te.sum, lambda c, m, w: te.sigmoid(c - m)),
    "exponent": lambda: dependent(te.sum, lambda c, m, w: te.exp(c * m)),
    "floor": lambda: dependent(te.sum, lambda c, m, w: te.floor(c / m) * w),
    "sign": lambda: dependent(te.max, lambda c, m, w: c * m),
    "cast": lambda: dependent(
        te.sum, lambda c, m, w: te.exp(c - m).astype("bfloat16").astype("float32") * w
    ),
    "start": lambda: dependent(
        te.sum, lambda c, m, w: te.exp(c - m), init=te.const(1.0, "float32")
    ),
    "product": lambda: dependent(te.prod, lambda c, m, w: te.exp(c - m)),
    "no chain": lambda: dependent(te.sum, lambda c, m, w: c * w),
    "elements": lambda: near_the_maximum(),
}


@pytest.mark.parametrize("name", list(UNPROVED))
def test_what_cannot_follow(name: str, golden: Golden) -> None:
    T = UNPROVED[name]()
    s = te.create_schedule(T)
    outer, _ = s[T].split(T.op.reduce_axis[0], 8)
    golden(
        "\n\n".join(
            (
                message(s, lambda: s[T].online(outer)),
                message(s, lambda: s.split_online(T, outer)),
                message(s, lambda: s[T].proof()),
            )
        )
    )


def test_consent(golden: Golden) -> None:
    """What is rounded is named in the proof."""
    for name, options in (("cast", {"casts": True}), ("floor", {"rounding": True})):
        T = UNPROVED[name]()
        s = te.create_schedule(T)
        if name == "cast":
            golden(s[T].proof(**options), name)
            s[T].online(T.op.reduce_axis[0], **options)
            assert agrees(s, bound=1e-2)
        else:
            golden(message(s, lambda: s[T].proof(rounding=True)), name)  # noqa: B023


def softmax() -> tuple[Schedule, Tensor, Any]:
    rows = cases.softmax(N, K)
    return te.create_schedule(list(rows.outputs)), rows.last, rows.outputs[0]


def test_wrong_loops(golden: Golden) -> None:
    s, total, Y = softmax()
    (i,), (k,) = total.op.axis, total.op.reduce_axis
    outer, inner = s[total].split(k, 8)
    texts = [
        message(s, lambda: s[total].online(i)),
        message(s, lambda: s[Y].online(Y.op.axis[0])),
        message(s, lambda: s[total].online(Y.op.axis[0])),
        message(s, lambda: s.split_online(total, i)),
    ]
    s[total].reorder(outer, i, inner)
    texts.append(message(s, lambda: s[total].online(inner)))
    s[total].reorder(i, outer, inner)
    s[total].vectorize(inner)
    texts.append(message(s, lambda: s[total].online(inner)))
    golden("\n\n".join(texts))


def test_parts_need_a_cut_loop(golden: Golden) -> None:
    s, total, _ = softmax()
    golden(message(s, lambda: s.split_online(total, total.op.reduce_axis[0])))


def test_two_axes(golden: Golden) -> None:
    X = te.placeholder((N, 4, 6), name="X")
    a, b = axis(4, "a"), axis(6, "b")
    m = te.compute((N,), lambda i: te.max(X[i, a, b], axis=[a, b]), name="m")
    c, d = axis(4, "c"), axis(6, "d")
    T = te.compute((N,), lambda i: te.sum(te.exp(X[i, c, d] - m[i]), axis=[c, d]), name="T")
    s = te.create_schedule(T)
    texts = [message(s, lambda: s[T].online(c)), message(s, lambda: s.split_online(T, c))]
    golden("\n\n".join(texts))


def test_no_member_of_the_chain(golden: Golden) -> None:
    """Attached elsewhere, over another range, read at moving elements."""
    rows = cases.normalised_product(N, K)
    s = te.create_schedule(rows.last)
    s["H"].compute_inline()
    s["q"].compute_at(s[rows.last], rows.last.op.axis[0])
    texts = [message(s, lambda: s[rows.last].online(rows.k))]
    X = te.placeholder((N, K), name="X")
    k, j = axis(K - 1), axis(K)
    m = te.compute((N,), lambda i: te.max(X[i, k], axis=k), name="m")
    T = te.compute((N,), lambda i: te.sum(X[i, j] - m[i], axis=j), name="T")
    s = te.create_schedule(T)
    texts.append(message(s, lambda: s[T].online(j)))
    k, j = axis(K), axis(K)
    each = te.compute((K,), lambda i: te.max(X[i % N, k], axis=k), name="each")
    R = te.compute((N,), lambda i: te.sum(X[i, j] - each[j], axis=j), name="R")
    s = te.create_schedule(R)
    texts.append(message(s, lambda: s[R].online(j)))
    golden("\n\n".join(texts))


def test_a_stage_between_is_read_outside(golden: Golden) -> None:
    X, W = te.placeholder((N, K), name="X"), te.placeholder((K,), name="W")
    k, j = axis(K), axis(K)
    m = te.compute((N,), lambda i: te.max(X[i, k], axis=k), name="m")
    p = te.compute((N, K), lambda i, j: te.exp(X[i, j] - m[i]), name="p")
    T = te.compute((N,), lambda i: te.sum(p[i, j] * W[j], axis=j), name="T")
    Y = te.compute((N, K), lambda i, j: p[i, j] / T[i], name="Y")
    texts: list[str] = []
    for outputs in ([Y], [T, p]):
        s = te.create_schedule(outputs)
        texts.append(message(s, lambda: s[T].online(j)))  # noqa: B023
    golden("\n\n".join(texts))


MOVES: dict[str, Request] = {
    "compute_root": lambda s: s["m"].compute_root(),
    "compute_inline": lambda s: s["m"].compute_inline(),
    "compute_at": lambda s: s["m"].compute_at(s["l"], s["l"].op.axis[0]),
    "set_scope": lambda s: s["m"].set_scope("global"),
    "cache_read": lambda s: s.cache_read(s["m"].op.outputs[0], "local", [s["l"]]),
    "cache_write": lambda s: s.cache_write(s["m"].op.outputs[0], "local"),
    "cache_write of the last": lambda s: s.cache_write(s["l"].op.outputs[0], "local"),
    "rfactor": lambda s: s.rfactor(s["m"].op.outputs[0], s["m"].op.reduce_axis[0]),
    "rfactor of the last": lambda s: s.rfactor(s["l"].op.outputs[0], s["l"].leaf_iter_vars[-1]),
    "decompose_reduction": lambda s: s.decompose_reduction(
        s["m"].op.outputs[0], s["m"].op.reduce_axis[0]
    ),
    "transform_layout": lambda s: s["m"].transform_layout(lambda i: [i // 2, i % 2]),
    "reverse_compute_at": lambda s: s["l"].reverse_compute_at(s["m"], s["m"].op.axis[0]),
    "reverse_compute_inline": lambda s: s["l"].reverse_compute_inline(),
    "parallel": lambda s: s["l"].parallel(s["l"].leaf_iter_vars[1]),
    "bind": lambda s: s["l"].bind(s["l"].leaf_iter_vars[1], "blockIdx.x"),
    "vectorize": lambda s: s["l"].vectorize(s["l"].leaf_iter_vars[1]),
    "reorder": lambda s: s["l"].reorder(s["l"].leaf_iter_vars[1], s["l"].op.axis[0]),
    "reorder inside": lambda s: s["l"].reorder(*reversed(s["l"].leaf_iter_vars[1:])),
    "fuse": lambda s: s["l"].fuse(*s["l"].leaf_iter_vars[1:]),
    "online again": lambda s: s["l"].online(s["l"].leaf_iter_vars[1]),
    "online of a member": lambda s: s["m"].online(s["m"].op.reduce_axis[0]),
    "split_online": lambda s: s.split_online(s["l"].op.outputs[0], s["l"].leaf_iter_vars[1]),
    "member bound": lambda s: s["m"].bind(s["m"].op.axis[0], "blockIdx.x"),
}


@pytest.mark.parametrize("name", list(MOVES))
def test_moves_of_what_goes_along(name: str, golden: Golden) -> None:
    """Refused, or right."""
    rows = cases.log_sum_exp(N, K)
    s = te.create_schedule(list(rows.outputs))
    outer, _ = s["l"].split(rows.k, 8)
    s["l"].online(outer)
    before = str(s)
    try:
        MOVES[name](s)
    except te.ScheduleError:
        assert str(s) == before
        golden(message(s, lambda: MOVES[name](s)))
    else:
        golden(str(s))
        assert agrees(s)


@pytest.mark.parametrize("place", ["root", "at", "inlined reader"])
@pytest.mark.parametrize("reads_last", [True, False])
def test_a_copy_of_what_goes_along_for_other_kernels(reads_last: bool, place: str) -> None:
    """It is complete after the kernel of the reduction, and the copy comes after that."""
    rows = cases.log_sum_exp(N, K)
    s = te.create_schedule(list(rows.outputs))
    m, last = s["m"].op.outputs[0], s["l"].op.outputs[0]
    other = te.compute((N,), lambda i: m[i] * 2.0 + (last[i] if reads_last else 1.0), name="other")
    end = te.compute((N,), lambda i: other[i] + 1.0, name="end")
    s = te.create_schedule([*rows.outputs, end])
    outer, _ = s["l"].split(rows.k, 8)
    s["l"].online(outer)
    if place == "inlined reader":
        s["other"].compute_inline()
    copy = s.cache_read(s["m"].op.outputs[0], "local", [s["other"]])
    if place == "at":
        s[copy].compute_at(s["other"], s["other"].op.axis[0])
    assert agrees(s)
    text = message(s, lambda: s.cache_read(s["m"].op.outputs[0], "local", [s["l"]]))
    assert "l reads it in that kernel, before it is complete" in text


def test_exported_members_keep_the_last_at_root(golden: Golden) -> None:
    rows = cases.log_sum_exp(N, K)
    m = te.compute((N,), lambda i: rows.outputs[0][i] * 2.0, name="Z")
    s = te.create_schedule([m, rows.last])
    texts: list[str] = []
    s = te.create_schedule([rows.outputs[0], s["m"].op.outputs[0]])
    s["l"].online(rows.k)
    texts.append(message(s, lambda: s["l"].compute_at(s["O"], s["O"].op.axis[0])))
    s = te.create_schedule([rows.outputs[0], s.outputs[1]])
    golden("\n\n".join(texts))


LATER: dict[str, Request] = {
    "split of the loop": lambda s: s["l"].split(s["l"].leaf_iter_vars[1], 2),
    "split of a member": lambda s: s["m"].split(s["m"].op.reduce_axis[0], 3),
    "vectorized member": lambda s: s["m"].vectorize(s["m"].op.reduce_axis[0]),
    "unrolled": lambda s: s["l"].unroll(s["l"].leaf_iter_vars[1]),
    "unrolled member": lambda s: s["m"].unroll(s["m"].op.reduce_axis[0]),
    "pipelined": lambda s: s["l"].pipeline(s["l"].leaf_iter_vars[1], 2),
    "rows on the grid": lambda s: s["l"].bind(s["l"].op.axis[0], "blockIdx.x"),
    "rows as lanes": lambda s: s["l"].vectorize(s["l"].op.axis[0]),
    "inside its reader": lambda s: s["l"].compute_at(s["O"], s["O"].op.axis[0]),
    "reader after it": lambda s: s["O"].vectorize(s["O"].op.axis[0]),
    "input staged": lambda s: s.cache_read(s.plan.stages[0].op.outputs[0], "local", [s["l"]]),
}


@pytest.mark.parametrize("name", list(LATER))
def test_later_steps(name: str) -> None:
    """Whatever is accepted afterwards gives the same numbers, replays, and is undone."""
    rows = cases.log_sum_exp(N, K)
    s = te.create_schedule(list(rows.outputs))
    outer, inner = s["l"].split(rows.k, 8)
    s["l"].online(outer)
    if name == "rows as lanes":
        s["l"].vectorize(inner)
        s["m"].vectorize(s["m"].op.reduce_axis[0])
        s["m"].vectorize(s["m"].op.axis[0])
    before = str(s)
    LATER[name](s)
    assert agrees(s)
    again = replay(list(rows.outputs), Trace.from_json(s.trace.to_json()))
    assert str(again) == str(s)
    s.undo()
    assert str(s) == before


def test_undo() -> None:
    rows = cases.log_sum_exp(N, K)
    s = te.create_schedule(list(rows.outputs))
    outer, _ = s["l"].split(rows.k, 8)
    before = str(s)
    s["l"].online(outer)
    assert str(s) != before
    s.undo()
    assert str(s) == before
    s.split_online(rows.last, outer)
    s.undo()
    assert str(s) == before


PROOFS: dict[str, Callable[[], Any]] = {
    "softmax": lambda: cases.softmax(N, K),
    "rms_matvec": lambda: cases.normalised_product(N, K),
    "scaled_by_largest": lambda: cases.scaled_by_largest(N, K),
    "entropy": lambda: cases.entropy(N, K),
    "variance": lambda: cases.variance(N, K),
    "argmax_and_sum": lambda: cases.argmax_and_sum(N, K),
}


@pytest.mark.parametrize("name", list(PROOFS))
def test_proofs(name: str, golden: Golden) -> None:
    rows = PROOFS[name]()
    s = te.create_schedule(list(rows.outputs))
    began = time.perf_counter()
    text = s[rows.last].proof()
    assert time.perf_counter() - began < 20  # 2 s each, on a machine with other work
    golden(text)


def test_proof_of_attention(golden: Golden) -> None:
    g = Attention(dtype="bfloat16", causal="where").tensors()
    s = te.create_schedule(g["O"])
    golden(s["O"].proof(casts=True))


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_lowered(target: str, golden: Golden) -> None:
    golden(str(te.lower(Attention(causal="where").schedule(), target, check=True)), "attention")
    golden(str(te.lower(fused(cases.variance(N, K), 8, lanes=False), target)), "variance")


def test_printed(golden: Golden) -> None:
    s = Attention(causal="where").schedule()
    golden(f"{s}\n\n{s.as_python()}", "attention")
    rows = cases.softmax(N, K)
    s = te.create_schedule(list(rows.outputs))
    outer, _ = s[rows.last].split(rows.k, 8)
    s.split_online(rows.last, outer)
    golden(f"{s}\n\n{s.as_python()}", "parts")


def test_a_start_in_its_own_loops_is_refused() -> None:
    """The init of a decomposed member is made inside the loops that online shares."""
    rows = cases.log_sum_exp(N, K)
    s = te.create_schedule(list(rows.outputs))
    s.decompose_reduction(s["m"].op.outputs[0], s["m"].op.reduce_axis[0])
    with refused(s, "m starts from m.init, which is computed in its own loops"):
        s["l"].online(rows.k)


def test_an_estimate_of_no_elements() -> None:
    """A sum that is shown scaled up to the whole is 0 when the loop never runs."""
    n = te.size_var("n")
    X = te.placeholder((3, n), name="X")
    k, j = axis(n), axis(n)
    S = te.compute((3,), lambda i: te.sum(X[i, k], axis=k), name="S")
    T = te.compute((3,), lambda i: te.sum(X[i, j] - S[i] * 0.125, axis=j), name="T")
    s = te.create_schedule([T, S])
    outer, _ = s[T].split(j, 4)
    s[T].online(outer)
    for value in (0, 1, 4, 7):
        assert agrees(s, {n: value})


@pytest.mark.parametrize("read", ["in the loop", "after it", "in both"])
def test_a_member_of_which_part_leaves_the_loop(read: str) -> None:
    """What is applied at the end is applied to a member too, whoever reads it."""
    X = te.placeholder((N, K), name="X")
    k, j, q = axis(K), axis(K), axis(K)
    m = te.compute((N,), lambda i: te.max(X[i, k], axis=k), name="m")
    apart = te.compute((N,), lambda i: te.max(X[i, j] - m[i] * 0.5, axis=j), name="apart")

    def value(i: Any) -> Any:
        power = te.exp(X[i, q] - (m[i] if read == "after it" else apart[i] + m[i] * 0.5))
        return power if read == "in the loop" else power / (apart[i] * apart[i] + 1.0)

    T = te.compute((N,), lambda i: te.sum(value(i), axis=q), name="T")
    for outputs in ([T], [T, apart], [T, m]):
        s = te.create_schedule(outputs)
        outer, _ = s[T].split(q, 8)
        s[T].online(outer)
        assert agrees(s)


CUT_SHORT: dict[str, Callable[[Schedule, Any], Any]] = {
    "nparts, then 4 of 7": lambda s, k: s["Y"].online(
        s["Y"].split(s["Y"].split(k, nparts=6)[1], 4)[0]
    ),
    "8, then 3": lambda s, k: (
        [outer := s["Y"].split(k, 8), s["Y"].split(outer[1], 3), s["Y"].online(outer[0])]
    ),
    "3 of 8 afterwards": lambda s, k: (
        [outer := s["Y"].split(k, 8), s["Y"].online(outer[0]), s["Y"].split(outer[1], 3)]
    ),
    "strided afterwards": lambda s, k: (
        [
            outer := s["Y"].split(k, 8),
            inner := s["Y"].split(outer[1], 4),
            s["Y"].online(outer[0]),
            s["Y"].reorder(inner[1], outer[0], inner[0]),
        ]
    ),
    "lanes": lambda s, k: [
        outer := s["Y"].split(k, 8),
        s["Y"].online(outer[1]),
        s["Y"].vectorize(outer[0]),
    ],
}


@pytest.mark.parametrize("name", list(CUT_SHORT))
def test_no_element_is_folded_twice(name: str, golden: Golden) -> None:
    """What goes along would fold the padding of a loop that was split again."""
    rows = cases.normalised_product(N, K)
    s = te.create_schedule(rows.last)
    s["H"].compute_inline()
    with pytest.raises(te.ScheduleError, match=r"does not cover one piece") as caught:
        CUT_SHORT[name](s, rows.k)
    lines = str(caught.value).splitlines()
    golden("\n".join(line for line in lines if not line.startswith("  called")))
    assert agrees(s)


def test_a_piece_with_one_gap_is_refused() -> None:
    """Elements 0 and 2 are within three, of which the other iteration would have one again."""
    rows = cases.normalised_product(N, 4)
    s = te.create_schedule(rows.last)
    s["H"].compute_inline()
    outer, inner = s["Y"].split(rows.k, 2)
    s["Y"].reorder(inner, outer)
    assert "does not cover one piece" in message(s, lambda: s["Y"].online(inner))


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_splits_that_divide(factor: int) -> None:
    rows = cases.normalised_product(N, K)
    s = te.create_schedule(rows.last)
    s["H"].compute_inline()
    outer, inner = s["Y"].split(rows.k, 8)
    s["Y"].online(outer)
    s["Y"].split(inner, factor)
    s["Y"].split(outer, 2)
    assert agrees(s)
