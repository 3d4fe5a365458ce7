"""split_online with `along=`: reductions that the last one does not read are cut like it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lowering import agrees
from refusals import refused

import tedsl as te
from tedsl.scheduling.plan.graph import tensors_read
from tedsl.scheduling.primitives.online.chain import reduce_of
from tedsl.scheduling.trace.replay import replay
from tedsl.scheduling.trace.trace import Trace

N, K, D = 3, 37, 4


def deferred() -> te.Tensor:
    """Attention whose division stands behind the sum: A reads the maximum M, and not the sum L."""
    s, v = te.placeholder((N, K), name="S"), te.placeholder((K, D), name="V")
    j, c, k = (te.reduce_axis((0, K), name=name) for name in "jck")
    m = te.compute((N,), lambda i: te.max(s[i, j], axis=j), name="M")
    total = te.compute((N,), lambda i: te.sum(te.exp(s[i, c] - m[i]), axis=c), name="L")
    a = te.compute((N, D), lambda i, d: te.sum(te.exp(s[i, k] - m[i]) * v[k, d], axis=k), name="A")
    return te.compute((N, D), lambda i, d: a[i, d] / total[i], name="O")


def cut(s: te.Schedule, name: str, factor: int = 8) -> te.Axis:
    return s[name].split(s[name].op.reduce_axis[0], factor)[0]


def test_without_it_the_sum_is_a_pass_of_its_own_over_all_elements() -> None:
    s = te.create_schedule(deferred())
    s.split_online(s["A"], cut(s, "A"))
    assert [stage.name for stage in s.stages if stage.name.endswith(".rf")] == ["M.rf", "A.rf"]
    assert agrees(s)


@pytest.mark.parametrize("along", ["L", ["L"]])
def test_a_deferred_division_goes_along(along: str | list[str]) -> None:
    """Nothing but the parts reads the scores; L.rf takes the maximum along in one pass."""
    out = deferred()
    s = te.create_schedule(out)
    part = s.split_online(s["A"], cut(s, "A"), along=along)
    assert part.op.name == "A.rf"
    read = {st.name: {t.op.name for t in tensors_read(st.op)} for st in s.stages}
    assert {name for name, names in read.items() if "S" in names} == {"M.rf", "L.rf", "A.rf"}
    merging = reduce_of(s["L"].op)
    assert merging is not None
    assert "exp(M.rf[" in str(merging.sources[0])
    s["L.rf"].online(cut(s, "L.rf", 3))
    s["A.rf"].parallel(s["A.rf"].op.axis[0])
    assert agrees(s)
    again = replay(out, Trace.from_json(s.trace.to_json()))
    assert str(again) == str(s)
    namespace = {"te": te, "O": out}
    exec(s.as_python(), namespace)
    assert str(namespace["s"]) == str(s)


def test_the_call_prints_as_python() -> None:
    s = te.create_schedule(deferred())
    s.split_online(s["A"], cut(s, "A"), along=[s["L"]])
    assert 's.split_online(s["A"], k_outer, along=[s["L"]])' in s.as_python()


def other_range() -> te.Tensor:
    x = te.placeholder((N, K), name="X")
    j, c, k = (te.reduce_axis((0, n), name=name) for name, n in (("j", K), ("c", 5), ("k", K)))
    m = te.compute((N,), lambda i: te.max(x[i, j], axis=j), name="M")
    first = te.compute((N,), lambda i: te.sum(x[i, c], axis=c), name="F")
    total = te.compute((N,), lambda i: te.sum(te.exp(x[i, k] - m[i]), axis=k), name="T")
    after = te.reduce_axis((0, K), name="a")
    last = te.compute((N,), lambda i: te.sum(x[i, after] / total[i], axis=after), name="A")
    return te.compute((N,), lambda i: last[i] + first[i], name="O")


@pytest.mark.parametrize(
    ("prepare", "along", "words"),
    [
        (lambda s: None, "T", "T, named in along=, is the stage itself"),
        (lambda s: None, "O", "O, named in along=, is no reduction"),
        (lambda s: None, "F", "F, named in along=, reduces over another range than T"),
        (lambda s: None, "A", "A, named in along=, depends on T"),
        (lambda s: s["F"].compute_at(s["O"], s["O"].op.axis[0]), "F", "along=, is not at root"),
    ],
)
def test_what_cannot_go_along(
    prepare: Callable[[te.Schedule], object], along: str, words: str
) -> None:
    s = te.create_schedule(other_range())
    prepare(s)
    loop = cut(s, "T")
    with refused(s, words):
        s.split_online(s["T"], loop, along=along)
