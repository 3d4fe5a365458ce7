"""What is chosen, and dropped, before anything runs."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
from model_cases import HOPPER, product
from triton_irs import matmul

import tedsl as te
from tedsl.autotune import tune
from tedsl.autotune.measure.pruning import Tiers
from tedsl.autotune.outcome import Status
from tedsl.autotune.search_space.problem import Problem
from tedsl.autotune.search_space.space import Candidate, read_found
from tedsl.autotune.workers.session import TuneSession, preload
from tedsl.build import build_unseen
from tedsl.devices import H200
from tedsl.errors import TuneError
from tedsl.ir.nodes import Launch
from tedsl.workload.workload import Workload


def session(tensor: te.Tensor, folder: Path, target: str = "cpu", **sizes: int) -> TuneSession:
    setup = {
        "workload": Workload.of(tensor).to_json(),
        "target": target,
        "device": "NVIDIA H200",
        "sizes": sizes,
        "seed": 1,
        "scratch": str(folder),
        "role": "compile",
        "trace": False,
    }
    return TuneSession(setup)


@pytest.mark.cpu
def test_nothing_is_measured() -> None:
    a, b = (te.placeholder((64, 64), "float32", name=name) for name in "ab")
    found = tune(te.nn.matmul(a, b), "cpu", budget="none", records=False)
    assert found.winner.outcome.status is Status.OK
    assert found.winner.outcome.samples == ()
    assert found.measure_seconds == 0.0
    assert not found.replayed


def test_two_budgets_are_refused() -> None:
    x = te.placeholder((8,), "float32", name="x")
    with pytest.raises(TuneError, match="two budgets"):
        tune(x + 1.0, "cpu", budget="quick", trials=3)
    with pytest.raises(TuneError, match="is unknown"):
        tune(x + 1.0, "cpu", budget="some")


@pytest.mark.cpu
def test_a_worker_estimates_and_compiles(tmp_path: Path) -> None:
    worker = session(te.nn.softmax(te.placeholder((64, 256), "float32", name="x")), tmp_path)
    request = {"key": "one", "decisions": {}}
    (features,) = worker.estimate({"candidates": [request]})["found"]
    assert features["seconds"] > 0
    reply = worker.compile(request)
    assert reply["status"] == "ok"
    assert reply["code"] == worker.kernel(request).code


@pytest.mark.uncompiled("looked at, not compiled")
def test_a_worker_estimates_for_a_gpu(tmp_path: Path) -> None:
    worker = session(product(512, 512, 512), tmp_path, "cuda")
    assert worker.tiers.facts is H200 or worker.tiers.facts == H200
    requests = [{"key": str(n), "decisions": {"no such knob": n}} for n in range(2)]
    found = worker.estimate({"candidates": requests})["found"]
    assert [len(features) > 10 for features in found] == [True, True]


@pytest.mark.ptxas
@pytest.mark.uncompiled("looked at, not compiled")
def test_what_cannot_launch_is_told_before_it_is_compiled() -> None:
    tiers = Tiers.of("cuda:sm_90", {}, "NVIDIA H200")
    shape, tile = (4096, 4096, 4096), (256, 256, 128)
    large = matmul(shape, tile, launch=Launch(num_warps=8, num_stages=5), shared=True)
    reason = tiers.refusal(large)
    assert reason is not None
    assert "shared memory" in reason
    fits = te.lower(product(4096, 4096, 4096), HOPPER)
    assert tiers.refusal(fits) is None, "as Triton says, though it takes nearly all there is"


@pytest.mark.uncompiled("looked at, not compiled")
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_worker_makes_the_candidates_that_the_search_would(tmp_path: Path, target: str) -> None:
    one, other = (te.placeholder((96, 96), "float32", name=name) for name in "ab")
    row = te.nn.softmax(te.nn.matmul(one, other))
    space = Problem([row], target).space()
    drawn = list(space.draws([None] * 6, random.Random(3)))
    refused = space.candidate({space.default().knobs[0].name: "no such choice"}, "random")
    asked = [one.decisions for one in (*drawn, refused)]
    request = json.loads(json.dumps({"wanted": asked}))
    reply = session(row, tmp_path, target).realise(request)
    found = [read_found(one, "random") for one in json.loads(json.dumps(reply["found"]))]
    assert found == [space.candidate(decisions, "random") for decisions in asked]
    assert any(isinstance(one, Candidate) and one.trace for one in found)


@pytest.mark.ptxas
def test_a_worker_that_compiles_for_a_gpu_needs_no_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it fails
    row = te.nn.softmax(te.placeholder((64, 256), "float32", name="x"))
    told = {**session(row, tmp_path, "cuda").setup, "features": "sm_90"}
    preload(told)
    with pytest.raises(ImportError, match="torch"):
        preload({**told, "role": "measure"})
    request = {"key": "one", "decisions": {}}
    reply = TuneSession(told).compile(request)
    assert reply["status"] == "ok"
    assert reply["resources"]["registers"] > 0
    worker = TuneSession(told)
    same = te.build(worker.schedule(request), "cuda:sm_90")
    assert reply["code"] == same.code


@pytest.mark.ptxas
@pytest.mark.parametrize(("rows", "divisible"), [(1000, False), (1024, True)])
def test_a_worker_compiles_what_is_launched_at_its_sizes(
    rows: int, divisible: bool, tmp_path: Path
) -> None:
    """Triton compiles anew where a size is a multiple of 16: the measuring worker must find it."""
    m, n = te.size_var("m"), te.size_var("n")
    x = te.placeholder((m, n), "float32", name="x")
    y = te.compute((m, n), lambda i, j: x[i, j] * 2.0, name="y")
    told = session(y, tmp_path, "cuda", m=rows, n=rows).setup
    worker = TuneSession({**told, "features": "sm_90"})
    request = {"key": "one", "decisions": {}}
    schedule = worker.schedule(request)
    codes = {
        known: build_unseen(schedule, "sm_90", {"m": size, "n": size}).code
        for known, size in ((False, 1000), (True, 1024))
    }
    assert codes[False] != codes[True]
    assert worker.compile(request)["code"] == codes[divisible]


def test_what_runs_ahead_of_a_session_is_of_its_tensors(tmp_path: Path) -> None:
    """What the rules derive is kept for tensors: others of the same workload would find nothing."""
    row = te.nn.softmax(te.placeholder((64, 256), "float32", name="x"))
    told = {**session(row, tmp_path, "cuda").setup, "features": "sm_90"}
    first, second = TuneSession(told), TuneSession(told)
    assert first.workload.outputs[0] is second.workload.outputs[0]
