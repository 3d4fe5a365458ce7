"""Processes that compile beside this one: the same code, and nothing lost when one is."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import beside_calls
import pytest
from running import gone

import tedsl as te
from tedsl.backends import parallel
from tedsl.backends.processes import beside as module
from tedsl.backends.processes.beside import Beside, beside, made_beside
from tedsl.backends.triton.compile import offline
from tedsl.backends.triton.emit.module import emit
from tedsl.build import build_beside
from tedsl.devices import GPUS, gpu_from_json, gpu_to_json
from tedsl.runtime.cache.disk import disk_cache
from tedsl.tensor.tensor import Tensor

MODULE = "tedsl.backends.triton.compile.offline"
SEEN, DIE, HANG = (f"{beside_calls.__name__}:{name}" for name in ("seen", "die", "hang"))


@pytest.fixture
def where(tmp_path: Path) -> Iterator[Beside]:
    """One process with a cache of Triton of its own."""
    environment = {"TRITON_CACHE_DIR": str(tmp_path), "TEDSL_CACHE_DIR": str(cache_root())}
    found = Beside(1, MODULE, environment)
    yield found
    found.close()


@pytest.fixture
def processors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with two, on which no process has been started."""
    monkeypatch.setenv(parallel.ENVIRONMENT, "2")
    module.close()
    yield
    module.close()


def cache_root() -> Path:
    disk = disk_cache()
    assert disk is not None
    return disk.root.parent


def softmax_of_product() -> list[Tensor]:
    a = te.placeholder((96, 64), "bfloat16", name="a")
    b = te.placeholder((64, 80), "bfloat16", name="b")
    return [te.nn.softmax(te.nn.matmul(a, b))]


def code(made: offline.CompiledInfo) -> tuple[object, ...]:
    """All that the hardware sees: debug sections name the files of who compiled it."""
    return made.code, made.registers, made.stack, made.function


def test_the_code_is_that_of_this_process(where: Beside) -> None:
    target = "cuda:sm_90"
    schedule = te.schedule_for(softmax_of_product(), target)
    requests = offline.requests_of(emit(te.lower(schedule, target), target), "sm_90")
    assert requests
    for request in requests:
        made = made_beside(where, f"{MODULE}:info_of", request)
        assert made is not None
        assert code(offline._unpack(made)) == code(offline.compile_request(request))
        assert made_beside(where, f"{MODULE}:shared_of", request) == offline.shared_of(request)


def test_what_cannot_be_written_down_is_built_here(where: Beside) -> None:
    a = te.placeholder((8,), "float32", name="a")
    foreign = te.extern((8,), [a], lambda ins, outs: None, dtype="float32", name="foreign")
    assert isinstance(foreign, Tensor)
    assert build_beside(where, [foreign], "6" * 64, []) is None


def test_a_killed_process_loses_nothing(where: Beside, caplog: pytest.LogCaptureFixture) -> None:
    first = made_beside(where, SEEN, {"names": []})
    with caplog.at_level(logging.WARNING, "tedsl"):
        assert made_beside(where, DIE, {}) is None
    (record,) = caplog.records
    assert "lost (signal 9 (SIGKILL)): done again in this one" in record.getMessage()
    second = made_beside(where, SEEN, {"names": []})
    assert first is not None and second is not None
    assert first["pid"] != second["pid"]
    os.kill(second["keeper"], signal.SIGKILL)
    assert gone(second["pid"])
    third = made_beside(where, SEEN, {"names": []}) or made_beside(where, SEEN, {"names": []})
    assert third is not None and third["keeper"] != second["keeper"]


def test_a_hang_ends(
    where: Beside, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert made_beside(where, SEEN, {"names": []}) is not None
    monkeypatch.setattr(module, "SECONDS", 0.5)
    with caplog.at_level(logging.WARNING, "tedsl"):
        assert made_beside(where, HANG, {}) is None
    assert ["longer than 0.5 s" in each.getMessage() for each in caplog.records] == [True]


def test_an_error_is_met_again_here(where: Beside, caplog: pytest.LogCaptureFixture) -> None:
    request = {"source": "raise ImportError('no such thing')", "name": "f", "arch": "sm_90"}
    with caplog.at_level(logging.WARNING, "tedsl"):
        assert made_beside(where, f"{MODULE}:shared_of", request) is None
    assert not caplog.records
    assert made_beside(where, SEEN, {"names": []}) is not None


def test_what_cannot_start_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "COMMAND", (sys.executable, "-c", "import sys; sys.exit(3)"))
    found = Beside(1, MODULE, {})
    with caplog.at_level(logging.WARNING, "tedsl"):
        assert made_beside(found, SEEN, {"names": []}) is None
        assert made_beside(found, SEEN, {"names": []}) is None
    (record,) = caplog.records
    assert "compiled in this process alone: a worker could not be set up" in record.getMessage()


def test_few_kernels_start_no_process(processors: None, monkeypatch: pytest.MonkeyPatch) -> None:
    te.build(te.schedule_for(softmax_of_product(), "cuda:sm_90"), target="cuda:sm_90")
    assert beside(SEEN, 1, 100.0) is None
    assert beside(SEEN, 4, 0.25) is None
    assert not module._running
    monkeypatch.setenv(parallel.ENVIRONMENT, "1")
    assert beside(SEEN, 100, 1.0) is None


def test_processes_are_started_once_and_end_when_idle(
    processors: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.2)
    found = beside(SEEN, 100, 1.0)
    assert found is not None
    made = made_beside(found, SEEN, {"names": []})
    assert made is not None
    assert made["threads"] == "1"
    assert beside(SEEN, 2, 0.01) is found
    assert gone(made["keeper"])
    again = made_beside(found, SEEN, {"names": []})
    assert again is not None and again["keeper"] != made["keeper"]


def test_another_environment_has_other_processes(
    processors: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = beside(SEEN, 100, 1.0)
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    second = beside(SEEN, 100, 1.0)
    assert first is not None and first is not second
    assert made_beside(first, SEEN, {"names": []}) is None


PARENT = """
import sys, time
import beside_calls
from tedsl.backends.processes.beside import beside, made_beside
where = beside("beside_calls:seen", 100, 1.0)
made = made_beside(where, "beside_calls:seen", {"names": []})
print(made["pid"], made["keeper"], flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize("killed", [True, False])
def test_no_process_is_left_behind(killed: bool) -> None:
    paths = os.pathsep.join(path for path in sys.path if path)
    parent = subprocess.Popen(
        [sys.executable, "-P", "-c", PARENT, "1000" if killed else "0"],
        env={**os.environ, "PYTHONPATH": paths, parallel.ENVIRONMENT: "2"},
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    if killed:
        os.kill(parent.pid, signal.SIGKILL)
    parent.wait(timeout=30)
    parent.stdout.close()
    assert all(gone(pid) for pid in pids)


def test_a_machine_without_room_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    found = Beside(2, MODULE, {})
    with caplog.at_level(logging.WARNING, "tedsl"):
        assert made_beside(found, SEEN, {"names": []}) is None
        assert made_beside(found, SEEN, {"names": []}) is None
    (record,) = caplog.records
    assert "no memory" in record.getMessage()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_has_no_processes_of_its_parent(processors: None) -> None:
    assert beside(SEEN, 100, 1.0) is not None
    child = os.fork()
    if child == 0:
        os._exit(len(module._running))
    assert os.waitpid(child, 0)[1] == 0


def test_launchers_of_signatures_are_made_with_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes the type of descriptors from the driver's module, which has one as soon as its
    utilities are loaded: a launcher made before that would refuse all descriptors."""
    importlib.import_module("triton")  # which loads its drivers
    made: list[object] = []
    driver = SimpleNamespace(make_launcher=None, PyCUtensorMap=None)
    driver.CudaUtils = lambda: setattr(driver, "PyCUtensorMap", object)
    driver.CudaLauncher = lambda src, data: made.append(driver.PyCUtensorMap)
    monkeypatch.setitem(sys.modules, "triton.backends.nvidia.driver", driver)
    monkeypatch.setattr(offline, "has_driver", lambda: True)
    target = "cuda:sm_90"
    program = emit(te.lower(te.schedule_for(softmax_of_product(), target), target), target)
    requests = offline.requests_of(program, "sm_90")
    for request in requests:
        offline.shared_of(request)
    assert made == [object] * len(requests)


def test_gpus_are_the_same_as_json() -> None:
    for gpu in GPUS:
        told = gpu_from_json(gpu_to_json(gpu))
        assert told == gpu and repr(told) == repr(gpu)
