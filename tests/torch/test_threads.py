"""Parallel loops beside PyTorch run in its threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.cpu

PROGRAM = """
import os
import numpy as np
import torch
import tedsl as te
from tedsl.backends.cpu import num_threads, set_num_threads

def kernel(n):
    x = te.placeholder((n, 1000), name="x")
    y = te.compute((n, 1000), lambda i, j: x[i, j] * 2 + i, name="y")
    s = te.create_schedule(y)
    s[y].parallel(y.op.axis[0])
    return te.build(s, "cpu")

def right(call, n):
    x = np.random.default_rng(n).random((n, 1000), dtype=np.float32)
    return np.array_equal(call(x), x * 2 + np.arange(n, dtype=np.float32)[:, None])

def threads():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(3)
torch.ones(1 << 20).exp()  # its threads are there
large = kernel(700)
before = threads()
"""


def told(program: str) -> str:
    """What a program says, in a process of its own."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM + program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_no_thread_is_started_beside_pytorchs() -> None:
    said = told("print(right(large, 700), threads() - before, num_threads())")
    assert said.split() == ["True", "0", "3"]


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_a_number_of_threads_that_was_asked_for_is_of_the_own_pool() -> None:
    said = told("set_num_threads(4); print(right(large, 700), threads() - before, num_threads())")
    assert said.split() == ["True", "3", "4"]


def test_all_iterations_run_whatever_the_number_of_threads() -> None:
    said = told("""
calls = {n: kernel(n) for n in (1, 2, 3, 5, 8, 33, 700)}
for count in (1, 2, 3, 7):
    torch.set_num_threads(count)
    print(num_threads(), all(right(call, n) for n, call in calls.items()))
""")
    assert said.splitlines() == ["1 True", "2 True", "3 True", "7 True"]


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_forked_child_has_threads_of_its_own() -> None:
    """OpenMP's threads do not exist there, and its library waits for them."""
    said = told("""
assert right(large, 700)
child = os.fork()
if not child:
    os._exit(0 if right(large, 700) else 1)
print(os.waitpid(child, 0)[1])
""")
    assert said.strip() == "0"


def test_kernels_that_run_at_once_each_run_whole() -> None:
    said = told("""
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as pool:
    print(all(pool.map(lambda _: right(large, 700), range(40))))
""")
    assert said.strip() == "True"
