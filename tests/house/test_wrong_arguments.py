"""Whatever is given to what is public: it succeeds, or a tedsl error says what is wrong."""

from __future__ import annotations

import copy
import pickle
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wrong_arguments import Setting, calls, subjects

import tedsl as te
from tedsl.errors import BackendError, ExprError, InternalError, ScheduleError, TedslError

SUBJECTS = subjects()
BUILDS = {"te.build", "te.evaluate", "te.lower", "te.replay", "te.gradient"}


@pytest.fixture(scope="module")
def kernel() -> Any:
    pytest.importorskip("llvmlite")
    return te.build(Setting().d, target="cpu")


def check(name: str, kernel: Any, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """All the calls of one subject; a refused one changes nothing."""
    monkeypatch.chdir(folder)  # where texts are paths
    get = SUBJECTS[name]
    t = Setting()
    t.kernel = kernel
    before = str(t.s)
    for args, kwargs in calls(get(t), t):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                get(t)(*args, **kwargs)
        except InternalError:
            raise
        except TedslError:
            assert str(t.s) == before, f"{name}{args} {kwargs}"
        except TypeError as error:  # Python's own: no such parameter, or one that is missing
            own = len(traceback.extract_tb(error.__traceback__)) <= 3
            assert own and ("argument" in str(error)), f"{name}{args} {kwargs}: {error!r}"
        if t.s.trace.steps:
            t.s.undo(len(t.s.trace.steps))


@pytest.mark.cpu
@pytest.mark.uncompiled  # kernels are beside the point here
@pytest.mark.parametrize(
    "name", [n for n in SUBJECTS if not n.startswith("Kernel.") and n not in BUILDS]
)
def test_a_wrong_argument_is_told(
    name: str, kernel: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    check(name, kernel, monkeypatch, tmp_path)


def chain() -> Setting:
    return Setting()


def test_the_words_name_the_argument_and_what_it_may_be() -> None:
    t = chain()
    with pytest.raises(ScheduleError, match=r"choices is 4 \(int\)(.|\n)*allowed several of"):
        t.s.knob("five", 4)  # pyright: ignore[reportArgumentType, reportCallIssue]
    with pytest.raises(ScheduleError, match=r"other is 'C' \(str\)(.|\n)*allowed Schedule"):
        t.s.diff("C")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ScheduleError, match=r"label is \[\] \(list\)(.|\n)*allowed a string"):
        t.s["C"].axis([])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ScheduleError, match=r"name is \[\] \(list\)(.|\n)*allowed a string"):
        t.s.size([])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ExprError, match=r"fcompute is None(.|\n)*a function"):
        te.compute((4,), None)  # pyright: ignore[reportArgumentType, reportCallIssue]
    with pytest.raises(ScheduleError, match=r"factor"):
        t.s["C"].split(t.c.op.axis[0], np.zeros(2))  # pyright: ignore[reportArgumentType]


def test_a_failure_of_the_users_own_function_stays_what_it_is() -> None:
    def wrong(i: Any) -> Any:
        return i.no_such_thing

    with pytest.raises(AttributeError, match="no_such_thing"):
        te.compute((4,), wrong)
    with pytest.raises(TypeError, match="unexpected keyword argument 'extents'"):
        te.compute((4,), lambda i: i, extents=4)  # pyright: ignore[reportCallIssue]


@pytest.mark.cpu
def test_a_kernel_is_copied_as_itself_and_not_pickled(kernel: Any) -> None:
    assert copy.copy(kernel) is kernel and copy.deepcopy(kernel) is kernel
    with pytest.raises(BackendError, match=r"cannot be pickled(.|\n)*pickle kernel.schedule"):
        pickle.dumps(kernel)
    again = te.build(pickle.loads(pickle.dumps(kernel.schedule)), target="cpu")
    rows = np.ones((8, 6), np.float32), np.ones(3, np.float32)
    np.testing.assert_array_equal(again(*rows), kernel(*rows))
