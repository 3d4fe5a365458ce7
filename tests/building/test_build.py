"""From tensors and schedules to kernels, on the CPU."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tedsl as te
from tedsl import processor as machine
from tedsl.build import default_target
from tedsl.errors import BackendError, ExprError
from tedsl.runtime.cache import disk as cache
from tedsl.runtime.executors import by_target as executors

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test starts with an empty cache of its own."""
    monkeypatch.setattr(cache, "_configured", type(cache._configured)())
    cache.set_cache_dir(tmp_path / "cache")
    return tmp_path / "cache" / "code"


def row_sums() -> tuple[te.Tensor, te.Tensor]:
    n = te.size_var("n")
    a = te.placeholder((n, 8), "float32", name="A")
    k = te.reduce_axis((0, 8), name="k")
    s = te.compute((n,), lambda i: te.sum(a[i, k], axis=k), name="S")
    return s, te.compute((n, 8), lambda i, j: a[i, j] / s[i], name="B")


def normalised(x: np.ndarray) -> np.ndarray:
    return x / x.sum(axis=1, keepdims=True)


X = np.arange(1, 41, dtype=np.float32).reshape(5, 8)


def test_a_schedule_is_built_and_runs() -> None:
    _, b = row_sums()
    run = te.build(te.create_schedule(b), "cpu")
    assert isinstance(run, te.Kernel)
    for x in (X, X[:1], X[:0], np.tile(X, (7, 1))):
        np.testing.assert_allclose(run(x), normalised(x), rtol=1e-6)
    assert "define" in run.source
    assert run.asm
    assert run.ir == str(run.module)
    assert run.schedule is not None
    assert run.target == te.Target.parse("cpu")
    assert set(run.build_seconds) == {"schedule", "lower", "compile"}


@pytest.mark.parametrize("several", [False, True])
def test_tensors_are_built_by_the_default_rules(several: bool) -> None:
    s, b = row_sums()
    run = te.build([s, b] if several else b, "cpu", name="rows")
    assert run.name == "rows"
    results = run(X)
    if several:
        np.testing.assert_allclose(results[0], X.sum(axis=1), rtol=1e-6)
    np.testing.assert_allclose(results[1] if several else results, normalised(X), rtol=1e-6)


def test_the_kernel_keeps_the_schedule_it_was_built_from() -> None:
    _, b = row_sums()
    s = te.create_schedule(b)
    run = te.build(s, "cpu")
    before = run.schedule.as_python()
    s[b].split(b.op.axis[1], 4)
    assert run.schedule.as_python() == before


def test_lower_shows_the_loops() -> None:
    _, b = row_sums()
    names: list[str] = []
    module = te.lower(te.create_schedule(b), "cpu", dump=lambda name, _: names.append(name))
    assert "for i in 0..n:" in str(module)
    assert names[0] == "bound_reads"
    assert names.index("complete") < names.index("build_nests")
    assert str(module.funcs[0]) in str(module)


def test_what_cannot_be_built() -> None:
    things: tuple[Any, ...] = (1, [], "x", [None])
    for thing in things:
        with pytest.raises(BackendError, match=r"build: \w+ cannot be built(.|\n)*te\.compute"):
            te.build(thing, "cpu")
    with pytest.raises(BackendError, match=r"unknown target 'gpu'(.|\n)*allowed"):
        te.build(row_sums()[1], "gpu")


def test_the_second_build_comes_from_the_cache(own_cache: Path) -> None:
    runs: list[te.Kernel] = []
    entries: list[int] = []
    for _ in range(2):
        runs.append(te.build(te.create_schedule(row_sums()[1]), "cpu"))
        entries.append(len(list(own_cache.glob("*.entry"))))
    assert [run.from_cache for run in runs] == [False, True]
    assert entries[0] == entries[1]
    np.testing.assert_array_equal(runs[0](X), runs[1](X))
    assert runs[1].source == runs[0].source
    assert runs[1].asm == runs[0].asm


def test_another_program_is_another_entry(own_cache: Path) -> None:
    a = te.placeholder((4,), "float32", name="A")
    entries: list[int] = []
    for value in (te.const(1.0, "float32"), te.const(2.0, "float32")):
        b = te.compute((4,), lambda i: a[i] + value, name="B")  # noqa: B023
        run = te.build(te.create_schedule(b), "cpu")
        assert run(np.zeros(4, np.float32))[0] == value.value
        entries.append(len(list(own_cache.glob("*.entry"))))
    assert entries[1] == entries[0] + 2  # the lowered module and its machine code


def test_a_corrupt_entry_is_rebuilt(own_cache: Path) -> None:
    _, b = row_sums()
    te.build(te.create_schedule(b), "cpu")
    for path in own_cache.glob("*.entry"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
    run = te.build(te.create_schedule(b), "cpu")
    assert not run.from_cache
    np.testing.assert_allclose(run(X), normalised(X), rtol=1e-6)
    assert te.build(te.create_schedule(b), "cpu").from_cache


def test_builds_without_the_cache(own_cache: Path) -> None:
    run = te.build(te.create_schedule(row_sums()[1]), "cpu", cache=False)
    np.testing.assert_allclose(run(X), normalised(X), rtol=1e-6)
    assert not own_cache.exists()


def test_an_unsafe_cache_folder_stops_the_build(own_cache: Path) -> None:
    own_cache.mkdir(parents=True)
    own_cache.chmod(0o777)
    s = te.create_schedule(row_sums()[1])
    with pytest.raises(BackendError, match=r"cache folder is not safe(.|\n)*cache=False"):
        te.build(s, "cpu")
    assert te.build(s, "cpu", cache=False)(X).shape == X.shape


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32]
)
def test_dtypes_in_and_out(dtype: Any) -> None:
    a = te.placeholder((3, 7), np.dtype(dtype).name, name="A")
    b = te.compute((3, 7), lambda i, j: a[i, j] + a[i, j], name="B")
    x = np.arange(21).reshape(3, 7).astype(dtype)
    result = te.build(b, "cpu")(x)
    assert result.dtype == x.dtype
    np.testing.assert_array_equal(result, x + x)


@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (33,), (3, 0), (2, 3, 5), ()])
def test_odd_and_empty_shapes(shape: tuple[int, ...]) -> None:
    a = te.placeholder(shape, "float32", name="A")
    b = te.compute(shape, lambda *i: te.exp(a(*i) if not i else a[i]), name="B")
    x = np.asarray(np.random.default_rng(0).standard_normal(shape), np.float32)
    np.testing.assert_allclose(te.build(te.create_schedule(b), "cpu")(x), np.exp(x), rtol=1e-6)


def test_an_empty_sum_is_zero() -> None:
    a = te.placeholder((3, 0), "float32", name="A")
    k = te.reduce_axis((0, 0), name="k")
    b = te.compute((3,), lambda i: te.sum(a[i, k], axis=k), name="B")
    run = te.build(te.create_schedule(b), "cpu")
    assert run(np.zeros((3, 0), np.float32)).tolist() == [0, 0, 0]


def test_negative_sizes() -> None:
    with pytest.raises((ExprError, BackendError), match=r"-1"):
        te.placeholder((-1,), "float32", name="A")
    n = te.size_var("n")
    b = te.compute((n,), lambda i: i * 2, name="B")
    run = te.build(te.create_schedule(b), "cpu")
    assert run(n=3).tolist() == [0, 2, 4]
    with pytest.raises(BackendError, match=r"n = -1 is outside its range"):
        run(n=-1)


def test_torch_in_torch_out() -> None:
    torch = pytest.importorskip("torch")
    run = te.build(te.create_schedule(row_sums()[1]), "cpu")
    x = torch.from_numpy(X)
    result = run(x)
    assert isinstance(result, torch.Tensor)
    torch.testing.assert_close(result, x / x.sum(1, keepdim=True))


def test_many_threads_call_one_kernel() -> None:
    run = te.build(row_sums()[1], "cpu")
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).random((50, 8), np.float32) + 1
        for _ in range(50):
            if not np.allclose(run(x), normalised(x), rtol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_explain_counts_what_moves() -> None:
    _, b = row_sums()
    run = te.build(te.create_schedule(b), "cpu")
    run(X)
    told = run.explain()
    assert [kernel.name for kernel in told.kernels] == ["S", "B"]
    assert told.least_bytes == 2 * X.nbytes
    assert told.workspace_bytes == 5 * 4
    assert told.nbytes == 3 * X.nbytes + 2 * 5 * 4
    assert told.kernels[1].flops == 40
    assert "kernel S" in str(told)


def test_the_default_target_is_one_that_runs() -> None:
    assert str(default_target()) in ("cpu", "cuda")


def test_cuda_without_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(BackendError, match=r"no NVIDIA GPU(.|\n)*cpu(.|\n)*cuda:sm_90"):
        te.build(row_sums()[1], "cuda")


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BackendError, match=r"target cpu needs the package llvmlite(.|\n)*pip"):
        te.build(row_sums()[1], "cpu")
    with pytest.raises(BackendError, match=r"target cuda needs the package triton"):
        te.build(row_sums()[1], "cuda")


def test_the_key_covers_program_target_machine_and_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from_cpu = executors.cpu_key
    module = te.lower(te.create_schedule(row_sums()[1]), "cpu")
    cpu = te.Target.parse("cpu")
    keys = {from_cpu(module, cpu)}
    assert from_cpu(te.lower(te.create_schedule(row_sums()[1]), "cpu"), cpu) in keys
    keys.add(from_cpu(replace(module, name="other"), cpu))
    here = machine.machine()
    monkeypatch.setattr(machine, "machine", lambda: replace(here, features="-avx2"))
    keys.add(from_cpu(module, cpu))
    monkeypatch.setattr(executors, "code_version", lambda: "another")
    keys.add(from_cpu(module, cpu))
    monkeypatch.setattr(executors, "tool_versions", lambda *_: "another")
    keys.add(from_cpu(module, cpu))
    assert len(keys) == 5


WORKER = """
import sys
import numpy as np
import tedsl as te
te.runtime.set_cache_dir(sys.argv[1])
a = te.placeholder((64,), "float32", name="A")
for step in range(6):
    b = te.compute((64,), lambda i: a[i] * 2.0 + float(step % 3), name="B")
    run = te.build(te.create_schedule(b), "cpu")
    if run(np.ones(64, np.float32)).tolist() != [2.0 + step % 3] * 64:
        sys.exit("wrong result")
"""


def test_processes_build_the_same_kernels_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path / "shared")]
    workers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for worker in workers:
        _, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0, errors
    names = [path.name for path in (tmp_path / "shared" / "code").iterdir()]
    # Three modules and their code, the pool of threads, and the version of the sources.
    assert len(names) == 8
    assert all(name.endswith(".entry") for name in names)


def test_the_schedule_of_the_rules_goes_on_by_hand() -> None:
    x = te.placeholder((64, 96), name="x")
    y = te.nn.softmax(x)
    s = te.schedule_for(y, "cuda:sm_90")
    assert str(s) == str(te.build(y, "cuda:sm_90").schedule)
    other = te.schedule_for([y], "cuda:sm_90", {"softmax.warps": 8})
    assert {knob.name: knob.chosen for knob in other.knobs}["softmax.warps"] == 8
    with pytest.raises(te.ScheduleError, match=r"no knob 'softmax.warp' here(.|\n)*write one of"):
        te.schedule_for(y, "cuda:sm_90", {"softmax.warp": 8})
    with pytest.raises(te.BackendError, match=r"int cannot be scheduled(.|\n)*a tensor"):
        te.schedule_for(3)  # pyright: ignore[reportArgumentType]
