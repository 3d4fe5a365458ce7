"""What TVM scripts say of memory, threads and loops: hints, virtual threads, pragmas, scopes, and
`fuse` of no loops."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from computations import chain, matmul, row_sum
from lowering import agrees
from refusals import refused

import tedsl as te
from tedsl.ir.nodes import LoopKind, Scope
from tedsl.scheduling.primitives.placement.rewrite import TVM_SCOPES


def total() -> tuple[te.Schedule, Any]:
    """The sum of a vector: a result of no dimension."""
    X = te.placeholder((100,), name="X")
    k = te.reduce_axis((0, 100), name="k")
    B = te.compute((), lambda: te.sum(X[k], axis=k), name="B")
    return te.create_schedule(B), B


def test_fuse_of_nothing(golden):
    s, B = total()
    unit = s[B].fuse()
    s[B].bind(unit, "blockIdx.x")
    _, inner = s[B].split(s[B].op.reduce_axis[0], 16)
    s[B].vectorize(inner)
    golden(f"{s}\n\n{s.as_python()}")
    assert agrees(s)


def test_a_unit_loop_is_a_loop():
    c = chain(33)
    s = te.create_schedule(c.D)
    unit, again = s[c.D].fuse(), s[c.D].fuse()
    assert [a.name for a in s[c.D].leaf_iter_vars] == ["unit_1", "unit", "i0"]
    both = s[c.D].fuse(again, unit)
    s[c.C].compute_at(s[c.D], both)
    _outer, inner = s[c.D].split(both, 4)
    s[c.D].unroll(inner)
    assert agrees(s)
    s[c.B].bind(s[c.B].op.axis[0], "blockIdx.x")
    s[c.B].fuse()
    assert [a.name for a in s[c.B].leaf_iter_vars] == ["i0", "unit"]
    assert agrees(s)


def test_reversed_loops_are_not_fused_in_silence():
    """TVM swaps them: the fused loop would not run in the order that is written."""
    m = matmul()
    s = te.create_schedule(m.C)
    i, j = s[m.C].op.axis
    with refused(s, "j, i are not in the order of the loops", "fuse(i, j), or first reorder(j, i)"):
        s[m.C].fuse(j, i)
    with refused(s, "j is data-parallel and k is a reduction", "s.rfactor"):
        s[m.C].fuse(j, s[m.C].op.reduce_axis[0])


def test_states_of_other_shapes_are_not_aligned():
    first, more = te.placeholder((1, 4), name="first"), te.placeholder((1, 4, 8), name="more")
    a, b = te.placeholder((5, 4), name="a"), te.placeholder((5, 4, 8), name="b")
    after = te.compute((5, 4), lambda t, i: a[t - 1, i] + 1.0, name="after")
    later = te.compute((5, 4, 8), lambda t, i, j: b[t - 1, i, j] * a[t - 1, i], name="later")
    one, two = te.scan([first, more], [after, later], [a, b], name="steps")
    total = te.compute((5, 4), lambda t, i: one[t, i] + two[t, i, 0], name="total")
    s = te.create_schedule(total)
    with pytest.raises(te.ScheduleError, match="have other shapes"):
        s[one].storage_align(s[one].op.axis[0], 8, 0)


def test_storage_align():
    m = matmul(33, 30, 7)
    s = te.create_schedule(m.D)
    i, j = s[m.C].op.axis
    s[m.C].storage_align(i, 32, 1)
    (space,) = te.lower(s, "cpu").workspaces
    assert [str(e) for e in space.shape] == ["33", "33"]
    assert agrees(s)
    s[m.C].compute_at(s[m.D], s[m.D].op.axis[0])
    assert "alloc C: local float32[1, 33]" in str(te.lower(s, "cpu"))
    assert agrees(s)
    with refused(s, "j is the last dimension", "allowed i"):
        s[m.C].storage_align(j, 8, 0)
    with refused(s, "D is an output", "s.cache_write"):
        s[m.D].storage_align(s[m.D].op.axis[0], 8, 0)
    with refused(s, "expected a dimension of C, got k", "allowed i"):
        s[m.C].storage_align(s[m.C].op.reduce_axis[0], 8, 0)
    with refused(s, "factor is 0"):
        s[m.C].storage_align(i, 0, 0)
    cube = chain(2, 3, 4)
    s = te.create_schedule(cube.D)
    with refused(s, "a step along i0 is a step over several rows", "allowed i1"):
        s[cube.C].storage_align(s[cube.C].op.axis[0], 8, 0)


def test_aligned_rows_of_any_length():
    n = te.size_var("n")
    m = matmul(5, n, 3)
    s = te.create_schedule(m.D)
    s[m.C].storage_align(s[m.C].op.axis[0], 8, 3)
    assert all(agrees(s, {n: size}) for size in (0, 1, 3, 33))


def test_fetching_ahead():
    m = matmul()
    s = te.create_schedule(m.D)
    i, j = s[m.D].op.axis
    (k,) = s[m.C].op.reduce_axis
    s[m.C].prefetch(m.A, k, 2)
    assert s[m.C].plan.mark(k).num_stages == 3
    with refused(s, "double_buffer(C", "C is not attached at a loop", "compute_at first"):
        s[m.C].double_buffer()
    s[m.C].compute_at(s[m.D], j)
    s[m.C].double_buffer()
    assert s[m.D].plan.mark(j).num_stages == 2
    s[m.D].parallel(i)
    with refused(s, "prefetch(", "C does not read bias", "reads   A, B"):
        s[m.C].prefetch(m.bias, k, 1)
    with refused(s, "offset is 0"):
        s[m.C].prefetch(m.A, k, 0)


def test_store_predicates():
    _, B = row_sum(8, 64)
    s = te.create_schedule(B)
    tx, bx = te.thread_axis("threadIdx.x"), te.thread_axis("blockIdx.x")
    s[B].bind(s[B].op.reduce_axis[0], tx)
    s[B].bind(s[B].op.axis[0], bx)
    s[B].set_store_predicate(tx.var.equal(0))
    s[B].set_store_predicate("threadIdx.x == 0 & threadIdx.y == 0")
    assert agrees(s)
    with refused(s, "i is bound to blockIdx.x", "only the first would be stored"):
        s[B].set_store_predicate(tx.var.equal(0) & bx.var.equal(0))
    for condition in (tx.var.equal(1), tx.var < 4, "threadIdx.x == 0 | x", "q == 0"):
        with refused(s, "could lose results", "te.if_then_else"):
            s[B].set_store_predicate(condition)
    c = chain(8)
    s = te.create_schedule(c.D)
    s[c.D].bind(s[c.D].op.axis[0], tx)
    with refused(s, "i0 is bound to threadIdx.x"):
        s[c.D].set_store_predicate(tx.var.equal(0))


def test_env_threads():
    c = chain(64)
    s = te.create_schedule(c.D)
    s[c.D].env_threads(te.thread_axis((0, 32), "threadIdx.x"))
    s[c.C].compute_at(s[c.D], s[c.D].op.axis[0])
    with refused(s, "C is computed inside the kernel of D"):
        s[c.C].env_threads(["threadIdx.x"])
    with refused(s, "unknown thread 'warp'"):
        s[c.D].env_threads(["warp"])


def test_virtual_threads():
    c = chain(33)
    s = te.create_schedule(c.D)
    outer, inner = s[c.D].split(s[c.D].op.axis[0], nparts=4)
    s[c.D].bind(outer, te.thread_axis((0, 4), "vthread"))
    s[c.D].bind(inner, "threadIdx.x")
    assert s[c.D].plan.mark(outer).kind is LoopKind.VECTORIZED
    assert agrees(s)
    (i,) = s[c.C].op.axis
    s[c.C].bind(i, "vthread")
    assert agrees(s)
    n = te.size_var("n")
    _, B = row_sum(n, 100)
    s = te.create_schedule(B)
    with refused(s, "the extent of i is not a constant", "first split it"):
        s[B].bind(s[B].op.axis[0], "vthread")


def test_loops_are_shared_as_they_were_beside_virtual_threads():
    """On the CPU they are a loop again, which took the place of a shared one: half a result was
    left out."""
    x = te.placeholder((6, 5), name="x")
    k = te.reduce_axis((0, 6), name="k")
    total = te.compute((5,), lambda j: te.sum(x[k, j], axis=k), name="total")
    twice = te.compute((6, 3), lambda i, j: x[i, j] * 2.0, name="twice")
    s = te.create_schedule([total, twice])
    s[total].bind(s[total].op.axis[0], "vthread")
    s[twice].compute_with(s[total], s[total].op.reduce_axis[0])
    assert agrees(s)


def test_pragmas():
    m = matmul(8, 4, 3)
    s = te.create_schedule(m.C)
    i, j = s[m.C].op.axis
    (k,) = s[m.C].op.reduce_axis
    s[m.C].pragma(i, "auto_unroll_max_step", 16)
    assert [s[m.C].plan.mark(a).kind.value for a in (i, j, k)] == ["serial", *["unrolled"] * 2]
    s[m.C].pragma(i, "unroll_explicit", True)
    s[m.C].pragma(i, "parallel_launch_point")
    s[m.C].pragma(i, "parallel")
    assert agrees(s)
    with refused(s, "pragma_value is None of type NoneType"):
        s[m.C].pragma(i, "auto_unroll_max_step")
    with refused(s, "unknown pragma 'tensor_core'", "allowed unroll, vectorize, parallel"):
        s[m.C].pragma(i, "tensor_core")


@pytest.mark.parametrize("scope", [*sorted(TVM_SCOPES), "shared.dyn", "local.acc_buffer"])
def test_scopes_of_tvm(scope: str):
    m = matmul()
    s = te.create_schedule(m.D)
    s[m.C].compute_at(s[m.D], s[m.D].op.axis[0])
    s[m.C].set_scope(scope)
    assert s[m.C].plan.scope is (Scope.SHARED if scope == "shared.dyn" else Scope.LOCAL)
    s[s.cache_read(m.A, scope, [m.C])].compute_at(s[m.C], s[m.C].op.axis[1])
    assert agrees(s, targets=("cpu",))
    with refused(s, "unknown scope 'texture'", "allowed global, local, shared, warp, wmma"):
        s[m.C].set_scope("texture")


def test_the_numbers_stay():
    m = matmul(9, 8, 7)
    s = te.create_schedule(m.D)
    s[m.C].storage_align(s[m.C].op.axis[0], 16, 1)
    s[m.C].prefetch(m.A, s[m.C].op.reduce_axis[0])
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(e).astype(np.float32) for e in ((9, 7), (7, 8)))
    bias = np.zeros(8, np.float32)
    want = np.maximum(a @ b, 0)
    np.testing.assert_allclose(te.build(s, "cpu")(a, b, bias), want, atol=1e-5)


def test_evict():
    m = matmul(33, 30, 7)
    s = te.create_schedule(m.D)
    s[m.A].evict("last")
    s[m.C].evict("first")
    assert "input A: float32[33, 7], evicted last" in str(s)
    assert 's["A"].evict("last")' in s.as_python()
    assert agrees(s)
    with refused(s, "expected when the caches give up A, got 'never'", "allowed 'first', 'normal'"):
        s[m.A].evict("never")
    s[m.A].evict("normal")
    assert "evicted last" not in str(s)


def test_what_is_evicted_is_said_by_accesses_to_memory():
    c = chain(4096)
    s = te.create_schedule(c.D)
    for stage in (c.B, c.C):
        s[stage].compute_inline()
    outer, inner = s[c.D].split(c.D.op.axis[0], 1024)
    s[c.D].bind(outer, "blockIdx.x")
    s[c.D].vectorize(inner)
    s[c.A].evict("last")
    s[c.D].evict("first")
    source = te.build(s, "cuda:sm_90").source
    (load,) = [line for line in source.splitlines() if "tl.load(" in line]
    (store,) = [line for line in source.splitlines() if "tl.store(" in line]
    assert 'eviction_policy="evict_last"' in load
    assert 'eviction_policy="evict_first"' in store
    assert agrees(s)


def softened(rows: int = 8, columns: int = 4096) -> tuple[te.Schedule, Any]:
    """Rows less their greatest element, read in pieces by two loops."""
    X = te.placeholder((rows, columns), name="X")
    k = te.reduce_axis((0, columns), name="k")
    top = te.compute((rows,), lambda i: te.max(X[i, k], axis=k), name="top")
    out = te.compute(X.shape, lambda i, j: X[i, j] - top[i] + X[i, 0], name="out")
    s = te.create_schedule(out)
    i, j = out.op.axis
    s[out].bind(i, "blockIdx.x")
    s[top].compute_at(s[out], i)
    for stage, axis in ((s[out], j), (s[top], k)):
        _, inner = stage.split(axis, 1000)
        stage.vectorize(inner)
    return s, out


def policies(s: te.Schedule, of: str) -> list[str]:
    """What the accesses to a tensor say of the caches, in the order of the source."""
    source = " ".join(te.build(s, "cuda:sm_90").source.split())
    found = re.findall(
        rf"tl.(?:load|store)\( ?{of}(?:_base\w*)?\b.*?(?=tl.load|tl.store|for |$)", source
    )
    return [text.partition("evict_")[2].partition('"')[0] or "-" for text in found]


def test_until_it_is_read_for_the_last_time():
    """The tails of loops belong to them; what is at hand of the first is not loaded again."""
    s, out = softened()
    s["X"].evict("last")
    assert policies(s, "X") == ["last"] * 5
    s["X"].evict("last", then="first")
    assert "input X: float32[8, 4096], evicted last, then first" in str(s)
    assert policies(s, "X") == ["last", "last", "first", "first", "first"]
    assert "X: float32[8, 4096], evicted last, then first" in str(te.lower(s, "cuda"))
    assert agrees(s)
    s[out].evict("first")
    assert policies(s, "out") == ["first", "first"]
    s["X"].evict("normal", then="first")
    assert policies(s, "X") == ["-", "-", "first", "first", "first"]
    s["X"].evict("last", then="normal")
    assert policies(s, "X") == ["last", "last", "-", "-", "-"]
    s["X"].evict("last")
    assert policies(s, "X") == ["last"] * 5


def test_the_tail_of_a_loop_that_runs_backwards_belongs_to_it():
    s, out = softened()
    s["X"].evict("last", then="first")
    s[out].reverse(s[out].leaf_iter_vars[1])
    assert policies(s, "X") == ["last", "last", "first", "first"]
    assert agrees(s)


def test_several_rows_in_turn_are_each_read_for_the_last_time():
    s, out = softened()
    (i, *_) = s[out].leaf_iter_vars
    s[out].serial(i)
    program, _ = s[out].split(i, 4)
    s[out].bind(program, "blockIdx.x")
    s["X"].evict("last", then="first")
    assert policies(s, "X") == ["last", "last", "first", "first", "first"]
    assert agrees(s)


def test_what_one_nest_reads_keeps_its_priority():
    c = chain(4096)
    s = te.create_schedule(c.D)
    for stage in (c.B, c.C):
        s[stage].compute_inline()
    _, inner = s[c.D].split(c.D.op.axis[0], 1024)
    s[c.D].vectorize(inner)
    s[c.A].evict("last", then="first")
    assert policies(s, "A") == ["last"]


def test_what_is_read_behind_the_only_nest_is_read_for_the_last_time():
    X = te.placeholder((4096,), name="X")
    k = te.reduce_axis((0, 4096), name="k")
    top = te.compute((), lambda: te.max(X[k], axis=k), name="top")
    out = te.compute((16,), lambda i: X[i] - top[()], name="out")
    s = te.create_schedule(out)
    program = s[out].fuse()
    s[out].bind(program, "blockIdx.x")
    s[top].compute_at(s[out], program)
    s[out].vectorize(out.op.axis[0])
    _, inner = s[top].split(top.op.reduce_axis[0], 1024)
    s[top].vectorize(inner)
    s["X"].evict("last", then="first")
    assert policies(s, "X") == ["last", "first"]


def test_columns_that_are_read_in_each_iteration_are_not_given_up():
    """Two nests in a loop along which the input does not move: the next iteration reads it."""
    X = te.placeholder((4096,), name="X")
    k = te.reduce_axis((0, 4096), name="k")
    top = te.compute((8,), lambda i: te.max(X[k] * (i + 1), axis=k), name="top")
    out = te.compute((8, 4096), lambda i, j: X[j] - top[i], name="out")
    s = te.create_schedule(out)
    i, j = out.op.axis
    s[top].compute_at(s[out], i)
    for stage, axis in ((s[out], j), (s[top], top.op.reduce_axis[0])):
        _, inner = stage.split(axis, 1024)
        stage.vectorize(inner)
    s["X"].evict("last", then="first")
    assert policies(s, "X") == ["last", "last"]
    s[out].bind(i, "blockIdx.x")
    assert policies(s, "X") == ["last", "first"]


def test_programs_side_by_side_read_each_for_themselves():
    """One launch of two stages: neither reads what the other has read before it."""
    X = te.placeholder((8, 4096), name="X")
    made = [
        te.compute(X.shape, lambda i, j: X[i, j] * 2.0, name="double"),
        te.compute(X.shape, lambda i, j: X[i, j] * 3.0, name="triple"),
    ]
    s = te.create_schedule(made)
    for each in made:
        i, j = each.op.axis
        s[each].bind(i, "blockIdx.x")
        _, inner = s[each].split(j, 1024)
        s[each].vectorize(inner)
    s["X"].evict("last", then="first")
    s[made[1]].compute_with(s[made[0]])
    assert policies(s, "X") == ["last", "last"]


def test_refused_what_is_evicted_then():
    s, out = softened()
    with refused(s, "then is 'last', which is not sooner than 'last'", "'first', 'normal'"):
        s["X"].evict("last", then="last")
    with refused(s, "then is 'never', which is not sooner than 'normal'", "'first'"):
        s["X"].evict("normal", then="never")
    with refused(s, "then is 'first', which is not sooner than 'first'", "leave then= out"):
        s["X"].evict("first", then="first")
    with refused(s, "nothing reads out, so it is not read for the last time", "leave then= out"):
        s[out].evict("last", then="first")
