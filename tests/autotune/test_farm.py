"""Candidates through executors: what gets lost is sent again, device models are never mixed."""

import importlib
import importlib.util
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tedsl as te
from tedsl.autotune import tune, tune_many
from tedsl.autotune.cluster.cluster import Farm, Share
from tedsl.autotune.cluster.device_host import HOSTS, Host, Place, outcome_json
from tedsl.autotune.outcome import Outcome, Status
from tedsl.autotune.records.checked_outcomes import checked_outcome
from tedsl.autotune.search_space.space import Candidate, Knob
from tedsl.autotune.workers.protocol import Limits
from tedsl.backends.processes.pool import Reply
from tedsl.errors import TuneError
from tedsl.runtime.cache.fingerprint import code_version

farms: Any = importlib.import_module("tedsl.autotune.cluster.cluster")
FACTS = {"device": "model A", "features": "", "toolchain": "", "codegen": code_version()}
Answer = Callable[[dict[str, Any]], Any]


class Scripted(Executor):
    """An executor whose hosts answer as they are told to, or get lost."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []

    def submit(self, fn: Any, /, *args: Any, **_: Any) -> Future[Any]:
        request = json.loads(args[0])
        future: Future[Any] = Future()
        if request["op"] == "facts":
            future.set_result(json.dumps({"facts": FACTS}))
            return future
        self.asked.append(request)
        found = self.answer(request)
        if isinstance(found, Exception):
            future.set_exception(found)
        else:
            future.set_result(json.dumps(found))
        return future


def right(request: dict[str, Any]) -> dict[str, Any]:
    """Every candidate takes as many seconds as its key says."""
    outcomes = [Outcome(Status.OK, float(c["key"]), (1.0,)) for c in request["candidates"]]
    return {"outcomes": [outcome_json(outcome) for outcome in outcomes]}


def described(*keys: int) -> list[dict[str, Any]]:
    return [{"key": str(key), "decisions": {}} for key in keys]


def drained(farm: Farm, problem: str, tickets: list[int]) -> list[Outcome | None]:
    found = dict(farm.wait(problem) for _ in tickets)
    return [found[ticket] for ticket in tickets]


def test_chunks_come_back_in_place():
    executor = Scripted(right)
    with Farm(Place("cpu"), executor=executor) as farm:
        one, two = farm.add({"n": 1}), farm.add({"n": 2})
        first = farm.begin(one, described(*range(1, 10)), best=0.5)
        second = farm.begin(two, described(20))
        assert [o and o.seconds for o in drained(farm, two, second)] == [20.0]
        assert [o and o.seconds for o in drained(farm, one, first)] == list(range(1, 10))
    assert [len(request["candidates"]) for request in executor.asked] == [4, 4, 1, 1]
    assert executor.asked[0]["best"] == 0.5
    assert executor.asked[3]["problem"] == {"n": 2}
    assert all(request["wanted"] == "model A" for request in executor.asked)
    assert len({json.dumps(request) for request in executor.asked}) == 4


def test_what_is_lost_is_sent_again_alone_and_given_up_after_three():
    def answer(request: dict[str, Any]) -> Any:
        keys = [c["key"] for c in request["candidates"]]
        return RuntimeError("the host is gone") if "3" in keys else right(request)

    executor = Scripted(answer)
    with Farm(Place("cpu"), executor=executor) as farm:
        problem = farm.add({})
        found = drained(farm, problem, farm.begin(problem, described(1, 2, 3, 4)))
    assert [o and o.status for o in found] == [Status.OK, Status.OK, Status.CRASH, Status.OK]
    lost = found[2]
    assert lost is not None
    assert lost.reason == "its host was lost 3 times"
    assert "the host is gone" in lost.error
    assert lost.resources["strikes"] == 3
    assert [len(request["candidates"]) for request in executor.asked] == [4, 1, 1, 1, 1, 1]


def test_other_models_are_passed_over():
    models = ["model B", "model B", "model A"]

    def answer(request: dict[str, Any]) -> Any:
        model = models.pop(0)
        return right(request) if model == request["wanted"] else {"other": model}

    with Farm(Place("cpu"), executor=Scripted(answer)) as farm:
        problem = farm.add({})
        found = drained(farm, problem, farm.begin(problem, described(1)))
    assert [o and o.seconds for o in found] == [1.0]


def test_only_other_models_are_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(farms, "BOUNCES", 3)
    with Farm(Place("cpu"), executor=Scripted(lambda _: {"other": "model B"})) as farm:
        problem = farm.add({})
        farm.begin(problem, described(1))
        with pytest.raises(TuneError, match=r"no free host with the device(.|\n)*model B"):
            farm.wait(problem)


def test_hosts_with_another_tedsl_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(FACTS, "codegen", "of last week")
    with (
        pytest.raises(TuneError, match="the executor's hosts have another tedsl"),
        Farm(Place("cpu"), executor=Scripted(right)),
    ):
        pass


def test_a_comparison_that_no_host_answers_is_an_error():
    with Farm(Place("cpu"), executor=Scripted(lambda _: OSError("unreachable"))) as farm:
        problem = farm.add({})
        with pytest.raises(TuneError, match="no host answers: OSError: unreachable"):
            farm.compare(problem, described(1, 2), 4, 1.0)


def test_an_executor_that_is_shut_down_ends_the_search_and_a_made_one_is_made_again():
    class Broken(Scripted):
        def submit(self, fn: Any, /, *args: Any, **_: Any) -> Future[Any]:
            if len(self.asked) >= 1:
                raise RuntimeError("cannot schedule new futures after shutdown")
            return super().submit(fn, *args)

    with Farm(Place("cpu"), executor=Broken(right)) as farm:
        problem = farm.add({})
        with pytest.raises(TuneError, match="the executor takes no more work"):
            farm.begin(problem, described(*range(8)))
    made: list[Scripted] = []

    def make() -> Executor:
        made.append(Broken(right))
        return made[-1]

    with Farm(Place("cpu"), executor=make) as farm:
        problem = farm.add({})
        found = drained(farm, problem, farm.begin(problem, described(*range(1, 13))))
    assert [o and o.seconds for o in found] == list(range(1, 13))
    assert len(made) == 3


def test_a_share_knows_what_is_recorded_and_counts_strikes():
    def crash(request: dict[str, Any]) -> Any:
        outcomes = [Outcome(Status.CRASH, resources={"strikes": 1.0})]
        return {"outcomes": [outcome_json(o) for o in outcomes * len(request["candidates"])]}

    candidates = [Candidate((Knob("n", (n,), n),)) for n in range(3)]
    known = [Outcome(Status.OK, 2.0), Outcome(Status.CRASH, resources={"strikes": 1.0}), None]
    executor = Scripted(crash)
    with Farm(Place("cpu"), executor=executor) as farm:
        share = Share(farm, {}, lambda c: {"key": c.key, "decisions": c.decisions})
        share.begin(0, candidates, known=known)
        found = {done.position: done.outcome for done in (share.wait() for _ in candidates)}
    assert found[0] is known[0]
    strikes = {n: o.resources["strikes"] for n, o in found.items() if n and o is not None}
    assert strikes == {1: 2.0, 2: 1.0}
    assert len(executor.asked) == 1


def test_outcomes_travel():
    outcome = Outcome(Status.OK, 1.5, (1.0, 2.0), "r", "e", "abc@problem", {"registers": 3.0})
    back = checked_outcome(json.loads(json.dumps(outcome_json(outcome))))
    assert back == Outcome(Status.OK, 1.5, (1.0, 2.0), "r", "e", "abc", {"registers": 3.0})


def softmax() -> te.Tensor:
    return te.nn.softmax(te.placeholder((33, 257), "float32", name="x"))


def check_softmax(kernel: Any) -> None:
    data = np.random.default_rng(0).standard_normal((33, 257)).astype(np.float32)
    e = np.exp(data - data.max(1, keepdims=True))
    np.testing.assert_allclose(kernel(data), e / e.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)


@pytest.mark.cpu
def test_a_search_through_a_process_pool():
    with ProcessPoolExecutor(1) as pool:
        found = tune(softmax(), "cpu", trials=3, records=False, executor=pool)
    check_softmax(found.kernel)
    assert found.winner.outcome.status is Status.OK
    assert not HOSTS.running


def rows_and_columns(s: te.Schedule) -> None:
    """A schedule with enough choices to keep a cluster busy for a while."""
    stage = s[s.outputs[0]]
    piece = s.knob("piece", (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024), 8)
    _, inner = stage.split(stage.op.axis[0], factor=piece)
    if s.knob("vector", (False, True), default=False):
        stage.vectorize(inner)


@pytest.mark.cpu
@pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="distributed is not installed"
)
@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_of_which_a_worker_is_killed():
    distributed: Any = importlib.import_module("distributed")
    x = te.placeholder((3000,), "float32", name="x")
    y = te.compute((3000,), lambda i: te.tanh(x[i] * 2.0) * te.exp(-x[i]), name="y")
    cluster = distributed.LocalCluster(
        n_workers=3, threads_per_worker=1, processes=True, dashboard_address=None
    )
    killed: list[int] = []
    with cluster, distributed.Client(cluster) as client:
        pids = list(client.run(os.getpid).values())

        def kill() -> None:
            time.sleep(4.0)
            os.kill(pids[0], signal.SIGKILL)
            killed.append(pids[0])

        thread = threading.Thread(target=kill)
        thread.start()
        found = tune_many(
            [("y", y)],
            "cpu",
            trials=22,
            records=False,
            schedule=rows_and_columns,
            executor=client.get_executor(),
        )
        thread.join()
    assert killed
    assert len(found["y"].trials) == 22
    assert all(t.outcome.status is Status.OK for t in found["y"].trials)
    data = np.linspace(-1, 1, 3000, dtype=np.float32)
    np.testing.assert_allclose(
        found["y"].kernel(data), np.tanh(data * 2) * np.exp(-data), rtol=1e-4, atol=1e-6
    )


@pytest.mark.cpu
def test_hosts_may_be_kept_for_the_next_search():
    x = te.placeholder((64,), "float32", name="x")
    y = te.compute((64,), lambda i: x[i] * 2.0, name="y")
    options: dict[str, Any] = {"trials": 2, "records": False, "devices": [0], "progress": False}
    with HOSTS.kept():
        tune(y, "cpu", **options)
        assert HOSTS.running == 1
        (host,) = HOSTS._made.values()
        started = [worker.starts for worker in host.engine.compilers]
        assert sum(started) >= 1
        tune(y + 1.0, "cpu", **options)
        assert started == [worker.starts for worker in host.engine.compilers]
    assert not HOSTS.running


class Answers:
    """An engine that answers a host at once, but for references."""

    def __init__(self) -> None:
        self.made: Future[dict[str, Any]] = Future()
        self.limits = Limits()
        self.asked: list[str] = []

    def refer(self, kinds: Any, problem: str) -> list[Future[dict[str, Any]]]:
        return [self.made]

    def ask(self, request: dict[str, Any], limit: float) -> Reply:
        self.asked.append(request["op"])
        return Reply({"status": "ok"})

    def compare(self, candidates: Any, rounds: int, seconds: float) -> list[list[float]]:
        return []


def test_a_problem_is_opened_when_its_references_are_made(tmp_path: Path):
    host = Host.__new__(Host)
    engine = Answers()
    fields: dict[str, Any] = {
        "place": Place("cuda"), "device": "A", "scratch": str(tmp_path), "engine": engine,
        "_opened": [], "_referred": {}, "_same": {}, "_closed": False,
        "_opening": threading.Lock(), "_knowing": threading.Lock(),
    }  # fmt: skip
    for name, value in fields.items():
        setattr(host, name, value)
    request: dict[str, Any] = {"op": "compare", "wanted": "A", "problem": {"sizes": {"n": 1}}}
    request |= {"candidates": [], "best": None, "rounds": 1, "seconds": 1.0}
    waits = threading.Thread(target=host.attend, args=[request])
    waits.start()
    time.sleep(0.2)
    assert engine.asked == []
    engine.made.set_result({})
    waits.join(10.0)
    assert engine.asked == ["open"]
