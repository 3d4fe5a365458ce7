"""What any schedule of a computation has to move and calculate."""

import numpy as np
import pytest

import tedsl as te
from tedsl.cost.roofline import Roofline, roofline
from tedsl.devices import H200, CpuDevice
from tedsl.dtypes import DType
from tedsl.tensor.tensor import Tensor
from tedsl.workload.extents import Extents
from tedsl.workload.workload import Workload

CPU = CpuDevice("a processor", 4, 256, 16, 1e11, 32 << 10, 1 << 20, 32 << 20, 2e10, 3e9)


def of(tensor: Tensor, facts: object = H200, **sizes: int) -> Roofline:
    return roofline(Extents(Workload.of(tensor), sizes), facts)  # pyright: ignore[reportArgumentType]


def test_a_product_of_matrices_is_bound_by_the_matrix_units():
    a, b = (te.placeholder((4096, 4096), "float16", name=name) for name in "ab")
    found = of(te.nn.matmul(a, b))
    assert found.nbytes == 3 * 2 * 4096**2
    assert found.flops == 2 * 4096**3
    assert found.peak == pytest.approx(H200.tensor[DType.float16])
    assert not found.is_memory_bound
    assert found.seconds == pytest.approx(2 * 4096**3 / H200.tensor[DType.float16])


def test_a_row_operation_is_bound_by_memory():
    x = te.placeholder((4096, 4096), "float32", name="x")
    found = of(te.nn.softmax(x))
    assert found.is_memory_bound
    assert found.seconds == pytest.approx(2 * 4 * 4096**2 / H200.bandwidth)


def test_an_operation_counts_for_the_points_it_depends_on():
    x = te.placeholder((64,), "float32", name="x")
    y = te.compute((64, 32), lambda i, j: te.exp(x[i]), name="y")
    assert of(y).flops == 64


def test_of_a_table_only_the_rows_that_can_be_read_count():
    table = te.placeholder((100_000, 128), "float32", name="table")
    rows = te.placeholder((16,), "int32", name="rows")
    y = te.compute((16, 128), lambda i, j: table[rows[i], j], name="y")
    found = of(y)
    assert found.nbytes == 2 * 16 * 128 * 4 + 16 * 4
    assert found.flops == 0
    assert np.isfinite(found.seconds)


def test_a_condition_leaves_out_its_share():
    x = te.placeholder((256, 256), "float32", name="x")
    k = te.reduce_axis((0, 256), name="k")
    y = te.compute((256,), lambda i: te.sum(x[i, k] * x[i, k], axis=k, where=k <= i), name="y")
    assert of(y).flops == pytest.approx(2 * 256 * 256 / 2, rel=0.05)


def test_symbolic_sizes_have_the_values_tuned_for():
    n = te.var("n")
    x = te.placeholder((n,), "float32", name="x")
    assert of(te.compute((n,), lambda i: x[i] + 1.0, name="y"), n=1000).nbytes == 8000


@pytest.mark.parametrize("extent", [1 << 10, 1 << 17, 1 << 19])
def test_small_arrays_are_in_a_cache_of_the_processor(extent: int):
    x = te.placeholder((extent,), "float32", name="x")
    found = of(te.compute((extent,), lambda i: x[i] * 2.0, name="y"), CPU)
    assert found.bandwidth > 5 * CPU.bandwidth
    large = te.placeholder((1 << 24,), "float32", name="x")
    far = of(te.compute((1 << 24,), lambda i: large[i] * 2.0, name="y"), CPU)
    assert far.bandwidth == pytest.approx(2.5e10)
