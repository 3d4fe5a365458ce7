"""Contractions on the CPU: how rows and panels of columns are handed out, and what is copied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tedsl as te
from tedsl import target
from tedsl.detect import cache_sizes
from tedsl.devices import CpuDevice
from tedsl.schedules import schedule_for
from tedsl.tensor.tensor import Tensor


def product(m: int, n: int, k: int) -> Tensor:
    return te.nn.matmul(te.placeholder((m, k), name="a"), te.placeholder((k, n), name="b"))


def turned(m: int, n: int, k: int) -> Tensor:
    """The operand of the lanes is contiguous along the folded axis."""
    x, w = te.placeholder((m, k), name="x"), te.placeholder((n, k), name="w")
    r = te.reduce_axis((0, k), name="r")
    return te.compute((m, n), lambda i, j: te.sum(x[i, r] * w[j, r], axis=r), name="y")


def windows(images: int, side: int, channels: int, filters: int) -> Tensor:
    x = te.placeholder((images, side + 2, side + 2, channels), name="x")
    w = te.placeholder((filters, 3, 3, channels), name="w")
    r, t, c = (te.reduce_axis((0, n), name=a) for n, a in ((3, "r"), (3, "t"), (channels, "c")))
    return te.compute(
        (images, side, side, filters),
        lambda b, y, z, f: te.sum(x[b, y + r, z + t, c] * w[f, r, t, c], axis=[r, t, c]),
        name="y",
    )


def knobs(out: Tensor) -> dict[str, Any]:
    """The choices of the rules, by the last part of their names."""
    return {k.name.rpartition(".")[2]: k.chosen for k in schedule_for(out, "cpu").knobs}


@pytest.mark.parametrize(("threads", "blocks"), [(1, 1), (2, 2), (8, 8), (24, 16)])
def test_rows_are_cut_as_often_as_the_threads_need(
    threads: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block of rows copies the panel of the other operand again."""
    monkeypatch.setattr(target, "cpu_here", lambda: CpuDevice("test", threads, 512, 32))
    assert knobs(product(512, 128, 64))["row_blocks"] == blocks


@pytest.mark.parametrize(
    ("threads", "cache", "panels"),
    [
        (2, 2 << 20, 4),  # eight would fit and leave too few tasks
        (1, 2 << 20, 8),
        (1, 1 << 20, 4),  # half of it holds four panels of 128 KiB
        (1, 16 << 20, 1),  # the rows stay in it
        (8, 2 << 20, 1),
    ],
)
def test_panels_share_the_second_cache(
    threads: int, cache: int, panels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that do not stay there are fetched once for several panels."""
    here = CpuDevice("test", threads, 512, 32, l2=cache)
    monkeypatch.setattr(target, "cpu_here", lambda: here)
    assert knobs(product(1024, 1024, 1024))["panels"] == panels


@pytest.mark.parametrize(("rows", "panels"), [(1024, 1), (8192, 4)])
def test_many_rows_are_cut_rather_than_columns(
    rows: int, panels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four panels are too few for the threads: they stay together where each block of rows is so
    high that copying them again does not matter.  The parts of the fold are tasks, too."""
    here = CpuDevice("test", 2, 512, 32, l2=2 << 20)
    monkeypatch.setattr(target, "cpu_here", lambda: here)
    found = knobs(product(rows, 128, 1024))
    assert found["panels"] == panels
    assert found["row_blocks"] * found["parts"] == 8 // (4 // panels)


@pytest.mark.cpu
@pytest.mark.parametrize("panels", [2, 4])
@pytest.mark.parametrize(
    "made",
    [lambda: product(37, 301, 45), lambda: turned(70, 301, 96), lambda: windows(2, 7, 32, 150)],
)
def test_several_panels_give_the_same(made: Callable[[], Tensor], panels: int) -> None:
    """The last panel is narrower, and so is the last group of them."""
    rng = np.random.default_rng(3)
    plain = te.build(made(), "cpu")
    shapes = [[int(str(n)) for n in b.shape] for b in plain.module.inputs]
    arrays = [rng.standard_normal(shape, np.float32) for shape in shapes]
    s = schedule_for(made(), "cpu", {f"{made().op.name}.panels": panels})
    grouped = te.build(s, "cpu")
    np.testing.assert_allclose(grouped(*arrays), plain(*arrays), rtol=1e-4, atol=1e-4)


@pytest.mark.cpu
@pytest.mark.parametrize("panels", [2, 4])
def test_several_panels_are_turned_in_registers(panels: int) -> None:
    s = schedule_for(windows(2, 7, 32, 256), "cpu", {"y.panels": panels})
    assert ".transform_layout(" in s.as_python()
    assert "gather" not in te.build(s, "cpu").source


def test_sizes_of_the_caches(tmp_path: Path) -> None:
    assert cache_sizes(tmp_path) == {}
    told = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2M")]
    for number, (level, kind, size) in enumerate([*told, ("3", "Unified", "unknown")]):
        cache = tmp_path / f"index{number}"
        cache.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (cache / name).write_text(f"{text}\n")
    assert cache_sizes(tmp_path) == {1: 48 << 10, 2: 2 << 20}
