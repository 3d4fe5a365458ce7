"""Scripts written for TVM's tensor expressions, with only the import changed: on the CPU, and those
written for threads in Triton, as programs of tiles."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import pytest
from te_scripts import SCRIPTS, run, te

for part in (
    "elements",
    "schedules",
    "operators",
    "tests",
    "tables",
    "layers",
    "gpu",
    "gpu_products",
    "gpu_convolutions",
):
    import_module(f"te_scripts_{part}")  # each enters its scripts in the table
WRITTEN_FOR_THREADS = [name for name, make in SCRIPTS.items() if "_gpu" in make.__module__]
THROUGH_MEMORY = {"row_sum_reordered", "pooling_with_threads"}
"""What is no tile: a reduction of one program over a serial loop, and windows of a fused loop."""
PRODUCTS = {
    "gemm_shared",
    "gemm_of_the_topi_recipe",
    "gemm_with_local_copies",
    "gemm_of_odd_sizes",
    "batch_matmul_of_topi",
    "epilogue_on_registers",
}


REFUSED = {
    "inline_mixed": r"A1 is also read by A2(.|\n)*inline it",
}
"""What is not there, and what the refusal says: extents that are read, an order of calls in which a
schedule is illegal for a moment."""


@pytest.mark.cpu
@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in REFUSED])
def test_on_the_cpu(name: str) -> None:
    run(SCRIPTS[name](), "cpu")


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_what_to_do(name: str) -> None:
    with pytest.raises(te.TedslError, match=REFUSED[name]):
        SCRIPTS[name]()


@pytest.mark.ptxas
@pytest.mark.parametrize("name", WRITTEN_FOR_THREADS)
def test_threads_as_tiles(name: str) -> None:
    run(SCRIPTS[name](), "triton-interpret")


@pytest.mark.ptxas
@pytest.mark.parametrize(
    ("name", "arch"),
    [
        *((name, "sm_90") for name in WRITTEN_FOR_THREADS),
        *((name, arch) for name in sorted(PRODUCTS) for arch in ("sm_80", "sm_100")),
    ],
)
def test_threads_are_held_in_registers(name: str, arch: str) -> None:
    """Nothing goes through memory, products are those of matrix units, and nothing spills."""
    made = SCRIPTS[name]()
    kernel = te.build(made.schedule, made.args, f"cuda:{arch}")
    assert ("_memory" in kernel.source) == (name in THROUGH_MEMORY)
    assert ("tl.dot" in kernel.source) == (name in PRODUCTS)
    assert all(info.stack == 0 for info in kernel.resources.values())


@pytest.mark.ptxas
def test_the_recipe_of_a_product(golden: Callable[[str], None]) -> None:
    """Two levels of tiles, virtual threads, shared and local copies: one tile, two descriptors."""
    made = SCRIPTS["gemm_of_the_topi_recipe"]()
    golden(te.build(made.schedule, made.args, "cuda:sm_90").source)


def test_a_producer_before_its_reader_is_refused_with_the_order() -> None:
    A = te.placeholder((16,), name="A")
    A1 = te.compute((16,), lambda i: A[i] + 1.0, name="A1")
    A2 = te.compute((16,), lambda i: A1[i] * 2.0, name="A2")
    C = te.compute((16,), lambda i: A1[i] + A2[i], name="C")
    s = te.create_schedule(C.op)
    outer, _ = s[C].split(C.op.axis[0], factor=4)
    with pytest.raises(te.ScheduleError, match=r"first attach A2 inside C or inline it"):
        s[A1].compute_at(s[C], outer)
