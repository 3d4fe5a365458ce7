"""Externs: what they mean, what they are called with, and which definitions are refused."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from externs import (
    Arrays,
    between,
    floats,
    input_of,
    one,
    running_sum,
    several,
    sort_rows,
    split_even,
)

import tedsl as te
from tedsl.tensor.printer import print_graph
from tedsl.tensor.tensor import ExternOp

A = te.placeholder((4, 6), name="A")
KERNEL = """
import triton
import triton.language as tl

@triton.jit
def twice(x, y, n, BLOCK: tl.constexpr = 16):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)
"""


def test_the_operation() -> None:
    c = between(sort_rows)
    e = next(stage.op for stage in te.create_schedule(c).stages if stage.name == "E")
    assert isinstance(e, ExternOp)
    assert str(e) == "E = extern(B; sort_rows)  # float32[n, 5]"
    assert print_graph(c).splitlines()[2] == "E = extern(B; sort_rows)  # float32[n, 5]"


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_the_function_is_the_meaning(rows: int) -> None:
    c = between(sort_rows)
    a = floats(rows, 5)
    (found,) = te.evaluate(c, {input_of(c): a})
    b = a * 2 + 1
    np.testing.assert_allclose(found, np.sort(b, axis=1) - b, rtol=1e-6)


def test_several_outputs_of_their_own_shapes() -> None:
    even, total = several(te.extern([(4, 3), (4,)], [A], split_even, dtype=["float32", "float64"]))
    assert [even.ndim, total.ndim] == [2, 1]
    assert [even.name, total.name] == ["extern.v0", "extern.v1"]
    both = te.compute((4, 3), lambda i, j: even[i, j].astype("float64") + total[i])
    a = floats(4, 6)
    (found,) = te.evaluate(both, {A: a})
    np.testing.assert_allclose(found, a[:, ::2] + a.sum(1, dtype=np.float64)[:, None])


def test_a_c_function() -> None:
    c = between(running_sum)
    a = floats(3, 5)
    (found,) = te.evaluate(c, {input_of(c): a})
    b = a * 2 + 1
    np.testing.assert_allclose(found, np.cumsum(b, axis=1) - b, rtol=1e-5)
    address = ctypes.cast(running_sum, ctypes.c_void_p).value
    by_address = between(te.c_function(address, "running"))
    np.testing.assert_array_equal(te.evaluate(by_address, {input_of(by_address): a})[0], found)
    with pytest.raises(te.BackendError, match="returned 7"):
        wide = between(running_sum, m=101)
        te.evaluate(wide, {input_of(wide): floats(3, 101)})


def test_a_function_of_torch_tensors() -> None:
    torch = pytest.importorskip("torch")

    def sorted_rows(ins: Arrays, outs: Arrays) -> Any:
        assert isinstance(ins[0], torch.Tensor)
        return torch.sort(ins[0], dim=1).values

    c = between(te.torch_function(sorted_rows))
    a = floats(3, 5)
    b = a * 2 + 1
    (found,) = te.evaluate(c, {input_of(c): a})
    np.testing.assert_allclose(found, np.sort(b, axis=1) - b, rtol=1e-6)


def test_inputs_are_read_only() -> None:
    def overwrite(ins: Arrays, outs: Arrays) -> None:
        ins[0][...] = 0

    with pytest.raises(ValueError, match="read-only") as caught:
        te.evaluate(one(te.extern((4, 6), [A], overwrite, name="E")), {A: floats(4, 6)})
    assert "in the extern E, which calls overwrite" in caught.value.__notes__


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda ins, outs: ins[0][:2], r"returned float32\[2, 6\]"),
        (lambda ins, outs: ins[0].astype("float64"), r"returned float64\[4, 6\]"),
        (lambda ins, outs: (ins[0], ins[0]), r"returned float32\[4, 6\], float32\[4, 6\]"),
        (lambda ins, outs: "evaluate", "returned str"),
    ],
)
def test_results_must_fit(made: Any, reason: str) -> None:
    e = one(te.extern((4, 6), [A], made, name="E"))
    with pytest.raises(te.BackendError, match=reason) as caught:
        te.evaluate(e, {A: floats(4, 6)})
    assert "float32[4, 6]" in dict(caught.value.facts)["allowed"]
    assert "fill the outputs in place" in caught.value.hint


def statement(ins: Any, outs: Any) -> Any:
    return te.tir.call_extern("int32", "matmul", ins[0], outs[0])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"fcompute": statement}, "builds statements"),
        ({"fcompute": 3}, "3 is no function"),
        ({"fcompute": te.triton_kernel(KERNEL, 1)}, "was given as fcompute"),
        ({"inputs": [A, 3]}, "the inputs are"),
        ({"shape": []}, "no dimensions|no outputs|dtype"),
        ({"shape": (-1,)}, "below 0"),
        ({"dtype": ["float32", "int8"]}, "2 dtypes are given for 1 outputs"),
        ({"inputs": []}, "dtype is not given"),
        ({"in_buffers": [A]}, "buffers are not declared here"),
        ({"out_buffers": [A]}, "buffers are not declared here"),
        ({"gpu": 3}, "does not run on a GPU"),
        ({"gpu": te.c_function(running_sum)}, "does not run on a GPU"),
        ({"gpu": te.triton_kernel(KERNEL, 1)}, "takes the size 'n'"),
    ],
)
def test_refused_definitions(arguments: dict[str, Any], reason: str) -> None:
    if arguments.get("shape") == []:
        assert one(te.extern([], [A], sort_rows)).ndim == 0
        return
    given: dict[str, Any] = {"shape": (4, 6), "inputs": [A], "fcompute": sort_rows, **arguments}
    with pytest.raises(te.ExprError, match=reason) as caught:
        te.extern(**given)
    assert caught.value.hint


def test_advice_for_statements_of_tvm() -> None:
    with pytest.raises(te.ExprError, match="called when the kernel runs") as caught:
        te.extern((4, 6), [A], statement)
    assert "te.triton_kernel" in caught.value.hint and "outs[0][...]" in caught.value.hint


def test_what_is_left_out_says_what_to_write() -> None:
    with pytest.raises(te.ExprError, match="takes a PrimFunc"):
        te.extern_primfunc([A], object())
    with pytest.raises(te.ExprError, match="makes a PrimFunc") as caught:
        te.create_prim_func([A])
    assert "te.lower" in caught.value.hint
    with pytest.raises(te.ExprError, match="hybrid scripts are left out") as caught:
        te.hybrid.script(sort_rows)
    assert "what sort_rows computes" in caught.value.hint and "te.scan" in caught.value.hint
    with pytest.raises(te.ExprError, match="no hybrid modules"):
        te.hybrid.build(te.create_schedule(between(sort_rows)), [A])


@pytest.mark.parametrize(
    ("source", "grid", "name", "reason"),
    [
        ("def f(x): pass", 1, None, "no @triton.jit function"),
        (KERNEL, 1, "other", "no @triton.jit function 'other'"),
        (KERNEL, (1, 1, 1, 1), None, "not 1 to 3 extents"),
        ("@triton.jit\ndef f(*x): pass", 1, None, r"f has \* parameters"),
        ("@triton.jit def", 1, None, "is no Python"),
    ],
)
def test_refused_kernels(source: str, grid: Any, name: str | None, reason: str) -> None:
    with pytest.raises(te.ExprError, match=reason):
        te.triton_kernel(source, grid, name)


def test_refused_grids() -> None:
    n, m = te.var("n"), te.var("m")
    x = te.placeholder((n,), name="X")
    with pytest.raises(te.ExprError, match="the grid extent m is not made of"):
        te.extern((n,), [x], sort_rows, gpu=te.triton_kernel(KERNEL, m))
    with pytest.raises(te.ExprError, match="takes 1 parameters"):
        te.extern((n,), [x], sort_rows, gpu=te.triton_kernel("@triton.jit\ndef f(x): pass", m))


@pytest.mark.parametrize("pointer", [0, -5, True, "f", None])
def test_refused_pointers(pointer: Any) -> None:
    with pytest.raises(te.ExprError, match="is no C function"):
        te.c_function(pointer)


def test_no_derivative() -> None:
    c = between(sort_rows)
    with pytest.raises(te.ExprError, match="nothing is known of sort_rows"):
        te.gradient(c, input_of(c))


def test_not_in_the_steps_of_a_scan() -> None:
    n = te.size_var("n")
    x, state = te.placeholder((n, 3), name="X"), te.placeholder((n, 3), name="S")
    first = te.compute((1, 3), lambda t, i: x[0, i], name="first")
    e = one(te.extern((n, 3), [state], sort_rows, name="E"))
    update = te.compute((n, 3), lambda t, i: e[t, i] + state[t - 1, i], name="U")
    with pytest.raises(te.ExprError, match="the extern E reads the state of scan"):
        te.scan(first, update, state)
    outside = one(te.extern((n, 3), [x], sort_rows, name="E"))
    update = te.compute((n, 3), lambda t, i: outside[t, i] + state[t - 1, i], name="U")
    total = one(te.scan(first, update, state))
    a = floats(6, 3)
    rows = np.sort(a, axis=1)
    rows[0] = a[0]
    np.testing.assert_allclose(te.evaluate(total, {x: a})[0], np.cumsum(rows, 0), rtol=1e-5)
