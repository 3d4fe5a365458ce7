"""The bench on real CPU kernels that are spoilt in one way each: every way is found and named."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_problems import checked_closely

import tedsl as te
from tedsl.autotune.measure import guarded_buffers, timer
from tedsl.autotune.measure.bench import Bench
from tedsl.autotune.measure.guarded_buffers import DeviceArena, HostArena
from tedsl.autotune.measure.timer import HostClock, in_turn
from tedsl.autotune.workers.session import TuneSession
from tedsl.checking.random_inputs import ADVERSE, KINDS, make_inputs
from tedsl.runtime.timing import AWAKE
from tedsl.tensor.tensor import Tensor
from tedsl.workload.extents import Extents
from tedsl.workload.workload import Workload

pytestmark = pytest.mark.cpu
MASKED = np.float32(-1.2345678e9)
After = Callable[[tuple[np.ndarray, ...], tuple[np.ndarray, ...]], None]


class Spoilt:
    """A kernel that does something to its arrays once its work is done."""

    def __init__(self, kernel: Any, after: After) -> None:
        self.kernel = kernel
        self.after = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)

    def __call__(self, *inputs: np.ndarray, out: tuple[np.ndarray, ...], **scalars: Any) -> None:
        self.kernel(*inputs, out=out, **scalars)
        self.after(inputs, out)


def softmax() -> Tensor:
    return te.nn.softmax(te.placeholder((33, 65), "float32", name="x"))


def bench_of(output: Tensor, folder: Path, **sizes: int) -> Bench:
    workload = Workload.of(output)
    return Bench(workload, Extents(workload, sizes), "cpu", 3, folder)


def kernel_of(bench: Bench) -> Any:
    return te.build(list(bench.workload.outputs), "cpu")


def test_a_right_kernel_passes_everything(tmp_path: Path):
    bench = bench_of(softmax(), tmp_path)
    kernel = kernel_of(bench)
    assert bench.check(kernel) is None
    assert checked_closely(bench, kernel) is None
    assert bench.stand.wanted.keys() == {*KINDS, *ADVERSE}
    assert all(wanted is not None for wanted in bench.stand.wanted.values())
    assert len(bench.time(kernel, None)) == 15
    assert len(bench.time(kernel, 1e-12)) == 5
    assert [len(taken) for taken in bench.compare([kernel, kernel], 4, 1.0)] == [4, 4]
    assert bench.drift() >= 0.0


class Told:
    """A clock that tells what it was told, once for each call."""

    def __init__(self, *samples: list[float]) -> None:
        self.samples = list(samples)

    def time(self, rotations: dict[str, Any], repeats: int, limit: float) -> Any:
        return {"": self.samples.pop(0)}


def test_what_was_disturbed_once_is_not_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bench = bench_of(softmax(), tmp_path)
    kernel = kernel_of(bench)
    race, whole = [9e-6, 1e-6, 9e-6, 9e-6, 9e-6], [1e-6] * 15
    for bound, samples in ((1e-6, whole), (1e-7, race)):
        monkeypatch.setattr(bench, "clock", Told(race, whole))
        assert bench.time(kernel, bound) == samples


class Queue:
    """What `DeviceArena` asks of PyTorch: an event that has run once it was asked so often."""

    def __init__(self, asked: int) -> None:
        self.left = asked
        self.cuda = self

    def Event(self) -> "Queue":
        return self

    def record(self) -> None:
        """Nothing was queued but what is waited for."""

    def query(self) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize(("asked", "ended"), [(0, True), (3, True), (1 << 60, False)])
def test_a_device_is_waited_for_a_limited_time(asked: int, ended: bool):
    device = DeviceArena.__new__(DeviceArena)
    device.torch = Queue(asked)
    begin = time.monotonic()
    assert device.finish(0.05) is ended
    assert ended or 0.05 <= time.monotonic() - begin < 5.0


def test_a_run_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    x = softmax()
    setup = {
        "workload": Workload.of(x).to_json(),
        "target": "cpu",
        "sizes": {},
        "seed": 3,
        "scratch": str(tmp_path),
        "trace": False,
        "role": "measure",
    }
    session = TuneSession(setup)
    request: dict[str, Any] = {"key": "default", "decisions": {}}
    limits: list[float | None] = []

    def finish(_: HostArena, limit: float | None = None) -> bool:
        limits.append(limit)
        return limit is None

    monkeypatch.setattr(HostArena, "finish", finish)
    first = session.measure({**request, "bound": None})
    assert first["status"] == "ok"
    assert set(limits) == {None}, "nothing is known of what a run may take"
    for best, limit in ((1e-5, "0.1"), (0.02, "2")):
        reply = session.measure({**request, "bound": best})
        assert (reply["status"], reply["fatal"], reply["running"]) == ("timeout", True, True)
        assert reply["reason"] == f"longer than {limit} s"


def test_two_runs_that_differ(tmp_path: Path):
    bench = bench_of(softmax(), tmp_path)
    calls: list[int] = []

    def after(_: object, out: tuple[np.ndarray, ...]) -> None:
        calls.append(1)
        out[0][0, 0] *= np.float32(1 + 1e-7 * len(calls))

    finding = bench.check(Spoilt(kernel_of(bench), after))  # pyright: ignore[reportArgumentType]
    assert finding is not None
    assert finding.status == "nondeterministic"
    assert finding.text == "random inputs: two runs gave different bits"


def test_atomic_schedules_may_differ_between_runs(tmp_path: Path):
    x = te.placeholder((64, 200), "float32", name="x")
    k = te.reduce_axis((0, 200), name="k")
    total = te.compute((64,), lambda i: te.sum(x[i, k], axis=k), name="total")
    bench = bench_of(total, tmp_path)
    s = te.create_schedule(bench.workload.outputs[0])
    stage = s[bench.workload.outputs[0]]
    outer, _ = stage.split(bench.workload.computes[0].reduce_axes[0], factor=50)
    stage.atomic()
    stage.parallel(outer)
    kernel: Any = Spoilt(te.build(s, "cpu"), _jitter())
    assert bench.check(kernel) is None


def _jitter() -> After:
    calls: list[int] = []

    def after(_: object, out: tuple[np.ndarray, ...]) -> None:
        calls.append(1)
        out[0][0] *= np.float32(1 + 1e-7 * len(calls))

    return after


def test_a_written_input_is_found_and_made_again(tmp_path: Path):
    bench = bench_of(softmax(), tmp_path)
    kernel = kernel_of(bench)

    def after(inputs: tuple[np.ndarray, ...], _: object) -> None:
        inputs[0][3, 4] = 9.0

    finding = bench.check(Spoilt(kernel, after))  # pyright: ignore[reportArgumentType]
    assert finding is not None
    assert finding.text == "random inputs: the input x was written"
    assert bench.check(kernel) is None


def test_what_is_wrong_for_masked_rows_only(tmp_path: Path):
    bench = bench_of(softmax(), tmp_path)

    def after(inputs: tuple[np.ndarray, ...], out: tuple[np.ndarray, ...]) -> None:
        out[0][(inputs[0] == MASKED).all(axis=1)] = 0.0

    kernel: Any = Spoilt(kernel_of(bench), after)
    assert bench.check(kernel) is None
    finding = checked_closely(bench, kernel)
    assert finding is not None
    assert finding.text.startswith("masked inputs: ")


def test_what_is_wrong_at_other_sizes_only(tmp_path: Path):
    n = te.size_var("n")
    x = te.placeholder((n,), "float32", name="x")
    y = te.compute((n,), lambda i: x[i] * 2.0 + 1.0, name="y")
    bench = bench_of(y, tmp_path, n=64)

    def after(_: object, out: tuple[np.ndarray, ...]) -> None:
        if out[0].size % 16:
            out[0][-1] = 0.0

    kernel: Any = Spoilt(kernel_of(bench), after)
    assert bench.check(kernel) is None
    finding = checked_closely(bench, kernel)
    assert finding is not None
    assert finding.text.startswith("at n=7: random inputs: y[6] is 0.0")
    assert checked_closely(bench, kernel_of(bench)) is None


def test_sizes_that_a_schedule_does_not_serve_are_not_asked_for(tmp_path: Path):
    n = te.size_var("n")
    x = te.placeholder((n,), "float32", name="x")
    y = te.compute((n,), lambda i: x[i] * 2.0 + 1.0, name="y")
    bench = bench_of(y, tmp_path, n=64)
    s = te.create_schedule(bench.workload.outputs[0])
    s.assume(bench.workload.variables[0] % 16 == 0)
    assert checked_closely(bench, te.build(s, "cpu")) is None


def test_adverse_inputs_that_have_no_one_answer_are_left_out(tmp_path: Path):
    x = te.placeholder((40, 8), "float32", name="x")
    k = te.reduce_axis((0, 8), name="k")
    total = te.compute((40,), lambda i: te.sum(x[i, k], axis=k), name="total")
    share = te.compute((40, 8), lambda i, j: x[i, j] / total[i], name="share")
    bench = bench_of(share, tmp_path)
    assert checked_closely(bench, kernel_of(bench)) is None
    assert bench.stand.wanted["rows"] is None  # 0 / 0


def test_kinds_of_rows():
    x = te.placeholder((12, 8), "float32", name="x")
    size = Extents(Workload.of(te.compute((12, 8), lambda i, j: x[i, j] * 2.0, name="y")), {})
    rows = make_inputs(size, 1, "rows")[x]
    assert (rows[0] == 0).all()
    assert (rows[1] == 3).all()
    assert (rows[2] < 0).all()
    assert np.sort(np.abs(rows[3]))[-1] == 10
    assert 0 < np.abs(rows[4]).max() < 1e-37
    masked = make_inputs(size, 1, "masked")[x]
    assert (masked[3] == MASKED).all()
    assert (masked == MASKED).sum() < masked.size * 0.75


def test_arrays_of_a_fair_size_are_rotated(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guarded_buffers, "cache_sizes", lambda: {1: 48 << 10, 3: 32 << 20})
    host = HostArena()
    assert host.copies(1 << 20) == 1
    assert host.copies(8 << 20) == 6
    assert host.copies(100 << 20) == 1
    assert host.copies(3 << 30) == 1


def test_a_rotation_uses_every_copy_in_turn():
    seen: list[int] = []
    calls = [lambda n=n: seen.append(n) for n in range(3)]
    HostClock().time({"": calls}, 3, 1.0)
    assert seen == [n % 3 for n in range(len(seen))]


def test_processors_that_slept_are_woken_before_the_first_sample(monkeypatch: pytest.MonkeyPatch):
    host = HostClock()
    seen: list[float] = []
    begin = time.perf_counter()

    def call() -> None:
        seen.append(time.perf_counter() - begin)
        time.sleep(0.001)

    host.time({"": [call]}, 3, 1.0)
    assert seen[-4] > AWAKE  # before the three samples a call says how many a sample has
    seen.clear()
    monkeypatch.setattr(timer, "ASLEEP", 1e3)
    host.time({"": [call]}, 3, 1.0)
    assert len(seen) == 5  # so soon after the last, nothing has to be woken


def test_rounds_go_forth_and_back():
    seen: list[str] = []
    samplers = {name: (lambda name=name: seen.append(name)) for name in "abc"}
    in_turn(samplers, 3, 1.0, lambda: None)
    assert "".join(seen) == "abccbaabc"
    seen.clear()
    in_turn(samplers, 50, 0.0, lambda: None)
    assert len(seen) == 9


def test_sizes_of_one_computation_share_the_checks_elsewhere(tmp_path: Path):
    n = te.size_var("n")
    x = te.placeholder((n,), "float32", name="x")
    workload = Workload.of(te.compute((n,), lambda i: x[i] + 1.0, name="y"))
    sizes = [Extents(workload, {"n": value}) for value in (64, 100)]
    first = Bench(workload, sizes[0], "cpu", 3, tmp_path)
    second = Bench(workload, sizes[1], "cpu", 3, tmp_path, like=first)
    kernel = kernel_of(first)
    calls: list[int] = []
    noted: Any = Spoilt(kernel, lambda inputs, outputs: calls.append(len(outputs[0])))
    assert first.is_open(noted, "k")
    assert first.check_elsewhere(noted, "k") is None
    assert sorted(set(calls)) == [1, 7]
    calls.clear()
    assert not second.is_open(noted, "k")
    assert second.check_elsewhere(noted, "k") is None
    assert calls == []
    assert second.is_open(noted, "another")

    def spoil(_: Any, outputs: tuple[np.ndarray, ...]) -> None:
        outputs[0][...] = outputs[0][0] if len(outputs[0]) == 7 else outputs[0]

    finding = second.check_elsewhere(Spoilt(kernel, spoil), "another")  # pyright: ignore[reportArgumentType]
    assert finding is not None
    assert "at n=7" in finding.text
    assert first.is_open(noted, "another")  # what was wrong is not forgotten for what is right
