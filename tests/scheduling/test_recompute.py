"""s.explain(): how often a stage is computed, which loop repeats it, and what to do."""

from __future__ import annotations

import pytest
from computations import chain, matmul

import tedsl as te
from tedsl.schedules import default_schedule


def test_nothing_is_computed_twice_at_root() -> None:
    c = chain(64, 64)
    s = te.create_schedule(c.D)
    assert s.explain().stages == ()
    assert "every stage is at root" in str(s.explain())


def test_a_loop_that_the_region_does_not_move_with() -> None:
    """64 columns of D each compute the whole row of C again."""
    a = te.placeholder((32, 64), name="A")
    k = te.reduce_axis((0, 64), name="k")
    c = te.compute((32,), lambda i: te.sum(a[i, k], axis=k), name="C")
    d = te.compute((32, 64), lambda i, j: c[i] * a[i, j], name="D")
    s = te.create_schedule(d)
    i, j = s[d].op.axis
    s[c].compute_at(s[d], j)
    row = s.explain()["C"]
    assert (row.factor, row.points, row.computed) == (64.0, 32, 2048)
    assert row.too_often and row.loops == (("D.j", 64.0),)
    text = str(s.explain())
    assert "C at D.j: computed 64 times  <-- redundant" in text
    assert "because D.j repeats it 64 times" in text
    assert "attach C outside the loop D.j, compute it at root, or keep" in text
    s[c].compute_at(s[d], i)
    assert s.explain()["C"].factor == 1.0 and s.explain().redundant == ()


def test_a_halo() -> None:
    a = te.placeholder((66,), name="A")
    b = te.compute((66,), lambda i: a[i] + 1.0, name="B")
    c = te.compute((64,), lambda i: b[i] + b[i + 1] + b[i + 2], name="C")
    s = te.create_schedule(c)
    outer, inner = s[c].split(s[c].op.axis[0], 8)
    s[b].compute_at(s[c], outer)
    assert s.explain()["B"].factor == pytest.approx(80 / 66)
    s[b].compute_at(s[c], inner)
    assert s.explain()["B"].factor == pytest.approx(192 / 66)
    assert dict(s.explain()["B"].loops) == {
        "C.i.inner": pytest.approx(24 / 10),
        "C.i.outer": pytest.approx(80 / 66),
    }


def test_inlined_into_a_product() -> None:
    m = matmul()
    s = te.create_schedule(m.D)
    a = te.placeholder((64, 32), name="A")
    b = te.compute((64, 32), lambda i, j: te.exp(a[i, j]), name="B")
    w = te.placeholder((32, 48), name="W")
    k = te.reduce_axis((0, 32), name="k")
    c = te.compute((64, 48), lambda i, j: te.sum(b[i, k] * w[k, j], axis=k), name="C")
    s = te.create_schedule(c)
    s[b].compute_inline()
    row = s.explain()["B"]
    assert row.factor == 48.0 and row.loops == (("C.j", 48.0),)
    assert row.place == "inlined into C"


def test_inlined_into_inlined() -> None:
    a = te.placeholder((8,), name="A")
    b = te.compute((8,), lambda i: a[i] + 1.0, name="B")
    c = te.compute((8,), lambda i: b[i] * b[7 - i], name="C")
    d = te.compute((8,), lambda i: c[i] + c[7 - i], name="D")
    s = te.create_schedule(d)
    s[b].compute_inline()
    s[c].compute_inline()
    report = s.explain()
    assert report["C"].factor == 2.0 and not report["C"].too_often
    assert report["B"].factor == 4.0 and report["B"].too_often


def test_runtime_sizes_are_given_or_assumed() -> None:
    n = te.size_var("n")
    a = te.placeholder((4, n), name="A")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute((4,), lambda i: te.sum(a[i, k], axis=k), name="C")
    d = te.compute((4, n), lambda i, j: c[i] * a[i, j], name="D")
    s = te.create_schedule(d)
    s[c].compute_at(s[d], s[d].op.axis[1])
    assert s.explain().sizes == (("n", 1024),)
    assert s.explain(n=3)["C"].factor == 3.0
    assert str(s.explain(n=3)).startswith("with n = 3\n")


def test_an_online_chain_is_computed_once() -> None:
    x = te.placeholder((6, 32), name="X")
    k = te.reduce_axis((0, 32), name="k")
    m = te.compute((6,), lambda i: te.max(x[i, k], axis=k), name="M")
    e = te.compute((6,), lambda i: te.sum(te.exp(x[i, k] - m[i]), axis=k), name="E")
    s = te.create_schedule(e)
    ko, _ = s[e].split(k, 8)
    s[e].online(ko)
    assert s.explain()["M"].factor == 1.0


def test_a_copy_computes_nothing() -> None:
    """Tiles of A and B are read again by each tile of C; what is repeated is no arithmetic."""
    a, b = (te.placeholder((256, 256), name=name) for name in "AB")
    k = te.reduce_axis((0, 256), name="k")
    c = te.compute((256, 256), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    s = te.create_schedule(c)
    outer, _ = s[c].split(k, 64)
    local = s.cache_read(a, "local", [c])
    s[local].compute_at(s[c], outer)
    row = s.explain()["A.local"]
    assert (row.copies, row.factor, row.too_often) == ("A", 1.0, False)
    assert row.computed > 100 * row.points
    assert str(s.explain()) == "A.local at C.k.outer: copies A"
    (kernel,) = te.explain(s, "cpu").kernels
    assert kernel.recomputed == 1.0


def test_nothing_of_a_product_by_the_rules_for_a_gpu_is_called_redundant() -> None:
    a, b = (te.placeholder((1024, 1024), "bfloat16", name=name) for name in "AB")
    s = default_schedule([te.nn.matmul(a, b)], te.Target.parse("cuda:sm_90"))
    report = s.explain()
    assert {row.copies for row in report.stages} >= {"A", "B"}
    assert report.redundant == ()
    (kernel,) = te.explain(s, "cuda:sm_90", device="NVIDIA H200").kernels
    found = {place.stage: place.recomputed for place in kernel.stages}
    assert found == {**dict.fromkeys(found, 1.0), **{r.stage: r.factor for r in report.stages}}


def test_a_cast_or_a_sum_is_no_copy() -> None:
    a = te.placeholder((8, 16), name="A")
    b = te.compute((8, 16), lambda i, j: a[i, 15 - j].astype("float16"), name="B")
    c = te.compute((8, 16, 4), lambda i, j, n: b[i, j] + n, name="C")
    s = te.create_schedule(c)
    s[b].compute_inline()
    assert (s.explain()["B"].copies, s.explain()["B"].factor) == ("", 4.0)
