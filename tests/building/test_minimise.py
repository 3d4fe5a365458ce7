"""Failing programs become small ones that fail in the same way: `te.minimise`, and its command."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tedsl as te
from tedsl.checking import minimise as module
from tedsl.checking import simpler_programs as simpler
from tedsl.checking.minimise import Minimised, wrong_numbers
from tedsl.cli.main import main

SCRIPT = """
import tedsl as te

x = te.placeholder((4, 3 << 19), name="x")
y = te.compute((4, 3 << 19), lambda i, p: te.exp(x[i, p]), name="y")
c = te.compute((4, 3 << 19), lambda i, p: y[i, p] + 1.0, name="c")
e = te.compute((4,), lambda i: y[i, 0], name="e")
s = te.create_schedule([c, e])
i, p = s[c].op.axis
s[c].bind(i, "blockIdx.x")
s[c].vectorize(p)
s[y].compute_root()
s[e].unroll(s[e].split(e.op.axis[0], 2)[1])
kernel = te.build(s, [x, c, e], target="triton-interpret")
raise AssertionError("a script is loaded up to what it builds")
"""


class Here:
    """Programs run in this process, on a kernel that adds 1 where an exponential has lanes: what
    becomes smaller is looked at, and a process for each of a hundred programs takes half a minute.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        call: Callable[..., Any] = te.Kernel.__call__

        def fault(kernel: Any, *given: Any, **named: Any) -> Any:
            made = call(kernel, *given, **named)
            steps = {step.primitive for step in kernel.schedule.trace.steps}
            return made + 1 if "vectorize" in steps and "exp(" in str(kernel.schedule) else made

        monkeypatch.setattr(te.Kernel, "__call__", fault)
        monkeypatch.setattr(module._Search, "failure", lambda _, source: self.failure(source))
        self.ran = 0
        self.lock = threading.Lock()

    def failure(self, source: str) -> tuple[str, str]:
        said, errors, status = io.StringIO(), "", 0
        with self.lock, contextlib.redirect_stdout(said):
            self.ran += 1
            try:
                exec(compile(source, "program.py", "exec"), {"__name__": "__main__"})
            except Exception:
                errors, status = traceback.format_exc(), 1
        return module.judged(status, said.getvalue(), errors)


def network() -> tuple[te.Schedule, te.Tensor]:
    """A product with what is before and after it, under a dozen calls."""
    x, w = te.placeholder((24, 40), name="x"), te.placeholder((40, 16), name="w")
    k = te.reduce_axis((0, 40), name="k")
    a = te.compute((24, 40), lambda i, j: te.exp(x[i, j]) * 2.0 + 1.0, name="a")
    c = te.compute((24, 16), lambda i, j: te.sum(a[i, k] * w[k, j], axis=k), name="c")
    d = te.compute((24, 16), lambda i, j: te.maximum(c[i, j], 0.0), name="d")
    s = te.create_schedule(d)
    _io, jo, _ii, ji = s[d].tile(*s[d].op.axis, 8, 8)
    s[d].vectorize(ji)
    s[c].compute_at(s[d], jo)
    s[a].parallel(a.op.axis[0])
    s.cache_read(x, "local", [a])
    return s, a


@pytest.mark.cpu
def test_wrong_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Here(monkeypatch)
    s, _ = network()
    found = te.minimise(s, "cpu", seconds=60)
    assert found.failure.startswith("wrong numbers: ")
    program = found.source
    assert here.ran > found.tried > 10
    assert "vectorize" in program and "te.exp" in program
    for gone in ("compute_at", "cache_read", "parallel"):
        assert gone not in program
    if found.finished:
        assert program.count("te.compute") == 1 and "(1, 1)" in program


@pytest.mark.cpu
def test_a_script_that_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, small = tmp_path / "large.py", tmp_path / "small.py"
    script.write_text(SCRIPT)
    assert main(["minimise", str(script), "-o", str(small), "--seconds", "25"]) == 0
    said = capsys.readouterr().err
    assert "LowerError" in said and "a tile of kernel" in said and f"written to {small}" in said
    program = small.read_text()
    assert "vectorize" in program and "unroll" not in program
    ran = subprocess.run([sys.executable, small], capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and "a tile of kernel" in ran.stderr


def test_how_a_program_fails() -> None:
    search = module._Search("cpu", {}, 60.0, time.monotonic() + 60)
    assert search.failure("print('right')") == ("", "")
    assert search.failure("print('wrong numbers: all')") == (module.WRONG, "wrong numbers: all")
    assert search.failure("import os; os.abort()") == ("SIGABRT", "ends its process: SIGABRT")
    kind, told = search.failure("import tedsl as te\nte.placeholder((-1,))")
    assert kind.startswith("tedsl.errors.ExprError tedsl/tensor/") and told.startswith("ExprError")
    search.limit = 0.5
    assert search.failure("while True: pass") == ("hangs", "takes longer than 0.5 s")


def test_simpler_programs_are_programs() -> None:
    """Each computes something, and is written down."""
    s, _ = network()
    search = module._Search("cpu", {}, 1.0, 0.0)
    pair = simpler.Pair(s.definition, s.trace.steps)
    assert search.written(pair)
    counts = [sum(bool(search.written(each)) for each in kind(pair)) for kind in simpler.KINDS]
    assert all(counts) and counts[0] >= len(s.trace)


@pytest.mark.cpu
def test_right_numbers() -> None:
    n = te.size_var("n")
    x = te.placeholder((n, 3), name="x")
    y = te.compute((n, 3), lambda i, j: x[i, j] * 2.0, name="y")
    s = te.create_schedule(y)
    kernel = te.build(s, "cpu")
    assert wrong_numbers(kernel) == "" and wrong_numbers(kernel, {"n": 5}) == ""
    with pytest.raises(te.ScheduleError, match=r"nothing fails(.|\n)*sizes="):
        te.minimise(s)


def test_refused() -> None:
    x = te.placeholder((4,), name="x")
    e = te.extern((4,), [x], lambda ins, outs: np.copyto(outs[0], ins[0]), name="E")
    with pytest.raises(te.ScheduleError, match=r"E calls a function from outside"):
        te.minimise(te.create_schedule(e))
    with pytest.raises(te.BackendError, match="unknown target"):
        te.minimise(te.create_schedule(te.compute((4,), lambda i: x[i])), "cuda:sm_1")
    found = Minimised("a = 1\n", "wrong", 3, True)
    with pytest.raises(te.TedslError, match=r"allowed \.py"):
        found.save("a.txt")
