"""Plans: how workspaces share an allocation, and what is encoded once."""

from __future__ import annotations

from typing import Any

import pytest

from tedsl.backends.triton.launch.c_launcher import Raw
from tedsl.backends.triton.launch.launch_plan import (
    MAX_INLINED,
    Described,
    Plan,
    Step,
    inlined,
    packed,
    picker,
)
from tedsl.errors import BackendError


class Bytes:
    """Memory at an address, of which parts are taken as tensors."""

    def __init__(self, address: int, text: str = "memory") -> None:
        self.address, self.text = address, text

    def data_ptr(self) -> int:
        return self.address

    def __getitem__(self, part: slice) -> Bytes:
        return Bytes(self.address + part.start, f"{part.start}:{part.stop}")

    def view(self, kind: object) -> Bytes:
        return Bytes(self.address, f"{self.text} {kind}")


def no_memory() -> Any:
    raise AssertionError("there are no workspaces")


def step(launched: list[Any], *places: int, **more: Any) -> Step:
    def enter(stream: int, args: Any) -> None:
        launched.append((stream, *args))

    options: dict[str, Any] = {"values": [], **more}
    return Step(enter, picker(places), **options)


def test_workspaces_lie_apart_in_one_allocation() -> None:
    found, total = packed([((3,), "f32", 4), ((0, 5), "f32", 4), ((100, 7), "bf16", 2)])
    assert [each.offset for each in found] == [0, 256, 512]
    assert [each.nbytes for each in found] == [12, 0, 1400]
    assert total == 512 + 1536


@pytest.mark.parametrize("places", [(), (1,), (2, 0)])
def test_arguments_are_picked_as_a_tuple(places: tuple[int, ...]) -> None:
    assert picker(places)([5, 6, 7]) == tuple([5, 6, 7][place] for place in places)


def test_arguments_are_addresses_values_and_the_number_of_the_repetition() -> None:
    launched: list[Any] = []
    kernel = step(launched, 1, 2, 3, 5, values=[40, 41])
    spaces, _ = packed([((4,), "f32", 4)])
    Plan([(3, [kernel])], spaces, lambda: Bytes(0x1000)).run(9, [0x100, 0x200], ())
    assert launched == [(9, 0x200, 0x1000, 40, number) for number in range(3)]


def test_a_function_of_the_host_gets_workspaces_as_tensors() -> None:
    given: list[Any] = []
    call = Step(lambda stream, args: None, tuple, [], call=given.extend)
    spaces, _ = packed([((4,), "f32", 4), ((2, 2), "bf16", 2)])
    Plan([(1, [call])], spaces, lambda: Bytes(0x1000)).run(9, [1], ("x",))
    assert given[0] == "x"
    assert [each.text for each in given[1:]] == ["0:16 f32 (4,)", "256:264 bf16 (2, 2)"]


def test_descriptors_are_encoded_once_per_address() -> None:
    launched: list[Any] = []
    encoded: list[Any] = []

    def encode(descriptor: Any, place: int) -> list[Any]:
        encoded.append((descriptor, place))
        return [f"map of {descriptor}", 7]

    described = (Described(0, 1, lambda tensor: tensor),)
    kernel = step(launched, 1, 0, described=described, encode=encode)
    plan = Plan([(1, [kernel])], (), no_memory)
    for addresses in ([16, 32], [48, 32], [16, 32]):
        plan.run(9, addresses, ("x", "y"))
    assert encoded == [("y", 0)]
    assert launched == [(9, "map of y", 7, first) for first in (16, 48, 16)]


def test_descriptor_objects_are_not_kept() -> None:
    """One holds its tensor, whose memory could not be used again."""
    launched: list[Any] = []
    described = (Described(0, 0, lambda tensor: [tensor]),)
    kernel = step(launched, 0, described=described)
    plan = Plan([(1, [kernel])], (), no_memory)
    plan.run(9, [16], ("x",))
    plan.run(9, [16], ("y",))
    assert launched == [(9, ["x"]), (9, ["y"])]


def test_a_refused_launch_is_a_backend_error() -> None:
    def enter(stream: int, args: Any) -> None:
        raise RuntimeError("out of memory")

    plan = Plan([(1, [Step(enter, picker((0,)), [])])], (), no_memory)
    with pytest.raises(BackendError, match=r"(?s)refused the launch: out of memory.*BLOCKING"):
        plan.run(9, [16], ())


def entered(launched: list[Any], *places: int, listed: bool = False, **more: Any) -> Step:
    """A step that enters a C launcher, whose name is in the first of its other arguments."""
    raw = Raw(lambda *args: launched.append(args), (4, 1, 1), ("kernel", None), listed)
    options: dict[str, Any] = {"values": [], "raw": raw, "places": places, **more}
    return Step(raw.enter, picker(places), **options)


def run_text(
    text: tuple[list[str], dict[str, Any]] | None, stream: int, addresses: list[int]
) -> None:
    assert text is not None
    lines, names = text
    given = {f"p{place}": address for place, address in enumerate(addresses)}
    exec("\n".join(lines), {**names, "stream": stream, **given})


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("spaces", [0, 2])
@pytest.mark.parametrize("counted", [0, 1])
def test_the_text_of_a_plan_launches_what_the_plan_does(
    listed: bool, times: int, spaces: int, counted: int
) -> None:
    launched: list[Any] = []
    workspaces, _ = packed([((100,), "f32", 4)] * spaces)
    counters, _ = packed([((2,), "i32", 4)] * counted)
    held, number = 2 + spaces + counted, 2 + spaces + counted + 2
    steps = [
        entered(launched, 1, 0, *range(2, held), listed=listed),
        entered(launched, held, 0, held + 1, number, listed=listed, values=[40, 0.5]),
    ]
    plan = Plan(
        [(1, steps[:1]), (times, steps[1:])],
        workspaces,
        lambda: Bytes(0x1000),
        (),
        counters,
        (lambda stream: Bytes(0x7000 + stream)) if counted else None,
    )
    # What stands behind the last value in a plan is the number of the repetition.
    steps[0].values = [0, 0]
    plan.run(9, [0x100, 0x200], ())
    wanted = list(launched)
    launched.clear()
    run_text(inlined(plan, 2), 9, [0x100, 0x200])
    assert launched == wanted and len(launched) == 1 + times


def test_what_is_more_than_launches_has_no_text() -> None:
    launched: list[Any] = []
    plain, slow = entered(launched, 0), step(launched, 0)
    described = entered(launched, 0, described=(Described(0, 0, str),))
    call = Step(lambda stream, args: None, tuple, [], call=launched.extend)
    groups: list[list[Step]] = [[plain, slow], [described], [plain, call], [], [plain] * 17]
    assert len(groups[-1]) > MAX_INLINED
    for steps in groups:
        assert inlined(Plan([(1, steps)], (), no_memory), 1) is None
    assert inlined(Plan([(1, [plain])], (), no_memory, staged=(0,)), 1) is None
    assert inlined(Plan([(1, [plain])], (), no_memory), 1) is not None


def test_a_refused_launch_of_a_text_is_a_backend_error() -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("too many cooperative programs")

    raw = Raw(refuse, (1, 1, 1), (), listed=False)
    plan = Plan([(1, [Step(raw.enter, picker((0,)), [], raw=raw, places=(0,))])], (), no_memory)
    with pytest.raises(BackendError, match=r"(?s)refused the launch.*smaller grid"):
        run_text(inlined(plan, 1), 9, [16])
