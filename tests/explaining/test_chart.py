"""te.roofline: ceilings are measured once and kept; points, gaps, pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import tedsl as te
from tedsl.errors import TuneError
from tedsl.explaining import ceilings as module
from tedsl.explaining.ceilings import Ceilings, ceilings
from tedsl.explaining.chart import Chart, Point, _figure

LIMITS = Ceilings("test", 1e11, {"float32": 1e12, "bfloat16": 4e12}, True)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    te.runtime.set_cache_dir(tmp_path / "cache")
    yield tmp_path
    te.runtime.set_cache_dir(None)


def total() -> te.Tensor:
    x = te.placeholder((256, 256), name="x")
    return te.nn.softmax(x)


def test_a_roof_is_memory_up_to_the_ridge_and_arithmetic_beyond() -> None:
    assert LIMITS.ridge("float32") == 10.0 and LIMITS.ridge("bfloat16") == 40.0
    assert LIMITS.seconds(1e12, 1e9, "float32") == 1.0
    assert LIMITS.seconds(1e9, 1e11, "float32") == 1.0
    assert LIMITS.peak("int8") == 1e12
    assert Ceilings.from_json(LIMITS.to_json()) == LIMITS


def test_a_gap_is_how_many_times_longer_than_the_roof() -> None:
    point = Point("p", 10**9, 10**9, 0.02, 0.01, "float32", True)
    assert point.gap == 2.0 and point.intensity == 1.0 and point.rate == 5e10
    assert "measured" in str(point) and " 50% of the roof" in str(point)
    above = Point("p", 10**9, 10**9, 0.005, 0.01, "float32", True)
    assert above.share == 1.0 and "100% of the roof, its data stays in a cache" in str(above)


def test_a_roof_that_is_contradicted_is_the_higher_of_two_measurements() -> None:
    point = Point("p", 10**9, 10**6, 0.004, 0.01, "float32", True)
    chart = Chart("cpu", LIMITS, (point,))
    assert chart.contradicted
    again = chart.below(Ceilings("test", 5e11, {"float32": 1e11}, True))
    assert again.ceilings == Ceilings("test", 5e11, {"float32": 1e12, "bfloat16": 4e12}, True)
    assert again.points[0].least == 0.002 and not again.contradicted
    assert not Chart("cpu", LIMITS, (Point("p", 1, 1, 0.1, 0.2, "float32", False),)).contradicted


def test_ceilings_are_measured_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CPU_EDGE", 64)
    first = ceilings("cpu")
    assert first.measured and first.bandwidth > 0
    assert set(first.flops) == {"float32", "float64"}

    def never(*_: object) -> Ceilings:
        raise AssertionError("measured again")

    monkeypatch.setattr(module, "_of_cpu", never)
    assert ceilings("cpu") == first
    with pytest.raises(AssertionError, match="measured again"):
        ceilings("cpu", fresh=True)


def test_a_gpu_that_is_not_here_has_the_figures_of_its_data_sheet() -> None:
    found = ceilings("cuda:sm_90")
    assert not found.measured and found.bandwidth == 4.8e12
    assert found.peak("bfloat16") == 989e12 and found.peak("float32") == 67e12
    assert found.peak("tfloat32") == 495e12 and found.peak("float64") == 67e12


@pytest.mark.cpu
def test_fused_and_unfused_predicted_and_measured(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CPU_EDGE", 64)
    y = total()
    chart = te.roofline({"rules": y, "unfused by hand": te.create_schedule(y)}, "cpu")
    named = [(point.name, point.measured) for point in chart.points]
    assert named == [
        ("unfused", False), ("unfused", True),
        ("rules", False), ("rules", True),
        ("unfused by hand", False), ("unfused by hand", True),
    ]  # fmt: skip
    by_name = {(point.name, point.measured): point for point in chart.points}
    assert by_name["unfused", True].nbytes == by_name["unfused", False].nbytes
    assert by_name["rules", False].nbytes < by_name["unfused", False].nbytes
    assert all(point.seconds > 0 and point.least > 0 for point in chart.points)
    assert chart.ridges() == {"float32": chart.ceilings.ridge("float32")}
    data = json.loads(chart.to_json())
    assert len(data["points"]) == 6 and data["points"][0]["gap"] > 0
    assert str(chart).count("% of the roof") == 6


def test_nothing_runs_where_the_device_is_not() -> None:
    chart = te.roofline(total(), "cuda:sm_90")
    assert [(p.name, p.measured) for p in chart.points] == [("unfused", False), ("fused", False)]


def test_products_are_below_the_roof_of_their_operands() -> None:
    a, b = (te.placeholder((512, 512), "bfloat16", name=name) for name in "ab")
    chart = te.roofline(te.nn.matmul(a, b), "cuda:sm_90", unfused=False)
    assert chart.points[0].dtype == "bfloat16"
    assert "ridge: bfloat16 at 206 per byte" in str(chart)


def test_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    points = (
        Point("unfused", 4 * 10**9, 10**9, 0.05, 0.04, "float32", False),
        Point("fused", 10**9, 10**9, 0.02, 0.01, "float32", False),
        Point("fused", 10**9, 10**9, 0.015, 0.01, "float32", True),
        Point("product", 10**9, 10**12, 0.5, 0.25, "bfloat16", True),
    )
    chart = Chart("cpu", LIMITS, points)
    assert chart.save(tmp_path / "r.png").stat().st_size > 10_000
    text = chart.save(tmp_path / "deep" / "r.svg").read_text()
    assert "<svg" in text and "<svg" in chart._repr_svg_()
    figure = _figure(chart)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert figure.axes[0].get_legend() is None
    assert legend.get_window_extent().y1 < figure.axes[0].get_window_extent().y0
    with pytest.raises(TuneError, match=r"cannot be written to 'r\.bmp'"):
        chart.save(tmp_path / "r.bmp")
