"""The script that runs drawn pairs by the thousand: what it draws, and that it notices faults."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import agree_child
import agree_on_device
import agree_worker
import drawn_focus
import numpy as np
import pytest
from agree_child import Child
from agree_worker import Worker
from agreeing import Oracle, _held
from choices import Recorder, integers, lists, permutations, sets
from drawn_chains import chains
from drawn_focus import CALLING, DRAWERS, FAMILIES, Focus
from drawn_pairs import pair
from drawn_schedules import started
from failing_programs import program
from fake_cuda import fake_cuda
from guarded import ZONE, Form, Memory
from scan_strategies import prefixes
from shrinking import shrink
from strategies import Case, by_group, computes, products

import tedsl as te
from tedsl.backends.triton.emit.module import emit
from tedsl.backends.triton.emit.program import TritonProgram
from tedsl.checking.written_out import Writer
from tedsl.ir.nodes import Module
from tedsl.reference.reference import evaluate
from tedsl.scheduling import primitives

FAULTY = """
import json, os, signal, sys, time
for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps({"step": "run"}), flush=True)
    if request["seed"] == 1:
        sys.stderr.write("what it said last")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGSEGV)
    if request["seed"] == 2:
        time.sleep(60)
    print(json.dumps({"status": "right", "seed": request["seed"]}), flush=True)
"""

SEEING = """
import json, os, sys, time
for line in sys.stdin:
    time.sleep(0.01)
    seen = "device " + os.environ["CUDA_VISIBLE_DEVICES"]
    print(json.dumps({"status": "right", "steps": [seen]}), flush=True)
"""


def worker(target: str, **options: Any) -> Worker:
    only = {"compile_only": False, "emit_only": False, "check": False}
    given = {"extents": "large", "aligned": False, **only, **options}
    return Worker(argparse.Namespace(target=target, **given), io.StringIO())


def test_a_recorder_draws_the_same_again() -> None:
    def drawn(draw: Recorder) -> Any:
        some = lists(integers(3, 9), min_size=1, max_size=4)
        return draw(some), draw(permutations("abcd")), draw(sets(integers(0, 9), max_size=3))

    for seed in range(50):
        first = Recorder(seed)
        made = drawn(first)
        again = Recorder(given=first.noted)
        assert drawn(again) == made
        assert again.noted == first.noted
    assert drawn(Recorder(given=[])) == ([3], ["a", "b", "c", "d"], set())


@pytest.mark.parametrize("kind", agree_on_device.KINDS)
def test_a_seed_and_its_numbers_make_the_same_pair(kind: str) -> None:
    for seed in range(12):
        first = pair(kind, "cpu", f"{kind}:{seed}")
        again = pair(kind, "cpu", given=first.noted)
        assert repr(again.case) == repr(first.case)
        assert str(again.schedule) == str(first.schedule)
        assert again.decisions == first.decisions
        assert again.families == first.families


def test_a_focus_is_on_few_primitives_and_every_family_comes() -> None:
    """Also on one that is added later: a family is a folder."""
    folders = {path.parent.name for path in Path(primitives.__file__).parent.glob("*/api.py")}
    assert set(FAMILIES.values()) == folders
    found = [Focus(Recorder(seed)) for seed in range(300)]
    assert {family for focus in found for family in focus.families} == folders
    assert {drawer for focus in found for drawer in focus.drawers} >= set(DRAWERS)
    assert {len(focus.drawers) for focus in found} == {2, 3, 4, 5}


def test_an_even_focus_draws_each_primitive_first() -> None:
    assert set(CALLING) == set(FAMILIES)
    found = Counter(Focus(Recorder(seed), even=True).wanted for seed in range(1000))
    assert set(found) == set(FAMILIES)
    assert max(found.values()) < 4 * min(found.values())


@pytest.mark.parametrize(
    ("name", "cases"),
    [
        ("associative_scan", prefixes()),
        ("tensorize", products()),
        ("scatter", by_group()),
        ("split_online", chains()),
        ("store_root", products()),
    ],
)
def test_rare_primitives_are_accepted_on_what_suits_them(
    name: str, cases: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawn_focus, "CALLING", {name: CALLING[name]})
    met = 0
    for seed in range(24):
        draw = Recorder(seed)
        case = draw(cases)
        met += not Focus(draw, even=True).suits(started(case.outputs, case.sizes))[0]
    assert met >= 2


def test_a_focus_calls_often_what_suits() -> None:
    families, lengths = Counter[str](), list[int]()
    for seed in range(40):
        drawn = pair("focused", "cpu", f"focused:{seed}")
        assert drawn.schedule is not None
        called = {FAMILIES.get(step.primitive, "") for step in drawn.schedule.trace.steps}
        families.update("met" if each in called else "missed" for each in drawn.families)
        lengths.append(len(drawn.schedule.trace))
    assert families["met"] > 2 * families["missed"]
    assert sum(length > 8 for length in lengths) >= 12


def test_pairs_differ_in_what_users_write() -> None:
    """Each of these is in some of the first pairs; a generator that lost one would be noticed."""
    cases = [Recorder(n)(computes()) for n in range(300)]
    texts = [repr(case) for case in cases]
    for wanted in (" - i0", " % ", " // ", "max(i", "[A", "[X", "n1", "where=", "paired", "int8"):
        assert sum(wanted in text for text in texts) >= 3, wanted
    assert {tensor.ndim for case in cases for tensor in case.inputs} == {0, 1, 2, 3, 4, 5, 6}


def test_shrinking_keeps_what_fails() -> None:
    def fails(given: list[int]) -> list[int] | None:
        return given if sum(n >= 5 for n in given) >= 2 else None

    assert shrink([1, 9, 0, 3, 7, 7, 2, 8, 0, 0], fails) == [5, 5]


def test_shrinking_ends_when_it_is_told_to() -> None:
    def fails(given: list[int]) -> list[int] | None:
        raise StopIteration

    assert shrink([4, 2, 0], fails) == [4, 2]


def test_definitions_written_out_are_the_definitions() -> None:
    for seed in range(40):
        drawn = pair("rules", "cpu", f"rules:{seed}")
        case, writer = drawn.case, Writer(drawn.case.outputs)
        scope: dict[str, Any] = {"te": te}
        exec("\n".join(writer.lines), scope)
        outputs = [scope[writer.tensor(tensor)] for tensor in case.outputs]
        names = {t: writer.tensor(t) for t in case.inputs if t.op in writer.names}
        inputs = {scope[name]: case.inputs[tensor] for tensor, name in names.items()}
        sizes = {scope[writer.names[v]]: n for v, n in case.sizes.items() if v in writer.names}
        want = evaluate(case.outputs, case.inputs, case.sizes)
        for x, y in zip(evaluate(outputs, inputs, sizes), want, strict=True):
            np.testing.assert_array_equal(x.astype(np.float64), y.astype(np.float64))


@pytest.mark.cpu
def test_a_program_written_out_runs(capsys: pytest.CaptureFixture[str]) -> None:
    drawn = pair("schedules", "cpu", "schedules:4")
    exec(program(drawn.case, drawn.schedule, "cpu"), {})
    assert float(capsys.readouterr().out.split()[0]) < 1e-3


def test_memory_shows_what_was_written_where_nothing_may_be() -> None:
    given = np.arange(6, dtype=np.int32).reshape(2, 1, 3)
    memory = Memory([given], [((4,), np.dtype(np.float32))], [Form(3, True), Form(1)])
    source, result = memory.arrays()
    assert source.ctypes.data % ZONE == 12
    assert result.ctypes.data % ZONE == 4
    assert source.strides[1] != 12
    assert np.isnan(result).all()
    np.testing.assert_array_equal(source, given)
    result[...] = 2
    memory.check()
    np.testing.assert_array_equal(memory.results()[0], [2, 2, 2, 2])
    memory.raw[memory.parts[1].end] = 1
    with pytest.raises(AssertionError, match=r"1 bytes were written beside an array: at 16 of"):
        memory.check()
    memory.fill([given])
    source[0, 0, 0] = 7
    with pytest.raises(AssertionError, match=r"1 bytes were written inside an input"):
        memory.check()


@pytest.mark.cpu
def test_a_worker_finds_pairs_right_on_the_cpu() -> None:
    found = worker("cpu", aligned=True, extents="small")
    for seed in range(6):
        assert found.asked({"kind": "schedules", "seed": seed})["status"] == "right"


def test_loop_ir_is_interpreted_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(_: Module, case: Case) -> list[Any]:
        return [np.ones_like(wanted) - wanted for wanted in Oracle(case).wanted]

    found = worker("cuda:sm_90", compile_only=True, check=True, extents="small")
    found.options.emit_only = True
    monkeypatch.setattr(agree_worker, "read_by_triton", lambda *_: None)
    asked = [{"kind": "schedules", "seed": n} for n in range(6)]
    assert {found.asked(request)["status"] for request in asked} == {"right"}
    monkeypatch.setattr(agree_worker, "interpreted", spoilt)
    statuses = [found.asked(request)["status"] for request in asked]
    assert statuses.count("wrong") >= 5  # others have no elements


@pytest.mark.ptxas
def test_kernels_that_triton_cannot_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(*args: Any) -> TritonProgram:
        program = emit(*args)
        return replace(program, source=program.source.replace("tl.store(", "tl.sore("))

    found = worker("cuda:sm_90", compile_only=True, emit_only=True)
    asked = [{"kind": "rules", "seed": n} for n in range(8)]
    statuses = [found.asked(request)["status"] for request in asked]
    assert set(statuses) <= {"right", "large"}
    monkeypatch.setattr(agree_worker, "emit", spoilt)
    spoiled = [found.asked(request) for request in asked]
    assert [each["status"] for each in spoiled].count("refused") >= 6  # others have no elements
    assert any("sore" in each.get("message", "") for each in spoiled)


def test_kernels_that_write_nothing_are_wrong() -> None:
    with fake_cuda(lambda *_: None) as _, pytest.MonkeyPatch.context() as patch:
        torch = pytest.importorskip("torch")
        patch.setattr(torch.cuda, "synchronize", lambda: None)
        found = worker("cuda", aligned=True)
        statuses = [found.asked({"kind": "rules", "seed": n})["status"] for n in range(12)]
    assert statuses.count("wrong") >= 10  # the others have no elements


def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Child:
    path = tmp_path / "worker.py"
    path.write_text(FAULTY)
    monkeypatch.setattr(agree_child, "WORKER", path)
    monkeypatch.setitem(agree_child.LIMITS, "run", 1.0)
    return Child([], tmp_path)


def test_a_process_that_dies_or_hangs_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = child(tmp_path, monkeypatch)
    try:
        assert asked.ask({"seed": 0})["status"] == "right"
        crashed = asked.ask({"seed": 1})
        assert (crashed["status"], crashed["at"], crashed["message"]) == ("crash", "run", "SIGSEGV")
        assert "what it said last" in crashed["trace"]
        assert asked.ask({"seed": 3})["status"] == "right"
        hung = asked.ask({"seed": 2})
        assert (hung["status"], hung["at"]) == ("hang", "run")
        assert asked.ask({"seed": 4}) == {"status": "right", "seed": 4}
    finally:
        asked.close()


@pytest.mark.parametrize(("predicted", "status"), [(9000.0, "large"), (0.1, "hang")])
def test_calls_that_take_hours_are_no_hangs(
    predicted: float, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(_: Child, request: dict[str, Any]) -> dict[str, Any]:
        if "predict" in request:
            return {"status": "right", "predicted": predicted}
        return {"status": "hang", "at": "run", "message": "no end of run"}

    monkeypatch.setattr(Child, "ask", ask)
    options = ["--target", "cuda:sm_90", "--seeds", "0:1", "--jobs", "1", "--kind", "rules"]
    monkeypatch.setattr(sys, "argv", ["agree", "--out", str(tmp_path), *options])
    agree_on_device.main()
    assert json.loads((tmp_path / "agreement.json").read_text())["counts"] == {"rules": {status: 1}}


@pytest.mark.cpu
def test_a_call_is_predicted() -> None:
    found = worker("cpu").asked({"kind": "rules", "seed": 3, "predict": True})
    assert 0 < found["predicted"] < 1


def test_processes_are_spread_over_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "worker.py"
    path.write_text(SEEING)
    monkeypatch.setattr(agree_child, "WORKER", path)
    options = ["--target", "cpu", "--seeds", "0:400", "--jobs", "3", "--devices", "2"]
    monkeypatch.setattr(sys, "argv", ["agree", "--out", str(tmp_path), *options])
    assert agree_on_device.main() == 0
    kept = json.loads((tmp_path / "agreement.json").read_text())
    steps = {name.partition(": ")[2] for name in kept["primitives"]}
    assert steps == {"device 0", "device 1"}
    assert (kept["pairs"], kept["devices"]) == (400, 2)


@pytest.mark.cpu
def test_the_script_keeps_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--target", "cpu", "--aligned", "--seeds", "0:4", "--jobs", "1"]
    monkeypatch.setattr(sys, "argv", ["agree", "--out", str(tmp_path), *options])
    assert agree_on_device.main() == 0
    kept = json.loads((tmp_path / "agreement.json").read_text())
    assert kept["pairs"] == 4
    assert sum(sum(each.values()) for each in kept["counts"].values()) == 4
    assert kept["versions"]["numpy"] == np.__version__


def test_runs_of_one_commit_are_added(tmp_path: Path) -> None:
    run: dict[str, Any] = {
        "commit": "a",
        "target": "cuda",
        "device": "G",
        "seeds": "0:9",
        "kept": [],
    }
    run |= {"pairs": 9, "seconds": 3.0, "failures": {"X": 2}, "primitives": {}}
    run |= {"seconds_by_step": {"run": 1.5}, "counts": {"rules": {"right": 9}}}
    agree_on_device.joined([run, {**run, "seeds": "9:18"}], tmp_path)
    kept = json.loads((tmp_path / "agreement_cuda.json").read_text())
    assert (kept["pairs"], kept["pairs_per_second"], kept["failures"]) == (18, 3.0, {"X": 4})
    assert kept["counts"] == {"rules": {"right": 18}}
    with pytest.raises(SystemExit, match="runs of one commit"):
        agree_on_device.joined([run, run], tmp_path)
    with pytest.raises(SystemExit, match="runs of one commit"):
        agree_on_device.joined([run, {**run, "seeds": "9:18", "commit": "b"}], tmp_path)


def test_failures_of_one_kind_have_one_name() -> None:
    names = {
        agree_on_device.signature(
            "rules", {"status": "refused", "message": f"T{n}: axis {n} of A{n}"}
        )
        for n in range(9)
    }
    assert len(names) == 1


def test_what_overflows_one_way_and_barely_not_another_is_not_compared() -> None:
    x, y = np.array([np.inf, 1.0, -np.inf, np.inf]), np.array([3e38, 1.0, -np.inf, 5.0])
    kept = _held(x, y, 3.4e38)
    np.testing.assert_array_equal(kept[0], [1.0, -np.inf, np.inf])
    np.testing.assert_array_equal(kept[1], [1.0, -np.inf, 5.0])
