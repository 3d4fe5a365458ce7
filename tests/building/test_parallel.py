"""What compiles at once: the same results, errors and texts as one after the other."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

import tedsl as te
from tedsl.backends.parallel import ENVIRONMENT, in_parallel, threads
from tedsl.backends.triton.compile import offline
from tedsl.errors import BackendError
from tedsl.once import same


@pytest.fixture(autouse=True)
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "4")


def test_results_come_in_the_order_of_the_items() -> None:
    met: set[int] = set()
    together = threading.Barrier(4)

    def square(n: int) -> int:
        if n in (0, 1, 2, 9):  # the first three and the last are at work at once
            together.wait(20)
        met.add(threading.get_ident())
        return n * n

    assert in_parallel(square, range(10)) == [n * n for n in range(10)]
    assert len(met) == 4
    assert threading.get_ident() in met


def test_the_first_error_is_raised() -> None:
    done: list[int] = []

    def fails(n: int) -> int:
        time.sleep(0.002 * (5 - n))
        if n in (1, 3):
            raise ValueError(f"item {n}")
        done.append(n)
        return n

    with pytest.raises(ValueError, match="item 1"):
        in_parallel(fails, range(5))


def test_within_one_another_the_same_threads_serve() -> None:
    met: set[int] = set()

    def inner(n: int) -> int:
        met.add(threading.get_ident())
        time.sleep(0.001)
        return n

    def outer(n: int) -> int:
        return sum(in_parallel(inner, [n] * 6))

    assert in_parallel(outer, range(8)) == [6 * n for n in range(8)]
    assert len(met) <= 4


def test_what_the_caller_set_holds_in_each_thread() -> None:
    asked = ContextVar("asked", default=0)
    asked.set(7)
    assert in_parallel(lambda _: asked.get(), range(6)) == [7] * 6


def test_one_thread_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "1")
    found = in_parallel(lambda _: threading.get_ident(), range(3))
    assert set(found) == {threading.get_ident()}


@pytest.mark.parametrize("given", ["0", "-2", "many", "1.5"])
def test_a_number_of_threads_that_is_none(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv(ENVIRONMENT, given)
    with pytest.raises(BackendError, match=rf"{ENVIRONMENT} is '{given}'(.|\n)*an integer from 1"):
        threads()


def test_threads_that_ask_at_once_get_one_object() -> None:
    @same
    def made(key: str) -> list[str]:
        time.sleep(0.01)
        return [key]

    first, *others = in_parallel(made, ["a"] * 8)
    assert all(other is first for other in others)


def graphs() -> list[Callable[[], te.Tensor]]:
    """Definitions of several kernels each."""

    def rows(n: int, function: Callable[[Any], Any]) -> te.Tensor:
        x = te.placeholder((64, n), name="x")
        return te.nn.softmax(function(te.nn.matmul(x, te.placeholder((n, 32), name="w"))))

    named = (te.exp, te.tanh, te.sigmoid, te.relu)
    return [partial(rows, 32 + 16 * n, each) for n, each in enumerate(named)]


@pytest.mark.ptxas
@pytest.mark.parametrize("target", ["cuda:sm_90", "triton-interpret"])
def test_kernels_that_are_built_at_once_are_the_same(
    target: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    def texts(count: str) -> list[str]:
        monkeypatch.setenv(ENVIRONMENT, count)
        monkeypatch.setenv("TEDSL_CACHE_DIR", str(tmp_path / count))
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / count / "triton"))
        made = in_parallel(lambda make: te.build(make(), target), graphs())
        return [f"{kernel.source}\n{kernel.code}" for kernel in made]

    assert texts("4") == texts("1")


@pytest.mark.ptxas
@pytest.mark.parametrize("count", ["1", "4"])
def test_of_two_kernels_that_are_refused_the_first_is_named(
    monkeypatch: pytest.MonkeyPatch, count: str
) -> None:
    x = te.placeholder((64, 64), name="x")
    y = te.compute((64, 64), lambda i, j: te.exp(x[j, i]), name="y")
    z = te.compute((64, 64), lambda i, j: te.tanh(y[j, i]), name="z")
    s = te.create_schedule(z)
    asked: list[str] = []

    def refuse(request: Any) -> None:
        asked.append(request["name"])
        time.sleep(0.05 if len(asked) == 1 else 0.0)  # another is refused earlier
        raise BackendError("Triton refuses")

    monkeypatch.setenv(ENVIRONMENT, count)
    monkeypatch.setattr(offline, "compile_request", refuse)
    with pytest.raises(BackendError, match="Triton refuses") as found:
        te.build(s, "cuda:sm_90")
    assert found.value.kernel == "y"
    assert len(asked) == (1 if count == "1" else 2)


def test_threads_parse_one_after_the_other() -> None:
    """Where garbage is collected all the time, and threads take turns as often as they can."""
    pytest.importorskip("triton")
    owner = offline.parses_apart()
    assert offline.parses_apart() is owner
    lines = "".join(f"    x{n} = a + {n} * (a - {n})\n" for n in range(100))

    class Function:
        _src = src = f"def f(a):\n{lines}"

    class Cycle:
        def __del__(self) -> None:
            sum(range(2000))

    def parsed(_: int) -> int:
        for _ in range(20):
            cycle = Cycle()
            cycle.me = cycle  # type: ignore[attr-defined]
            owner.parse(Function())
        return 20

    usual, switched = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(5, 2, 2)
    sys.setswitchinterval(1e-6)
    try:
        assert in_parallel(parsed, range(8)) == [20] * 8
    finally:
        gc.set_threshold(*usual)
        sys.setswitchinterval(switched)
