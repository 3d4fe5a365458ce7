"""A process that takes over from one that ended: what it finds made, and what it makes at once."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tedsl as te
from tedsl.autotune.measure import reference_cache
from tedsl.autotune.measure.bench import Bench
from tedsl.autotune.measure.reference_cache import References
from tedsl.autotune.workers.session import RIGHT, TuneSession
from tedsl.checking.expected_outputs import Oracle
from tedsl.checking.random_inputs import ADVERSE, KINDS
from tedsl.errors import TuneError
from tedsl.workload.extents import Extents
from tedsl.workload.workload import Workload

pytestmark = pytest.mark.cpu


def row() -> te.Tensor:
    return te.nn.softmax(te.placeholder((24, 40), "float32", name="x"))


def logarithm() -> te.Tensor:
    """Has no finite outputs for difficult inputs."""
    x = te.placeholder((64,), "float32", name="x")
    return te.compute((64,), lambda i: te.log(x[i] * 0.0), name="y")


def bench_in(folder: Path, output: te.Tensor) -> Bench:
    workload = Workload.of(output)
    return Bench(workload, Extents(workload, {}), "cpu", 3, folder)


def session_in(folder: Path, role: str = "measure") -> TuneSession:
    return TuneSession(
        {
            "workload": Workload.of(row()).to_json(),
            "target": "cpu",
            "sizes": {},
            "seed": 1,
            "scratch": str(folder),
            "role": role,
            "trace": False,
        }
    )


@pytest.mark.parametrize("make", [row, logarithm])
def test_references_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any):
    first = bench_in(tmp_path, make())
    first.make_ready()

    def never(*_: object) -> None:
        raise AssertionError("made again")

    for name in ("adverse", "outputs", "noise"):
        monkeypatch.setattr(Oracle, name, never)
    second = bench_in(tmp_path, make())
    second.take_over(te.build(list(second.workload.outputs), "cpu"))
    for kind in ("random", "extreme", *ADVERSE):
        one, other = first.stand.wanted[kind], second.stand.wanted[kind]
        assert (one is None) == (other is None)
        for a, b in zip(one or (), other or (), strict=True):
            np.testing.assert_array_equal(a.host, b.host)
            assert a.bound == b.bound
    assert first.stand.wanted["rows"] is not None or make is logarithm


def test_what_compiles_makes_references_for_what_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    helper = session_in(tmp_path, "compile")
    for kind in (*KINDS, *ADVERSE):
        assert helper.refer({"kind": kind}) == {"status": "ok"}
    monkeypatch.setattr(Oracle, "outputs", None)
    monkeypatch.setattr(Oracle, "adverse", None)
    session = session_in(tmp_path)
    assert session.measure({"key": "one", "decisions": {}})["status"] == "ok"
    assert session.bench is not None
    session.bench.make_ready()
    assert all(session.bench.stand.wanted[kind] for kind in (*KINDS, *ADVERSE))


def test_difficult_inputs_are_left_while_their_references_are_made(tmp_path: Path):
    session = session_in(tmp_path)
    request = {"key": "one", "decisions": {}, "referring": True}
    found = session.measure(request)
    assert (found["status"], found["open"]) == ("ok", ["inputs"])
    assert session.bench is not None
    assert not set(ADVERSE) & set(session.bench.stand.wanted)
    assert not (tmp_path / RIGHT).exists()
    assert session.check({**request, "left": ["inputs"]})["status"] == "ok"
    assert set(ADVERSE) <= set(session.bench.stand.wanted)
    assert (tmp_path / RIGHT).exists()
    assert "open" not in session.measure({**request, "key": "two"})


def test_what_is_wrong_for_difficult_inputs_alone_is_found_when_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    session = session_in(tmp_path)
    assert session.bench is not None
    right = session.bench.stand.arena.wrong

    def wrong(guarded: Any, wanted: Any, name: str) -> str | None:
        masked = session.bench is not None and wanted in session.bench.stand.wanted.get(
            "masked", ()
        )
        return "y[0] is wrong" if masked else right(guarded, wanted, name)

    monkeypatch.setattr(session.bench.stand.arena, "wrong", wrong)
    request = {"key": "one", "decisions": {}, "referring": True}
    assert session.measure(request)["status"] == "ok"
    found = session.check({**request, "left": ["inputs"]})
    assert (found["status"], found["reason"]) == ("wrong", "wrong output")
    assert "masked inputs: y[0] is wrong" in found["text"]
    assert not (tmp_path / RIGHT).exists()


def test_a_reference_that_another_process_makes_is_waited_for(tmp_path: Path):
    workload = Workload.of(row())
    size = Extents(workload, {})
    other = subprocess.Popen(["sleep", "60"])
    claim = tmp_path / f"random.by{other.pid}"
    claim.touch()
    with ThreadPoolExecutor(1) as threads:
        mine = threads.submit(References(size, "cpu", 3, tmp_path).get, "random")
        assert not wait([mine], timeout=0.5).done
        other.kill()
        other.wait()  # it made nothing, and is taken over
        made = mine.result(timeout=60)
    assert made is not None
    assert (tmp_path / "random.noise.json").exists()
    (want,) = made[0]
    (again,) = (References(size, "cpu", 3, tmp_path).get("random") or made)[0]
    np.testing.assert_array_equal(want, again)


@pytest.mark.parametrize("kind", [*KINDS, *ADVERSE])
def test_inputs_are_drawn_once_for_all_processes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    size = Extents(Workload.of(row()), {})
    drawn = References(size, "cpu", 3, tmp_path).inputs(kind)
    assert References(size, "cpu", 3, tmp_path).get(kind)
    monkeypatch.setattr(reference_cache, "make_inputs", None)
    for tensor, array in References(size, "cpu", 3, tmp_path).inputs(kind).items():
        np.testing.assert_array_equal(array, drawn[tensor])


def test_very_large_inputs_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    size = Extents(Workload.of(row()), {})
    monkeypatch.setattr(reference_cache, "KEPT_BYTES", 8)
    found = References(size, "cpu", 3, tmp_path)
    assert found.get("random")
    assert not list(tmp_path.glob("*.in*"))
    assert found.inputs("random")


def test_nobody_waits_for_a_reference_that_could_not_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise TuneError("there is nothing to check with")

    monkeypatch.setattr(Oracle, "outputs", refuse)
    assert session_in(tmp_path, "compile").refer({"kind": "random"}) == {"status": "ok"}
    assert not list(tmp_path.glob("random*"))
    with pytest.raises(TuneError, match="nothing to check with"):
        session_in(tmp_path)


def test_what_takes_over_begins_with_what_ran(tmp_path: Path):
    first = session_in(tmp_path)
    assert first.bench is not None
    assert not set(ADVERSE) & set(first.bench.stand.wanted)
    assert first.measure({"key": "one", "decisions": {}})["status"] == "ok"
    assert (tmp_path / RIGHT).exists()
    second = session_in(tmp_path)
    assert second.bench is not None
    assert set(ADVERSE) <= set(second.bench.stand.wanted)
    assert set(second.kernels) == {"one"}
    assert [each.facts["took over"] for each in (first, second)] == [False, True]
    assert not list(tmp_path.glob(f"{RIGHT}.by*"))


def test_once_a_process_has_died_of_that_none_tries_it_again(tmp_path: Path):
    first = session_in(tmp_path)
    first.measure({"key": "one", "decisions": {}})
    (tmp_path / f"{RIGHT}.by{os.getpid()}").touch()  # this one still tries
    assert session_in(tmp_path).kernels
    gone = subprocess.Popen(["true"])
    gone.wait()
    (tmp_path / f"{RIGHT}.by{gone.pid}").touch()
    assert not session_in(tmp_path).kernels


def test_nothing_is_made_ahead_where_memory_is_short(tmp_path: Path):
    first = bench_in(tmp_path, row())
    kernel = te.build(list(first.workload.outputs), "cpu")
    first.arena.has_room = lambda nbytes: False
    assert not first.take_over(kernel)
    assert not set(ADVERSE) & set(first.stand.wanted)
    assert first.check(kernel) is None
