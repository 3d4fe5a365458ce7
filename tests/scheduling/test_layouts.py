"""transform_layout and set_precision: rewritten stages and readers, goldens, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from computations import argmax, chain, matmul, row_sum
from lowering import agrees
from refusals import refused
from replays import replays

import tedsl as te


def test_split_layout(golden):
    c = chain(10, 6)
    s = te.create_schedule(c.D)
    old = s[c.B].op
    axes = s[c.B].transform_layout(lambda i, j: [i // 4, j, i % 4])
    assert [axis.name for axis in axes] == ["l0", "i1", "l2"]
    assert s[c.B].leaf_iter_vars == axes
    assert s[c.B].op.axis == axes
    assert s[old].name == "B"
    golden(str(s))
    assert agrees(s)
    assert replays(s, c.D)


JOINED = {
    "rows": lambda i, j, k: (i * 5 + j, k),
    "all": lambda i, j, k: ((i * 5 + j) * 6 + k,),
    "parts": lambda i, j, k: ((i * 5 + j) // 4, k, (i * 5 + j) % 4),
    "columns first": lambda i, j, k: (k, j * 3 + i),
}


@pytest.mark.parametrize("wide", ["", "0", "1", "2", "01", "02", "12", "012"])
@pytest.mark.parametrize("name", JOINED)
def test_joined_axes_of_two_widths(name: str, wide: str) -> None:
    """Axes counted in 32 and in 64 bits are joined as those of one width are, and no element is
    kept beside those that are read."""
    shape = [te.const(n, "int64" if str(p) in wide else "int32") for p, n in enumerate((3, 5, 6))]
    a = te.placeholder(shape, name="A")
    b = te.compute(shape, lambda i, j, k: te.if_then_else(i >= 1, a[i - 1, j, k], 1.0), name="B")
    d = te.compute(shape, lambda i, j, k: b[i, j, k] * 2.0, name="D")
    s = te.create_schedule(d)
    axes = s[b].transform_layout(JOINED[name])
    s[b].vectorize(s[b].split(s[b].fuse(*axes), 4)[1])
    loop = s[d].fuse(*s[d].op.axis)
    outer, inner = s[d].split(loop, 9)
    s[d].vectorize(inner)
    s[b].compute_at(s[d], outer)
    assert agrees(s)
    assert replays(s, d)


def test_one_dimension():
    c = chain(10)
    s = te.create_schedule(c.D)
    (axis,) = s[c.B].transform_layout(lambda *i: i[0] + 3)
    s[c.B].split(axis, 4)
    assert "(l0,) = " in s.as_python()
    assert agrees(s)
    assert replays(s, c.D)


def test_packed_weights(golden):
    """A copy of an input in panels, read by a product of tiles."""
    m = matmul(12, 20, 9)
    s = te.create_schedule(m.D)
    packed = s.cache_read(m.B, "global", [m.C])
    po, k, pi = s[packed].transform_layout(lambda k, j: (j // 8, k, j % 8))
    s[packed].reorder(po, pi, k)
    jo, ji = s[m.C].split(s[m.C].op.axis[1], 8)
    s[m.C].reorder(jo, s[m.C].op.axis[0], s[m.C].op.reduce_axis[0], ji)
    golden(str(s))
    assert agrees(s, targets=("cpu",), bound=1e-4)
    assert replays(s, m.D)


OUTPUTS = {
    "split": lambda i, j: (i, j // 5, j % 5),
    "transposed": lambda i, j: (j, i),
    "flat": lambda i, j: (i * 20 + j,),
    "crossed": lambda i, j: ((i * 20 + j) // 16, (i * 20 + j) % 16),
    "reversed": lambda i, j: (11 - i, j),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_stays_in_the_callers_array(name: str) -> None:
    """Its loops and its readers have the new axes, and its elements stay where they are."""
    c = chain(12, 20)
    s = te.create_schedule([c.C, c.D])
    s[c.C].transform_layout(OUTPUTS[name])
    axes = s[c.D].transform_layout(OUTPUTS[name])
    assert s.outputs[1].shape == s[c.D].op.output(0).shape
    axis = s[c.D].fuse(*axes)
    s[c.D].vectorize(s[c.D].split(axis, 8)[1])
    for target in ("cpu", "triton-interpret"):
        assert [b.shape for b in te.lower(s, target, check=True).outputs] == [
            c.C.shape,
            c.D.shape,
        ]
    assert agrees(s)
    assert replays(s, c.C, c.D)


def test_layouts_of_an_output_one_after_the_other(golden):
    c = chain(12, 16)
    s = te.create_schedule(c.D)
    s[c.D].transform_layout(lambda i, j: (i, j // 4, j % 4))
    axes = s[c.D].transform_layout(lambda i, u, v: (i * 4 + u, v))
    s[c.C].compute_at(s[c.D], axes[0])
    golden(f"{s}\n{te.lower(s, 'cpu', check=True)}")
    assert agrees(s)
    assert replays(s, c.D)


def test_tuples_and_parts_of_an_output():
    a = argmax(32)
    s = te.create_schedule(list(a))
    s[a[0]].transform_layout(lambda i: (i // 4, i % 4))
    s[a[0]].parallel(s[a[0]].op.axis[0])
    assert agrees(s)
    assert replays(s, *a)


def test_one_output_of_a_tuple():
    """The other result is accumulated with it, and read by another stage."""
    place, value = argmax(32)
    y = te.compute((8,), lambda i: value[i] * 2.0, name="y")
    s = te.create_schedule([place, y])
    s[place].transform_layout(lambda i: (i // 4, i % 4))
    assert agrees(s)
    assert replays(s, place, y)


def test_an_output_of_another_layout_and_its_cache():
    c = chain(12, 16)
    s = te.create_schedule(c.D)
    s[c.D].transform_layout(lambda i, j: (i * 4 + j // 4, j % 4))
    cache = s.cache_write(c.D, "local")
    s[cache].compute_at(s[c.D], s[c.D].op.axis[0])
    assert agrees(s)
    assert replays(s, c.D)


@pytest.mark.parametrize("how", ["rfactor", "divide", "split_online"])
def test_an_output_that_is_defined_anew_stays_in_the_callers_array(how: str) -> None:
    a, k = te.placeholder((24, 16), name="A"), te.reduce_axis((0, 16), name="k")
    m = te.compute((24,), lambda i: te.max(a[i, k], axis=k), name="M")
    r = te.reduce_axis((0, 16), name="r")
    b = te.compute((24,), lambda i: te.sum(te.exp(a[i, r] - m[i]), axis=r), name="B")
    s = te.create_schedule([m, b])
    for tensor in (m, b):
        _, inner = s[tensor].transform_layout(lambda i: (i % 4, i // 4))
    if how == "divide":
        s.divide(s[b].op.output(0), inner, 2)
    else:
        outer, _ = s[b].split(s[b].op.reduce_axis[0], 4)
        s.rfactor(s[b], outer) if how == "rfactor" else s.split_online(s[b], outer)
    assert [buffer.shape for buffer in te.lower(s, "cpu").outputs] == [m.shape, b.shape]
    assert agrees(s)
    assert replays(s, m, b)


def test_an_axis_that_the_callers_array_has_not_is_not_skewed():
    c = chain(12, 16)
    s = te.create_schedule(c.D)
    one, i, j = s[c.D].transform_layout(lambda i, j: (0, i, j))
    with refused(s, "the caller's array of D has no dimension of l0", "leave it out of the layout"):
        s[c.D].skew(one, i, 1, 2)
    s[c.D].skew(j, i, 1, 4)
    assert agrees(s)


def test_places_of_an_output_where_no_element_goes_are_not_stored():
    m = matmul(12, 20, 9)
    s = te.create_schedule(m.C)
    s[m.C].transform_layout(lambda i, j: (j % 8, i, j // 8))
    assert "float32[8, 12, 3], stored as [12, 20]" in str(s)
    assert agrees(s, bound=1e-4)
    assert replays(s, m.C)


def test_an_output_is_padded_twice():
    """The second layout has places of its own, and those of the first."""
    c = chain(7, 13)
    s = te.create_schedule(c.D)
    s[c.D].transform_layout(lambda i, j: (i // 4, i % 4, j))
    _, _, _, inner = s[c.D].transform_layout(lambda a, b, j: (j % 3, a, b, j // 3))
    s[c.D].parallel(s[c.D].op.axis[0])
    s[c.D].vectorize(inner)
    assert agrees(s)
    assert replays(s, c.D)


@pytest.mark.parametrize("size", [13, None])
def test_an_output_of_a_wide_size_is_padded(size: int | None):
    """Places have 64 bits, and parts of them 32."""
    n = te.size_var("n", "int64") if size is None else te.const(size, "int64")
    x = te.placeholder((3, n), name="x")
    b = te.compute((3, n), lambda i, j: x[i, j] * 2.0, name="b")
    c = te.compute((3, n), lambda i, j: b[i, j] + 1.0, name="c")
    s = te.create_schedule([c, b])
    s[b].transform_layout(lambda i, j: (i, (j + 1) // 6, (j + 1) % 6))
    te.lower(s, "cpu", check=True)
    assert agrees(s, {n: 13} if isinstance(n, te.Var) else None)


def test_one_element_of_an_output_is_not_padded():
    m = matmul(12, 1, 9)
    s = te.create_schedule(m.C)
    with refused(s, "C is an output, and all its elements are at one point of l2", "put 0"):
        s[m.C].transform_layout(lambda i, j: (i, (j + 3) // 4, (j + 3) % 4))
    s[m.C].transform_layout(lambda i, j: (i // 5, i % 5, 0))
    assert agrees(s, bound=1e-4)


def test_padding_of_an_output_that_is_read():
    """What reads it meets its elements alone."""
    c = chain(7, 13)
    s = te.create_schedule([c.C, c.D])
    s[c.C].transform_layout(lambda i, j: ((i + 1) // 4, (i + 1) % 4, j))
    assert agrees(s)
    assert replays(s, c.C, c.D)


def test_padded_reduction_with_where_and_init(golden):
    X = te.placeholder((9, 33), name="X")
    P = te.placeholder((9,), name="P")
    k = te.reduce_axis((0, 33), name="k")
    B = te.compute((9,), lambda i: te.sum(X[i, k], axis=k, where=X[i, k] > 0, init=P[i]), name="B")
    C = te.compute((9,), lambda i: B[8 - i] * 2, name="C")
    s = te.create_schedule(C)
    s[B].transform_layout(lambda i: (i // 4, i % 4))
    golden(str(s))
    assert agrees(s)
    assert replays(s, C)


def test_attached_stage():
    c = chain(12, 16)
    s = te.create_schedule(c.D)
    s[c.C].compute_inline()
    s[c.B].compute_at(s[c.D], s[c.D].op.axis[0])
    s[c.B].transform_layout(lambda i, j: (j // 4, i, j % 4))
    assert agrees(s, targets=("cpu",))


def test_tuple_reduction():
    index, value = argmax(33)
    last = te.compute((8,), lambda i: te.cast(index[i], "float32") + value[i], name="last")
    s = te.create_schedule(last)
    s[index].transform_layout(lambda i: (i % 3, i // 3))
    assert agrees(s)
    assert replays(s, last)


def test_symbolic_layout():
    n, m = te.size_var("n"), te.size_var("m")
    c = chain(n, m)
    s = te.create_schedule(c.D)
    s[c.B].transform_layout(lambda i, j: (i * m + j,))
    s[c.C].transform_layout(lambda i, j: (j, i // 4, i % 4))
    for size in (0, 1, 9):
        assert agrees(s, {n: size, m: 7})
    assert replays(s, c.D)


def test_colliding_layouts():
    c = chain(9, 7)
    s = te.create_schedule(c.D)
    with refused(
        s,
        "transform_layout(B, lambda i0, i1: (i0 + i1,)): two elements would have one place: "
        "B[0, 1] and B[1, 0] both go to [1]",
    ):
        s[c.B].transform_layout(lambda i, j: i + j)
    with refused(s, "B[0, 0] and B[0, 1] both go to [0]"):
        s[c.B].transform_layout(lambda i, j: (i,))
    with refused(s, "B[0, 0] would go to [-1, 0], below 0", "add an offset"):
        s[c.B].transform_layout(lambda i, j: (i - 1, j))
    with refused(s, "no inverse of the map was found", "allowed permutations"):
        s[c.B].transform_layout(lambda i, j: (i, i * i + j))


def test_arguments_of_transform_layout():
    c = chain(9, 7)
    s = te.create_schedule(c.D)
    with refused(s, "does not take the 2 data axes i0, i1"):
        s[c.B].transform_layout(lambda i: (i,))
    with refused(
        s, "the index int32(A[i0, i1]) has the part A[i0, i1]", "allowed axes, ints and sizes"
    ):
        s[c.B].transform_layout(lambda i, j: (te.cast(c.A[i, j], "int32"), j))
    with refused(s, "returned 'x' of type str as an index"):
        s[c.B].transform_layout(lambda i, j: ("x", j))
    with refused(s, "the function returned no index"):
        s[c.B].transform_layout(lambda i, j: ())
    nothing: Any = 3
    with refused(s, "expected a function, got 3 of type int"):
        s[c.B].transform_layout(nothing)
    with refused(s, "A is an input of the computation", "s.cache_read(A, scope, readers)"):
        s[c.A].transform_layout(lambda i, j: (j, i))
    s[c.B].vectorize(s[c.B].op.axis[1])
    with refused(s, "i1 is vectorized, and its loops would be replaced"):
        s[c.B].transform_layout(lambda i, j: (j, i))
    s[c.C].reorder(*reversed(s[c.C].op.axis))
    with refused(s, "the loops of C have been reordered"):
        s[c.C].transform_layout(lambda i, j: (j, i))
    s[c.C].split(s[c.C].op.axis[0], 2)
    with refused(s, "the loops of C have been split or fused", "call transform_layout first"):
        s[c.C].transform_layout(lambda i, j: (j, i))


def values_of(s: te.Schedule, inputs: list[Any]) -> Any:
    return te.build(s, target="cpu", cache=False)(*inputs)


@pytest.mark.cpu
def test_narrower_accumulator():
    """The same numbers as a definition with the casts written out."""
    X, B = row_sum(9, 33)
    C = te.compute((9,), lambda i: B[i] * 3, name="C")
    s = te.create_schedule(C)
    s[B].set_precision("float16")
    assert s[B].op.output_dtypes == ("float16",)
    k = te.reduce_axis((0, 33), name="k")
    by_hand = te.compute(
        (9,), lambda i: te.sum(X[i, k].astype("float16"), axis=k, dtype="float16"), name="B"
    )
    want = te.compute((9,), lambda i: by_hand[i].astype("float32") * 3, name="C")
    x = np.random.default_rng(1).standard_normal((9, 33)).astype("float32")
    got, exact = (values_of(t, [x]) for t in (s, te.create_schedule(want)))
    np.testing.assert_array_equal(got, exact)
    assert replays(s, C)


def test_precision_of_a_stage(golden):
    m = matmul(9, 7, 5)
    s = te.create_schedule(m.D)
    cache = s.cache_write(m.C, "local")
    s.set_precision(cache, "float64")
    s.set_precision(m.C, te.DType.bfloat16)
    golden(str(s) + "\n" + s.as_python())
    assert agrees(s, bound=0.1)
    assert replays(s, m.D)


def test_precision_of_tuples_and_integers():
    index, value = argmax(33)
    last = te.compute((8,), lambda i: te.cast(index[i], "float32") + value[i], name="last")
    s = te.create_schedule(last)
    with refused(s, "M is int32: as float64 it would not only be rounded"):
        s.set_precision(index, "float64")
    A = te.placeholder((9,), "int32", name="A")
    B = te.compute((9,), lambda i: A[i] * 3, name="B")
    C = te.compute((9,), lambda i: B[i] + 1, name="C")
    s = te.create_schedule(C)
    s.set_precision(B, "int64")
    with refused(s, "B is int64: as int8", "allowed int64"):
        s.set_precision(B, "int8")
    assert agrees(s)


def test_precision_refusals():
    m = matmul()
    s = te.create_schedule(m.D)
    with refused(s, "D is an output of the schedule: the caller expects its element type"):
        s.set_precision(m.D, "float16")
    with refused(s, "A is an input of the computation"):
        s.set_precision(m.A, "float16")
    unknown: Any = "float12"
    with refused(s, "float12", "give the name of an element type"):
        s.set_precision(m.C, unknown)
    total = te.comm_reducer(lambda x, y: y + x, lambda t: te.const(0, t), name="total")
    X = te.placeholder((9, 5), name="X")
    k = te.reduce_axis((0, 5), name="k")
    B = te.compute((9,), lambda i: total(X[i, k], axis=k), name="B")
    C = te.compute((9,), lambda i: B[i] + 1, name="C")
    s = te.create_schedule(C)
    with refused(s, "B is reduced by total, whose combination is written for", "s.cache_write(B"):
        s.set_precision(B, "float16")


def test_computed_in_a_wider_type(golden):
    """The stage, and what readers compute of it; a cast of the definition stays where it is not
    the last thing done."""
    A, B = te.placeholder((9, 33), name="A"), te.placeholder((9, 33), name="B")
    k = te.reduce_axis((0, 33), name="k")
    S = te.compute((9,), lambda i: te.sum(A[i, k] * B[i, k], axis=k), name="S")
    M = te.compute((9,), lambda i: te.exp(-S[i] / 33).astype("bfloat16") * 0.1, name="M")
    k2 = te.reduce_axis((0, 33), name="k")

    def far(i: Any) -> Any:
        apart = te.select(A[i, k2] > M[i], A[i, k2] - M[i], 0.0)
        return te.sum(apart, axis=k2)

    V = te.compute((9,), far, name="V")
    Y = te.compute((9, 33), lambda i, j: (A[i, j] - M[i]) / (V[i] + 1.0) + B[i, j], name="Y")
    texts: list[str] = []
    for order in ((S, M), (M, S)):
        s = te.create_schedule(Y)
        for each in order:
            s.set_precision(each, "float64", compute=True)
        texts.append(str(s))
        assert agrees(s, bound=1e-2)  # the definition multiplies in bfloat16
        assert replays(s, Y)
    assert texts[0] == texts[1]
    golden(texts[0])


def test_computing_wider_refusals():
    m = matmul()
    s = te.create_schedule(m.D)
    given: Any = 1
    with refused(s, "C is float32, and bfloat16 does not hold all of its values"):
        s.set_precision(m.C, "bfloat16", compute=True)
    with refused(s, "compute is 1 of type int", "allowed True, False"):
        s[m.C].set_precision("float64", compute=given)
    A = te.placeholder((9,), "int32", name="A")
    B = te.compute((9,), lambda i: A[i] * 3, name="B")
    C = te.compute((9,), lambda i: B[i] + 1, name="C")
    s = te.create_schedule(C)
    with refused(s, "B is int32, and only floats are computed in other types"):
        s.set_precision(B, "int64", compute=True)


def test_stages_of_a_chain_stay_as_they_were_proved():
    X = te.placeholder((9, 33), name="X")
    k = te.reduce_axis((0, 33), name="k")
    M = te.compute((9,), lambda i: te.max(X[i, k], axis=k), name="M")
    E = te.compute((9, 33), lambda i, j: te.exp(X[i, j] - M[i]), name="E")
    L = te.compute((9,), lambda i: te.sum(E[i, k], axis=k), name="L")
    D = te.compute((9,), lambda i: M[i] + te.log(L[i]), name="D")
    s = te.create_schedule(D)
    s[E].compute_inline()
    s.online(L, s[L].op.reduce_axis[0])
    part = "takes part in the reductions that share the loop of L (online)"
    for stage in (M, E, L):
        with refused(s, f"{stage.name} {part}", "call set_precision before s.online(L)"):
            s.set_precision(stage, "float64")
    for stage in (M, L):
        with refused(s, f"{stage.name} {part}"):
            s[stage].transform_layout(lambda i: (i // 4, i % 4))
        with refused(s, f"{stage.name} {part}"):
            s.decompose_reduction(stage, s[stage].op.axis[0])
    assert agrees(s)


def test_aligned_dimensions_are_not_transformed():
    A = te.placeholder((6, 5), name="A")
    B = te.compute((6, 5), lambda i, j: A[i, j] + 1.0, name="B")
    C = te.compute((6, 5), lambda i, j: B[i, j] * 2.0, name="C")
    s = te.create_schedule(C)
    s[B].storage_align(s[B].op.axis[0], 8, 1)
    with refused(s, "i is aligned", "call transform_layout first"):
        s[B].transform_layout(lambda i, j: (j, i))


@pytest.mark.cpu
def test_extremes_of_nothing_keep_their_type():
    A = te.placeholder((3, 4), "int32", name="A")
    k = te.reduce_axis((0, 3), name="k")
    B = te.compute((4,), lambda i: te.max(A[k, i], axis=k, where=k < i), name="B")
    C = te.compute((4,), lambda i: B[i] + 0, name="C")
    s = te.create_schedule([B, C])
    s.set_precision(s.cache_write(B, "local"), "int64")
    a = np.arange(12, dtype=np.int32).reshape(3, 4)
    b, _ = te.build(s, target="cpu")(a)
    assert b.tolist() == [np.iinfo(np.int32).min, 1, 6, 11]
