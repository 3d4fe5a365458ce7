"""Lowered modules come back from disk as they were, for the plan they were made of and no other."""

from __future__ import annotations

import inspect
import io
import pickle
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from drawn_schedules import schedules
from hypothesis import assume, event, given, settings
from intrinsics import micro_kernel, product, tiled
from strategies import computes

import tedsl as te
from tedsl.backends.cpu.run import jit
from tedsl.errors import InternalError, LowerError
from tedsl.ir.printer import print_module
from tedsl.runtime.cache import lowered
from tedsl.runtime.cache.disk import DiskCache
from tedsl.runtime.cache.fingerprint import fingerprint
from tedsl.target import Target

CPU = Target.parse("cpu")


def scaled(factor: float = 2.0) -> te.Schedule:
    n = te.size_var("n")
    x = te.placeholder((n, 32), "float32", name="x")
    y = te.compute((n, 32), lambda i, j: x[i, j] * factor, name="y")
    return te.create_schedule(y)


@settings(max_examples=60)
@given(st.data(), st.sampled_from(["cpu", "triton-interpret"]))
def test_drawn_modules_come_back(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, where: str
) -> None:
    case = data.draw(computes().strategy())
    schedule = data.draw(schedules(case.outputs, sizes=case.sizes).strategy())
    target = Target.parse(where)
    key = lowered.plan_key(schedule.plan, target)
    event("with a key" if key else "without")
    assume(key is not None)
    assert key is not None
    try:
        module = te.lower(schedule, target)
    except LowerError:
        assume(False)
        return
    disk = DiskCache(tmp_path_factory.mktemp("cache"))
    kept = lowered.keep(disk, key, module)
    again = lowered.plan_key(schedule.copy().plan, target)
    assert again is not None and again.digest == key.digest
    found = lowered.find(disk, again)
    assert found is not None
    assert found.digest == kept.digest == fingerprint(found.module)
    assert print_module(found.module) == print_module(module)
    assert all(a is b for a, b in zip(found.module.sizes, module.sizes, strict=True))


@pytest.mark.cpu
def test_machine_code_is_the_same() -> None:
    module = te.lower(scaled(), CPU)
    key = lowered.PlanKey("0", module.sizes)
    data = io.BytesIO()
    lowered._Writer(data, key.variables).dump(module)
    data.seek(0)
    again = lowered._Reader(data, key.variables).load()
    assert jit.compile_module(again, CPU).llvm_ir == jit.compile_module(module, CPU).llvm_ir


def test_another_plan_or_target_has_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(schedule: te.Schedule, target: Target = CPU) -> str:
        found = lowered.plan_key(schedule.plan, target)
        assert found is not None
        return found.digest

    tiled = scaled()
    tiled["y"].split(tiled["y"].op.axis[0], 8)
    assert key(scaled()) == key(scaled())
    keys = {key(scaled()), key(scaled(3.0)), key(tiled)}
    keys.add(key(scaled(), Target.parse("triton-interpret")))
    monkeypatch.setattr(lowered, "code_version", lambda: "another")
    keys.add(key(scaled()))
    assert len(keys) == 5


def test_functions_from_outside_have_no_key() -> None:
    x = te.placeholder((8,), "float32", name="x")

    def double(ins: Sequence[Any], outs: Sequence[Any]) -> None:
        outs[0][:] = ins[0] * 2

    outside = te.extern((8,), [x], double, name="outside", dtype="float32")
    assert lowered.plan_key(te.create_schedule(outside).plan, CPU) is None
    schedule, loop = tiled(product(8, 8, 8), (4, 4, 4))
    assert lowered.plan_key(schedule.plan, CPU) is not None
    schedule["C"].tensorize(loop, micro_kernel(4, 4, 4))
    assert lowered.plan_key(schedule.plan, CPU) is None


@pytest.mark.cpu
def test_a_build_finds_what_another_has_lowered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    te.runtime.set_cache_dir(tmp_path)
    try:
        first = te.build(scaled(), "cpu")

        def fail(*_: object, **__: object) -> None:
            raise AssertionError("lowered again")

        monkeypatch.setattr(inspect.unwrap(te.build).__globals__["pipeline"], "lower", fail)
        second = te.build(scaled(), "cpu")
        with pytest.raises(AssertionError, match="lowered again"):
            te.build(scaled(), "cpu", cache=False)
    finally:
        te.runtime.set_cache_dir(None)
    x = np.arange(96, dtype=np.float32).reshape(3, 32)
    np.testing.assert_array_equal(second(x), first(x))
    assert second.ir == first.ir and second.from_cache


def test_the_reader_runs_nothing() -> None:
    for harmful in (subprocess.run, eval, pickle.loads, te.build):
        data = io.BytesIO(pickle.dumps(harmful))
        with pytest.raises(InternalError, match="no node of a lowered module"):
            lowered._Reader(data, ()).load()
