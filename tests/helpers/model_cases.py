"""Problems and programs that the static model is tested on."""

from __future__ import annotations

import random
from collections.abc import Iterator

import tedsl as te
from tedsl.autotune.search_space.problem import Problem
from tedsl.autotune.search_space.space import Candidate, Choice
from tedsl.ir.nodes import Module
from tedsl.target import Target

HOPPER = Target.parse("cuda:sm_90")


def product(m: int, n: int, k: int, dtype: str = "bfloat16") -> te.Tensor:
    a, b = te.placeholder((m, k), dtype, name="a"), te.placeholder((k, n), dtype, name="b")
    return te.nn.matmul(a, b)


def scaled(m: int, n: int, k: int, dtype: str = "float8_e4m3fn") -> te.Tensor:
    a, b = te.placeholder((m, k), dtype, name="a"), te.placeholder((n, k), dtype, name="b")
    scales = te.placeholder((m,), name="sa"), te.placeholder((n,), name="sb")
    return te.nn.scaled_matmul(a, b, *scales)


def softmax(rows: int, columns: int, dtype: str = "bfloat16") -> te.Tensor:
    return te.nn.softmax(te.placeholder((rows, columns), dtype, name="x"))


def attention(
    heads: int, length: int, depth: int, causal: bool = False, dtype: str = "bfloat16"
) -> te.Tensor:
    """Of queries, keys and values of one length."""
    q, k, v = (te.placeholder((heads, length, depth), dtype, name=name) for name in "qkv")
    return te.nn.attention(q, k, v, causal=causal)


def norm(rows: int, columns: int, dtype: str = "bfloat16") -> te.Tensor:
    x = te.placeholder((rows, columns), dtype, name="x")
    w, b = te.placeholder((columns,), dtype, name="w"), te.placeholder((columns,), dtype, name="b")
    return te.nn.layer_norm(x, w, b)


def drawn(tensor: te.Tensor, count: int, seed: int = 0) -> Iterator[tuple[Candidate, Module]]:
    """The default and some random candidates of a problem, lowered for the GPU."""
    problem = Problem([tensor], "cuda")
    space, rng = problem.space(), random.Random(seed)
    seen: set[str] = set()
    for found in [space.default(), *(space.sample(rng) for _ in range(count))]:
        if isinstance(found, Candidate) and found.identity not in seen:
            seen.add(found.identity)
            yield found, te.lower(problem.schedule(found.decisions), HOPPER)


def lowered(tensor: te.Tensor, **decisions: Choice) -> Module:
    """A candidate with the knobs whose names end like the keywords set, the others at their
    defaults."""
    problem = Problem([tensor], "cuda")
    space = problem.space()
    known = {name.rpartition(".")[2]: name for name in space.default().decisions}
    found = space.candidate({known[key]: value for key, value in decisions.items()}, "test")
    assert isinstance(found, Candidate), found
    return te.lower(problem.schedule(found.decisions), HOPPER)
