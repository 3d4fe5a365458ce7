"""TVM's list of arguments: `te.build(s, [A, B, C])` and `te.lower(s, [A, B, C])`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tedsl as te
from tedsl.counterparts import KERNEL, PACKAGE
from tedsl.ir.printer import print_module


def sums(n: Any = 12) -> tuple[te.Tensor, te.Tensor, te.Tensor, te.Tensor]:
    """C = A + B, D = A - B."""
    A, B = te.placeholder((n,), name="A"), te.placeholder((n,), name="B")
    C = te.compute((n,), lambda i: A[i] + B[i], name="C")
    D = te.compute((n,), lambda i: A[i] - B[i], name="D")
    return A, B, C, D


@pytest.mark.cpu
def test_arguments_in_the_order_of_the_list():
    A, B, C, D = sums(te.size_var("n"))
    s = te.create_schedule([C, D])
    s.cache_write(C, "local")
    s[C].vectorize(s[C].split(s[C].op.axis[0], 4)[1])
    kernel = te.build(s, [D, B, A, C], "cpu", name="sums", cache=False)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 7)).astype("float32")
    c, d = np.empty_like(a), np.empty_like(a)
    result = kernel(d, b, a, c)
    np.testing.assert_array_equal(c, a + b)
    np.testing.assert_array_equal(d, a - b)
    assert result[0] is c and result[1] is d
    with pytest.raises(te.BackendError, match=r"2 arguments given, but(.|\n)*sums\(D, B, A, C"):
        kernel(a, b)
    with pytest.raises(te.BackendError, match=r"out= is given(.|\n)*results included; or build"):
        kernel(d, b, a, c, out=c)
    plain = te.build(s, "cpu", cache=False)
    np.testing.assert_array_equal(plain(a, b)[0], c)


@pytest.mark.cpu
def test_scalars_by_position():
    n, scale = te.size_var("n"), te.var("scale", "float32")
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: A[i] * scale, name="B")
    kernel = te.build(te.create_schedule(B), [scale, A, B], "cpu", cache=False)
    a = np.arange(5, dtype="float32")
    b = np.empty_like(a)
    kernel(2.0, a, b)
    np.testing.assert_array_equal(b, a * 2)
    kernel = te.build(te.create_schedule(B), [n, scale, A, B], "cpu", cache=False)
    kernel(5, 2.0, a, b)
    np.testing.assert_array_equal(b, a * 2)
    with pytest.raises(te.BackendError, match=r"1 \(n\) is 4, and dimension 0 of A has 5 elements"):
        kernel(4, 2.0, a, b)
    other = te.var("m")
    with pytest.raises(te.BackendError, match=r"m is no argument of the kernel(.|\n)*from shapes"):
        te.build(te.create_schedule(B), [other, scale, A, B], "cpu", cache=False)
    with pytest.raises(te.BackendError, match=r"scale is missing\n  allowed A, scale, B"):
        te.build(te.create_schedule(B), [A, B], "cpu", cache=False)


def test_lower_takes_the_list():
    A, B, C, _ = sums()
    s = te.create_schedule(C)
    with_list = te.lower(s, [A, B, C], "cpu", simple_mode=True)
    assert print_module(with_list) == print_module(te.lower(s, "cpu"))
    assert print_module(te.lower(s, [A, B, C], target="cpu", name="add")).startswith(
        print_module(te.lower(s, "cpu", name="add"))
    )


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("AB", r"C is missing\n  allowed A, B, C(.|\n)*add C, or leave the list away"),
        ("BC", r"A is missing"),
        ("ABCD", r"D is no argument of the kernel(.|\n)*each input and each result"),
    ],
)
def test_wrong_lists(arguments: str, message: str):
    A, B, C, D = sums()
    known = {"A": A, "B": B, "C": C, "D": D}
    with pytest.raises(te.BackendError, match=message):
        te.build(te.create_schedule(C), [known[name] for name in arguments], "cpu", cache=False)


@pytest.mark.cpu
def test_arguments_that_repeat_take_one_array():
    A, B, C, _ = sums()
    kernel = te.build(te.create_schedule(C), [A, B, A, C, C], "cpu", cache=False)
    a, b = np.arange(24, dtype="float32").reshape(2, 12)
    c = np.empty_like(a)
    kernel(a, b, a, c, c)
    np.testing.assert_array_equal(c, a + b)
    with pytest.raises(te.BackendError, match=r"3 \(A\) is another array than argument 1"):
        kernel(a, b, b, c, c)
    with pytest.raises(
        te.BackendError, match=r"5 \(C\) is another array(.|\n)*the same array twice"
    ):
        kernel(a, b, a, c, b)


@pytest.mark.cpu
@pytest.mark.parametrize("place", ["root", "attached", "inlined", "rewritten"])
def test_results_in_between_are_stored(place: str):
    """Of a kernel of its own, or computed once more; nothing is of what is inlined."""
    A = te.placeholder((8, 6), name="A")
    B = te.compute((8, 6), lambda i, j: A[i, j] + 1.0, name="B")
    C = te.compute((8, 6), lambda i, j: B[i, j] * 2.0, name="C")
    s = te.create_schedule(C)
    if place == "attached":
        s[B].compute_at(s[C], s[C].op.axis[0])
    elif place == "inlined":
        s[B].compute_inline()
    elif place == "rewritten":
        s.cache_write(B, "local")
    before = str(s)
    kernel = te.build(s, [A, B, C], "cpu", cache=False)
    a = np.arange(48, dtype="float32").reshape(8, 6)
    b, c = np.zeros_like(a), np.zeros_like(a)
    kernel(a, b, c)
    np.testing.assert_array_equal(c, (a + 1) * 2)
    np.testing.assert_array_equal(b, 0 if place == "inlined" else a + 1)
    assert str(s) == before


def test_what_is_no_list_and_no_tensor():
    A, B, C, _ = sums()
    s = te.create_schedule(C)
    wrong: Any = C
    with pytest.raises(te.BackendError, match=r"the arguments are Tensor, not a list"):
        te.lower(s, wrong)
    wrong = [A, B, C.op]
    with pytest.raises(te.BackendError, match=r"an argument is ComputeOp(.|\n)*te.placeholder and"):
        te.lower(s, wrong, "cpu")
    with pytest.raises(te.BackendError, match=r"unknown target 'llwm'"):
        te.build(s, [A, B, C], "llwm")


@pytest.mark.cpu
def test_names_of_tvm():
    A, B, C, _ = sums()
    names: Any = te
    kernel: Any = te.build(te.create_schedule(C), [A, B, C], "cpu", cache=False)
    with pytest.raises(AttributeError, match=r"no attribute 'get_global_func'\n  do .*kernels are"):
        names.get_global_func("add")
    with pytest.raises(AttributeError, match=r"tedsl has no attribute 'no_such_name'"):
        names.no_such_name()
    with pytest.raises(
        te.BackendError, match=r"(?s)what this kernel was made of .* do .*tvm\.build"
    ):
        kernel.export_library("add.so")
    assert not hasattr(te, "auto_scheduler")


def test_advice_is_for_missing_names_only():
    assert not [name for name in PACKAGE if name in vars(te)]
    assert not [name for name in KERNEL if name in vars(te.Kernel)]
