"""Plans: how workspaces share an allocation, and what is encoded once."""

from __future__ import annotations

from typing import Any

import pytest

from tedsl.backends.triton.plans import Described, Plan, Step, packed, picker
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
