"""The data of a page: told completely, marked exactly, small, and safe."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sources import ROOT
from viewed import HOSTILE, fused_product, hostile, many_stages

import tedsl as te
from tedsl.ir.nodes import Module
from tedsl.ir.printer import print_module
from tedsl.scheduling.kernels.printer import print_plan
from tedsl.target import Target
from tedsl.view.collect import page_of_kernel, page_of_schedule
from tedsl.view.data import Change, Graph, Page, PlaceKind, to_json
from tedsl.view.page import SCRIPTS, STYLES, in_script, render

CPU = Target.parse("cpu")


def told(page: Page, texts: list[tuple[Change, ...]]) -> list[str]:
    """The texts, put together as the page's scripts do."""
    found: list[str] = []
    before: list[int] = []
    for changes in texts:
        now: list[int] = []
        at = 0
        for change in changes:
            if isinstance(change, tuple):
                now += change
                continue
            now += before[at : at + change] if change > 0 else []
            at += abs(change)
        assert at == len(before), "every line of the text before stays or goes"
        before = now
        found.append("\n".join(page.lines[id].text for id in now))
    return found


def marked(page: Page, text: str) -> set[tuple[str, str]]:
    """The words that are marked in lines with this text, each with its stage."""
    lines = [line for line in page.lines if line.text.strip() == text]
    assert lines, text
    return {
        (line.text[mark.start : mark.start + mark.length], page.stages[mark.stage].name)
        for line in lines
        for mark in line.marks
    }


def nodes_of(page: Page, step: int) -> dict[str, Any]:
    """The nodes of the graph after a step, by name."""
    graph = page.graphs[page.steps[step].graph]
    return {page.stages[node.stage].name: node for node in graph.nodes}


def test_the_loop_nest_is_told_after_every_step() -> None:
    s = fused_product()
    page = page_of_schedule(s, CPU)
    assert told(page, [step.nest for step in page.steps]) == [print_plan(p, CPU) for p in s.plans]


def test_the_steps_are_the_python_of_the_schedule() -> None:
    s = fused_product()
    page = page_of_schedule(s, CPU)
    lines = [page.lines[id].text for step in page.steps for id in step.python]
    assert "\n".join([*lines, ""]) == s.as_python()
    assert page.steps[0].site == ""
    assert {step.site.partition(":")[0] for step in page.steps[1:]} == {"viewed.py"}


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
def test_the_loop_ir_is_told_after_every_pass(target: str) -> None:
    s = fused_product()
    page = page_of_schedule(s, Target.parse(target))
    expected: list[tuple[str, str]] = []

    def note(name: str, left: object) -> None:
        if isinstance(left, Module):
            expected.append((name, print_module(left)))

    te.lower(s, target, dump=note)
    texts = told(page, [each.text for each in page.passes])
    assert [(each.name, f"{text}\n") for each, text in zip(page.passes, texts, strict=True)] == [
        (name, text) for name, text in expected
    ]
    assert all(each.what.endswith((".", ":")) for each in page.passes), "what each pass does"


def test_a_stage_is_told_from_a_loop_of_its_name() -> None:
    i = te.placeholder((4, 4), "float32", name="i")
    j = te.compute((4, 4), lambda i_, j: i[i_, j] + 1.0, name="j")
    page = page_of_schedule(te.create_schedule(j), CPU)
    assert marked(page, "for j in 0..4") == set()
    assert marked(page, "j[i_, j] = i[i_, j] + 1.0") == {("j", "j"), ("i", "i")}
    line = next(line for line in page.lines if line.text.strip() == "j[i_, j] = i[i_, j] + 1.0")
    assert len(line.marks) == 2, "only what is read and what is made"


def test_copies_of_a_stage_in_the_loop_ir_are_that_stage() -> None:
    """The printer numbers the two parts of a cut loop; a stage may also be called `C_1`."""
    a = te.placeholder((10,), "float32", name="A")
    c = te.compute((10,), lambda i: a[i] * 2.0, name="C")
    other = te.compute((10,), lambda i: c[i] + 1.0, name="C")
    s = te.create_schedule(other)
    outer, inner = s[other].split(other.op.axis[0], 4)
    s[c].compute_at(s[other], outer)
    s[other].vectorize(inner)
    page = page_of_schedule(s, CPU)
    words = {
        (line.text[mark.start : mark.start + mark.length], page.stages[mark.stage].name)
        for line in page.lines
        for mark in line.marks
        if line.text.strip().startswith("alloc")
    }
    assert {stage for _, stage in words} == {"C"}, "only the first is kept in a buffer"
    assert len(words) > 1, "and it has a copy of another name"


def test_the_graph_follows_the_steps() -> None:
    page = page_of_schedule(fused_product(), CPU)
    first, last = nodes_of(page, 0), nodes_of(page, len(page.steps) - 1)
    names = [stage.name for stage in page.stages]
    assert first["C"].place is PlaceKind.KERNEL
    assert first["C"].cluster == names.index("C")
    assert last["C"].place is PlaceKind.AT
    assert last["C"].where == "at D.i.outer.j.outer.fused, local"
    assert last["C"].cluster == last["D"].cluster == names.index("D")
    assert last["A"].cluster == -1
    assert [name for name, node in last.items() if node.output] == ["D"]
    graph = page.graphs[page.steps[-1].graph]
    assert set(pairs_of(page, graph)) == {("A", "C"), ("B", "C"), ("C", "D"), ("bias", "D")}


def pairs_of(page: Page, graph: Graph) -> dict[tuple[str, str], int]:
    """The bytes along each edge, by the names of its ends."""
    name = [page.stages[node.stage].name for node in graph.nodes]
    return {(name[a], name[b]): nbytes for a, b, nbytes in graph.edges}


def test_edges_carry_the_bytes_that_go_through_memory() -> None:
    page = page_of_schedule(fused_product(), CPU)
    square, row = 4 * 64 * 64, 4 * 64
    before, after = (pairs_of(page, page.graphs[page.steps[n].graph]) for n in (0, -1))
    inputs = {("A", "C"): square, ("B", "C"): square, ("bias", "D"): row}
    assert before == {**inputs, ("C", "D"): square}
    assert after == {**inputs, ("C", "D"): 0}


def test_bytes_of_a_tensor_count_once_for_each_kernel_and_only_where_sizes_are_known() -> None:
    n = te.size_var("n")
    a, b = te.placeholder((n,), name="a"), te.placeholder((8,), "bfloat16", name="b")
    c = te.compute((n,), lambda i: a[i] * 2.0, name="c")
    d = te.compute((8,), lambda i: b[i] + b[7 - i], name="d")
    e = te.compute((8,), lambda i: d[i] + b[i], name="e")
    s = te.create_schedule([c, e])
    outer, _ = s[e].split(e.op.axis[0], 4)
    s[d].compute_at(s[e], outer)
    page = page_of_schedule(s, CPU)
    graph = page.graphs[page.steps[-1].graph]
    assert pairs_of(page, graph) == {("a", "c"): -1, ("b", "d"): 16, ("d", "e"): 0, ("b", "e"): 0}


@pytest.mark.ptxas
def test_the_roofline_and_what_should_be_none() -> None:
    kernel = te.build(fused_product(), "cuda:sm_90")
    page = page_of_kernel(kernel)
    roof, told = page.roofline, kernel.explain()
    assert roof is not None and roof.bandwidth > 1e12
    assert dict(roof.peaks)["float32"] < dict(roof.peaks)["16-bit products of matrix units"]
    assert [point.name for point in roof.points] == ["all kernels", "unfused"]
    assert (roof.points[0].flops, roof.points[0].nbytes) == (told.flops, told.nbytes)
    assert page.resources is not None
    assert [page.resources.head[n] for n in page.resources.warned] == ["stack"]
    assert page_of_schedule(fused_product(), CPU).roofline is None


def test_a_stage_that_is_inlined_twice_belongs_to_no_kernel() -> None:
    a = te.placeholder((8,), "float32", name="A")
    b = te.compute((8,), lambda i: a[i] + 1.0, name="B")
    c = te.compute((8,), lambda i: b[i] * 2.0, name="C")
    d = te.compute((8,), lambda i: b[i] * 3.0, name="D")
    s = te.create_schedule([c, d])
    s[b].compute_inline()
    page = page_of_schedule(s, CPU)
    assert nodes_of(page, 1)["B"].cluster == -1
    s[c].compute_with(s[d], s[d].op.axis[0])
    page = page_of_schedule(s, CPU)
    assert nodes_of(page, 2)["B"].cluster == nodes_of(page, 2)["C"].cluster
    assert nodes_of(page, 2)["C"].where == "with D.i"


def scan() -> te.Schedule:
    """A running sum."""
    x = te.placeholder((6, 4), "float32", name="X")
    state = te.placeholder((6, 4), "float32", name="state")
    init = te.compute((1, 4), lambda t, i: x[t, i], name="init")
    update = te.compute((6, 4), lambda t, i: state[t - 1, i] + x[t, i], name="update")
    return te.create_schedule(te.scan(init, update, state, inputs=[x]))


def extern() -> te.Schedule:
    """A function from outside."""
    x = te.placeholder((8,), "float32", name="X")

    def double(given: Any, made: Any) -> None:
        np.multiply(given, 2, out=made)

    y = te.extern((8,), [x], double, dtype="float32", name="Y")
    return te.create_schedule(te.compute((8,), lambda i: y[i] + 1.0, name="Z"))


def arg_max() -> te.Schedule:
    """A reduction with two results, of a runtime size."""
    n = te.var("n")
    x = te.placeholder((n, 8), "float32", name="X")
    k = te.reduce_axis((0, 8), name="k")
    both = te.comm_reducer(
        lambda a, b: (te.select(a[1] >= b[1], a[0], b[0]), te.select(a[1] >= b[1], a[1], b[1])),
        lambda t0, t1: (te.const(-1, t0), te.min_value(t1)),
        name="argmax",
    )
    found = te.compute((n,), lambda i: both((k.astype("int32"), x[i, k]), axis=k), name="M")
    return te.create_schedule(list(found))


@pytest.mark.parametrize("made", [scan, extern, arg_max, hostile])
def test_every_kind_of_operation_has_a_page(made: Any) -> None:
    s = made()
    page = page_of_schedule(s, CPU)
    assert page.refusal == ""
    assert told(page, [step.nest for step in page.steps])[-1] == str(s)
    kinds = {node.kind.value for node in nodes_of(page, 0).values()}
    assert {scan: "scan", extern: "extern", arg_max: "reduction", hostile: "compute"}[made] in kinds
    json.loads(in_script(to_json(page)))


def test_what_cannot_be_lowered_is_still_shown_with_the_reason() -> None:
    a = te.placeholder((64, 1 << 21), "float32", name="A")
    b = te.compute((64, 1 << 21), lambda i, j: a[i, j] + 1.0, name="B")
    c = te.compute((64, (1 << 21) - 1), lambda i, j: b[i, j] + b[i, j + 1], name="C")
    s = te.create_schedule(c)
    s[b].compute_at(s[c], s[c].op.axis[0])
    s[c].vectorize(s[c].op.axis[1])  # a tile of more elements than Triton has
    page = page_of_schedule(s, Target.parse("cuda:sm_90"))
    assert page.refusal.startswith("LowerError: ")
    assert len(page.steps) == 3


@pytest.mark.cpu
def test_the_page_of_a_cpu_kernel_has_its_code() -> None:
    kernel = te.build(fused_product(), "cpu")
    page = page_of_kernel(kernel)
    assert [code.title for code in page.code] == ["LLVM IR", "Assembly"]
    shown = "\n".join(page.lines[id].text for id in page.code[0].lines)
    assert shown == "\n".join(kernel.source.splitlines())
    assert page.resources is not None
    assert page.resources.head[:2] == ("kernel", "instructions")
    heads = [page.lines[id] for id in page.code[0].lines if "define" in page.lines[id].text]
    assert any(line.marks for line in heads), "a function is marked as the kernel that it is"
    names = {
        page.stages[mark.stage].name
        for id in page.code[0].lines
        for mark in page.lines[id].marks
        if "store" in page.lines[id].text and mark.length == 0
    }
    assert names == {"C", "D"}, "and each instruction as the stage that it is for"
    assert page.explanation[0].text == str(kernel.explain())


@pytest.mark.ptxas
def test_the_page_of_a_gpu_kernel_has_its_code() -> None:
    kernel = te.build(fused_product(), "cuda:sm_90")
    page = page_of_kernel(kernel)
    assert [code.title for code in page.code] == ["Triton", "PTX"]
    stages = {stage.name: place for place, stage in enumerate(page.stages)}

    def owners(place: int, word: str) -> set[int]:
        lines = [page.lines[id] for id in page.code[place].lines]
        found = [line for line in lines if re.search(word, line.text)]
        assert found, word
        return {mark.stage for line in found for mark in line.marks if mark.length == 0}

    assert owners(0, r"tl\.dot\(") == {stages["C"]}
    assert owners(0, r"tl\.store\(") == {stages["D"]}
    assert owners(1, r"\bfma\.rn\.f32\b") == {stages["C"]}, "PTX is for the stage it comes from"
    assert owners(1, r"\bst\.global\b") == {stages["D"]}
    assert page.resources is not None
    assert {"registers", "shared", "stack"} <= set(page.resources.head)


@pytest.mark.gpu
def test_the_page_of_a_kernel_on_a_gpu_has_what_its_device_runs() -> None:
    page = page_of_kernel(te.build(fused_product(), "cuda"))
    assert [code.title for code in page.code] == ["Triton", "PTX"]
    assert page.resources is not None
    assert "registers" in page.resources.head


def test_results_and_accumulators_are_their_stage() -> None:
    page = page_of_kernel(te.build(arg_max(), "triton-interpret"))
    stages = {stage.name: place for place, stage in enumerate(page.stages)}
    lines = [page.lines[id] for id in page.code[0].lines]
    (call,) = [line for line in lines if "combine_argmax(M_acc0" in line.text]
    words = [call.text[m.start : m.start + m.length] for m in call.marks if m.length]
    assert {mark.stage for mark in call.marks} == {stages["M"]}
    assert words == ["M_acc0", "M_acc1"]
    (store,) = [line for line in lines if "tl.store(M_1" in line.text]
    assert [m.stage for m in store.marks if not m.length] == [stages["M"]]


def test_the_triton_interpreter_has_no_machine_code() -> None:
    page = page_of_kernel(te.build(fused_product(), "triton-interpret"))
    assert [code.title for code in page.code] == ["Triton"]
    assert page.resources is None


@pytest.mark.ptxas
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
def test_the_page_of_a_matrix_product_is_small(target: str, tmp_path: Path) -> None:
    view = te.build(fused_product(1024), target).view(tmp_path / "page.html")
    assert view.path.stat().st_size < 500_000


def test_nothing_is_loaded_from_elsewhere() -> None:
    page = render(page_of_schedule(fused_product(), CPU))
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page), "an address"
    assert not re.search(r"\b(src|href)\s*=", page)
    assert "default-src 'none'" in page


def test_names_of_the_user_are_escaped() -> None:
    page = render(page_of_schedule(hostile(), CPU))
    assert page.lower().count("</script>") == 2, "the data's and the scripts'"
    assert "<b>" not in page
    assert html.escape(HOSTILE) in page
    data = re.search(r'<script type="application/json" id="data">(.*)</script>', page)
    assert data is not None
    assert json.loads(data[1])["stages"][0]["name"] == HOSTILE


def test_the_file_is_named_after_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    view = fused_product().view(target="cpu")
    assert view.path == Path("D.html")
    assert Path(view).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert hostile().view(target="cpu").path.parent == Path()
    assert fused_product().view("other.html", target="cpu").path.exists()


def test_show_opens_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    fused_product().view(tmp_path / "a.html", target="cpu")
    assert opened == []
    fused_product().view(tmp_path / "a.html", target="cpu", show=True)
    assert opened == [(tmp_path / "a.html").as_uri()]


@pytest.mark.cpu
def test_a_kernel_has_one_target() -> None:
    kernel = te.build(fused_product(), "cpu")
    with pytest.raises(
        te.BackendError, match=r"(?s)built for cpu, not for cuda.*leave target= away"
    ):
        kernel.view("never.html", target="cuda")
    assert not Path("never.html").exists()


def test_forty_stages_are_collected() -> None:
    y = many_stages()
    s = te.create_schedule(y)
    page = page_of_schedule(s, CPU)
    assert len(page.stages) >= 40
    assert told(page, [step.nest for step in page.steps]) == [str(s)]


def test_every_asset_is_installed_and_used() -> None:
    folder = ROOT / "tedsl" / "view" / "assets"
    used = {*SCRIPTS, *STYLES, "page.html"}
    assert {path.name for path in folder.iterdir()} == used
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '"tedsl.view" = ["assets/*"]' in settings
    for name in used:
        text = (folder / name).read_text(encoding="utf-8")
        assert text.count("\n") < 450
        assert "innerHTML" not in text, "texts of the user are set as text"


def walked(schedule: te.Schedule, name: str) -> Any:
    page = page_of_schedule(schedule, te.Target("cpu"))
    return next(walk for walk in page.walks if page.stages[walk.stage].name == name)


def test_the_walk_of_a_tile_follows_its_loops() -> None:
    """Lanes all at once, other loops in their order, tails left out, in the attached region."""
    A, B = te.placeholder((10, 16), name="A"), te.placeholder((16, 12), name="B")
    k = te.reduce_axis((0, 16), "k")
    C = te.compute((10, 12), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    D = te.compute((10, 12), lambda i, j: te.relu(C[i, j]), name="D")
    s = te.create_schedule(D)
    _, jo, _, ji = s[D].tile(*s[D].op.axis, 4, 6)
    s[D].vectorize(ji)
    s[C].compute_at(s[D], jo)
    s[C].reorder(k, *s[C].op.axis)
    s[C].vectorize(s[C].op.axis[1])
    walk = walked(s, "D")
    assert walk.loops[-1] == ("j.inner", 6, "vectorized") and len(walk.counters) == 3 * 2 * 4
    assert walk.counters[5] == (0, 1, 1)  # i.outer, j.outer, i.inner
    field = walk.fields[0]
    assert (field.name, field.written, field.squares) == ("D", True, (10, 12))
    assert field.touched[5] == (1 * 12 + 6, 6) and field.touched[-1] == ()  # row 11 is no row
    inner = walked(s, "C")
    assert inner.loops == (("k", 16, "serial"), ("i", 4, "serial"), ("j", 6, "vectorized"))
    names = {each.name: each for each in inner.fields}
    assert names["A"].touched[5] == (names["A"].squares[1] + 1, 1)  # i = 1, k = 1
    assert names["B"].touched[5] == (1 * 6, 6) and names["C"].touched[5] == (6, 6)


def test_walks_of_fused_loops_large_tensors_and_unknown_sizes() -> None:
    x = te.placeholder((512, 512), name="x")
    y = te.compute((512, 512), lambda i, j: x[j, i], name="y")
    s = te.create_schedule(y)
    outer, inner = s[y].split(s[y].fuse(*s[y].op.axis), 256)
    s[y].vectorize(inner)
    s[y].parallel(outer)
    walk = walked(s, "y")
    assert len(walk.counters) == 96 and walk.loops[0][2] == "parallel"
    written, read = walk.fields
    assert written.squares == (48, 47) and written.elements == (1, 11)
    assert read.squares == (47, 48) and len(read.touched[0]) == 2 * 24  # a column
    n = te.var("n")
    z = te.placeholder((n,), name="z")
    w = te.compute((n,), lambda i: z[i] + 1, name="w")
    p = te.placeholder((4,), "int32", name="p")
    gather = te.compute((4,), lambda i: x[p[i], i], name="g")
    assert not page_of_schedule(te.create_schedule(w), te.Target("cpu")).walks
    assert [f.name for f in walked(te.create_schedule(gather), "g").fields] == ["g", "p"]
