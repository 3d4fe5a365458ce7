"""The search from end to end on the CPU: real candidates, real workers, real faults."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import chaos_worker
import numpy as np
import pytest
from small_problems import N, chain, pieces

import tedsl as te
from tedsl.autotune import autotune, tune, tuner
from tedsl.autotune.frontend.options import SizesOptions, TuneOptions
from tedsl.autotune.frontend.settings import Options
from tedsl.autotune.records.database import Records
from tedsl.autotune.report.events import Started
from tedsl.errors import TuneError
from tedsl.runtime.cache.fingerprint import code_version
from tedsl.scheduling.handles.schedule import Schedule

pytestmark = pytest.mark.cpu
CODEGEN = code_version()


def check_chain(kernel: Callable[[np.ndarray], Any]) -> None:
    x = np.linspace(-2, 2, N, dtype=np.float32)
    got = kernel(x)
    np.testing.assert_allclose(got, np.tanh(x * 2 + 1) * np.exp(-x), rtol=1e-5, atol=1e-6)


def rows(path: Path) -> list[dict[str, object]]:
    records = Records(path)
    lines = path.with_suffix(".jsonl")
    records.export(lines)
    records.close()
    found = [json.loads(line) for line in lines.read_text().splitlines()]
    return [row for row in found if row["kind"] == "candidate"]


def test_a_chain_is_tuned_recorded_and_replayed(tmp_path: Path):
    path = tmp_path / "r.sqlite"
    first = tune(chain(), "cpu", trials=6, records=path)
    check_chain(first.kernel)
    assert not first.replayed
    assert first.winner.seconds <= first.trials[0].seconds
    assert first.kernel.schedule is not None
    count = len(rows(path))
    assert count == len(first.trials)
    again = tune(chain(), "cpu", trials=6, records=path)
    assert again.replayed
    assert again.winner.candidate.key == first.winner.candidate.key
    renamed = tune(chain("other"), "cpu", trials=4, records=path)
    assert renamed.replayed
    check_chain(renamed.kernel)
    assert len(rows(path)) == count
    assert not tune(chain(size=N + 1), "cpu", trials=1, records=path).replayed


def test_a_known_winner_costs_no_search_and_no_look_at_the_other_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, shape = tmp_path / "r.sqlite", pieces(8, 64, 512)
    first = tune(chain(), "cpu", records=path, schedule=shape)

    def made(*_: object, **__: object) -> None:
        raise AssertionError("this is for searches")

    monkeypatch.setattr(tuner, "Search", made)
    monkeypatch.setattr(Records, "known", made)
    again = tune(chain(), "cpu", records=path, schedule=shape)
    assert again.replayed
    assert again.winner.candidate.key == first.winner.candidate.key
    started = next(event for event in again.events if isinstance(event, Started))
    assert started.known == 3


def test_winners_are_kept_in_a_text_file_and_replayed(tmp_path: Path):
    path = tmp_path / "deep" / "winners.jsonl"
    shape = pieces(8, 64, 512)
    first = tune(chain(), "cpu", records=path, schedule=shape)
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert kinds == ["run", "candidate"]
    again = tune(chain("renamed"), "cpu", records=path, schedule=shape)
    assert again.replayed
    assert again.winner.candidate.key == first.winner.candidate.key
    text = path.read_text().replace(f'"codegen": "{CODEGEN}"', '"codegen": "an older compiler"')
    path.write_text(text)
    certified = tune(chain(), "cpu", records=path, schedule=shape)
    assert certified.replayed
    assert certified.winner.candidate.key == first.winner.candidate.key
    assert len(path.read_text().splitlines()) == 4


def test_budgets_by_name(tmp_path: Path):
    path = tmp_path / "r.sqlite"
    shape = pieces(*range(8, 88, 4))
    unmeasured = tune(chain(), "cpu", budget="none", records=path, schedule=shape)
    check_chain(unmeasured.kernel)
    assert unmeasured.measure_seconds == 0.0
    assert unmeasured.winner.outcome.samples == ()
    assert not path.exists() or not rows(path)
    quick = tune(chain(), "cpu", budget="quick", records=path, schedule=shape)
    assert len(quick.trials) == 16
    assert tune(chain(), "cpu", budget="quick", records=path, schedule=shape).replayed
    known = tune(chain(), "cpu", budget="none", records=path, schedule=shape)
    assert known.replayed
    assert known.winner.candidate.key == quick.winner.candidate.key


def test_a_time_that_is_over_at_once_gives_the_default():
    found = tune(chain(), "cpu", seconds=1e-6, records=False)
    assert [trial.candidate.origin for trial in found.trials] == ["default"]
    check_chain(found.kernel)


def test_softmax_with_default_rules(tmp_path: Path):
    x = te.placeholder((33, 257), "float32", name="x")
    kernel = autotune(te.nn.softmax(x), "cpu", trials=4, records=tmp_path / "r.sqlite")
    data = np.random.default_rng(0).standard_normal((33, 257)).astype(np.float32)
    e = np.exp(data - data.max(1, keepdims=True))
    np.testing.assert_allclose(kernel(data), e / e.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)


def test_a_users_function_is_a_space():
    found = tune(chain(), "cpu", trials=10, records=False, schedule=pieces(8, 64, 512))
    assert found.exhausted
    assert len(found.trials) == 3
    assert found.trials[0].candidate.decisions == {"piece": 8}
    check_chain(found.kernel)


def test_chaos_is_survived_and_recorded(tmp_path: Path):
    faults = (*chaos_worker.FAULTS, chaos_worker.WRONG, chaos_worker.OUTSIDE, 47)
    path = tmp_path / "r.sqlite"
    found = tune(
        chain(),
        "cpu",
        trials=40,
        records=path,
        schedule=pieces(8, 64, 256, *faults),
        command=chaos_worker.COMMAND,
        candidate_seconds=4.0,
    )
    check_chain(found.kernel)
    assert found.winner.candidate.decisions["piece"] in (8, 64, 256)
    by_piece = {
        json.loads(str(row["decisions"]))["piece"]: (row["status"], row["reason"])
        for row in rows(path)
    }
    assert len(by_piece) == 3 + len(faults)
    assert by_piece[11] == ("crash", "signal 11 (SIGSEGV)")
    assert by_piece[13] == ("crash", "signal 6 (SIGABRT)")
    assert by_piece[17] == ("timeout", "longer than 4 s")
    assert by_piece[19] == ("out_of_memory", "out of memory")
    assert by_piece[23] == ("crash", "signal 9 (SIGKILL)")
    assert by_piece[29] == ("crash", "exit status 3")
    assert by_piece[31] == ("compile_error", "ptxas said no")
    assert by_piece[37] == ("wrong", "wrong output")
    assert by_piece[41] == ("wrong", "wrote outside its output")
    assert by_piece[47] == ("crash", "signal 6 (SIGABRT)")
    assert found.rejected == {
        "crash": 5, "timeout": 1, "out_of_memory": 1, "compile_error": 1, "wrong": 2,
    }  # fmt: skip


def test_nothing_right_is_an_error_with_counts():
    with pytest.raises(TuneError, match=r"none of 2 candidates ran correctly(.|\n)*1 wrong: wrong"):
        tune(
            chain(),
            "cpu",
            trials=4,
            records=False,
            schedule=pieces(chaos_worker.WRONG, 13),
            command=chaos_worker.COMMAND,
        )


def test_symbolic_sizes_need_a_value():
    n = te.var("n")
    x = te.placeholder((n,), "float32", name="x")
    y = te.compute((n,), lambda i: x[i] * 2.0, name="y")
    with pytest.raises(TuneError, match="'n' is symbolic and has no value"):
        tune(y, "cpu", trials=2, records=False)
    kernel = autotune(y, "cpu", trials=2, records=False, sizes={"n": 1000})
    np.testing.assert_array_equal(kernel(np.ones(7, np.float32)), np.full(7, 2, np.float32))


@pytest.mark.parametrize(
    ("target", "budget", "text"),
    [
        ("tpu", {}, "unknown target 'tpu'"),
        ("triton-interpret", {}, "cannot be timed on the target 'triton-interpret'"),
        ("cuda:sm_90", {}, "cannot be timed on the target 'cuda:sm_90'"),
        ("cpu", {"trials": 0}, "trials=0 is no budget"),
        ("cpu", {"seconds": -1.0}, r"seconds=-1.0 is no budget"),
        ("cpu", {"budget": "some"}, r"budget='some' is unknown(.|\n)*quick \(16\)"),
        ("cpu", {"budget": "quick", "trials": 3}, "two budgets"),
        ("cpu", {"budget": "none", "seconds": 3.0}, "measures nothing"),
    ],
)
def test_what_cannot_be_tuned_is_refused(target: str, budget: dict[str, Any], text: str):
    with pytest.raises(TuneError, match=text):
        tune(chain(), target, records=False, **budget)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="needs a machine without a GPU")
def test_a_missing_gpu_is_named():
    with pytest.raises(TuneError, match=r'target="cuda"'):
        tune(chain(), "cuda", records=False)


def test_an_internal_error_is_let_out():
    def broken(s: Schedule) -> None:
        raise te.InternalError("lost a stage")

    with pytest.raises(te.InternalError, match="lost a stage"):
        tune(chain(), "cpu", records=False, schedule=broken)


Start = Callable[[Path, int], "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the tuning program on a record file; what still runs after the test is killed."""
    program = Path(chaos_worker.__file__).with_name("tune_program.py")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    started: list[subprocess.Popen[bytes]] = []

    def run(path: Path, trials: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", str(program), str(path), str(trials)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        if process.stdout is not None and not process.stdout.closed:
            process.communicate()


def wait_for_rows(path: Path, count: int, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if path.exists() and len(rows(path)) >= count:
            return
        time.sleep(0.1)
    raise AssertionError("the program records nothing")


def test_a_killed_search_is_resumed(tmp_path: Path, start: Start):
    path = tmp_path / "r.sqlite"
    process = start(path, 12)
    wait_for_rows(path, 3)
    process.kill()
    process.communicate(timeout=30)
    before = {row["key"]: row["samples"] for row in rows(path)}
    assert 3 <= len(before) < 12
    process = start(path, 12)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err.decode()
    assert json.loads(out)["right"]
    after = rows(path)
    assert len({row["key"] for row in after}) == 12
    runs = {row["run"] for row in after}
    assert len(runs) == 2
    assert len(after) <= 12 + 9  # each once, and once more those that were compared in the end
    for row in after:
        if row["key"] in before:
            assert row["samples"] == before[row["key"]]


def test_every_option_is_documented_and_known():
    documented = {*TuneOptions.__annotations__, *SizesOptions.__annotations__}
    known = {field.name for field in fields(Options)} - {"command"}
    assert documented == known
    with pytest.raises(TypeError, match="trails"):
        autotune(chain(), "cpu", trails=3)  # pyright: ignore[reportCallIssue]
