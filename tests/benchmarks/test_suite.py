"""What the rows of the benchmark say of themselves is consistent, and the small ones are right."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
from pathlib import Path

import child
import expected
import job_tune
import numpy as np
import pytest
import references
import suite
from workload import (
    BEST,
    BEST_COMPILED,
    BEYOND,
    COMPILED,
    COPY,
    CUDNN,
    EAGER,
    FLEX,
    FOREACH,
    LIMIT,
    LINES,
    SCALED,
    B,
    F,
    Workload,
    nbytes,
    shape_of,
)

import tedsl as te

ROWS = suite.workloads()
GPU = [load for load in ROWS if load.target == "cuda" and not load.lacks]
PEERS = ast.parse((Path(__file__).parent / "torch_peers.py").read_text(encoding="utf-8"))
FUNCTIONS = {node.name: node for node in PEERS.body if isinstance(node, ast.FunctionDef)}
FUNCTIONS["short_chain"] = FUNCTIONS["chain"]
# The table of the issue: what each line has to reach.
ASKED = {
    "pointwise": {COPY: 0.98, BEST_COMPILED: 1.0},
    "reductions": {BEST_COMPILED: 1.05, COPY: 0.88},
    "rows short": {BEST_COMPILED: 1.0},
    "rows 4096": {BEST_COMPILED: 1.8},
    "rows 32768": {BEST_COMPILED: 1.65},
    "rows 5000": {BEST_COMPILED: 1.6},
    "rows 4097": {BEST_COMPILED: 1.8},
    "rows 131072": {BEST_COMPILED: 1.8},
    "rows 1048576": {BEST_COMPILED: 2.2},
    "norms": {BEST_COMPILED: 1.03},
    "norms backward": {BEST_COMPILED: 1.8},
    "cross entropy": {BEST_COMPILED: 2.1},
    "cross entropy both": {BEST_COMPILED: 1.7},
    "gemm": {EAGER: 1.02},
    "gemm gelu": {BEST: 1.07},
    "swiglu": {BEST: 1.05},
    "norm gemm": {BEST: 1.1},
    "gemm rows": {BEST: 1.15},
    "fp8": {SCALED: 1.0},
    "attention": {FLEX: 1.2, CUDNN: 0.85},
    "attention variants": {FLEX: 1.2},
    "attention backward": {CUDNN: 0.75},
    "convolution": {BEST_COMPILED: 1.0},
    "depthwise": {BEST_COMPILED: 1.2},
    "horizontal": {COMPILED: 3.0, FOREACH: 1.0},
    "launch": {LIMIT: 1.0},
    "beyond": {},
    "cpu": {},
}
LEAST = {"norms": 0.98, "gemm": 0.93}


def names(loads: list[Workload]) -> list[str]:
    return [load.name for load in loads]


def test_names_are_unique() -> None:
    assert len(set(names(ROWS))) == len(ROWS)


def test_every_line_of_the_table_has_rows_and_its_bar() -> None:
    assert {line.key: {bar.peer: bar.geomean for bar in line.bars} for line in LINES} == ASKED
    least = {line.key: bar.least for line in LINES for bar in line.bars if bar.least}
    assert least == LEAST
    assert {load.line for load in ROWS} == set(ASKED)


@pytest.mark.parametrize("family", ["pointwise", "reductions", "rows"])
def test_a_class_has_both_dtypes_and_odd_sizes(family: str) -> None:
    rows = [load for load in GPU if suite.family_of(load) == family]
    assert {load.sizes["dtype"] for load in rows} >= {F, B}
    assert has_odd_sizes(rows)


@pytest.mark.parametrize("family", ["gemm", "attention", "convolution"])
def test_what_is_asked_in_bfloat16_is_judged_in_it(family: str) -> None:
    rows = [load for load in GPU if suite.family_of(load) == family]
    assert {load.sizes["dtype"] for load in rows} <= {B, "float8_e4m3fn"}
    wider = [load for load in GPU if load.line == BEYOND]
    functions = {load.function for load in rows}
    assert [load for load in wider if load.function in functions]
    assert not any(expected.bars_of(load) for load in wider)


def has_odd_sizes(rows: list[Workload]) -> bool:
    return any(
        tensor.shape[-1].value % 8  # type: ignore
        for load in rows
        for tensor in load.inputs().values()
    )


def test_products_and_convolutions_have_odd_sizes() -> None:
    for family in ("gemm", "convolution"):
        assert has_odd_sizes([load for load in GPU if suite.family_of(load) == family])


@pytest.mark.parametrize("load", GPU, ids=names(GPU))
def test_a_row_is_consistent(load: Workload) -> None:
    inputs, small = load.inputs(), load.inputs(small=True)
    if load.function not in ("adam", "scaled_many"):
        assert set(inputs) == set(small)
        own = inspect.signature(getattr(references, load.function)).parameters
        needed = {name for name, p in own.items() if p.default is inspect.Parameter.empty}
        assert needed == set(inputs) and set(load.settings) <= set(own) - needed
        assert {argument.arg for argument in FUNCTIONS[load.function].args.args} == set(own)
    assert set(load.fills) <= set(inputs)
    assert all(inputs[name].dtype is small[name].dtype for name in set(inputs) & set(small))
    assert set(load.peers.values()) <= set(FUNCTIONS)
    made = load.outputs()
    outputs = made.outputs if isinstance(made, te.Schedule) else made
    total = sum(nbytes(tensor) for tensor in (*inputs.values(), *outputs))
    assert 0 < load.moved <= total
    assert (load.flops > 0) == (suite.family_of(load) in ("gemm", "attention")) or load.uses_dot
    assert 0 < load.error < 0.1


def test_products_and_their_operations() -> None:
    for load in GPU:
        if load.function in ("matmul", "swiglu"):
            cube = math.prod(load.sizes[name] for name in "mnk")
            assert load.flops == 2 * cube * (2 if load.function == "swiglu" else 1)


def test_peers_that_bars_need_are_measured() -> None:
    for load in GPU:
        for bar in expected.bars_of(load):
            if bar.peer in (COPY, LIMIT, BEST_COMPILED, BEST):
                assert not (bar.peer in (BEST_COMPILED, BEST) and COMPILED in load.without)
            elif bar.peer in (EAGER, COMPILED):
                assert bar.peer not in load.without
            elif not (bar.peer is CUDNN and load.sizes["dtype"] == F):
                assert bar.peer in load.peers or load.function == "adam" or bar.peer == FOREACH


def test_rows_are_taken_in_turn() -> None:
    ordered = suite.in_turn(suite.chosen(ROWS, "cuda"))
    lines = {load.line for load in ordered}
    assert sorted(names(ordered)) == sorted(names(suite.chosen(ROWS, "cuda")))
    assert {load.line for load in ordered[: len(lines)]} == lines
    assert len(suite.chosen(ROWS, "cuda", ["softmax"], ["rows"])) > 5
    assert len(suite.chosen(ROWS, "cuda", ["SwiGLU", "fp8"])) == 4
    assert {suite.family_of(load) for load in suite.chosen(ROWS, "cpu")} == {"cpu"}


def test_what_the_bars_allow() -> None:
    by_name = {load.name: load for load in GPU}
    square = by_name["matmul, bf16 4096x4096x4096"]
    assert expected.allowed(square) == pytest.approx(0.1869e-3 / 1.02)
    assert all(name in by_name for name, _ in expected.MEASURED)
    assert all(expected.floor(load) > 0 for load in GPU)
    assert all(expected.allowed(load) for load in GPU if not (load.host or load.line == BEYOND))


FIRST = list({load.line: load for load in reversed(ROWS)}.values())


@pytest.mark.uncompiled("small sizes; the real ones are compiled by run.py --static")
@pytest.mark.parametrize("load", FIRST, ids=names(FIRST))
def test_the_first_row_of_each_line_is_right(load: Workload) -> None:
    pytest.importorskip("triton")
    row = child.answer(load, "check", {"target": "triton-interpret"}, lambda: None)
    assert "failed" not in row, row


@pytest.mark.cpu
def test_winners_of_searches_are_kept(tmp_path: Path) -> None:
    large = next(load for load in ROWS if load.target == "cpu" and load.small and load.flops)
    load = dataclasses.replace(large, sizes=large.small)
    settings = {"trials": 2, "records": str(tmp_path)}
    assert job_tune.kept(load, settings) is None
    found = job_tune.run(load, settings, lambda: None)["tuned"]
    assert found["measured"] >= 1 and found["winner_us"] > 0
    kernel = job_tune.kept(load, settings)
    assert kernel is not None
    given = [np.ones(shape_of(t), t.dtype.value) for t in load.inputs().values()]
    kernel(*given)
    other = dataclasses.replace(load, sizes={**load.sizes, "m": load.sizes["m"] + 1})
    assert job_tune.kept(other, settings) is None
