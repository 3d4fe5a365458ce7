"""What passes for right: tolerances, poison, red zones, inputs in range, the reference."""

from dataclasses import replace

import numpy as np
import pytest
from attentions import attention

import tedsl as te
from tedsl.autotune.measure.guarded_buffers import POISON, HostArena
from tedsl.checking import array_chunks
from tedsl.checking import expected_outputs as oracle
from tedsl.checking.expected_outputs import Oracle
from tedsl.checking.random_inputs import ADVERSE, KINDS, index_bounds, make_inputs
from tedsl.checking.sampled_outputs import evaluate_samples
from tedsl.checking.tolerance import Tolerance, mismatch
from tedsl.dtypes import DType
from tedsl.errors import TuneError
from tedsl.runtime.arrays.views import NUMPY_DTYPES
from tedsl.tensor.tensor import Tensor
from tedsl.workload.extents import Extents
from tedsl.workload.workload import Workload


def extents(*outputs: Tensor, **sizes: int) -> Extents:
    return Extents(Workload.of(outputs), sizes)


def matmul(k: int = 64, dtype: str = "float32") -> Tensor:
    a = te.placeholder((8, k), dtype, name="a")
    b = te.placeholder((k, 8), dtype, name="b")
    return te.nn.matmul(a, b)


def test_tolerance_grows_with_the_reduction_and_the_dtype():
    short, long = matmul(16), matmul(4096)
    small = Tolerance.of(extents(short), short)
    large = Tolerance.of(extents(long), long)
    assert large.scaled > 4 * small.scaled
    assert large.scaled < 3e-5
    half = matmul(16, "float16")
    assert Tolerance.of(extents(half), half).relative > 100 * small.relative


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_a_result_in_8_bits_may_be_a_neighbour(dtype: str):
    x = te.placeholder((64, 64), name="x")
    out = te.compute((64, 64), lambda i, j: (x[i, j] * 2.0).astype(dtype), name="out")
    tolerance = Tolerance.of(extents(out), out)
    kind = NUMPY_DTYPES[DType(dtype)]
    want = np.full((8,), 16.0).astype(kind)
    near, far = want.copy(), want.copy()
    near.view(np.uint8)[3] += 1
    far[3] = 64.0
    assert mismatch(near, want, tolerance, "y") is None
    assert mismatch(far, want, tolerance, "y") is not None
    assert mismatch(np.full((8,), np.nan).astype(kind), want, tolerance, "y") is not None


def test_inputs_of_8_bits_are_finite():
    x = te.placeholder((64, 64), "float8_e4m3fn", name="x")
    y = te.placeholder((64, 64), "float8_e5m2", name="y")
    out = te.nn.scaled_matmul(x, y)
    for kind in ("random", "extreme", "rows", "masked"):
        made = make_inputs(extents(out), 3, kind)
        assert all(np.isfinite(array.astype("f4")).all() for array in made.values()), kind
        assert all(array.astype("f4").any() for array in made.values()), kind


def test_right_and_wrong_results():
    tolerance = Tolerance(1e-6, 1e-6, 0.0)
    want = np.array([1.0, -2.0, np.nan, np.inf, 0.0], np.float32)
    assert mismatch(want.copy(), want, tolerance, "y") is None
    near = want * np.float32(1.0000001)
    assert mismatch(near, want, tolerance, "y") is None
    for place, value in ((0, 1.01), (0, np.nan), (2, 3.0), (3, -np.inf), (3, 1.0), (4, 1e-3)):
        got = want.copy()
        got[place] = value
        text = mismatch(got, want, tolerance, "y")
        assert text is not None
        assert text.startswith(f"y[{place}] is ")
        assert text.endswith("1 of 5 are wrong")


def test_overflow_at_the_edge_of_float16():
    tolerance = Tolerance(4e-3, 1e-3, 0.0)
    want = np.array([65504.0], np.float16)
    assert mismatch(np.array([np.inf], np.float16), want, tolerance, "y") is None
    assert mismatch(np.array([-np.inf], np.float16), want, tolerance, "y") is not None
    assert mismatch(np.array([np.inf], np.float16), want / 2, tolerance, "y") is not None


def test_integers_and_bools_are_exact_unless_they_come_from_floats():
    x = te.placeholder((1000,), "float32", name="x")
    sharp = te.compute((1000,), lambda i: x[i] > 0.5, name="sharp")
    soft = te.compute((1000,), lambda i: te.exp(x[i]) > 1.5, name="soft")
    assert Tolerance.of(extents(sharp), sharp).flips == 0.0
    assert Tolerance.of(extents(soft), soft).flips > 0.0
    want = np.zeros(100, np.int32)
    got = want.copy()
    got[7] = 1
    assert "y[7] is 1, not 0" in str(mismatch(got, want, Tolerance(1.0, 1.0, 0.0), "y"))


def test_an_output_that_is_not_written_is_wrong_in_every_dtype():
    arena = HostArena()
    for dtype in DType:
        got = arena.empty((4,), dtype)
        want = np.zeros(4, got.array.dtype)
        assert mismatch(got.array, want, Tolerance(1.0, 1.0, 0.0), "y") is not None, dtype


def test_zones_show_what_was_written_beside_an_array():
    arena = HostArena()
    guarded = arena.put(np.arange(6, dtype=np.float32).reshape(2, 3), DType.float32)
    assert guarded.array.ctypes.data % 128 == 0
    assert arena.intact(guarded)
    guarded.array[...] = 5.0
    assert arena.intact(guarded)
    for place in (0, 511, guarded.raw.size - 1, guarded.raw.size - 512):
        guarded.raw[place] = 0
        assert not arena.intact(guarded)
        guarded.raw[place] = POISON
    arena.poison(guarded)
    assert np.isnan(guarded.array).all()


def test_a_written_input_is_seen():
    arena = HostArena()
    for count in (1, 7, 1000):
        guarded = arena.put(np.zeros(count, np.int8), DType.int8)
        before = arena.checksum(guarded)
        assert arena.checksum(guarded) == before
        guarded.array[-1] = 1
        assert arena.checksum(guarded) != before
        guarded.array[-1] = 0
        for place in range(-8, 0):
            guarded.raw[place] = 0
            assert arena.checksum(guarded) != before
            guarded.raw[place] = POISON


def test_large_outputs_are_compared_in_pieces():
    arena = HostArena()
    want = np.linspace(0, 1, 700_000, dtype=np.float32).reshape(700, 1000)
    wanted = arena.want(want, Tolerance(1e-6, 1e-6, 0.0))
    got = arena.put(want, DType.float32)
    assert arena.wrong(got, wanted, "y") is None
    got.array[699, 3] = 2.0
    got.array[699, 999] = np.nan
    assert arena.wrong(got, wanted, "y") == (
        f"y[699, 3] is 2.0, not {want[699, 3]}; 2 of 700000 are wrong"
    )


def test_inputs_are_the_same_in_every_process_and_in_range():
    table = te.placeholder((9, 4), "float32", name="table")
    rows = te.placeholder((50,), "int64", name="rows")
    out = te.compute((50, 4), lambda i, j: table[rows[i], j], name="out")
    size = extents(out)
    one, two = make_inputs(size, 5, "random"), make_inputs(size, 5, "random")
    for tensor, array in one.items():
        np.testing.assert_array_equal(array, two[tensor])
    assert list(index_bounds(size).values()) == [9]
    for kind in ("random", "extreme"):
        drawn = make_inputs(size, 5, kind)[rows]
        assert drawn.dtype == np.int64
        assert 0 <= drawn.min() <= drawn.max() < 9


def test_extreme_inputs_are_large_and_divisors_are_not_zero():
    x = te.placeholder((500,), "float32", name="x")
    n = te.placeholder((500,), "int32", name="n")
    y = te.compute((500,), lambda i: x[i], name="y")
    assert np.abs(make_inputs(extents(y), 0, "extreme")[x]).max() > 1000
    z = te.compute((500,), lambda i: n[i] // n[499 - i], name="z")
    for kind in ("random", "extreme"):
        assert make_inputs(extents(z), 0, kind)[n].min() > 0


def test_a_symbolic_size_needs_a_value():
    n = te.var("rows")
    x = te.placeholder((n,), "float32", name="x")
    y = te.compute((n,), lambda i: x[i], name="y")
    with pytest.raises(TuneError, match="'rows' is symbolic and has no value"):
        extents(y)
    assert extents(y, rows=7).shape(y) == (7,)


@pytest.mark.cpu
def test_the_default_kernel_is_the_reference_of_what_is_large(monkeypatch: pytest.MonkeyPatch):
    y = matmul(32)
    size = extents(y)
    inputs = make_inputs(size, 0, "random")
    whole = Oracle(size, "cpu")
    want = whole.outputs(inputs, 0)[0]
    monkeypatch.setitem(oracle.WHOLE, "cpu", 0)
    by_kernel = Oracle(size, "cpu")
    assert by_kernel.factor == 2.0
    got = by_kernel.outputs(inputs, 0)[0]
    assert "kernel, checked" in by_kernel.source
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.cpu
def test_a_default_kernel_that_is_wrong_is_no_reference(monkeypatch: pytest.MonkeyPatch):
    y = matmul(32)
    size = extents(y)
    inputs = make_inputs(size, 0, "random")
    want = Oracle(size, "cpu").outputs(inputs, 0)[0]
    monkeypatch.setitem(oracle.WHOLE, "cpu", 0)
    monkeypatch.setattr(oracle, "run_kernel", lambda *_: [want + 1])
    fallen_back = Oracle(size, "cpu")
    np.testing.assert_array_equal(fallen_back.outputs(inputs, 0)[0], want)
    assert fallen_back.source == "numpy oracle"
    monkeypatch.setattr(oracle, "MOST", 0)
    with pytest.raises(TuneError, match="no reference to check candidates against"):
        Oracle(size, "cpu").outputs(inputs, 0)


def test_what_cancels_has_noise() -> None:
    x = te.placeholder((64,), "float32", name="x")
    small = te.compute((64,), lambda i: (x[i] + 1000.0) - 1000.0, name="small")
    size = extents(small)
    values = np.linspace(1000, 2000, 64, dtype=np.float32)
    data = {op.outputs[0]: values for op in size.workload.placeholders}
    reference = Oracle(size, "cpu")
    (found,) = reference.outputs(data, 0)
    (noise,) = reference.noise(data, [found], 0)
    assert 1e-5 < noise < 1e-2
    plain = Tolerance.of(size, size.workload.outputs[0])
    off = found + np.float32(2 * noise)
    assert mismatch(off, found, replace(plain, noise=noise), "small") is None
    assert mismatch(found + 1, found, replace(plain, noise=noise), "small") is not None


def chain(rows: int, keys: int) -> Tensor:
    """Attention in bf16: sums of 64, of `keys`, and of `keys` again."""
    q, k, v = (
        te.placeholder((1, 1, n, 64), "bfloat16", name=name)
        for n, name in ((rows, "q"), (keys, "k"), (keys, "v"))
    )
    return te.nn.attention(q, k, v)


def test_a_chain_of_reductions_is_not_held_to_less_than_its_parts() -> None:
    out = chain(256, 2048)
    size = extents(out)
    tolerance = Tolerance.of(size, out)
    assert tolerance.scaled < 0.1
    assert tolerance.relative < 0.15
    inputs = make_inputs(size, 0, "random")
    oracle = Oracle(size, "cpu")
    (found,) = oracle.outputs(inputs, 0)
    (noise,) = oracle.noise(inputs, [found], 0)
    largest = float(np.abs(found.astype(np.float64)).max())
    assert 0 < noise < 0.05 * largest
    bound = replace(tolerance, noise=noise)
    assert mismatch(found, found, bound, "out") is None
    lost = found.astype(np.float64)
    lost[..., 7, :] += 0.5 * largest  # as if keys of one row had been left out
    assert mismatch(lost.astype(found.dtype), found, bound, "out") is not None


def causal(heads: int, rows: int, depth: int, dtype: str) -> Tensor:
    return attention(heads, rows, rows, depth, dtype, causal=True).result


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", [kind for kind in ADVERSE if kind != "huge"])
def test_no_order_of_additions_makes_another_key_the_largest(dtype: str, kind: str) -> None:
    out = causal(24, 16, 32, dtype)
    size = extents(out)
    points = [at.reshape(-1) for at in np.indices(size.shape(out))]
    inputs = make_inputs(size, 0, kind)
    still, moved = (
        evaluate_samples(size, inputs, out, points, shaken=shaken).astype(np.float64)
        for shaken in (False, True)
    )
    assert np.abs(still - moved).max() < 0.02 * np.abs(still).max()
    assert Oracle(size, "cpu").adverse(inputs, [Tolerance.of(size, out)], 0) is not None


def test_a_difference_that_any_order_of_additions_makes_is_no_answer() -> None:
    x = te.placeholder((4, 64), "float32", name="x")
    k = te.reduce_axis((0, 64), name="k")
    total = te.compute((4,), lambda i: te.sum(x[i, k], axis=k), name="total")
    sharp = te.compute((4,), lambda i: te.sigmoid(total[i] * 1e7), name="sharp")
    size = extents(sharp)
    row = np.tile(np.array([1000.1, -1000.1], np.float32), 32)  # adds up to 0, exactly
    data = {op.outputs[0]: np.tile(row, (4, 1)) for op in size.workload.placeholders}
    assert Oracle(size, "cpu").adverse(data, [Tolerance.of(size, sharp)], 0) is None


def test_numbers_do_not_depend_on_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    x = te.placeholder((3, 1000), "bfloat16", name="x")
    size = extents(te.compute((3, 1000), lambda i, j: x[i, j] * 2.0, name="y"))
    monkeypatch.setattr(array_chunks, "PIECE", 256)
    for kind in (*KINDS, *ADVERSE):
        monkeypatch.setattr(array_chunks, "MOST_THREADS", 1)
        (alone,) = make_inputs(size, 5, kind).values()
        monkeypatch.setattr(array_chunks, "MOST_THREADS", 4)
        (shared,) = make_inputs(size, 5, kind).values()
        assert alone.tobytes() == shared.tobytes()
        assert len(np.unique(alone)) > 50


def test_an_output_that_is_read_is_rounded_on_the_way() -> None:
    x = te.placeholder((64,), name="x")
    low = te.compute((64,), lambda i: te.cast(x[i] * 3.0, "bfloat16"), name="low")
    out = te.compute((64,), lambda i: te.cast(low[i], "float32") * 2.0, name="out")
    size = extents(low, out)
    assert Tolerance.of(size, out).scaled > 8 * 2.0**-8
    assert Tolerance.of(extents(low), low).scaled < 1e-4


def test_what_is_computed_of_a_cast_is_rounded_on_the_way() -> None:
    x = te.placeholder((64,), name="x")
    out = te.compute((64,), lambda i: te.cast(te.cast(x[i] * 3.0, "bfloat16"), "float32") * 2.0)
    assert Tolerance.of(extents(out), out).scaled > 8 * 2.0**-8


def test_products_left_to_numpy_count_for_less_than_other_work() -> None:
    product = Oracle(extents(matmul(64)), "cpu")
    x, r = te.placeholder((64, 64), name="x"), te.reduce_axis((0, 64), name="r")
    y = te.placeholder((64, 64), name="y")
    apart = te.compute((64, 64), lambda i, j: te.sum(te.abs(x[i, r] - y[r, j]), axis=r))
    points = Oracle(extents(apart), "cpu")
    assert points.work == 64**3
    assert 20 * product.work < points.work


def test_what_differs_moves_apart_and_what_is_equal_moves_alike() -> None:
    x, y = (te.placeholder((64,), name=name) for name in "xy")
    apart = te.compute((64,), lambda i: x[i] - y[i], name="apart")
    size = extents(apart)
    reference = Oracle(size, "cpu")
    values = np.linspace(1000, 2000, 64, dtype=np.float32)
    for other, low, high in ((values + 1, 1e-4, 1e-2), (values, 0.0, 0.0)):
        data = {op.outputs[0]: values for op in size.workload.placeholders}
        data[size.workload.placeholders[1].outputs[0]] = other
        found = reference.outputs(data, 0)
        (noise,) = reference.noise(data, found, 0, keep_equal=True)
        assert low <= noise <= high
