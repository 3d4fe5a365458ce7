"""Regions of a graph for a GPU, made in processes beside this one: as those made here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import tedsl as te
from tedsl.backends import parallel
from tedsl.backends.processes import beside as processes
from tedsl.torch.backend.compiling import compile_regions
from tedsl.torch.backend.options import options_of
from tedsl.torch.backend.region import Part, Region
from tedsl.torch.backend.report import RegionReport

SIZES = (96, 112, 128, 144, 160, 176)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTorch says that there is a GPU, and no process was started."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    processes.close()
    yield
    processes.close()
    te.runtime.set_cache_dir(None)


def regions(target: str, count: int = len(SIZES)) -> list[Region]:
    """Of which each has a kernel of its own."""

    def function(x: torch.Tensor, unread: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [torch.softmax(x * y, -1), (y + x).sum(0)]

    found: list[Region] = []
    for size in SIZES[:count]:
        given = [torch.empty(33, size) for _ in range(3)]
        graph = make_fx(function, tracing_mode="fake")(*given).graph
        inputs = tuple(node for node in graph.nodes if node.op == "placeholder")
        nodes = tuple(node for node in graph.nodes if node.op == "call_function")
        (output,) = (node for node in graph.nodes if node.op == "output")
        part = Part(inputs, nodes, tuple(output.args[0]))
        found.append(Region(part, None, RegionReport(f"r{size}", ()), target))
    return found


def made(folder: Path, target: str, count: int = len(SIZES)) -> list[Region]:
    te.runtime.set_cache_dir(folder)
    found = regions(target, count)
    compile_regions(found, options_of({}))
    assert not any(region.report.fault for region in found)
    return found


def test_they_are_those_made_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(parallel.ENVIRONMENT, "2")
    there = made(tmp_path / "there", "cuda")
    assert processes._running
    monkeypatch.setenv(parallel.ENVIRONMENT, "1")
    here = made(tmp_path / "here", "cuda")
    for one, other in zip(there, here, strict=True):
        assert one.compiled is not None and other.compiled is not None
        assert one.compiled.kernel.schedule is None  # found on disk
        assert other.compiled.kernel.schedule is not None
        assert one.compiled.kernel.source == other.compiled.kernel.source
        assert one.compiled._takes == other.compiled._takes
        assert one.report.kernels == other.report.kernels


def test_what_a_process_does_not_answer_is_made_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(parallel.ENVIRONMENT, "2")
    monkeypatch.setattr(processes.Beside, "ask", lambda self, request: None)
    for region in made(tmp_path, "cuda"):
        assert region.compiled is not None
        assert region.compiled.kernel.schedule is not None


@pytest.mark.parametrize(("target", "count"), [("cuda", 2), ("cpu", len(SIZES))])
def test_none_is_started_where_it_does_not_pay(
    target: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(parallel.ENVIRONMENT, "2")
    made(tmp_path, target, count)
    assert not processes._running


def test_none_is_started_for_what_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(parallel.ENVIRONMENT, "1")
    made(tmp_path, "cuda")
    monkeypatch.setenv(parallel.ENVIRONMENT, "2")
    made(tmp_path, "cuda")
    assert not processes._running
