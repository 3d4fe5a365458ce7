"""te.explain: places of stages, totals, text, JSON and HTML."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import tedsl as te
from tedsl.errors import BackendError
from tedsl.explaining.data import Way


def rows() -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """B = A + 1, S = the sums of its rows, C = B / S."""
    a = te.placeholder((64, 256), name="A")
    b = te.compute(a.shape, lambda i, j: a[i, j] + 1.0, name="B")
    k = te.reduce_axis((0, 256), name="k")
    s = te.compute((64,), lambda i: te.sum(b[i, k], axis=k), name="S")
    return b, s, te.compute(a.shape, lambda i, j: b[i, j] / s[i], name="C")


def test_each_stage_says_how_it_got_there() -> None:
    b, total, c = rows()
    s = te.create_schedule(c)
    s[b].compute_inline()
    s[total].compute_at(s[c], c.op.axis[0])
    kernel = te.explain(s, "cpu").kernels[0]
    found = {place.stage: (place.way, place.where, place.recomputed) for place in kernel.stages}
    assert found == {
        "B": (Way.INLINED, "S, C", 2.0),
        "S": (Way.ATTACHED, "C.i", 1.0),
        "C": (Way.ROOT, "", 1.0),
    }
    assert kernel.recomputed == 2.0


def test_online_split_and_cached_stages_are_told_apart() -> None:
    x = te.placeholder((4, 4096), name="x")
    out = te.nn.softmax(x)
    s = te.create_schedule(out)
    outer, _ = s["softmax.sum"].split(s["softmax.sum"].op.reduce_axis[0], 256)
    s["softmax.sum"].online(outer)
    s.cache_read(x, "local", ["softmax.sum"])
    ways = {p.stage: p.way for k in te.explain(s, "cpu").kernels for p in k.stages}
    assert ways["softmax.max"] is Way.ONLINE

    k = te.reduce_axis((0, 4096), name="k")
    total = te.compute((4,), lambda i: te.sum(x[i, k], axis=k), name="total")
    s = te.create_schedule(total)
    part, _ = s[total].split(k, 256)
    partial = s.rfactor(total, part)
    places = [p for kernel in te.explain(s, "cpu").kernels for p in kernel.stages]
    assert {p.stage: p.way for p in places}[partial.op.name] is Way.SPLIT


def test_totals_and_the_unfused_program() -> None:
    _, _, c = rows()
    found = te.explain(c, "cuda")
    size = 4 * 64 * 256
    assert found.least_bytes == 2 * size
    assert found.unfused is not None and found.unfused.launches == 3
    in_cache = size + 256  # the second and the third find there what the one before has written
    moved = 2 * size + (size + 256) + (2 * size + 256) - in_cache
    assert found.unfused.nbytes == pytest.approx(moved)
    assert found.saved == found.unfused.nbytes - found.nbytes > 0
    assert found.nbytes == found.reads + found.writes
    assert found.seconds == pytest.approx(sum(k.seconds for k in found.kernels))


def test_scans_have_no_unfused_program() -> None:
    state = te.placeholder((4, 8), name="state")
    x = te.placeholder((4, 8), name="x")
    init = te.compute((1, 8), lambda _, i: x[0, i], name="init")
    update = te.compute((4, 8), lambda t, i: state[t - 1, i] + x[t, i], name="update")
    found = te.explain(te.create_schedule(te.scan(init, update, state, inputs=[x])), "cpu")
    assert found.unfused is None and found.saved == 0
    assert "unfused" not in str(found)


@pytest.mark.cpu
def test_a_kernel_is_explained_at_the_sizes_of_its_last_call() -> None:
    n = te.size_var("n")
    x = te.placeholder((n,), name="x")
    y = te.compute((n,), lambda i: x[i] * 2.0, name="y")
    kernel = te.build(y, "cpu")
    assert te.explain(kernel).sizes == {"n": 1024}
    kernel(np.ones(3000, np.float32))
    found = kernel.explain()
    assert found.sizes == {"n": 3000} and found.least_bytes == 24000
    assert te.explain(kernel, sizes={"n": 10}).least_bytes == 80
    assert str(found).splitlines()[1] == "with n = 3000"


@pytest.mark.ptxas
def test_registers_and_spills_of_compiled_code_stand_beside_the_estimate() -> None:
    _, _, c = rows()
    guessed = te.explain(c, "cuda").kernels[0].resources
    known = te.explain(te.build(c, "cuda:sm_90")).kernels[0].resources
    assert guessed is not None and known is not None
    assert known.compiled and not guessed.compiled
    assert known.registers > 8 and known.spilled == 0 and 0 < known.occupancy <= 1


def test_a_device_is_predicted_for_by_name() -> None:
    x = te.placeholder((1 << 13, 1 << 13), name="x")
    y = te.compute(x.shape, lambda i, j: x[i, j] + 1.0, name="y")
    slow = te.explain(y, "cuda", device="NVIDIA H100 80GB HBM3")
    fast = te.explain(y, "cuda", device="NVIDIA H200")
    assert fast.device == "NVIDIA H200" and fast.seconds < slow.seconds
    assert fast.nbytes == slow.nbytes


def test_wrong_subjects_and_sizes_are_refused() -> None:
    _, _, c = rows()
    with pytest.raises(BackendError, match="int cannot be explained"):
        te.explain(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(BackendError, match="has no size 'm'"):
        te.explain(c, "cpu", sizes={"m": 3})


def test_text(golden: Any) -> None:
    b, total, c = rows()
    s = te.create_schedule([b, c])
    s[total].compute_at(s[c], c.op.axis[0])
    golden(str(te.explain(s, "cuda", device="NVIDIA H100")))


def test_json_has_all_of_it() -> None:
    b, _, c = rows()
    found = te.explain(te.create_schedule([b, c]), "cuda")
    data = json.loads(found.to_json())
    assert data["nbytes"] == found.nbytes and data["unfused"]["launches"] == 3
    assert [row["name"] for row in data["kernels"]] == ["B", "S", "C"]
    assert data["kernels"][0]["bound"] in ("memory", "compute", "launch")
    assert {row["verdict"] for row in data["pairs"]} <= {
        "illegal", "not worth it", "no difference", "worth it",
    }  # fmt: skip
    assert data["now"]["kernels"] == 3


class _Reader(HTMLParser):
    """Collects tags, links and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.linked: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.linked += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_html_stands_alone_and_escapes_names() -> None:
    x = te.placeholder((64, 64), name="x")
    y = te.compute(x.shape, lambda i, j: x[i, j] + 1.0, name="y<script>")
    z = te.compute(x.shape, lambda i, j: y[i, j] * 2.0, name="z")
    found = te.explain(te.create_schedule([y, z]), "cpu")
    reader = _Reader()
    reader.feed(found.to_html())
    assert "script" not in reader.tags and reader.linked == []
    assert any("y<script>" in word for word in reader.words)
    assert "illegal" in reader.words
    assert found._repr_html_() in found.to_html()


def test_what_the_last_programs_do_is_done_once() -> None:
    """Bytes and operations are those of two kernels; a launch is saved, and the end of the last
    program comes after all others."""
    x = te.placeholder((1 << 22,), name="x")
    k = te.reduce_axis((0, 1 << 22), name="k")
    total = te.compute((), lambda: te.sum(x[k], axis=k), name="total")
    s = te.create_schedule(total)
    partial = s[s.rfactor(total, s[total].split(k, nparts=512)[0])]
    partial.bind(partial.op.axis[0], "blockIdx.x")
    partial.vectorize(partial.split(partial.op.reduce_axis[0], 1024)[1])
    s[total].vectorize(s[total].op.reduce_axis[0])
    two = te.explain(s, "cuda:sm_90")
    s[total].compute_last(partial)
    one = te.explain(s, "cuda:sm_90")
    (kernel,) = one.kernels
    assert {p.stage: p.way for p in kernel.stages}["total"] is Way.LAST
    assert "total (last of total.rf)" in str(one)
    assert kernel.writes == {"total.rf": 2048, "total": 4}
    assert kernel.reads["total.rf"] == 2048
    assert kernel.flops == sum(each.flops for each in two.kernels)
    before = sum(each.seconds for each in two.kernels)
    launch = two.kernels[1].launch_seconds
    assert before - launch < kernel.seconds + 1e-6 and kernel.seconds < before


def test_what_programs_pass_on_to_each_other() -> None:
    a = te.placeholder((8, 4), name="A")
    b = te.compute((8, 4), lambda i, p: a[i, p] + 1.0, name="B")
    c = te.compute((8, 4), lambda i, p: b[i, p] * b[i, 3 - p], name="C")
    s = te.create_schedule(c)
    i, p = s[c].op.axis
    s[c].reorder(p, i)
    s[c].bind(p, "blockIdx.x")
    s[b].compute_across(s[c], i, s[b].op.axis[1], p)
    found = te.explain(s, "cuda:sm_90")
    (kernel,) = found.kernels
    assert {each.stage: each.way for each in kernel.stages}["B"] is Way.ACROSS
    assert "B (across programs C.p)" in str(found)
    assert kernel.writes == {"B": 128, "C": 128}
