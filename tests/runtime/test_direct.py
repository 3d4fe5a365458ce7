"""The function that calls like the last one become: its text, and what it leaves to the checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_cuda import fake_cuda

import tedsl as te
from tedsl.backends.call_fragments import Inlined, shown
from tedsl.errors import BackendError
from tedsl.runtime.arrays.allocation import QuickCuda
from tedsl.runtime.calls.direct import MAX_APART, MAX_TENSORS, MISS, TensorCall, direct, direct_text
from tedsl.runtime.calls.forms import Guard


class Memory:
    """What a call asks of a tensor: its address."""

    def __init__(self, address: int) -> None:
        self.address = address

    def data_ptr(self) -> int:
        return self.address


class Told:
    """A call of two inputs whose launches and checks can be looked at."""

    def __init__(self, outs: int = 0, weights: bool = False, makers: int = 1) -> None:
        self.launched: list[tuple[int, ...]] = []
        self.alike, self.current, self.recorded = True, 0, False
        self.last: list[Any] = [None]
        self.fresh = 0x5000
        places = ", ".join(f"p{n}" for n in range(2 + max(outs, makers)))
        made = tuple([self.made] * (0 if outs else makers))
        launches = Inlined(
            "current() != device",
            (f"launch({places})",),
            16,
            {"current": lambda: self.current, "device": 0, "launch": self.launch},
        )
        guard = Guard(lambda *_: self.alike, weights, lambda: self.recorded)
        nbytes = (64,) * (2 + max(outs, makers))
        noted = ("last[0] = binding",)
        names = {"last": self.last, "binding": "this call"}
        self.call = TensorCall(guard, 2 + outs, outs, made, nbytes, launches, noted, names)

    def made(self) -> Memory:
        return Memory(self.fresh)

    def launch(self, *addresses: int) -> None:
        self.launched.append(addresses)

    def function(self) -> Callable[[tuple[Any, ...]], Any]:
        found = direct(self.call)
        assert found is not None
        return found


X, Y, OUT = Memory(0x1000), Memory(0x2000), Memory(0x3000)


def test_the_text_of_a_call(golden: Callable[[str], None]) -> None:
    own: Callable[[], Any] = Told().made
    told = Told(weights=True).call
    quick = QuickCuda(lambda *_: None, (4, 8), (8, 1), "float32", 0, int, own)
    made = TensorCall(
        told.guard, 2, 0, (quick, own), (64,) * 4, told.launches, told.noted, told.names
    )
    texts = [direct_text(made), direct_text(Told(outs=1).call)]
    assert (texts[0][1]["shape2"], texts[0][1]["steps2"]) == ((4, 8), (8, 1))
    golden("\n".join(text for text, _ in texts))


def test_a_call_allocates_launches_and_returns() -> None:
    one, two = Told(), Told(makers=2)
    result = one.function()((X, Y))
    assert isinstance(result, Memory) and result.address == one.fresh
    assert one.launched == [(0x1000, 0x2000, 0x5000)] and one.last == ["this call"]
    assert len(two.function()((X, Y))) == 2


def test_results_that_are_given_are_written_to() -> None:
    told = Told(outs=1)
    assert told.function()((X, Y, OUT)) is None
    assert told.launched == [(0x1000, 0x2000, 0x3000)]


def unlike(told: Told) -> None:
    told.alike = False


def elsewhere(told: Told) -> None:
    told.current = 1


def recording(told: Told) -> None:
    told.recorded = True


def misaligned(told: Told) -> None:
    told.fresh = 0x5008


@pytest.mark.parametrize("change", [unlike, elsewhere, recording, misaligned])
def test_nothing_is_launched_where_something_is_not_as_it_was(
    change: Callable[[Told], None],
) -> None:
    told = Told(weights=True)
    function = told.function()
    assert function((X, Y)) is not MISS
    change(told)
    assert function((X, Y)) is MISS
    assert len(told.launched) == 1


@pytest.mark.parametrize(
    "given",
    [(), (X,), (X, Y, OUT), (X, Memory(0x2008)), (Memory(0x1001), Y)],
    ids=["none", "one", "three", "second at 8", "first at 1"],
)
def test_other_arguments_are_left_to_the_checks(given: tuple[Memory, ...]) -> None:
    told = Told()
    assert told.function()(given) is MISS
    assert not told.launched


@pytest.mark.parametrize(("address", "runs"), [(0x1040, True), (0x1030, False), (0x1FD0, False)])
def test_a_result_that_shares_a_byte_is_left_to_the_checks(address: int, runs: bool) -> None:
    told = Told(outs=1)
    assert (told.function()((X, Y, Memory(address))) is not MISS) == runs


def test_two_results_may_not_share_a_byte() -> None:
    told = Told(outs=2)
    assert told.function()((X, Y, OUT, Memory(0x3040))) is not MISS
    assert told.function()((X, Y, OUT, Memory(0x3030))) is MISS


def test_long_calls_are_not_written() -> None:
    short = Told()
    many = Told(makers=MAX_TENSORS - 1)
    results = Told(outs=MAX_APART - 1)
    assert direct(short.call) is not None
    assert direct(many.call) is None and direct(results.call) is None


def test_what_most_calls_share_stands_in_the_text() -> None:
    names: dict[str, Any] = {}
    given: list[Any] = [None, True, 1, (4, 1, 0), 0.5]
    assert [shown(each, f"x{n}", names) for n, each in enumerate(given)] == [
        *("None", "True", "x2", "x3", "x4")
    ]
    assert names == {"x2": 1, "x3": (4, 1, 0), "x4": 0.5}


def chain(n: Any) -> te.Tensor:
    x, y = te.placeholder((n,), name="X"), te.placeholder((n,), name="Y")
    return te.compute((n,), lambda i: te.exp(x[i]) * y[i], name="Z")


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def state(kernel: te.Kernel) -> tuple[bool, bool]:
    """Whether a function was looked for, and whether it takes inputs like the last ones."""
    like = kernel._like
    return (like.sought, like.alone) if like is not None else (False, False)


def addresses(*tensors: Any) -> tuple[int, ...]:
    return tuple(each.data_ptr() for each in tensors)


def test_a_kernel_writes_it_for_calls_of_one_form(torch: Any) -> None:
    launched: list[tuple[Any, ...]] = []
    with fake_cuda(lambda *given: launched.append(given)) as build:
        run = build(chain(te.size_var("n")))
        written: list[bool] = []
        x = y = z = torch.ones(64)
        for _ in range(6):
            x, y = torch.ones(64), torch.ones(64)
            z = run(x, y)
            written.append(state(run) == (True, True))
            assert launched[-1][-4:] == (*addresses(x, y, z), 64) and launched[-1][3] == 7
        assert written[-3:] == [True] * 3 and not written[0]
        assert z.shape == (64,) and z.dtype is torch.float32
        run(torch.ones(33), torch.ones(33))
        assert {var.name: size for var, size in run.last_sizes.items()} == {"n": 33}
        run(x, y)
        run(x, y)
        assert {var.name: size for var, size in run.last_sizes.items()} == {"n": 64}
        assert [given[-1] for given in launched] == [64] * 6 + [33, 64, 64]


def test_every_check_stands_once_it_is_written(torch: Any) -> None:
    launched: list[tuple[Any, ...]] = []
    with fake_cuda(lambda *given: launched.append(given)) as build:
        run = build(chain(64))
        x, y, z = torch.ones(64), torch.ones(64), torch.ones(64)
        refused: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
            ((x,), {}, "1 arrays given"),
            ((x, y, y), {}, "3 arrays given"),
            ((x, y), {"n": 3}, "no scalar 'n'"),
            ((x, torch.ones(63)), {}, "63"),
            ((x, y.double()), {}, "float64"),
            ((x, torch.ones(64, requires_grad=True)), {}, "requires grad"),
            ((x, [1.0] * 64), {}, "list"),
            ((x, torch.ones(64).to("meta")), {}, "is on meta:0"),
            ((x, y), {"out": x}, "shares memory with input X"),
            ((x, y), {"out": torch.ones(63)}, "63"),
            ((x, y), {"out": (z, z)}, "2 arrays given"),
            ((x, y), {"out": ()}, "0 arrays given"),
        ]
        for arguments, more, words in refused:
            for given in ({}, {"out": z}):
                for _ in range(3):
                    run(x, y, **given)
                assert state(run)[0]
                count = len(launched)
                with pytest.raises(BackendError, match=words):
                    run(*arguments, **more)
                assert len(launched) == count


def test_misaligned_tensors_take_the_way_that_looks_at_them(torch: Any) -> None:
    launched: list[tuple[Any, ...]] = []
    with fake_cuda(lambda *given: launched.append(given)) as build:
        run = build(chain(64))
        x, y, odd = torch.ones(64), torch.ones(64), torch.ones(66)
        run(odd[1:65], y)
        run(odd[2:66], y)
        run(odd[2:66], y)
        assert state(run) == (False, False), "aligned calls have not been seen"
        for _ in range(3):
            run(x, y)
        assert state(run) == (True, True)
        for first in (odd[1:65], odd[2:66], x):
            z = run(first, y)
            assert launched[-1][-3:] == addresses(first, y, z)


def test_other_devices_take_the_way_that_enters_them(torch: Any) -> None:
    launched: list[tuple[Any, ...]] = []
    entered: list[int] = []
    current = [0]

    class Entered:
        def __init__(self, device: int) -> None:
            entered.append(device)

        def __enter__(self) -> None:
            self.before, current[0] = current[0], 0

        def __exit__(self, *_: object) -> None:
            current[0] = self.before

    with (
        fake_cuda(lambda *given: launched.append(given)) as build,
        pytest.MonkeyPatch.context() as p,
    ):
        p.setattr(torch._C, "_cuda_getDevice", lambda: current[0])
        p.setattr(torch.cuda, "device", Entered)
        run = build(chain(64))
        x, y = torch.ones(64), torch.ones(64)
        for device in (0, 0, 0, 0, 1, 1, 0):
            current[0] = device
            run(x, y)
        assert entered == [0, 0] and len(launched) == 7


def test_versions_are_counted(torch: Any) -> None:
    n = te.size_var("n")
    with fake_cuda(lambda *_: None) as build:
        s = te.create_schedule(chain(n))
        s["Z"].specialize(n % 64 == 0)
        run = build(s)
        for size in (64, 64, 64, 64, 33, 33, 33):
            run(torch.ones(size), torch.ones(size))
        assert [each.hits for each in run.specializations] == [4, 3]


def test_lists_of_arguments_keep_their_order(torch: Any) -> None:
    launched: list[tuple[Any, ...]] = []
    with fake_cuda(lambda *given: launched.append(given)):
        x, y = te.placeholder((64,), name="X"), te.placeholder((64,), name="Y")
        z = te.compute((64,), lambda i: x[i] - y[i], name="Z")
        run = te.build(te.create_schedule(z), [z, y, x], "cuda")
        for _ in range(6):
            a, b, c = torch.ones(64), torch.ones(64), torch.ones(64)
            assert run(c, b, a) is c
            assert launched[-1][-3:] == addresses(a, b, c)
        assert state(run) == (True, False)


def test_a_refused_launch_says_what_to_do(torch: Any) -> None:
    fails = [False]

    def launch(*_: object) -> None:
        if fails[0]:
            raise RuntimeError("an illegal memory access")

    with fake_cuda(launch) as build:
        run = build(chain(64))
        x, y = torch.ones(64), torch.ones(64)
        for _ in range(3):
            run(x, y)
        assert state(run) == (True, True)
        fails[0] = True
        with pytest.raises(BackendError, match=r"(?s)illegal memory access.*CUDA_LAUNCH_BLOCKING"):
            run(x, y)


def test_weights_are_refused_where_gradients_are_recorded(torch: Any) -> None:
    with fake_cuda(lambda *_: None) as build:
        run = build(chain(64))
        x, weight = torch.ones(64), torch.nn.Parameter(torch.ones(64))
        with torch.no_grad():
            for _ in range(4):
                run(x, weight)
            assert state(run) == (True, True)
        with pytest.raises(BackendError, match="requires grad"):
            run(x, weight)


def test_the_function_follows_tensors_of_another_kind(torch: Any) -> None:
    """What a tensor records is no part of its form, and the comparison tells it."""
    with fake_cuda(lambda *_: None) as build, torch.no_grad():
        run = build(chain(64))
        x, weight = torch.ones(64), torch.nn.Parameter(torch.ones(64))
        for given in ((x, x), (x, weight), (weight, x), (x, x)):
            for _ in range(4):
                run(*given)
            assert run._like is not None and run._like.direct(given) is not MISS


def test_what_is_kept_of_calls_is_bounded(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tedsl.runtime.kernel._KEPT", 3)
    with fake_cuda(lambda *_: None) as build:
        run = build(chain(te.size_var("n")))
        for size in range(1, 20):
            for _ in range(4):
                run(torch.ones(size), torch.ones(size))
            assert len(run._known) <= 3 and len(run._likes) <= 3
            assert state(run) == (True, True)


def test_calls_without_elements_launch_nothing(torch: Any) -> None:
    launched: list[tuple[Any, ...]] = []
    with fake_cuda(lambda *given: launched.append(given)) as build:
        run = build(chain(te.size_var("n")))
        for _ in range(6):
            assert run(torch.ones(0), torch.ones(0)).shape == (0,)
        assert not launched and not state(run)[1]


def test_arrays_of_numpy_are_called_as_before() -> None:
    run = te.build(chain(8), "cpu")
    x = np.ones(8, np.float32)
    for _ in range(4):
        np.testing.assert_allclose(run(x, x), np.exp(x), rtol=1e-6)
    assert state(run) == (True, False)
