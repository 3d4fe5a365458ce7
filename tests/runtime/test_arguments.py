"""Every argument that does not fit is refused: named, with what is allowed and what to do."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fake_kernels import buffer, kernel, module

import tedsl as te
from tedsl.dtypes import DType
from tedsl.errors import BackendError
from tedsl.expr.nodes import Binary, BinaryOp, Const, Expr, Var
from tedsl.runtime.kernel import Kernel

n = Var("n", DType.int32, lower=0)
m = Var("m", DType.int32, lower=0)


def plus(a: Expr, b: int) -> Expr:
    return Binary(BinaryOp.ADD, a, Const(b, DType.int32))


def add(a: Any, b: Any, c: Any, *sizes: int) -> None:
    np.add(a, b, out=c)


def fixed() -> Kernel:
    a, b, c = (buffer(name, 4, 3) for name in "ABC")
    return kernel(module([a, b], [c]), add)


def symbolic() -> Kernel:
    a, b, c = (buffer(name, n, m) for name in "ABC")
    return kernel(module([a, b], [c], [n, m]), add)


A = np.arange(12, dtype=np.float32).reshape(4, 3)
B = np.ones((4, 3), np.float32)


def test_outputs_are_made_and_returned() -> None:
    run = fixed()
    assert np.array_equal(run(A, B), A + 1)
    assert np.array_equal(run(A, B), A + 1)


@pytest.mark.parametrize(("dtype", "bits"), [("bfloat16", "uint16"), ("float8_e5m2", "uint8")])
def test_bits_of_a_short_float_are_viewed(dtype: str, bits: str) -> None:
    """Converted, they would be other numbers."""
    x = te.placeholder((4,), dtype, name="x")
    y = te.compute((4,), lambda i: te.cast(x[i], "float32") * 2.0, name="y")
    kernel, given = te.build(y, target="cpu"), np.ones(4, dtype)
    with pytest.raises(BackendError, match=rf"is {bits}, (.|\n)*x\.view\(ml_dtypes\.{dtype}\)"):
        kernel(given.view(bits))
    np.testing.assert_array_equal(kernel(given.view(bits).view(dtype)), 2.0)


def test_out_is_filled_and_returned() -> None:
    run, out = fixed(), np.zeros((4, 3), np.float32)
    for _ in range(3):
        assert run(A, B, out=out) is out
        assert np.array_equal(out, A + 1)
        out[:] = 0
    assert run(A, B, out=(out,)) is out


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((A,), r"f: 1 arrays given, 2 expected\n.*f\(A: float32\[4, 3\], B: .*\) -> C: "),
        ((A, B, B), r"3 arrays given, 2 expected"),
        ((A, B[0]), r"argument 2 \(B\): has 1 dimensions, 2 expected(.|\n)*given   float32\[3\]"),
        ((A, B[:, :2].copy()), r"argument 2 \(B\): dimension 1 is 2, 3 expected(.|\n)*te\.var"),
        ((A, B.astype(np.float64)), r"\(B\): is float64, float32 expected(.|\n)*astype\('float32'"),
        ((A.astype(np.complex64), B), r"\(A\): is complex64, float32 expected"),
        ((A, B.astype(">f4")), r"\(B\): is >f4, float32 expected"),
        ((A, B.tolist()), r"argument 2 \(B\): list is not an array(.|\n)*numpy\.asarray"),
    ],
)  # fmt: skip
def test_unfit_inputs(inputs: tuple[Any, ...], message: str) -> None:
    run = fixed()
    for _ in range(2):
        with pytest.raises(BackendError, match=message):
            run(*inputs)
    run(A, B)
    with pytest.raises(BackendError, match=message):
        run(*inputs)


def test_a_strided_input_is_copied_with_a_warning_at_each_call() -> None:
    run = fixed()
    turned = np.arange(12, dtype=np.float32).reshape(3, 4).T
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match=r"A is not contiguous \(strides \[1, 4\].*copied"):
            assert np.array_equal(run(turned, B), turned + 1)
    run(A, B)
    with pytest.raises(BackendError, match=r"\(B\): dimension 1 is 2, 3 expected"):
        run(A, np.ones((2, 4), np.float32).T)


def test_inputs_by_name() -> None:
    run = fixed()
    assert np.array_equal(run(B=B, A=A), run(A, B)) and np.array_equal(run(A, B=B), run(A, B))
    for given, named, message in (
        ((A,), {"A": A, "B": B}, "'A' is given twice"),
        ((), {"A": A}, "argument 'B' is missing"),
        ((A, B), {"B": B}, "'B' is given twice"),
        ((A,), {"b": B}, r"no scalar 'b'(.|\n)*did you mean B\?"),
    ):
        with pytest.raises(BackendError, match=message):
            run(*given, **named)


def unaligned() -> np.ndarray:
    return np.zeros(49, np.uint8)[1:].view(np.float32).reshape(4, 3)


def test_unaligned_input_is_refused_also_after_an_aligned_one() -> None:
    run = fixed()
    run(A, B)
    with pytest.raises(BackendError, match=r"argument 1 \(A\): is not aligned"):
        run(unaligned(), B)


def test_elements_aligned_but_not_to_eight_bytes() -> None:
    run = fixed()
    shifted = np.arange(13, dtype=np.float32)[1:].reshape(4, 3)
    for _ in range(2):
        assert np.array_equal(run(shifted, B), shifted + 1)


def frozen() -> np.ndarray:
    array = np.zeros((4, 3), np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.zeros((4, 4), np.float32), r"out= \(C\): dimension 1 is 4, 3 expected"),
        (np.zeros((4, 3)), r"out= \(C\): is float64, float32 expected"),
        (np.zeros((3, 4), np.float32).T, r"out= \(C\): is not contiguous"),
        ((B, B), r"out=: 2 arrays given, the kernel has 1 outputs(.|\n)*C: float32\[4, 3\]"),
        ((), r"out=: 0 arrays given, the kernel has 1 outputs"),
        (frozen(), r"out= \(C\): is read-only(.|\n)*fresh array"),
        (A, r"out= \(C\): shares memory with input A(.|\n)*separate array"),
        ("no", r"out= \(C\): str is not an array"),
        (np.float32(3), r"out= \(C\): has 0 dimensions"),
    ],
)  # fmt: skip
def test_unfit_outputs(out: Any, message: str) -> None:
    run = fixed()
    for _ in range(2):
        with pytest.raises(BackendError, match=message):
            run(A, B, out=out)
        assert run(A, B, out=np.zeros((4, 3), np.float32)) is not None


def test_partial_overlap_is_refused() -> None:
    a, c = buffer("A", n), buffer("C", n)
    run = kernel(module([a], [c], [n]), lambda x, y, *_: np.copyto(y, x))
    base = np.zeros(12, np.float32)
    for _ in range(2):
        run(base[:6], out=base[6:])
        with pytest.raises(BackendError, match=r"shares memory with input A"):
            run(base[:6], out=base[5:11])


def test_outputs_may_not_overlap_each_other() -> None:
    a, c, d = buffer("A", 4), buffer("C", 4), buffer("D", 4)
    run = kernel(module([a], [c, d]), lambda x, y, z: (np.copyto(y, x), np.copyto(z, x)))
    x, y = np.ones(4, np.float32), np.zeros(8, np.float32)
    one, two = run(x, out=(y[:4], y[4:]))
    assert one is not two
    with pytest.raises(BackendError, match=r"out= \(C\): shares memory with output D"):
        run(x, out=(y[:4], y[3:7]))
    first, second = run(x)
    assert np.array_equal(first, second)


def test_symbolic_sizes_follow_from_the_first_dimension() -> None:
    run = symbolic()
    for shape in ((4, 3), (1, 7), (33, 1), (0, 5), (5, 0)):
        a, b = np.ones(shape, np.float32), np.ones(shape, np.float32)
        assert np.array_equal(run(a, b), a + b)
    message = r"argument 2 \(B\): dimension 0 is 5, 4 \(n\) expected(.|\n)*n = 4, m = 3"
    with pytest.raises(BackendError, match=message):
        run(A, np.ones((5, 3), np.float32))


def test_expressions_in_dimensions_are_checked() -> None:
    a, b, c = buffer("A", n), buffer("B", plus(n, 1)), buffer("C", plus(n, -1))
    run = kernel(module([a, b], [c], [n]), lambda x, y, z, k: np.copyto(z, x[1:] + y[2:]))
    x = np.ones(4, np.float32)
    assert run(x, np.ones(5, np.float32)).shape == (3,)
    with pytest.raises(BackendError, match=r"\(B\): dimension 0 is 4, 5 \(n \+ 1\) expected"):
        run(x, x)
    with pytest.raises(BackendError, match=r"output C would have the shape \[-1\](.|\n)*n = 0"):
        run(x[:0], np.ones(1, np.float32))


def test_scalars_by_name() -> None:
    eps = Var("eps", DType.float32)
    a, c = buffer("A", 3), buffer("C", 3)

    def scale(x: Any, y: Any, e: float, k: int) -> None:
        np.multiply(x, np.float32(e) * k, out=y)

    count = Var("count", DType.int32, lower=1)
    run = kernel(module([a], [c], [eps, count]), scale)
    x = np.ones(3, np.float32)
    assert run(x, eps=2, count=3)[0] == 6
    assert run(x, eps=np.float32(0.5), count=np.int64(2))[0] == 1
    assert run(x, count=2, eps=0.5)[0] == 1
    assert np.signbit(run(x, eps=-0.0, count=1)[0])
    assert not np.signbit(run(x, eps=0.0, count=1)[0])
    assert np.isnan(run(x, eps=float("nan"), count=1)[0])
    for scalars, message in [
        ({"eps": 1.0}, r"scalar 'count' is missing(.|\n)*eps: float32, count: int32(.|\n)*count="),
        ({"eps": 1.0, "count": 1, "n": 4}, r"no scalar 'n'"),
        ({"eps": 1.0, "count": 1.5}, r"count=: float given, int32 expected"),
        ({"eps": 1.0, "count": True}, r"count=: bool given, int32 expected"),
        ({"eps": 10**400, "count": 1}, r"eps = 10+ is outside its range"),
        ({"eps": True, "count": 1}, r"eps=: bool given, float32 expected"),
        ({"eps": np.array(1.0), "count": 1}, r"eps=: ndarray given, float32 expected"),
        ({"eps": "1", "count": 1}, r"eps=: str given, float32 expected"),
        ({"eps": 1.0, "count": 0}, r"count = 0 is outside its range(.|\n)*1 \.\. 2147483647"),
        ({"eps": 1.0, "count": -5}, r"count = -5 is outside its range"),
        ({"eps": 1.0, "count": 2**31}, r"count = 2147483648 is outside its range(.|\n)*wider"),
    ]:
        with pytest.raises(BackendError, match=message):
            run(x, **scalars)


def test_a_size_that_only_the_output_has_is_given_by_name() -> None:
    run = kernel(module([], [buffer("C", n)], [n]), lambda y, k: y.fill(k))
    assert np.array_equal(run(n=3), [3, 3, 3])
    assert run(n=0).shape == (0,)
    with pytest.raises(BackendError, match=r"n = -1 is outside its range(.|\n)*0 \.\. 2147483647"):
        run(n=-1)
    with pytest.raises(BackendError, match=r"scalar 'n' is missing"):
        run()


def test_two_scalars_of_one_name_are_refused() -> None:
    k, l = Var("k"), Var("k")  # noqa: E741
    with pytest.raises(BackendError, match=r"two runtime scalars are called 'k'"):
        kernel(module([], [buffer("C", k, l)], [k, l]), lambda *_: None)


def test_a_scalar_called_out_is_refused() -> None:
    scalar = Var("out", DType.float32)
    with pytest.raises(BackendError, match=r"cannot be called 'out'"):
        kernel(module([], [buffer("C", 2)], [scalar]), lambda *_: None)
    named_self = Var("self", DType.int32)
    run = kernel(module([], [buffer("C", 2)], [named_self]), lambda y, k: y.fill(k))
    assert run(**{"self": 3}).tolist() == [3, 3]


def test_bool_scalars() -> None:
    flag = Var("flag", DType.bool)
    run = kernel(module([], [buffer("C", 2)], [flag]), lambda y, k: y.fill(k))
    assert run(flag=True).tolist() == run(flag=np.True_).tolist() == [1, 1]
    with pytest.raises(BackendError, match=r"flag=: int given, bool expected(.|\n)*Python bool"):
        run(flag=1)


def test_nothing_is_launched_for_empty_outputs() -> None:
    run = symbolic()
    assert run(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)).shape == (0, 3)
    executor: Any = run._executor
    assert executor.launched == 0


def test_an_empty_reduction_still_runs() -> None:
    run = kernel(module([buffer("A", n)], [buffer("C")], [n]), lambda x, y, k: y.fill(x.sum()))
    assert run(np.zeros(0, np.float32)) == 0


def test_bfloat16_and_bool() -> None:
    a, c = buffer("A", 2, dtype=DType.bfloat16), buffer("C", 2, dtype=DType.bool)
    run = kernel(module([a], [c]), lambda x, y: np.greater(x, 0, out=y))
    result = run(np.array([1, -1], ml_dtypes.bfloat16))
    assert result.dtype == np.bool_
    assert result.tolist() == [True, False]


def test_wrong_device() -> None:
    a, c = buffer("A", 2), buffer("C", 2)
    run = kernel(module([a], [c]), lambda x, y: None, device_kind="cuda")
    with pytest.raises(
        BackendError, match=r"\(A\): is on cpu, but the kernel runs on cuda(.|\n)*x\.cuda"
    ):
        run(np.zeros(2, np.float32))
