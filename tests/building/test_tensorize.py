"""Tensorized loops: matched against what an intrinsic declares, and run on every target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from externs import floats
from intrinsics import DOT, ROWS, c_gemv, gemm, gemm_text, gemv, product, tiled
from lowering import agrees, placeholders, random_array

import tedsl as te
from tedsl.errors import ScheduleError

Sizes = dict[te.Var, int]


def micro(**given: Any) -> Any:
    """A 4x4x4 kernel for both targets."""
    snippet = te.triton_snippet(DOT)
    return gemm(cpu=te.llvm_function(gemm_text(4, 4, 4)), gpu=snippet, **given)


def runs_alike(s: te.Schedule, targets: tuple[str, ...], sizes: Sizes | None = None) -> bool:
    """Oracle, interpreter of the IR (which goes by the meaning) and kernels agree."""
    assert agrees(s, sizes, targets)
    inputs = placeholders(s)
    values = [random_array(t, sizes or {}, np.random.default_rng(3)) for t in inputs]
    (expected,) = te.evaluate(list(s.outputs), dict(zip(inputs, values, strict=True)), sizes)
    for target in targets:
        found = te.build(s, target)(*values)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    return True


@pytest.mark.cpu
@pytest.mark.parametrize("shape", [(4, 4, 4), (12, 20, 8), (4, 28, 36)])
def test_matrix_products(shape: tuple[int, int, int]) -> None:
    s, ii = tiled(product(*shape), (4, 4, 4))
    s["C"].tensorize(ii, micro())
    assert runs_alike(s, ("cpu", "triton-interpret"))


@pytest.mark.cpu
def test_no_square_kernel_in_parallel_loops() -> None:
    s, ii = tiled(product(10, 9, 14), (5, 3, 7))
    intrin = gemm(5, 3, 7, name="odd", cpu=te.llvm_function(gemm_text(5, 3, 7)))
    s["C"].tensorize(ii, intrin)
    s["C"].parallel(s["C"].leaf_iter_vars[0])
    assert runs_alike(s, ("cpu",))


def loops_alone(s: te.Schedule, target: str) -> bool:
    """Whether no intrinsic is called, where the oracle and all kernels agree."""
    assert " by " not in str(te.lower(s, target, check=True))
    return runs_alike(s, (target,))


@pytest.mark.cpu
@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_without_an_implementation_the_loops_run(target: str) -> None:
    """An intrinsic means what its loops compute."""
    other: dict[str, Any] = {"gpu": te.triton_snippet(DOT)}
    if target != "cpu":
        other = {"cpu": te.llvm_function(gemm_text(4, 4, 4))}
    for given in ({}, other):
        s, ii = tiled(product(12, 20, 8), (4, 4, 4))
        s["C"].tensorize(ii, gemm(name="absent", **given))
        s["C"].parallel(s["C"].leaf_iter_vars[0])
        plain, _ = tiled(product(12, 20, 8), (4, 4, 4))
        plain["C"].parallel(plain["C"].leaf_iter_vars[0])
        assert str(te.lower(s, target)) == str(te.lower(plain, target))
        assert loops_alone(s, target)


def test_a_pointwise_intrinsic_without_an_implementation() -> None:
    a, x = te.placeholder((8,), name="a"), te.placeholder((5, 24), name="X")
    twice = te.compute((8,), lambda i: a[i] * 2.0, name="b")
    c = te.compute((5, 24), lambda i, j: x[i, j] * 2.0, name="C")
    for gpu in (None, te.triton_snippet("@triton.jit\ndef twice(a):\n    return a * 2.0")):
        s = te.create_schedule(c)
        _, inner = s[c].split(s[c].op.axis[1], 8)
        s[c].tensorize(inner, te.decl_tensor_intrin(twice, name="twice", gpu=gpu))
        assert loops_alone(s, "triton-interpret"), "in Triton an intrinsic folds into a tile"


def test_rows_and_columns_in_another_order_than_the_intrinsic() -> None:
    """A function of Triton takes a tile with its dimensions in the order of its axes."""
    a, b = te.placeholder((8, 12), name="A"), te.placeholder((8, 20), name="B")
    k = te.reduce_axis((0, 8), name="k")
    c = te.compute((20, 12), lambda j, i: te.sum(a[k, i] * b[k, j], axis=k), name="C")
    s = te.create_schedule(c)
    j, i = s[c].op.axis
    jo, ji = s[c].split(j, 4)
    io, ii = s[c].split(i, 4)
    ko, ki = s[c].split(s[c].op.reduce_axis[0], 4)
    s[c].reorder(io, jo, ko, ii, ji, ki)
    s[c].tensorize(ii, micro())
    assert runs_alike(s, ("cpu", "triton-interpret"))


@pytest.mark.cpu
@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_parts_that_are_combined_where_they_are_stored(target: str) -> None:
    """No intrinsic combines what it computes with a result atomically."""
    n = te.size_var("n")
    a, b = te.placeholder((n * 4, 8), name="A"), te.placeholder((8, 8), name="B")
    k = te.reduce_axis((0, 8), name="k")
    c = te.compute((n * 4, 8), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    s, ii = tiled(c, (4, 4, 4))
    _, _, ko, *_ = s["C"].leaf_iter_vars
    s["C"].reorder(ko, *(axis for axis in s["C"].leaf_iter_vars if axis is not ko))
    s["C"].tensorize(ii, micro())
    s["C"].atomic()
    s["C"].parallel(ko)
    te.lower(s, target, check=True)
    given = floats(12, 8), floats(8, 8)
    made = te.build(s, target)(*given, n=3)
    np.testing.assert_allclose(made, given[0] @ given[1], rtol=1e-5, atol=1e-5)


def test_tiles_that_triton_would_pad() -> None:
    """Tiles of Triton have extents that are powers of two: others run in loops."""
    s, ii = tiled(product(4, 6, 4), (4, 3, 4))
    s["C"].tensorize(ii, gemm(4, 3, 4, name="wide", gpu=te.triton_snippet(DOT)))
    assert loops_alone(s, "triton-interpret")


@pytest.mark.cpu
def test_a_tile_of_results_that_is_no_value_in_registers() -> None:
    """A function of Triton takes a whole tile: of what is kept in memory, the loops run."""
    s, ii = tiled(product(8, 12, 8), (4, 4, 4))
    s["C"].tensorize(ii, micro())
    io, jo, ko, *_ = s["C"].leaf_iter_vars
    s["C"].reorder(ko, io, jo)  # the sums of all rows and columns outlive the loop
    assert runs_alike(s, ("cpu",))
    assert loops_alone(s, "triton-interpret")


@pytest.mark.cpu
def test_a_tile_of_results_that_is_read_backwards() -> None:
    c = product(4, 4, 8)
    d = te.compute((4, 4), lambda i, j: c[i, j] + 1.0, name="D")
    s = te.create_schedule(d)
    i, j = s[c].op.axis
    io, ii = s[c].split(i, 4)
    jo, ji = s[c].split(j, 4)
    ko, ki = s[c].split(s[c].op.reduce_axis[0], 4)
    s[c].reorder(io, jo, ko, ii, ji, ki)
    s[c].tensorize(ii, micro())
    s[d].reverse(s[d].op.axis[1])
    s[d].reverse_compute_at(s[c], io)
    assert runs_alike(s, ("cpu",))
    assert loops_alone(s, "triton-interpret")


@pytest.mark.cpu
def test_loop_along_a_tile_in_registers() -> None:
    """Such a loop is a dimension of the tile on the GPU, which the intrinsic does not have.

    A loop of one iteration is no dimension, and a stage inside the loop is no reason for one.
    """
    a, b = te.placeholder((4, 12), name="A"), te.placeholder((12, 4), name="B")
    doubled = te.compute((4, 12), lambda i, j: a[i, j] * 2.0, name="L")
    k = te.reduce_axis((0, 12), name="k")
    c = te.compute((4, 4), lambda i, j: te.sum(doubled[i, k] * b[k, j], axis=k), name="C")
    s, ii = tiled(c, (4, 4, 4))
    s[c].tensorize(ii, micro())
    _, jo, ko, *_ = s[c].leaf_iter_vars
    s[doubled].compute_at(s[c], jo)
    assert loops_alone(s, "triton-interpret")
    assert runs_alike(s, ("cpu",))
    s[doubled].compute_at(s[c], ko)
    assert runs_alike(s, ("cpu", "triton-interpret"))


@pytest.mark.cpu
def test_strides_follow_the_operands() -> None:
    a, b = te.placeholder((8, 12), name="A"), te.placeholder((3, 20, 8), name="B")
    k = te.reduce_axis((0, 8), name="k")

    def element(h: te.Axis, i: te.Axis, j: te.Axis) -> te.Expr:
        return te.sum(b[h, j, k] * a[k, i], axis=k)

    c = te.compute((3, 12, 20), element, name="C")
    s = te.create_schedule(c)
    h, i, j = s[c].op.axis
    (k,) = s[c].op.reduce_axis
    io, ii = s[c].split(i, 4)
    jo, ji = s[c].split(j, 4)
    ko, ki = s[c].split(k, 4)
    s[c].reorder(h, io, jo, ko, ii, ji, ki)
    s[c].tensorize(ii, micro())
    assert runs_alike(s, ("cpu", "triton-interpret"))


@pytest.mark.cpu
@pytest.mark.parametrize("rows", [0, 4, 12])
def test_a_c_function_and_symbolic_rows(rows: int, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    n = te.size_var("n")
    a, x = te.placeholder((n * 4, 16), name="A"), te.placeholder((16,), name="X")
    k = te.reduce_axis((0, 16), name="k")
    y = te.compute((n * 4,), lambda i: te.sum(a[i, k] * x[k], axis=k), name="Y")
    s = te.create_schedule(y)
    io, ii = s[y].split(s[y].op.axis[0], 4)
    ko, ki = s[y].split(s[y].op.reduce_axis[0], 8)
    s[y].reorder(io, ko, ii, ki)
    s[y].tensorize(ii, gemv(cpu=c_gemv, gpu=te.triton_snippet(ROWS)))
    given = floats(rows, 16), floats(16)
    expected = given[0] @ given[1]
    for target in ("cpu", "cpu", "triton-interpret"):
        made = te.build(s, target)(*given, n=rows // 4)
        np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.cpu
def test_pointwise() -> None:
    a = te.placeholder((8,), name="a")
    text = """
define void @twice(ptr %a, i64 %s, ptr %b, i64 %t) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %from = mul i64 %i, %s
  %to = mul i64 %i, %t
  %p = getelementptr float, ptr %a, i64 %from
  %q = getelementptr float, ptr %b, i64 %to
  %x = load float, ptr %p
  %y = fadd float %x, %x
  store float %y, ptr %q
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, 8
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""
    twice = te.compute((8,), lambda i: a[i] * 2.0, name="b")
    intrin = te.decl_tensor_intrin(twice, name="twice", cpu=te.llvm_function(text))
    x = te.placeholder((5, 24), name="X")
    c = te.compute((5, 24), lambda i, j: x[i, j] * 2.0, name="C")
    s = te.create_schedule(c)
    _, inner = s[c].split(s[c].op.axis[1], 8)
    s[c].tensorize(inner, intrin)
    assert runs_alike(s, ("cpu",))


@pytest.mark.cpu
def test_between_other_stages() -> None:
    c = product(8, 12, 8)
    d = te.compute((8, 12), lambda i, j: te.relu(c[i, j]) + 1.0, name="D")
    s = te.create_schedule(d)
    io, jo, _, _ = s[d].tile(*s[d].op.axis, 4, 4)
    s[c].compute_at(s[d], jo)
    i, j = s[c].op.axis
    (k,) = s[c].op.reduce_axis
    ko, ki = s[c].split(k, 4)
    s[c].reorder(ko, i, j, ki)
    s[c].tensorize(i, micro())
    s[d].parallel(io)
    assert runs_alike(s, ("cpu", "triton-interpret"))


@pytest.mark.cpu
def test_a_wrong_implementation_is_found_by_comparing() -> None:
    s, ii = tiled(product(4, 4, 4), (4, 4, 4))
    wrong = gemm(name="wrong", cpu=te.llvm_function(gemm_text(4, 4, 4, op="fsub")))
    s["C"].tensorize(ii, wrong)
    assert agrees(s, None, ("cpu",))  # the interpreter goes by what is declared
    with pytest.raises(AssertionError, match="Not equal"):
        runs_alike(s, ("cpu",))


def refused(change: Any, reason: str) -> ScheduleError:
    """The error of a tensorize call, which leaves the schedule as it was."""
    s, ii = tiled(product(12, 20, 8), (4, 4, 4))
    before = str(s), len(s.trace)
    with pytest.raises(ScheduleError, match=reason) as caught:
        change(s, ii)
    assert caught.value.hint and (str(s), len(s.trace)) == before
    return caught.value


@pytest.mark.parametrize(
    ("intrin", "reason"),
    [
        (lambda: gemm(4, 4, 8), r"k.inner has the extent 4, r of gemm has 8"),
        (lambda: gemm(2, 4, 4), r"i.inner has the extent 4, i of gemm has 2"),
        (lambda: gemv(4, 4), r"\[i.inner, j.inner\] and reduce \[k.inner\], the axes of gemv"),
        (lambda: "unknown", "'unknown' is no intrinsic"),
    ],
)
def test_loops_that_differ(intrin: Any, reason: str) -> None:
    refused(lambda s, ii: s["C"].tensorize(ii, intrin()), reason)


def other(body: Any, dtype: str = "float32") -> Any:
    a, b = te.placeholder((4, 4), dtype, name="a"), te.placeholder((4, 4), dtype, name="b")
    r = te.reduce_axis((0, 4), name="r")
    c = te.compute((4, 4), lambda i, j: body(a, b, i, j, r), name="c")
    return te.decl_tensor_intrin(c, name="other")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            lambda a, b, i, j, r: te.max(a[i, r] * b[r, j], axis=r),
            "the reduction is sum, that of the",
        ),
        (
            lambda a, b, i, j, r: te.sum(a[i, r] + b[r, j], axis=r),
            r"A\[i, k\] \* B\[k, j\] stands where the intrinsic has a\[i, r\] \+ b\[r, j\]",
        ),
        (
            lambda a, b, i, j, r: (
                te.sum(a[i, r] * b[j, r], axis=r)
                if False
                else te.sum(a[r, i] * b[i, r] + j * 0.0, axis=r)
                if False
                else te.sum(a[i, r] * 2.0, axis=r)
            ),
            r"stands where the intrinsic has 2.0",
        ),
        (
            lambda a, b, i, j, r: te.sum(a[i, j] * b[r, j], axis=r),
            r"moves along the loop",
        ),
    ],
)
def test_bodies_that_differ(body: Any, reason: str) -> None:
    error = refused(lambda s, ii: s["C"].tensorize(ii, other(body)), reason)
    assert "do not compute what other declares" in error.reason
    assert "c[i, j] = " in dict(error.facts)["declares"]


def test_element_types_that_differ() -> None:
    intrin = other(lambda a, b, i, j, r: te.sum(a[i, r] * b[r, j], axis=r), "float64")
    refused(lambda s, ii: s["C"].tensorize(ii, intrin), "float64")


def test_guards_that_remain() -> None:
    s, ii = tiled(product(10, 20, 8), (4, 4, 4))
    with pytest.raises(ScheduleError, match=r"a guard remains inside: i\.outer") as caught:
        s["C"].tensorize(ii, micro())
    assert "s.assume" in caught.value.hint


@pytest.mark.parametrize(
    ("later", "reason"),
    [
        (lambda s, ii: s["C"].split(ii, 2), "tensorized by gemm"),
        (lambda s, ii: s["C"].vectorize(ii), "already tensorized by gemm"),
        (
            lambda s, ii: s["C"].vectorize(s["C"].leaf_iter_vars[0]),
            "i.outer is vectorized beside those of the intrinsic",
        ),
        (lambda s, ii: s["C"].tensorize(ii, micro()), "already tensorized by gemm"),
    ],
)
def test_later_steps_keep_it(later: Any, reason: str) -> None:
    s, ii = tiled(product(12, 20, 8), (4, 4, 4))
    s["C"].tensorize(ii, micro())
    before = str(s)
    with pytest.raises(ScheduleError, match=reason):
        later(s, ii)
    assert str(s) == before
    s["C"].serial(ii)
    assert "tensorized" not in str(s)


@pytest.mark.parametrize("atomic", [False, True])
def test_splits_around_it_that_leave_a_guard(atomic: bool) -> None:
    """Two parts of three iterations are more than four: the last would be computed for nothing."""
    s, ii = tiled(product(12, 12, 8), (4, 4, 2))
    s["C"].tensorize(ii, gemm(4, 4, 2))
    if atomic:
        s["C"].atomic()
    ko, before = s["C"].leaf_iter_vars[2], str(s)
    with pytest.raises(ScheduleError, match=r"C is tensorized by gemm, and .* a guard remains"):
        s["C"].split(ko, factor=3)
    assert str(s) == before
    s["C"].split(ko, factor=2)


def test_inlining_into_it_is_refused() -> None:
    a, b = te.placeholder((8, 8), name="A"), te.placeholder((8, 8), name="B")
    a2 = te.compute((8, 8), lambda i, j: a[i, j] + 1.0, name="A2")
    k = te.reduce_axis((0, 8), name="k")
    c = te.compute((8, 8), lambda i, j: te.sum(a2[i, k] * b[k, j], axis=k), name="C")
    s, ii = tiled(c, (4, 4, 4))
    s[c].tensorize(ii, micro())
    with pytest.raises(ScheduleError, match="C is tensorized by gemm, and would not") as caught:
        s[a2].compute_inline()
    assert caught.value.hint.startswith("call compute_inline before tensorize; ")


def test_nothing_is_computed_inside() -> None:
    a, b = te.placeholder((8, 8), name="A"), te.placeholder((8, 8), name="B")
    a2 = te.compute((8, 8), lambda i, j: a[i, j] + 1.0, name="A2")
    k = te.reduce_axis((0, 8), name="k")
    c = te.compute((8, 8), lambda i, j: te.sum(a2[i, k] * b[k, j], axis=k), name="C")
    s, ii = tiled(c, (4, 4, 4))
    s[a2].compute_at(s[c], ii)
    with pytest.raises(ScheduleError, match=r"A2 is computed inside i\.inner"):
        s[c].tensorize(ii, micro())


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("define void @f(" + "i32, " * 8 + "i32) {\n  nonsense\n}", "LLVM refuses the text of f"),
        ("define void @f(" + "i64, " * 8 + "i64) {\n  ret void\n}", r"f takes \(i64, i64"),
    ],
)
def test_texts_that_llvm_refuses(text: str, reason: str) -> None:
    s, ii = tiled(product(4, 4, 4), (4, 4, 4))
    s["C"].tensorize(ii, gemm(name="broken", cpu=te.llvm_function(text)))
    with pytest.raises(te.BackendError, match=reason):
        te.build(s, "cpu")


def test_printed(golden: Any) -> None:
    s, ii = tiled(product(12, 20, 8), (4, 4, 4))
    s["C"].tensorize(ii, micro())
    cpu, triton = te.lower(s, "cpu", check=True), te.build(s, "triton-interpret").source
    golden("\n".join([str(s), "", str(cpu), triton]))


def test_the_trace_names_the_intrinsic() -> None:
    c = product(12, 20, 8)
    s, ii = tiled(c, (4, 4, 4))
    s["C"].tensorize(ii, micro(name="by_name"))
    assert 's["C"].tensorize(i_inner, "by_name")' in s.as_python()
    assert str(te.replay(c, s.trace)) == str(s)
