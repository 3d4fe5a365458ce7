"""Groups that share loops, and a grid: which of them may be in one kernel, and what to do else."""

from __future__ import annotations

import pytest
from lowering import agrees
from refusals import refused

import tedsl as te
from tedsl.scheduling.handles.schedule import Schedule


def plus(x: te.Tensor, number: int, name: str) -> te.Tensor:
    return te.compute(x.shape, lambda i: x[i] * 2.0 + number, name=name)


def two_groups() -> tuple[Schedule, list[te.Tensor]]:
    """Stages A and B of one size, C and D of another, in tiles; B shares the loops of A."""
    made: list[te.Tensor] = []
    for n, names in ((64, "AB"), (40, "CD")):
        x = te.placeholder((n,), name=f"X{n}")
        made += [plus(x, place, name) for place, name in enumerate(names)]
    s = te.create_schedule(made)
    for tensor in made:
        outer, inner = s[tensor].split(s[tensor].op.axis[0], 8)
        s[tensor].vectorize(inner)
        s[tensor].bind(outer, "blockIdx.x")
    s["B"].compute_with(s["A"], s["A"].leaf_iter_vars[0])
    return s, made


def test_the_leader_of_a_grid_may_have_stages_that_share_its_loops() -> None:
    s, _ = two_groups()
    s["C"].compute_with(s["A"])
    assert agrees(s)


def test_two_groups_do_not_share_a_grid() -> None:
    s, _ = two_groups()
    s["D"].compute_with(s["C"], s["C"].leaf_iter_vars[0])
    before = str(s)
    words = "D shares the loops of C, and only the leader of a grid may have such stages: here A"
    advice = "(s[D].compute_root(), s[D].compute_with(s[A]), then C likewise)"
    with refused(s, words, advice):
        s["C"].compute_with(s["A"])
    assert str(s) == before
    s["D"].compute_root()  # as it says
    s["D"].bind(s["D"].leaf_iter_vars[0], "blockIdx.x")
    s["D"].compute_with(s["A"])
    s["C"].compute_with(s["A"])
    assert len(te.lower(s, "cuda:sm_90").funcs) == 1
    assert agrees(s)


def test_no_stage_shares_the_loops_of_a_part_of_a_grid() -> None:
    s, _ = two_groups()
    s["C"].compute_with(s["A"])
    loop = s["C"].leaf_iter_vars[0]
    with refused(s, "C is a part of the grid of A, and such a part is one stage"):
        s["D"].compute_with(s["C"], loop)
    s["D"].compute_with(s["A"])
    assert agrees(s)


@pytest.mark.parametrize("by_loops", [True, False])
def test_a_leader_stays_one(by_loops: bool) -> None:
    s, _ = two_groups()
    loops = [s["C"].leaf_iter_vars[0]] if by_loops else []
    with refused(s, "B already run together with A", "s[C].compute_with(s[A], ...)"):
        s["A"].compute_with(s["C"], *loops)


def test_a_leader_does_not_read_what_goes_along_with_a_follower() -> None:
    """Found by drawing chains: the refusal did not know which stage it was about."""
    x = te.placeholder((4, 9), name="X")
    j, k = (te.reduce_axis((0, 9), name=name) for name in "jk")
    m = te.compute((4,), lambda i: te.max(x[i, j], axis=j), name="M")
    total = te.compute((4,), lambda i: te.sum(te.exp(x[i, k] - m[i]), axis=k), name="L")
    y = te.compute((4,), lambda i: te.tanh(m[i]), name="Y")
    s = te.create_schedule([total, y])
    s[total].online(s[total].op.reduce_axis[0])
    with refused(s, "Y reads M: the one needs the other finished"):
        s[total].compute_with(s[y], s[y].op.axis[0])
