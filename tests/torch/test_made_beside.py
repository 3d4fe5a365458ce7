"""Regions of a graph for a GPU, made in processes beside this one: as those made here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import beside_calls
import pytest

import tedsl as te
from tedsl.backends import parallel
from tedsl.backends.processes import beside as processes
from tedsl.backends.processes.beside import Beside, made_beside
from tedsl.backends.triton.emit.module import emit
from tedsl.build import build_beside
from tedsl.runtime.cache import lowered
from tedsl.runtime.cache.disk import disk_cache

torch: Any = pytest.importorskip("torch")
compiling: Any = pytest.importorskip("tedsl.torch.backend.compiling")
backend_options: Any = pytest.importorskip("tedsl.torch.backend.options")
backend_region: Any = pytest.importorskip("tedsl.torch.backend.region")
backend_report: Any = pytest.importorskip("tedsl.torch.backend.report")
proxy_tensor: Any = pytest.importorskip("torch.fx.experimental.proxy_tensor")

SIZES = (96, 112, 128, 144, 160, 176)
SEEN = f"{beside_calls.__name__}:seen"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTorch says that there is a GPU, and no process was started."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    processes.close()
    yield
    processes.close()
    te.runtime.set_cache_dir(None)


@pytest.fixture
def where(tmp_path: Path) -> Iterator[Beside]:
    """One process, whose cache is that of this one, with nothing in it."""
    te.runtime.set_cache_dir(tmp_path)
    found = Beside(1, "tedsl.build", {"TEDSL_CACHE_DIR": str(tmp_path)})
    yield found
    found.close()


def regions(target: str, count: int = len(SIZES)) -> list[Any]:
    """Of which each has a kernel of its own."""

    def function(x: Any, unread: Any, y: Any) -> list[Any]:
        return [torch.softmax(x * y, -1), (y + x).sum(0)]

    found: list[Any] = []
    for size in SIZES[:count]:
        given = [torch.empty(33, size) for _ in range(3)]
        graph = proxy_tensor.make_fx(function, tracing_mode="fake")(*given).graph
        inputs = tuple(node for node in graph.nodes if node.op == "placeholder")
        nodes = tuple(node for node in graph.nodes if node.op == "call_function")
        (output,) = (node for node in graph.nodes if node.op == "output")
        part = backend_region.Part(inputs, nodes, tuple(output.args[0]))
        report = backend_report.RegionReport(f"r{size}", ())
        found.append(backend_region.Region(part, None, report, target))
    return found


def made(folder: Path, target: str, count: int = len(SIZES)) -> list[Any]:
    te.runtime.set_cache_dir(folder)
    found = regions(target, count)
    compiling.compile_regions(found, backend_options.options_of({}))
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


def test_a_kernel_is_found_on_disk(where: Beside) -> None:
    a = te.placeholder((96, 64), "bfloat16", name="a")
    b = te.placeholder((64, 80), "bfloat16", name="b")
    outputs = [te.nn.softmax(te.nn.matmul(a, b))]
    key = "5" * 64
    taken = build_beside(where, outputs, key, [])
    disk = disk_cache()
    assert disk is not None
    found = lowered.find(disk, lowered.PlanKey(key, ()))
    assert found is not None
    here = te.lower(te.schedule_for(outputs, "cuda"), "cuda")
    assert str(found.module) == str(here)
    assert emit(found.module, "cuda").source == emit(here, "cuda").source
    assert [each.name for each in taken or ()] == [buffer.name for buffer in here.inputs]
    names = {"names": ["tedsl.build", "torch"]}
    seen = made_beside(where, SEEN, names) or {}
    assert seen["loaded"] == ["tedsl.build"]
    assert seen["threads"] == "1"


def test_sizes_keep_their_order(where: Beside) -> None:
    m, n = te.var("m"), te.var("n")
    a = te.placeholder((n, m), "float32", name="a")
    outputs = [te.compute((n, m), lambda i, j: a[i, j] * 2.0, name="twice")]
    key, sizes = "7" * 64, {"m": m, "n": n, "unused": te.var("unused")}
    assert build_beside(where, outputs, key, sorted(sizes)) == [a]
    disk = disk_cache()
    assert disk is not None
    found = lowered.find(disk, lowered.PlanKey(key, tuple(sizes[name] for name in sorted(sizes))))
    assert found is not None
    assert [size.name for size in found.module.sizes] == ["n", "m"]
    assert all(size is sizes[size.name] for size in found.module.sizes)
