"""Programs as objects: loading from a cache, symbols, threads, forks, the end of the process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from cpu_modules import add, buffer, build, c, call, f, module, mul

from tedsl.backends import cpu
from tedsl.backends.cpu import CpuProgram, Signature, load_object
from tedsl.dtypes import DType
from tedsl.errors import BackendError
from tedsl.expr.nodes import Axis, Var
from tedsl.ir.nodes import For, Load, LoopKind, Module, Store, TileAxis

pytestmark = pytest.mark.cpu
ROWS, COLUMNS = 64, 4096


def doubled() -> Module:
    """y = 2 x + 1 with a parallel loop over rows."""
    i, j = Axis("i"), Axis("j")
    x, y = buffer("x", (ROWS, COLUMNS)), buffer("y", (ROWS, COLUMNS))
    value = add(mul(Load(x, (i, j)), f(2)), f(1))
    stmt = Store(y, (i, j), value, None, (TileAxis(j, COLUMNS),))
    return module([x], [y], For(i, c(ROWS), LoopKind.PARALLEL, stmt))


@pytest.fixture(scope="module")
def program() -> CpuProgram:
    return build(doubled())


def right(p: CpuProgram, seed: int = 0) -> bool:
    x = np.random.default_rng(seed).random((ROWS, COLUMNS), np.float32)
    y = np.zeros_like(x)
    call(p, x, y)
    return bool(np.array_equal(y, x * 2 + 1))


def test_object_code_loads_without_compiling(program: CpuProgram) -> None:
    again = load_object(program.object_code, Signature(2))
    assert right(again)
    assert again.asm == ""


def test_texts(program: CpuProgram) -> None:
    assert "define void @tedsl_entry" in program.llvm_ir
    assert "tedsl_entry" in program.asm


def test_scalars_of_both_kinds_are_passed() -> None:
    n, a = Var("n"), Var("a", DType.float64)
    i = Axis("i")
    x, y = buffer("x", (n,), DType.float64), buffer("y", (n,), DType.float64)
    p = build(
        module([x], [y], For(i, n, LoopKind.SERIAL, Store(y, (i,), mul(Load(x, (i,)), a))), [n, a])
    )
    assert p.signature == Signature(2, "if")
    data, out = np.arange(5.0), np.zeros(5)
    call(p, data, out, sizes=[5, 0.5])
    np.testing.assert_array_equal(out, data / 2)


def test_a_bool_scalar_is_refused() -> None:
    flag = Var("flag", DType.bool)
    y = buffer("y", (1,), DType.bool)
    with pytest.raises(BackendError, match="runtime scalar flag has dtype bool"):
        build(module([], [y], Store(y, (c(0),), flag), [flag]))


def test_thread_count(program: CpuProgram) -> None:
    before = cpu.num_threads()
    try:
        for count in (1, 3, 7, 2):
            cpu.set_num_threads(count)
            assert cpu.num_threads() == count
            assert all(right(program, s) for s in range(20))
    finally:
        cpu.set_num_threads(before)
    with pytest.raises(BackendError, match="number of threads is 0"):
        cpu.set_num_threads(0)


def test_several_python_threads(program: CpuProgram) -> None:
    failures: list[int] = []

    def work(seed: int) -> None:
        failures.extend(s for s in range(40) if not right(program, seed + s))

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not failures


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_has_its_own_threads(program: CpuProgram) -> None:
    before = cpu.num_threads()
    cpu.set_num_threads(3)
    assert right(program)
    child = os.fork()
    if child == 0:
        os._exit(0 if all(right(program, s) for s in range(10)) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert right(program)
    cpu.set_num_threads(before)


def test_the_process_ends_quietly(program: CpuProgram, tmp_path: Path) -> None:
    """Workers that spin or sleep, and a daemon thread inside a kernel, do not disturb the exit."""
    (tmp_path / "code.o").write_bytes(program.object_code)
    script = (
        "import sys, threading, ctypes\n"
        "from tedsl.backends import cpu\n"
        f"p = cpu.load_object(open({str(tmp_path / 'code.o')!r}, 'rb').read(), cpu.Signature(2))\n"
        "cpu.set_num_threads(3)\n"
        f"x, y = (ctypes.create_string_buffer({ROWS * COLUMNS * 4}) for _ in range(2))\n"
        "args = ctypes.addressof(x), ctypes.addressof(y)\n"
        "p.call(*args)\n"
        "def forever():\n"
        "    while True: p.call(*args)\n"
        "threading.Thread(target=forever, daemon=True).start()\n"
        "p.call(*args)\n"
    )
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(sys.platform != "linux", reason="maps memory as Linux does")
def test_sections_are_side_by_side_where_memory_is_scattered() -> None:
    """Code refers to constants by 32-bit distances; LLVM aborts where they are farther apart."""
    script = Path(__file__).parent.parent / "helpers" / "scattered_memory.py"
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
