"""compute_with: shared loops, one grid with a switch, what is refused, and the numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from lowering import after_passes, agrees
from refusals import refused as refusal

import tedsl as te
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.plan import Plan
from tedsl.scheduling.primitives.kernel_fusion import horizontal as together_checks
from tedsl.scheduling.regions.infer import Bounds
from tedsl.scheduling.trace.replay import replay
from tedsl.scheduling.trace.trace import Trace

Golden = Callable[..., None]


class Rows:
    """The maximum and the sum of each row, and each element plus 1: three results of one input."""

    def __init__(self, m: int = 33, n: int = 20) -> None:
        self.X = te.placeholder((m, n), name="X")
        self.k = te.reduce_axis((0, n), name="k")
        x, k = self.X, self.k
        self.M = te.compute((m,), lambda i: te.max(x[i, k], axis=k), name="M")
        self.S = te.compute((m,), lambda i: te.sum(x[i, k] * 2.0, axis=k), name="S")
        self.Y = te.compute((m, n), lambda i, j: x[i, j] + 1.0, name="Y")
        self.all = [self.M, self.S, self.Y]

    def schedule(self) -> Schedule:
        return te.create_schedule(self.all)


def refused(call: Callable[[], object], s: Schedule, *texts: str) -> None:
    with refusal(s, *texts):
        call()


def scaled(a: te.Tensor, factor: float) -> Callable[[te.Expr], te.Expr]:
    return lambda i: a[i] * factor


def replays(s: Schedule, outputs: list[te.Tensor]) -> bool:
    again = replay(outputs, Trace.from_json(s.trace.to_json()))
    return str(again) == str(s) and again.as_python() == s.as_python()


def test_reductions_share_a_loop(golden: Golden) -> None:
    r = Rows()
    s = r.schedule()
    s[r.S].compute_with(s[r.M], r.k)
    s[r.Y].compute_with(s[r.M], r.k)
    golden(f"{s}\n\n{s.as_python()}\n{after_passes(s, 'cpu')['build_nests']}")
    assert len(after_passes(s, "cpu")["build_nests"].split("func ")) == 2
    assert agrees(s, targets=("cpu",)) and replays(s, r.all)


def test_several_depths() -> None:
    r = Rows()
    s = r.schedule()
    s[r.S].compute_with(s[r.M], s[r.M].op.axis[0])
    s[r.Y].compute_with(s[r.M], r.k)
    assert agrees(s, targets=("cpu",))


def test_the_leader_may_be_the_pointwise_stage() -> None:
    r = Rows()
    s = r.schedule()
    i, j = s[r.Y].op.axis
    s[r.M].compute_with(s[r.Y], j)
    s[r.S].compute_with(s[r.Y], i)
    s[r.Y].parallel(i)
    assert agrees(s, targets=("cpu",))


def test_split_loops_with_guards_and_reduce_loops_outside() -> None:
    r = Rows()
    s = r.schedule()
    for t in (r.M, r.S):
        _, ii = s[t].split(s[t].op.axis[0], 8)
        ko, ki = s[t].split(r.k, 8)
        s[t].reorder(ko, ii, ki)
    s[r.S].compute_with(s[r.M], s[r.M].leaf_iter_vars[2])
    assert agrees(s, targets=("cpu",))


def _tiled(s: Schedule, *tensors: te.Tensor) -> None:
    for t in tensors:
        outer, inner = s[t].split(s[t].op.axis[0], 8)
        for axis in (inner, *s[t].op.axis[1:], *s[t].op.reduce_axis):
            s[t].vectorize(axis)
        s[t].bind(outer, "blockIdx.x")


def test_programs_read_shared_inputs_once(golden: Golden) -> None:
    r = Rows(64, 32)
    s = r.schedule()
    _tiled(s, *r.all)
    outer = s[r.M].leaf_iter_vars[0]
    s[r.S].compute_with(s[r.M], outer)
    s[r.Y].compute_with(s[r.M], outer)
    source = te.build(s, target="cuda:sm_90").source
    assert source.count("tl.load") == 1 and source.count("@triton.jit\ndef M_kernel") == 1
    golden(source)
    assert agrees(s)


def test_one_grid(golden: Golden) -> None:
    """Many small tensors in one launch."""
    inputs = [te.placeholder((n,), name=f"A{n}") for n in (5, 64, 33)]
    outs = [
        te.compute(a.shape, scaled(a, float(n + 1)), name=f"B{n}") for n, a in enumerate(inputs)
    ]
    s = te.create_schedule(outs)
    _tiled(s, *outs)
    s[outs[1]].compute_with(s[outs[0]])
    s[outs[2]].compute_with(s[outs[0]])
    golden(f"{s}\n\n{te.build(s, target='cuda:sm_90').source}")
    assert agrees(s) and replays(s, outs)
    assert len(te.build(s, target="cuda:sm_80").source.split("@triton.jit")) == 2


@pytest.mark.cpu
def test_one_grid_with_several_axes_and_a_serial_nest() -> None:
    r = Rows()
    s = r.schedule()
    i, j = s[r.Y].op.axis
    s[r.Y].parallel(i)
    s[r.Y].parallel(j)
    s[r.M].parallel(s[r.M].op.axis[0])
    s[r.M].compute_with(s[r.Y])
    s[r.S].compute_with(s[r.Y])
    assert agrees(s, targets=("cpu",))
    x = np.random.default_rng(0).standard_normal((33, 20)).astype(np.float32)
    m, total, y = te.build(s, target="cpu", cache=False)(x)
    np.testing.assert_array_equal(m, x.max(1))
    np.testing.assert_allclose(total, (x * 2).sum(1), rtol=1e-5)
    np.testing.assert_array_equal(y, x + 1)


def test_runtime_sizes() -> None:
    n, m = te.size_var("n"), te.size_var("m")
    a, b = te.placeholder((n,), name="A"), te.placeholder((m,), name="B")
    c = te.compute((n,), lambda i: a[i] + 1.0, name="C")
    d = te.compute((m,), lambda i: b[i] * 2.0, name="D")
    s = te.create_schedule([c, d])
    _tiled(s, c, d)
    s[d].compute_with(s[c])
    for sizes in ((0, 5), (40, 0), (7, 33)):
        assert agrees(s, dict(zip((n, m), sizes, strict=True)))
    apart = te.create_schedule([c, d])
    refused(
        lambda: apart[d].compute_with(apart[c], c.op.axis[0]),
        apart,
        "C.i has n iterations and D.i has m (for ",
        "split both alike",
    )


def test_a_serial_fold_behind_programs_of_runtime_number() -> None:
    """Its results are as many as a call says, so they are folded where they are stored: by the one
    program after all those of the other stages."""
    n, m = te.size_var("n"), te.size_var("m")
    a, b = te.placeholder((n, m), name="A"), te.placeholder((m,), name="B")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute((n, m), lambda i, j: a[i, j] * 2.0, name="C")
    d = te.compute((m,), lambda i: te.max(a[k, i], axis=k), name="D")
    e = te.compute((m,), lambda i: b[i] + 1.0, name="E")
    s = te.create_schedule([c, d, e])
    for number, axis in enumerate(s[c].op.axis):
        s[c].bind(axis, te.program_id(number))
    s[d].reorder(k, d.op.axis[0])
    s[e].bind(e.op.axis[0], "blockIdx.x")
    s[e].compute_with(s[c])
    s[d].compute_with(s[c])
    te.build(s, "cuda:sm_90")
    assert agrees(s, {n: 3, m: 5}) and agrees(s, {n: 1, m: 2})


def test_loops_are_compared_as_they_run() -> None:
    """Sixteen parts of an axis of three run three times."""
    a = te.placeholder((16, 3), name="A")
    k, h = te.reduce_axis((0, 3), "k"), te.reduce_axis((0, 3), "h")
    b = te.compute((16,), lambda i: te.sum(a[i, k], axis=k), name="B")
    c = te.compute((16,), lambda i: te.sum(a[i, h] * 2.0, axis=h), name="C")
    s = te.create_schedule([b, c])
    outer, inner = s[b].split(s[b].op.reduce_axis[0], nparts=16)
    s[b].reorder(outer, s[b].op.axis[0], inner)
    refused(
        lambda: s[c].compute_with(s[b], outer),
        s,
        "B.k.outer has 3 iterations and C.i has 16",
        "split both alike",
    )


def staged_product(
    c: te.Tensor, a: te.Tensor, b: te.Tensor
) -> tuple[te.Schedule, te.Axis, te.Stage, te.Stage]:
    """A product on matrix units in one tile: the schedule, the loop over its steps, and what the
    rows and the columns are copied to in each."""
    s = te.create_schedule(c)
    own = s[s.cache_write(c, "local")]
    grid = s[c].fuse()
    s[c].reorder(grid, *c.op.axis)
    s[c].bind(grid, "blockIdx.x")
    for axis in c.op.axis:
        s[c].vectorize(axis)
    own.compute_at(s[c], grid)
    outer, inner = own.split(own.op.reduce_axis[0], 8)
    own.vectorize(inner)
    rows, columns = (s[s.cache_read(each, "shared", [own])] for each in (a, b))
    rows.compute_at(own, outer)
    columns.compute_at(own, outer)
    own.dot(inner, precision="tf32x3")
    return s, outer, rows, columns


def test_loops_that_become_a_tile_part_those_inside() -> None:
    """The loops over the rows and the columns of a product are the tile of its results where it is
    on matrix units: what is copied for it has eight rows, and four columns, no longer one of each.
    """
    a, b = te.placeholder((8, 8), name="A"), te.placeholder((4, 8), name="B")
    k = te.reduce_axis((0, 8), "k")
    c = te.compute((8, 4), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k), name="C")
    s, _, rows, columns = staged_product(c, a, b)
    rows.compute_with(columns, columns.op.axis[0])
    columns.partition(columns.op.axis[0], policy="always")
    assert agrees(s)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("inner_loop", [False, True])
def test_what_is_computed_in_loops_that_part_is_computed_around_them(
    kept: bool, inner_loop: bool
) -> None:
    """Eight rows of the one operand and four of the other share a loop no longer: what the other is
    copied from was computed in it, or in one inside of it."""
    a, b = te.placeholder((1, 8, 8), name="A"), te.placeholder((1, 4, 8), name="B")
    p = te.compute((1, 4, 8), lambda g, j, k: b[g, j, k] * 2, name="P")
    k = te.reduce_axis((0, 8), "k")
    c = te.compute((1, 8, 4), lambda g, i, j: te.sum(a[g, i, k] * p[g, j, k], axis=k), name="C")
    s, outer, rows, columns = staged_product(c, a, p)
    columns.compute_with(rows, rows.op.axis[2])
    s[p].compute_at(rows, rows.op.axis[1 if inner_loop else 0])
    if kept:
        s[p].store_at(s["C.local"], outer)
    te.lower(s, "cuda:sm_90", check=True)
    te.build(s, "cuda:sm_90", cache=False)
    assert agrees(s)


def test_a_producer_read_by_both_is_computed_once() -> None:
    a = te.placeholder((30,), name="A")
    p = te.compute((30,), lambda i: a[i] * a[i], name="P")
    b = te.compute((28,), lambda i: p[i] + 1.0, name="B")
    c = te.compute((28,), lambda i: p[i + 2] * 3.0, name="C")
    s = te.create_schedule([b, c])
    for t in (b, c):
        s[t].split(s[t].op.axis[0], 8)
    outer = s[b].leaf_iter_vars[0]
    refused(lambda: s[p].compute_at(s[b], outer), s, "P is also read by C", "leave P at root")
    s[c].compute_with(s[b], outer)
    s[p].compute_at(s[b], outer)
    text = after_passes(s, "cpu")["build_nests"]
    assert "alloc P: local float32[10]" in text
    assert agrees(s, targets=("cpu",))
    refused(lambda: s[c].compute_root(), s, "P is attached at B.i.outer", "P is also read by C", "")


def test_producers_attached_at_shared_loops_move_to_the_leader() -> None:
    a = te.placeholder((32,), name="A")
    p = te.compute((32,), lambda i: a[i] * a[i], name="P")
    b = te.compute((32,), lambda i: a[i] + 1.0, name="B")
    c = te.compute((32,), lambda i: p[i] * 3.0, name="C")
    s = te.create_schedule([b, c])
    s[p].compute_at(s[c], s[c].op.axis[0])
    s[c].compute_with(s[b], s[b].op.axis[0])
    assert s[p].plan.placement.host == "B"
    assert agrees(s, targets=("cpu",))
    refused(lambda: s[p].compute_at(s[c], s[c].op.axis[0]), s, "C.i is run by B.i", "attach P at")


def test_producers_attached_at_loops_of_threads_are_computed_for_all_of_them() -> None:
    a = te.placeholder((4, 8, 6), name="A")
    b = te.compute(a.shape, lambda i, j, k: a[i, j, k] * 2.0, name="B")
    c = te.compute(a.shape, lambda i, j, k: b[i, j, k] + 1.0, name="C")
    d = te.compute(a.shape, lambda i, j, k: a[i, j, k] + 3.0, name="D")
    s = te.create_schedule([c, d])
    i, j, k = s[c].op.axis
    s[c].reorder(i, k, j)
    s[b].compute_at(s[c], k)
    i, j, k = s[d].op.axis
    s[d].bind(i, "blockIdx.x")
    s[d].bind(j, "threadIdx.x")
    s[c].compute_with(s[d], k)
    assert s[b].plan.placement.axis is i, "k is inside the threads"
    assert agrees(s) and replays(s, [c, d])


def test_attached_stages_share_loops() -> None:
    a = te.placeholder((6, 16), name="A")
    p = te.compute((6, 16), lambda i, j: a[i, j] + 1.0, name="P")
    q = te.compute((6, 16), lambda i, j: a[i, j] * 2.0, name="Q")
    d = te.compute((6, 16), lambda i, j: p[i, j] * q[i, j], name="D")
    s = te.create_schedule(d)
    for t in (p, q):
        s[t].compute_at(s[d], s[d].op.axis[0])
    s[q].compute_with(s[p], s[p].op.axis[1])
    text = after_passes(s, "cpu")["simplify"]
    assert text.count("for ") == 3
    assert agrees(s)


def test_a_stage_that_depends_on_the_other() -> None:
    r = Rows()
    z = te.compute((33,), lambda i: r.M[i] + r.S[i], name="Z")
    w = te.compute((33,), lambda i: z[i] * 2.0, name="W")
    s = te.create_schedule(w)
    loop = s[w].op.axis[0]
    refused(lambda: s[r.M].compute_with(s[w], loop), s, "W reads Z, which reads M", "compute_at")
    loop = s[r.M].op.axis[0]
    refused(lambda: s[w].compute_with(s[r.M], loop), s, "W reads Z, which reads M", "compute_at")


def test_groups_that_need_each_other() -> None:
    x = te.placeholder((8,), name="X")
    a = te.compute((8,), lambda i: x[i] + 1.0, name="A")
    b2 = te.compute((8,), lambda i: x[i] * 2.0, name="B")
    c = te.compute((8,), lambda i: a[i] + 3.0, name="C")
    d = te.compute((8,), lambda i: b2[i] + 4.0, name="D")
    s = te.create_schedule([c, d])
    s[d].compute_with(s[a], s[a].op.axis[0])
    refused(lambda: s[c].compute_with(s[b2], s[b2].op.axis[0]), s, "neither can run first", "split")


def test_order_of_kernels_follows_the_groups() -> None:
    x = te.placeholder((8,), name="X")
    a = te.compute((8,), lambda i: x[i] + 1.0, name="A")
    b = te.compute((8,), lambda i: a[i] * 2.0, name="B")
    c = te.compute((8,), lambda i: x[i] + 3.0, name="C")
    s = te.create_schedule([b, c])
    s[b].compute_with(s[c], s[c].op.axis[0])
    assert agrees(s, targets=("cpu",))


def test_refusals_of_loops() -> None:
    r = Rows()
    s = r.schedule()
    i, j = s[r.Y].op.axis
    s[r.Y].parallel(i)
    s[r.Y].parallel(j)
    refused(
        lambda: s[r.M].compute_with(s[r.Y], j),
        s,
        "j of Y is parallel, and its iterations would write the same elements of M",
        "name a loop outside",
    )
    s[r.S].vectorize(r.k)
    refused(lambda: s[r.S].compute_with(s[r.M], r.k), s, "k is vectorized", "loop outside it")
    refused(lambda: s[r.M].compute_with(s[r.M], i), s, "is an axis of Y", "")
    own = s[r.S].op.axis[0]
    with pytest.raises(
        te.ScheduleError, match=r"is an axis of S, not of M(.|\n)*use an axis of M$"
    ):
        s[r.S].compute_with(s[r.M], own)
    refused(lambda: s[r.M].compute_with(s[r.M]), s, "M is the stage itself", "another stage")
    refused(lambda: s[r.M].compute_with(s["X"]), s, "X is an input", "")
    s[r.M].compute_with(s[r.Y], i)
    refused(lambda: s[r.S].compute_with(s[r.M]), s, "M itself runs together with Y", "name Y")
    refused(lambda: s[r.Y].compute_with(s[r.S]), s, "M already run together with Y", "leader")
    refused(lambda: s[r.Y].split(i, 4), s, "i is already parallel", "serial")
    refused(lambda: s[r.M].split(s[r.M].op.axis[0], 4), s, "Y.i has 33 iterations", "compute_root")
    refused(lambda: s[r.M].parallel(s[r.M].op.axis[0]), s, "M.i is run by Y", "compute_root")
    s[r.M].compute_root()
    assert not s[r.M].plan.placement.leader


def test_at_different_loops() -> None:
    a = te.placeholder((6, 8), name="A")
    p = te.compute((6, 8), lambda i, j: a[i, j] + 1.0, name="P")
    q = te.compute((6, 8), lambda i, j: a[i, j] * 2.0, name="Q")
    d = te.compute((6, 8), lambda i, j: p[i, j] * q[i, j], name="D")
    s = te.create_schedule(d)
    s[p].compute_at(s[d], s[d].op.axis[0])
    refused(lambda: s[q].compute_with(s[p]), s, "Q is at root and P is attached at D.i", "both")
    s[q].compute_at(s[d], s[d].op.axis[1])
    refused(lambda: s[q].compute_with(s[p]), s, "Q is attached at D.j and P is attached at D.i")


def test_launch_options_are_the_leaders() -> None:
    r = Rows()
    s = r.schedule()
    s[r.S].launch(num_warps=2)
    refused(lambda: s[r.S].compute_with(s[r.M]), s, "S has launch options", "on the leader")


def test_shared_loops_cannot_change_under_a_follower() -> None:
    r = Rows()
    s = r.schedule()
    s[r.S].compute_with(s[r.M], s[r.M].op.axis[0])
    refused(
        lambda: s[r.M].split(s[r.M].op.axis[0], 4),
        s,
        "S runs together with M down to M.i: M has no loop any more",
        "first call s[S].compute_root",
    )
    refused(lambda: s[r.M].compute_with(s[r.Y]), s, "S already run together with M", "leader")


def test_online_reductions_keep_their_loop() -> None:
    r = Rows()
    x, k = r.X, r.k
    e = te.compute((33,), lambda i: te.sum(te.exp(x[i, k] - r.M[i]), axis=k), name="E")
    s = te.create_schedule([e, r.S])
    s[e].online(k)
    refused(lambda: s[r.S].compute_with(s[e], k), s, "other stages go along with", "outside the")
    s[r.S].compute_with(s[e], s[e].op.axis[0])
    assert agrees(s, targets=("cpu",))


def test_producer_in_a_shared_loop_that_is_not_the_first() -> None:
    A, B = te.placeholder((7, 4), name="A"), te.placeholder((7, 4), name="B")
    P = te.compute((7, 4), lambda i, j: A[i, j] + 1.0, name="P")
    X = te.compute((7, 4), lambda i, j: P[i, j] * 2.0, name="X")
    Y = te.compute((7, 4), lambda i, j: B[i, j] * 2.0, name="Y")
    s = te.create_schedule([X, Y])
    s[X].compute_with(s[Y], s[Y].op.axis[1])
    assert [axis.name for _, axis in s[P].legal_places()] == ["i", "j"]
    s[P].compute_at(s[Y], s[Y].op.axis[1])


def test_no_stage_of_a_group_may_need_another() -> None:
    """Not only the leader: programs of one launch do not wait for each other."""
    x = te.placeholder((8,), name="X")
    a = te.compute((8,), lambda i: x[i] * 3.0, name="T1")
    b = te.compute((8,), lambda i: x[i] * 2.0, name="T2")
    c = te.compute((8,), lambda i: b[i] + 1.0, name="U")
    s = te.create_schedule([a, b, c])
    s[b].compute_with(s[a])
    refused(lambda: s[c].compute_with(s[a]), s, "U reads T2", "compute_at")


def test_bounds_are_inferred_once_however_many_stages_share_loops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inferred: list[int] = []
    infer = together_checks.infer_again

    def counted(plan: Plan, names: frozenset[str] | None = None) -> Bounds:
        inferred.append(1)
        return infer(plan, names)

    monkeypatch.setattr(together_checks, "infer_again", counted)
    x = te.placeholder((64,), name="x")
    results = [te.compute((64,), lambda i: x[i] + 1.0, name=f"y{n}") for n in range(6)]
    s = te.create_schedule(results)
    taken: list[int] = []
    for result in results[1:]:
        inferred.clear()
        s[result].compute_with(s[results[0]], s[results[0]].op.axis[0])
        taken.append(len(inferred))
    assert taken == taken[:1] * 5, "more bounds with every stage that joins"


def test_a_copy_whose_loops_others_share_stays_where_threads_become_a_tile() -> None:
    x = te.placeholder((64, 4), name="x")
    k, r = te.reduce_axis((0, 4), name="k"), te.reduce_axis((0, 4), name="r")
    most = te.compute((64,), lambda i: te.max(x[i, k], axis=k), name="most")
    least = te.compute((64,), lambda i: te.min(x[i, r], axis=r), name="least")
    y = te.compute((64,), lambda i: most[i] - least[i], name="y")
    s = te.create_schedule(y)
    outer, inner = s[y].split(s[y].op.axis[0], factor=32)
    s[y].bind(outer, "blockIdx.x")
    s[y].vectorize(inner)
    for each, axis in ((least, r), (most, k)):
        s[each].vectorize(axis)
        s[each].compute_at(s[y], outer)
    s[least].compute_with(s[most], s[most].op.axis[0])
    s[most].set_scope("local")
    local = s.cache_write(most, "local")
    s[local].bind(s[local].op.axis[0], "threadIdx.x")
    assert agrees(s, targets=("triton-interpret",))
