"""What decides between kernels: plain Python, exact where tuned, near elsewhere, and legal."""

from collections.abc import Callable

import numpy as np
import pytest

import tedsl as te
from tedsl.autotune.multi.dispatcher import (
    Choice,
    Dispatcher,
    Row,
    condition_of,
    places_of,
    variables_of,
    write_source,
)
from tedsl.errors import BackendError
from tedsl.runtime.kernel import Kernel

pytestmark = pytest.mark.cpu


def scaled(schedule: Callable[[te.Schedule, te.Var], object] | None = None) -> Kernel:
    """y = 2 x for vectors of any length, by a schedule that may assume something of it."""
    n = te.size_var("n")
    x = te.placeholder((n,), "float32", name="x")
    y = te.compute((n,), lambda i: x[i] * 2.0, name="y")
    s = te.create_schedule(y)
    if schedule is not None:
        schedule(s, n)
    return te.build(s, "cpu")


def rows(*sizes: tuple[int, int]) -> list[Row]:
    return [Row({"n": n}, kernel, 1e-6 * n, 1.0 + 0.1 * kernel, 1.0) for n, kernel in sizes]


@pytest.fixture
def pair() -> tuple[Kernel, Kernel]:
    return scaled(), scaled(lambda s, n: s.assume(n % 8 == 0))


def dispatcher(pair: tuple[Kernel, Kernel]) -> Dispatcher:
    conditions = [condition_of(kernel.schedule.plan.assumptions) for kernel in pair]
    choices = [Choice("any", conditions[0]), Choice("eights", conditions[1])]
    table = rows((100, 0), (1024, 1))
    return Dispatcher(choices, table, lambda n, _: pair[n], places_of(pair[0], ["n"]))


def test_the_source_is_readable(golden: Callable[[str], None], pair: tuple[Kernel, Kernel]):
    golden(dispatcher(pair).source)


def test_tuned_sizes_are_exact_others_go_to_the_nearest_legal(pair: tuple[Kernel, Kernel]):
    made = dispatcher(pair)
    assert [made.number(n=n) for n in (100, 1024, 1000, 1016, 312, 328, 1)] == [0, 1, 1, 1, 0, 1, 0]
    assert made.number(n=1001) == 0  # no multiple of 8
    space: dict[str, Callable[..., int]] = {}
    exec(made.source, space)
    assert all(space["choose"](n) == made.number(n=n) for n in range(1, 2000))
    for n in (1, 100, 1024, 1001, 1000):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(made(x), 2 * x)
        np.testing.assert_array_equal(made(x), 2 * x)
    assert made.kernels == pair
    assert made.slowdown == pytest.approx(1.1**0.5)
    assert "eights" in str(made)
    assert repr(made) == "<tedsl.Dispatcher of 2 kernels for n>"


def test_where_no_kernel_is_legal_that_is_said(pair: tuple[Kernel, Kernel]):
    made = Dispatcher(
        [Choice("eights", condition_of(pair[1].schedule.plan.assumptions))],
        rows((1024, 0)),
        lambda n, _: pair[1],
        places_of(pair[1], ["n"]),
    )
    with pytest.raises(BackendError, match=r"none of the kernels may be called(.|\n)*n % 8"):
        made(np.ones(1001, np.float32))


def test_bad_arguments_get_the_kernels_own_words(pair: tuple[Kernel, Kernel]):
    made = dispatcher(pair)
    with pytest.raises(BackendError, match="input"):
        made()
    with pytest.raises(BackendError, match="float32"):
        made(np.ones(100, np.float64))
    blind = Dispatcher([Choice("any")], rows((100, 0)), lambda n, _: pair[0], {})
    with pytest.raises(BackendError, match="no argument tells the size 'n'"):
        blind(np.ones(100, np.float32))
    assert blind.kernel(n=100) is pair[0]


def test_conditions_as_python():
    n, m = te.size_var("n"), te.size_var("m")
    condition = condition_of([n % 8 == 0, n * 2 < m])
    assert eval(condition, {"n": 8, "m": 17})
    assert not eval(condition, {"n": 8, "m": 16})
    assert not eval(condition, {"n": 9, "m": 99})
    assert condition_of([]) == "True"
    assert condition_of([te.sqrt(te.cast(n, "float32")) > 2.0]) == "False"


def test_one_size_is_a_tuple_too():
    assert "(7,): 0" in write_source(["n"], [Choice("any")], rows((7, 0)))


@pytest.mark.parametrize(
    "name", ["seq-len", "in", "n m", "é", "1", "kernel", "size", "max", "a", "choose", "n'\"", "_0"]
)
def test_sizes_may_be_called_anything(name: str):
    """A name becomes no code: what can be no variable is a place in the program."""
    n = te.size_var(name)
    called = variables_of([name, "_1"])
    condition = condition_of([n % 8 == 0], called)
    choices = [Choice("any\nraise SystemExit #"), Choice("eights", condition)]
    table = [Row({name: 64, "_1": 2}, 1, 1e-6, 1.0), Row({name: 100, "_1": 2}, 0, 1e-6, 1.0)]
    x = te.placeholder((n,), "float32", name="x")
    kernel = te.build(te.create_schedule(te.compute((n,), lambda i: x[i] * 2.0, name="y")), "cpu")
    made = Dispatcher(choices, table, lambda number, _: kernel, {name: (0, 0), "_1": (0, 0)})
    assert [made.number(**{name: size, "_1": 2}) for size in (64, 72, 65, 100)] == [1, 1, 0, 0]
    np.testing.assert_array_equal(made(np.ones(8, np.float32)), np.full(8, 2.0, np.float32))
    assert len(set(variables_of([name, "_1", "_0", "a b", "size_1"]).values())) == 5 - (
        name == "_0"
    )
    assert condition_of([te.size_var("other one") % 8 == 0], called) == "False"
