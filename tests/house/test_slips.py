"""Names that do not exist: every public object says what was meant, by one mechanism."""

from __future__ import annotations

import copy
import importlib.metadata
import math
import pickle
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from sources import ROOT

import tedsl as te
from tedsl.dtypes import DType
from tedsl.errors import (
    BackendError,
    ExprError,
    InternalError,
    ScheduleError,
    TedslError,
    TuneError,
)
from tedsl.slips import near

ANY: Any = te
"""The package, of which a type checker knows which names there are."""


def small() -> te.Tensor:
    x = te.placeholder((8, 8), name="x")
    return te.compute((8, 8), lambda i, j: x[i, j] * 2, name="y")


def holders() -> dict[str, tuple[Any, str, str]]:
    """What is asked, a slip, and what was meant."""
    y = small()
    s = te.create_schedule(y)
    return {
        "te": (te, "compyte", "te.compute"),
        "te.nn": (te.nn, "sofmax", "softmax"),
        "te.runtime": (te.runtime, "mesure", "measure"),
        "te to nn": (te, "softmax", "te.nn.softmax"),
        "schedule": (s, "rfacter", "rfactor"),
        "schedule to stage": (s, "tile", r"s\[T\].tile"),
        "stage": (s[y], "vectorise", "vectorize"),
        "stage of others": (s[y], "inline", "compute_inline"),
        "tensor": (y, "shap", "shape"),
        "expression": (y[0, 0], "as_type", "astype"),
        "axis": (y.op.axis[0], "domian", "domain"),
        "group": (s.create_group(y, y.op.input_tensors), "compute_inline", "compute_at"),
        "trace": (s.trace, "step", "steps"),
    }


@pytest.mark.cpu
def test_results_name_what_was_meant() -> None:
    """Kernels, what they are explained with, rooflines, and what searches found."""
    y = small()
    kernel = te.autotune(y, "cpu", budget="none", records=False, progress=False)
    explained, roof = kernel.explain(), te.roofline(y, "cpu", measure=False)
    holders: list[tuple[Any, str, str]] = [
        (kernel, "tunning", "tuning"),
        (kernel.tuning, "trails", "trials"),
        (kernel.tuning, "rofline", "roofline"),
        (kernel.tuning.report, "section", "sections"),
        (kernel.tuning.winner, "candidat", "candidate"),
        (kernel.tuning.winner.outcome, "second", "seconds"),
        (explained, "kernel", "kernels"),
        (explained.kernels[0], "byte", "nbytes"),
        (roof, "point", "points"),
        (te.space(y, "cpu", samples=2), "knob", "knobs"),
    ]
    for holder, slip, meant in holders:
        with pytest.raises(AttributeError, match=rf"no attribute '{slip}'\n  do .*{meant}") as told:
            getattr(holder, slip)
        assert isinstance(told.value, TedslError)
        copy.copy(holder)


@pytest.mark.parametrize("name", holders())
def test_an_attribute_that_was_meant_is_named(name: str) -> None:
    holder, slip, meant = holders()[name]
    assert not hasattr(holder, slip) and getattr(holder, slip, None) is None
    with pytest.raises(
        AttributeError, match=rf"has no attribute '{slip}'\n  do  .*{meant}"
    ) as told:
        getattr(holder, slip)
    assert isinstance(told.value, TedslError)
    with pytest.raises(AttributeError, match="has no attribute '_private'"):
        holder._private  # noqa: B018


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda y, s: ANY.compute((4,), lambda i: i, nam="x"), ExprError, "did you mean name"),
        (lambda y, s: s[y].split(y.op.axis[0], facter=2), ScheduleError, "did you mean factor"),
        (lambda y, s: ANY.nn.softmax(y, axsi=1), ExprError, "did you mean axis"),
        (lambda y, s: ANY.autotune(y, "cpu", trial=3), TuneError, "did you mean trials"),
        (lambda y, s: ANY.autotune(y, "cpu", trials="3"), TuneError, r"trials is '3' \(str\)"),
        (lambda y, s: ANY.build(y, taget="cpu"), ExprError, "did you mean target"),
        (lambda y, s: ANY.autotune(y, "cpu", within=-1.0), TuneError, "no set of kernels"),
        (lambda y, s: ANY.autotune(y, "cpu", candidate_seconds=float("nan")), TuneError, "no time"),
        (lambda y, s: ANY.autotune(y, "cpu", sizes={"n": 3}), TuneError, "no size 'n'"),
    ],
)
def test_a_keyword_that_was_meant_is_named(call: Any, error: type[TedslError], match: str) -> None:
    y = small()
    with pytest.raises(error, match=match):
        call(y, te.create_schedule(y))


def test_a_schedule_is_nothing_to_search_for() -> None:
    with pytest.raises(TuneError, match=r"Schedule is nothing to compute(.|\n)*schedule=f"):
        te.autotune(te.create_schedule(small()), "cpu")  # pyright: ignore[reportArgumentType]


def test_a_target_that_was_meant_is_named() -> None:
    for given, meant in (
        ("cuda:sm90", "cuda"),
        ("gpu", "mean cuda"),
        ("hip", "no others"),
        ("triton-interpreter", "triton-interpret"),
    ):
        with pytest.raises(BackendError, match=rf"unknown target(.|\n)*do .*{meant}"):
            te.build(small(), target=given)


def test_refusals_are_pickled_and_copied() -> None:
    with pytest.raises(AttributeError, match="compyte") as told:
        te.compyte  # noqa: B018  # pyright: ignore
    for again in (pickle.loads(pickle.dumps(told.value)), copy.copy(told.value)):
        assert isinstance(again, ExprError) and isinstance(again, AttributeError)
        assert str(again) == str(told.value)


def test_names_that_are_listed_are_those_of_the_language() -> None:
    listed = {name for name in dir(te) if not name.startswith("__")}
    assert listed - set(te.__all__) == {each.value for each in DType if each != "bool"}


def test_names_that_are_near() -> None:
    assert near("vectorise", ["vectorize", "parallel"]) == ["vectorize"]
    assert near("zzz", ["vectorize", "parallel"]) == []


def test_version_and_command() -> None:
    version = importlib.metadata.version("tedsl")
    assert ANY.__version__ == version
    done = subprocess.run(
        [sys.executable, "-m", "tedsl", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"tedsl {version}\n"
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["project"]["scripts"] == {"tedsl": "tedsl.cli.main:main"}


def test_one_verb_writes_files(tmp_path: Path) -> None:
    y = small()
    s = te.create_schedule(y)
    assert s.save(tmp_path / "a" / "s.py").read_text() == s.as_python()
    again = te.replay(y, te.Trace.from_json(s.save(tmp_path / "s.json").read_text()))
    assert str(again) == str(s)
    assert "<html" in s.save(tmp_path / "s.html").read_text()
    for wrong, match in (("s.doc", "allowed .py, .json, .txt, .html"), ("", "is no path")):
        with pytest.raises(ScheduleError, match=match):
            s.save(wrong and tmp_path / wrong)
    with pytest.raises(ScheduleError, match="cannot be written"):
        s.save("/dev/null/s.py")
    listing = te.space(y, "cpu", samples=2)
    assert listing.save(tmp_path / "space.txt").read_text() == f"{listing}\n"


@pytest.mark.cpu
def test_a_kernel_is_saved_and_carries_what_its_search_learnt(tmp_path: Path) -> None:
    kernel = te.autotune(small(), "cpu", trials=1, records=False, progress=False)
    assert kernel.tuning.kernel is kernel
    assert kernel.tuning.save(tmp_path / "r.txt").read_text() == f"{kernel.tuning.report}\n"
    assert kernel.save(tmp_path / "k.txt").read_text() == kernel.source
    assert te.build(small(), "cpu").tuning is None
    found = te.autotune(small(), "cpu", budget="none", records=False)
    assert found.tuning.tried == 0


WRONG = (
    *(None, 0, -1, 2**70, "zzz", "", 1.5, float("nan"), True, b"x", object(), [], {}, [None]),
    *({"a": 1}, [1, 2], lambda: 1, int, small),
)
ONE = {"schedule": lambda s: None}
"""A space of one candidate, about which no worker is asked."""
FRONT: dict[str, tuple[Any, dict[str, Any]]] = {
    "autotune": (te.autotune, {"target": "cpu", "budget": "none", "records": False, **ONE}),
    "space": (te.space, {"target": "cpu", "samples": 2}),
    "explain": (te.explain, {"target": "cpu"}),
    "roofline": (te.roofline, {"target": "cuda:sm_90", "measure": False, "unfused": False}),
}
OPTIONS = {
    "autotune": ("outputs", "target", "budget", "trials", "seconds", "seed", "schedule", "records",
                 "progress", "sizes", "within", "kernels", "fresh", "candidate_seconds", "lock",
                 "frozen"),
    "space": ("outputs", "target", "schedule", "samples", "seed"),
    "explain": ("what", "target", "device", "sizes", "caches"),
    "roofline": ("what", "target", "measure", "unfused", "sizes", "fresh"),
}  # fmt: skip


@pytest.mark.cpu
@pytest.mark.uncompiled
@pytest.mark.parametrize(
    ("name", "option"), [(n, o) for n, every in OPTIONS.items() for o in every]
)
def test_a_wrong_option_is_told(
    name: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where texts are paths
    called, given = FRONT[name]
    first = OPTIONS[name][0]
    for wrong in WRONG:
        if (option, wrong) in (("trials", 2**70), ("measure", True), ("budget", None)):
            continue
        try:
            called(**{first: small(), **given, option: wrong})
        except InternalError:
            raise
        except TedslError as error:
            assert str(error)
        except TypeError as error:
            raise AssertionError(f"{name}({option}={wrong!r}): {error!r}") from error


def test_what_stands_for_habits_from_elsewhere() -> None:
    """Methods of arrays, Python's own functions, an index that is missing, `kernel.run`."""
    x: Any = te.placeholder((4, 6), name="x")
    anything: Any = te
    for name in ("T", "reshape", "sum", "transpose"):
        with pytest.raises(
            AttributeError, match=rf"a tensor has no attribute '{name}'\n  do .*te\."
        ):
            getattr(x, name)
    with pytest.raises(AttributeError, match=r"no attribute 'transpose'\n  do .*x\[j, i\]"):
        _ = anything.transpose
    for wrong in (lambda: x[0] * 2, lambda: 2 - x[0], lambda: x[0] < 1):
        with pytest.raises(ExprError, match=r"has 2 dimensions and is read with 1 indices"):
            wrong()
    with pytest.raises(ExprError, match=r"for max\(\) te\.maximum"):
        max(x[0, 0], 0)
    with pytest.raises(ExprError, match=r"te\.exp for math\.exp"):
        math.exp(x[0, 0])


@pytest.mark.cpu
def test_a_kernel_is_called_itself() -> None:
    kernel: Any = te.build(small(), "cpu")
    with pytest.raises(AttributeError, match=r"no attribute 'run'\n  do .*kernel\(a, b\)"):
        kernel.run()
