"""Generated Triton in Triton's interpreter against the loop IR's own interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import triton_irs as t
from triton_check import agree, both, draw, in_triton

from tedsl.backends.triton.emit.module import emit
from tedsl.backends.triton.interpret.client import run
from tedsl.dtypes import DType
from tedsl.errors import BackendError
from tedsl.expr import build as b
from tedsl.expr.nodes import (
    PREDICATES,
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    IfThenElse,
    Unary,
    UnaryOp,
)
from tedsl.ir.nodes import Launch, Load
from tedsl.tensor.reduce import simple_reducer

pytestmark = pytest.mark.ptxas

FLOATS = (DType.float16, DType.bfloat16, DType.float32, DType.float64)
INTEGERS = tuple(DType(f"{u}int{n}") for u in ("", "u") for n in (8, 16, 32, 64))
BOUND = {
    DType.float64: 1e-12,
    DType.float32: 2e-6,
    DType.float16: 2e-3,
    DType.bfloat16: 1.6e-2,
}
DOMAIN = {
    UnaryOp.LOG: "positive",
    UnaryOp.LOG2: "positive",
    UnaryOp.LOG10: "positive",
    UnaryOp.LOG1P: "positive",
    UnaryOp.SQRT: "positive",
    UnaryOp.RSQRT: "positive",
    UnaryOp.ACOSH: "above one",
    UnaryOp.ASIN: "unit",
    UnaryOp.ACOS: "unit",
    UnaryOp.ATANH: "unit",
}


@pytest.mark.parametrize("dtype", [DType.float32, DType.bfloat16])
@pytest.mark.parametrize("columns", [128, 100, 1])
def test_softmax_in_one_tile(dtype: DType, columns: int) -> None:
    agree(both(t.softmax(5, columns, max(2, 1 << (columns - 1).bit_length()), dtype)), BOUND[dtype])


@pytest.mark.parametrize(("rows", "columns"), [(8, 96), (7, 100), (1, 33)])
def test_looped_reduction(rows: int, columns: int) -> None:
    agree(both(t.looped_sum(rows, columns, 32)), 1e-5)


@pytest.mark.parametrize("dtype", [DType.bfloat16, DType.float16, DType.float32])
@pytest.mark.parametrize("size", [(64, 64, 32), (50, 70, 40)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_matmul(dtype: DType, size: tuple[int, int, int], transposed: bool, shared: bool) -> None:
    module = t.matmul(size, (32, 32, 16), dtype, shared=shared, transposed=transposed)
    agree(both(module), 2 * BOUND[dtype])


def test_transposed_accumulator() -> None:
    agree(both(t.matmul_into_columns()), 1e-4)


def test_batched_dot() -> None:
    agree(both(t.batched_matmul(3, 32)), 1e-4)


def test_transpose_add() -> None:
    agree(both(t.transpose_add(50, 16)), 1e-6)


def test_gather() -> None:
    agree(both(t.gather(5, 33, 9)), 0)


def test_tuple_reducer() -> None:
    agree(both(t.arg_max(6, 33)), 0)


@pytest.mark.parametrize(("m", "n"), [(7, 200), (1, 1), (4, 128), (0, 5)])
def test_symbolic_sizes(m: int, n: int) -> None:
    module = t.symbolic_scale()
    agree(both(module, sizes=dict(zip(module.sizes, (m, n), strict=True))), 1e-6)


def test_fused_grid() -> None:
    agree(both(t.fused_grid(3, 5, 7)), 0)


def test_grid_beyond_the_limit_of_its_axis_is_fused_into_the_first() -> None:
    program = emit(t.fused_grid(2, 70000, 1), "cuda")
    assert program.kernels[0].grid_for({}) == (140000, 1, 1)


@pytest.mark.parametrize("nan", [False, True])
def test_maximum_propagates_nan(nan: bool) -> None:
    module = t.softmax(2, 8, 8)
    inputs = draw(module, {})
    if nan:
        inputs[module.inputs[0]][1, 3] = np.nan
    agree(both(module, inputs), 1e-6)


def test_guards_and_unrolled_loops() -> None:
    agree(both(t.guarded_steps(5, 3)), 1e-6)


def test_update_in_memory() -> None:
    agree(both(t.update_in_memory(6, 40)), 1e-5)


@pytest.mark.parametrize(
    "op", [op for op in UnaryOp if op not in (UnaryOp.NOT, UnaryOp.POPCOUNT, UnaryOp.BITS)]
)
@pytest.mark.parametrize("dtype", FLOATS)
def test_unary_of_floats(op: UnaryOp, dtype: DType) -> None:
    out = DType.bool if op in PREDICATES else dtype
    module = t.pointwise(100, 64, (dtype,), out, lambda x: Unary(op, x))
    inputs = draw(module, {}, seed=3)
    x = inputs[module.inputs[0]]
    kind = DOMAIN.get(op, "")
    if kind == "positive":
        x[...] = abs(x) + x.dtype.type(0.125)
    elif kind == "above one":
        x[...] = abs(x) + x.dtype.type(1)
    elif kind == "unit":
        x[...] = np.tanh(np.asarray(x, np.float64)).astype(x.dtype)
    if op in PREDICATES or op in (UnaryOp.SIGN, UnaryOp.ABS, UnaryOp.NEG):
        x[:4] = [np.nan, np.inf, -np.inf, 0]
    if op is UnaryOp.ROUND:
        x[:4] = [0.5, 1.5, -2.5, 2.5]
    agree(both(module, inputs), BOUND[dtype])


@pytest.mark.parametrize(
    "op",
    [
        BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.DIV, BinaryOp.FLOORDIV,
        BinaryOp.FLOORMOD, BinaryOp.MIN, BinaryOp.MAX, BinaryOp.POW, BinaryOp.ATAN2,
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", FLOATS)
def test_binary_of_floats(op: BinaryOp, dtype: DType) -> None:
    module = t.pointwise(100, 64, (dtype, dtype), dtype, lambda x, y: Binary(op, x, y))
    inputs = draw(module, {}, seed=4)
    if op is BinaryOp.POW:
        x = inputs[module.inputs[0]]
        x[...] = abs(x)
    if op in (BinaryOp.MIN, BinaryOp.MAX):
        inputs[module.inputs[0]][:2] = np.nan
        inputs[module.inputs[1]][1:3] = np.nan
    agree(both(module, inputs), BOUND[dtype])


@pytest.mark.parametrize("op", [op for op in BinaryOp if op not in (BinaryOp.DIV, BinaryOp.ATAN2)])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_binary_of_integers(op: BinaryOp, dtype: DType) -> None:
    module = t.pointwise(60, 64, (dtype, dtype), dtype, lambda x, y: Binary(op, x, y))
    inputs = draw(module, {}, seed=5)
    x, y = (inputs[buffer] for buffer in module.inputs)
    if dtype.info.lowest:
        x[::2] = -x[::2] - 3
        if op not in (BinaryOp.POW, BinaryOp.SHL, BinaryOp.SHR):
            y[::3] = -y[::3]
    divides = (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD, BinaryOp.TRUNCDIV, BinaryOp.TRUNCMOD)
    if op in divides:
        y[y == 0] = 3
    if op in (BinaryOp.ADD, BinaryOp.MUL):
        x[:2] = dtype.info.highest
    agree(both(module, inputs), 0)


@pytest.mark.parametrize("dtype", [*INTEGERS, DType.bool])
def test_unary_of_integers(dtype: DType) -> None:
    for op in (UnaryOp.NOT, UnaryOp.ABS, UnaryOp.SIGN, UnaryOp.POPCOUNT, UnaryOp.NEG):
        if dtype is DType.bool and op is not UnaryOp.NOT:
            continue
        module = t.pointwise(60, 64, (dtype,), dtype, lambda x, op=op: Unary(op, x))
        inputs = draw(module, {}, seed=6)
        x = inputs[module.inputs[0]]
        if dtype.info.lowest:
            x[::2] = -x[::2] - 3
        agree(both(module, inputs), 0)


@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS, DType.bool])
@pytest.mark.parametrize("target", [*FLOATS, *INTEGERS, DType.bool])
def test_casts(source: DType, target: DType) -> None:
    if source is target:
        return
    module = t.pointwise(60, 64, (source,), target, lambda x: Cast(x, target))
    inputs = draw(module, {}, seed=7)
    x = inputs[module.inputs[0]]
    if target.info.lowest == 0 and source is not DType.bool:
        x[...] = abs(x)
    agree(both(module, inputs), 0)


@pytest.mark.parametrize("dtype", [DType.bfloat16, DType.float32, DType.int8, DType.uint64])
def test_comparisons_and_select(dtype: DType) -> None:
    for op in CompareOp:

        def value(x: Expr, y: Expr, op: CompareOp = op) -> Expr:
            return b.select(Compare(op, x, y), x, Const(1, dtype))

        agree(both(t.pointwise(60, 64, (dtype, dtype), dtype, value)), 0)


def test_lazy_branches_load_under_their_condition() -> None:
    """The address in the branch not taken is outside of its buffer."""
    small = t.mem("small", (8,))

    def value(x: Expr) -> Expr:
        assert isinstance(x, Load)
        (place,) = x.indices
        inside = b.lt(place, 8)
        return IfThenElse(inside, Load(small, (place,)), x)

    module = t.pointwise(60, 16, (DType.float32,), DType.float32, value)
    module = t.with_input(module, small)
    inputs = draw(module, {})
    (found,) = in_triton(module, inputs, {})
    x, few = (inputs[buffer] for buffer in module.inputs)
    np.testing.assert_array_equal(found, np.concatenate([few, x[8:]]))


def test_a_store_outside_is_noticed() -> None:
    module = t.pointwise(64, 64, (DType.float32,), DType.float32, lambda x: x)
    arrays = draw(module, {})
    arrays[module.outputs[0]] = np.zeros(60, np.float32)
    with pytest.raises(BackendError, match="wrote outside of Y"):
        run(emit(module, "triton-interpret"), arrays)


def test_a_missing_size_is_named() -> None:
    module = t.symbolic_scale()
    arrays = {buffer: np.zeros((4, 4), np.float32) for buffer in (*module.inputs, *module.outputs)}
    with pytest.raises(BackendError, match=r"(?s)size 'm' has no value.*pass all"):
        run(emit(module, "triton-interpret"), arrays, {})


def test_a_wrong_array_is_named() -> None:
    module = t.transpose_add(16, 16)
    arrays = {buffer: np.zeros((16, 16)) for buffer in (*module.inputs, *module.outputs)}
    with pytest.raises(BackendError, match=r"(?s)array for 'X' is float64.*float32"):
        run(emit(module, "triton-interpret"), arrays)


def test_a_crash_of_the_interpreter_is_an_error_and_the_next_call_works() -> None:
    long = t.transpose_add(512, 16)  # hundreds of programs: the limit comes first
    with pytest.raises(BackendError, match=r"(?s)interpreter ended with status.*smaller problem"):
        both(long, timeout=1e-3)
    agree(both(t.transpose_add(16, 16)), 1e-6)


def test_launch_options_reach_the_kernel() -> None:
    module = t.matmul((64, 64, 32), (32, 32, 16), launch=Launch(num_warps=8, num_stages=2))
    options = emit(module, "cuda").kernels[0].options()
    assert options == {"num_warps": 8, "num_stages": 2, "enable_fp_fusion": True}


@pytest.mark.parametrize("op", [BinaryOp.ADD, BinaryOp.MUL, BinaryOp.MIN, BinaryOp.MAX])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_reductions(op: BinaryOp, dtype: DType) -> None:
    module = t.reduce_rows(6, 20, dtype, simple_reducer(op, dtype))
    inputs = draw(module, {}, seed=8)
    if op is BinaryOp.MUL:
        x = inputs[module.inputs[0]]
        x[...] = np.sign(np.asarray(x, np.float64)).astype(x.dtype) + x.dtype.type(1)
    agree(both(module, inputs), 4 * BOUND.get(dtype, 0))


@pytest.mark.parametrize("op", [BinaryOp.AND, BinaryOp.OR])
def test_reductions_of_truth_values(op: BinaryOp) -> None:
    agree(both(t.reduce_rows(6, 3, DType.bool, t.bool_reducer(op))), 0)


def test_a_grid_axis_inside_a_serial_loop() -> None:
    module = t.inner_program(6)
    agree(both(module), 0)
    assert emit(module, "cuda").kernels[0].grid_for({}) == (6, 1, 1)


def test_a_mask_of_scalars_and_tiles() -> None:
    agree(both(t.scalar_and_tile_mask(5)), 1e-6)


@pytest.mark.parametrize("dtype", [DType.float16, DType.float32, DType.float64])
def test_the_sign_of_minus_zero(dtype: DType) -> None:
    """It was -0.0; the reference says 0.0."""
    module = t.pointwise(4, 4, (dtype,), dtype, lambda x: Unary(UnaryOp.SIGN, x))
    inputs = draw(module, {})
    inputs[module.inputs[0]][...] = [-0.0, 0.0, -2.0, np.nan]
    ((found, expected),) = both(module, inputs)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found[:3]), np.signbit(expected[:3]))
