"""Triton stopped early gives the shared memory of a full compile; equal code has one digest."""

from __future__ import annotations

import random

import pytest

import tedsl as te
from tedsl.autotune.search_space.problem import Problem
from tedsl.autotune.search_space.space import Candidate
from tedsl.backends.triton.compile import offline, shared_memory_early
from tedsl.backends.triton.emit.module import emit
from tedsl.backends.triton.emit.program import TritonProgram
from tedsl.target import Target

pytestmark = [pytest.mark.ptxas, pytest.mark.uncompiled("compiled here, for one device")]
TARGET = Target.parse("cuda:sm_90")


def product(m: int, n: int, k: int) -> te.Tensor:
    a, b = (te.placeholder(s, "float16", name=x) for s, x in (((m, k), "a"), ((k, n), "b")))
    return te.nn.matmul(a, b)


def program(tensor: te.Tensor | te.Schedule) -> TritonProgram:
    return emit(te.lower(tensor, TARGET), TARGET)


def test_early_is_exact() -> None:
    problem = Problem([product(512, 512, 512)], "cuda")
    space, rng = problem.space(), random.Random(3)
    draws = [space.sample(rng) for _ in range(8)]
    candidates = [space.default(), *(c for c in draws if isinstance(c, Candidate))]
    for candidate in candidates:
        made = program(problem.schedule(candidate.decisions))
        (found,) = shared_memory_early.allocate(made)
        if found.shared > 227 * 1024 or found.num_warps < 4:
            continue  # cannot launch, or takes ptxas long
        (info,) = offline.compile_offline(made)
        assert found == shared_memory_early.Allocation(info.name, info.shared, info.num_warps)


def test_falls_back_to_a_full_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(request: object) -> tuple[int, int]:
        raise AttributeError("add_allocate_shared_memory_nv")

    made = program(te.nn.softmax(te.placeholder((64, 256), "float32", name="x")))
    exact = shared_memory_early.allocate(made)
    monkeypatch.setattr(shared_memory_early, "allocated", absent)
    assert shared_memory_early.allocate(made) == exact


def test_names_are_not_in_the_digest() -> None:
    def softmax(name: str) -> offline.CompiledInfo:
        x = te.placeholder((64, 256), "float32", name=name)
        s = te.create_schedule(te.compute((64, 256), lambda i, j: x[i, j] * 2.0, name=f"{name}y"))
        stage = s[f"{name}y"]
        i, j = stage.op.axis
        stage.bind(i, "blockIdx.x")
        stage.vectorize(j)
        return offline.compile_offline(program(s))[0]

    one, other = softmax("first"), softmax("second")
    assert one.name != other.name
    assert one.code == other.code


def test_an_option_that_changes_nothing_changes_no_digest() -> None:
    def chain(stages: int, warps: int) -> str:
        x = te.placeholder((4096,), "float32", name="x")
        y = te.compute((4096,), lambda i: x[i] + 1.0, name="y")
        s = te.create_schedule(y)
        outer, inner = s[y].split(s[y].op.axis[0], factor=1024)
        s[y].bind(outer, "blockIdx.x")
        s[y].vectorize(inner)
        s[y].launch(num_warps=warps, num_stages=stages)
        return offline.compile_offline(program(s))[0].code

    assert chain(1, 4) == chain(3, 4)
    assert chain(1, 4) != chain(1, 8)
