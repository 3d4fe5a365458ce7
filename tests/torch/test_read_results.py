"""Of operators with several results those are computed that somebody reads."""

from __future__ import annotations

from typing import Any

import pytest

import tedsl as te

torch = pytest.importorskip("torch")
tt: Any = pytest.importorskip("tedsl.torch")
F: Any = torch.nn.functional


def running(x: Any, both: bool, scan: Any) -> Any:
    found = scan(x, 2)
    return tuple(found) if both else found.values


SEVERAL: dict[str, Any] = {
    "largest so far": lambda x, both: running(x, both, torch.cummax),
    "smallest so far": lambda x, both: running(x, both, torch.cummin),
    "pool": lambda x, both: F.max_pool2d(x, 3, 2, 1, return_indices=both),
    "adaptive pool": lambda x, both: F.adaptive_max_pool2d(x, (4, 3), return_indices=both),
    "pool of volumes": lambda x, both: F.max_pool3d(x, 2, return_indices=both),
}


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("name", SEVERAL)
def test_places_are_computed_for_who_reads_them(name: str, both: bool) -> None:
    x = torch.randn(2, 3, 9, 11, generator=torch.Generator().manual_seed(1))
    x[1, 2, 4, 5] = float("nan")
    program = tt.trace(lambda x: SEVERAL[name](x, both), x)
    assert ("int64" in str(te.schedule_for(program.outputs, "cuda:sm_90"))) is both
    found, wanted = program.build()(x), SEVERAL[name](x, both)
    for one, other in zip(*((found, wanted) if both else ([found], [wanted])), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("name", SEVERAL)
def test_the_backend_takes_them(name: str, both: bool) -> None:
    x, report = torch.randn(2, 3, 9, 11), tt.Report()
    torch._dynamo.reset()
    torch.compile(lambda x: SEVERAL[name](x, both), backend="tedsl", options={"report": report})(x)
    (graph,) = report.graphs
    assert graph.taken == graph.nodes - sum(
        count for (_, why), count in graph.left.items() if why == "a view or a constant by itself"
    )


@pytest.mark.parametrize("function", [torch.max, torch.min])
@pytest.mark.parametrize("keep", [False, True])
def test_an_extreme_and_its_place_are_one_search(function: Any, keep: bool) -> None:
    x = torch.randn(4, 70, 5)
    x[0, 3, 2] = float("nan")
    x[1, 5, 1] = x[1, 6, 1] = 9.0
    program = tt.trace(lambda x: tuple(function(x, 1, keepdim=keep)), x)
    assert len(te.build(program.outputs, "cpu").module.funcs) == 1
    for found, wanted in zip(program.build()(x), function(x, 1, keepdim=keep), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


def test_the_same_reduction_is_one_stage() -> None:
    """A mean, the middle of a variance, and extremes of which one keeps its dimension."""
    x = torch.randn(5, 70, 3)

    def both(x: Any) -> Any:
        return x.mean(1), x.var(1), x.amax(1, True), x.amax(1), x.amax(2), x.sum(1)

    program = tt.trace(both, x)
    folds = [stage for stage in te.create_schedule(program.outputs).stages if _folds(stage)]
    assert len(folds) == 4  # the sum, the squares, and the largest along either axis
    for found, wanted in zip(program.build()(x), both(x), strict=True):
        torch.testing.assert_close(found, wanted)


def _folds(stage: Any) -> bool:
    return bool(getattr(stage.op, "reduce_axes", ()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_floats_are_searched_as_float32(dtype: Any) -> None:
    """Comparisons of pairs of short floats in one register are unpacked one by one."""
    x = torch.randn(70, 9).to(dtype)
    x[3, 2] = float("nan")
    x[5, 1] = x[6, 1] = 9.0
    x[:, 4] = float("-inf")
    program = tt.trace(lambda x: (*x.max(0), x.argmin(0)), x)
    text = str(te.schedule_for(program.outputs, "cuda:sm_90"))
    assert "search: float32, int32" in text and "arg: float32, int32" in text
    for found, wanted in zip(program.build()(x), (*x.max(0), x.argmin(0)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
