"""Launch plans: what a call launches, made once per combination of sizes and alignment, run at
every call.

A plan knows where in the addresses of a call each argument of each kernel is, so that a call picks
arguments and enters the launcher, and does nothing else.  All workspaces are one allocation.
Encoded tensor maps (of TMA) are kept with the arguments they belong to.  Counters are memory of
their own, which stays (`counters`).  Knows neither expressions nor Triton; `launcher` makes plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from tedsl.backends.call_fragments import shown
from tedsl.backends.triton.launch.c_launcher import Encode, Enter, Raw
from tedsl.errors import BackendError

MAX_MAPS = 64
ALIGNMENT = 256  # of each workspace
MAX_INLINED = 16  # launches

Arguments = Sequence[Any]
Pick = Callable[[Arguments], tuple[Any, ...]]
MakeDescriptor = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Described:
    """A parameter that is a tensor descriptor: its place among the parameters and that of its
    buffer among the buffers, and what makes the descriptor of a tensor."""

    place: int
    source: int
    make: MakeDescriptor


@dataclass(slots=True)
class Step:
    """One kernel of a plan, or with a `call` a function of the host, called with all tensors.

    `pick` takes a kernel's arguments from the addresses of all buffers followed by `values` and the
    number of the repetition; a descriptor is the address of its buffer there.  `enter` launches
    with (stream, arguments), in which `encode` stands for a descriptor as launchers want it.  `raw`
    is the C launcher that `enter` enters, and `places` are those that `pick` picks, where known.
    """

    enter: Enter
    pick: Pick
    values: list[Any]
    described: tuple[Described, ...] = ()
    encode: Encode | None = None
    call: Callable[[Arguments], None] | None = None
    raw: Raw | None = None
    places: tuple[int, ...] = ()
    _maps: dict[tuple[int, int], list[Any]] = field(
        default_factory=dict[tuple[int, int], list[Any]]
    )
    _filled: dict[tuple[Any, ...], list[Any]] = field(
        default_factory=dict[tuple[Any, ...], list[Any]]
    )

    def with_maps(self, args: tuple[Any, ...], tensors: Callable[[], Arguments]) -> Arguments:
        """`args` with each descriptor as its encoded map, or as an object for the slow entry."""
        known = self._filled.get(args)
        if known is not None:
            return known
        by_place = {each.place: each for each in self.described}
        everything = tensors()
        result: list[Any] = []
        for place, arg in enumerate(args):
            each = by_place.get(place)
            if each is None:
                result.append(arg)
            elif self.encode is None:  # not kept: it would keep its tensor alive
                result.append(each.make(everything[each.source]))
            else:
                result += self._map(each, arg, everything, self.encode)
        if self.encode is not None:
            _keep(self._filled, args, result)
        return result

    def _map(self, each: Described, address: int, tensors: Arguments, encode: Encode) -> list[Any]:
        key = each.place, address
        found = self._maps.get(key)
        if found is None:
            found = encode(each.make(tensors[each.source]), each.place)
            _keep(self._maps, key, found)
        return found


@dataclass(frozen=True, slots=True)
class Workspace:
    """Memory of a call: its offset in the one allocation, and what it looks like as a tensor."""

    offset: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: Any


@dataclass(slots=True)
class Plan:
    """All launches of one call, in groups of (repetitions, steps).

    `allocate` makes the memory of all workspaces, as a tensor of bytes.  `staged` are the tensors
    that descriptors need at an aligned address and do not have there: such a plan is not run as it
    is.  `counters` lie in the memory that `count` has for a stream, which keeps its contents
    between calls.
    """

    groups: list[tuple[int, list[Step]]]
    workspaces: tuple[Workspace, ...]
    allocate: Callable[[], Any]
    staged: tuple[int, ...] = ()
    counters: tuple[Workspace, ...] = ()
    count: Callable[[int], Any] | None = None
    _only: Step | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """One plain kernel, which most calls are, is launched without looking for more."""
        steps = [step for times, steps in self.groups for step in steps * min(times, 2)]
        plain = len(steps) == 1 and not steps[0].described and steps[0].call is None
        self._only = steps[0] if plain and not (self.workspaces or self.counters) else None

    def run(self, stream: int, addresses: list[int], tensors: Arguments) -> None:
        """Launch everything.

        Args:
            stream: of the current device.
            addresses: of inputs and outputs.
            tensors: those of inputs and outputs.

        Raises:
            BackendError: the device refuses a launch.
        """
        only = self._only
        if only is not None:
            try:
                only.enter(stream, only.pick([*addresses, *only.values, 0]))
            except RuntimeError as error:
                raise _launch_error(error) from error
            return
        memory: Any = None
        if self.workspaces:
            memory = self.allocate()
            base = memory.data_ptr()
            addresses = addresses + [base + each.offset for each in self.workspaces]
        if self.count is not None:
            base = self.count(stream).data_ptr()
            addresses = addresses + [base + each.offset for each in self.counters]
        for times, steps in self.groups:
            for number in range(times):
                for step in steps:
                    if step.call is not None:
                        step.call(self._everything(tensors, memory))
                        continue
                    args = step.pick([*addresses, *step.values, number])
                    try:
                        if step.described:
                            args = step.with_maps(args, lambda: self._everything(tensors, memory))
                        step.enter(stream, args)
                    except RuntimeError as error:
                        raise _launch_error(error) from error

    def _everything(self, tensors: Arguments, memory: Any) -> Arguments:
        """The tensors of a call and its workspaces as tensors."""
        if not self.workspaces:
            return tensors
        made = [
            memory[each.offset : each.offset + each.nbytes].view(each.dtype).view(each.shape)
            for each in self.workspaces
        ]
        return (*tensors, *made)


def inlined(plan: Plan, count: int) -> tuple[list[str], dict[str, Any]] | None:
    """What `Plan.run` does as text of Python, of `stream` and of the addresses p0, p1, ... of
    `count` inputs and outputs; and the names in it.  None for what is not text of few launches.
    """
    launches = [
        (number, step) for times, steps in plan.groups for number in range(times) for step in steps
    ]
    plain = all(step.raw is not None and not step.described for _, step in launches)
    if plan.staged or not plain or len(launches) > MAX_INLINED:
        return None
    names: dict[str, Any] = {"refused": _launch_error}
    lines: list[str] = []
    if plan.workspaces:
        names["allocate"] = plan.allocate
        lines += ["memory = allocate()", "space = memory.data_ptr()"]
    if plan.count is not None:
        names["count"] = plan.count
        lines += ["counted = count(stream).data_ptr()"]
    addresses = [f"p{place}" for place in range(count)]
    for space, held in (("space", plan.workspaces), ("counted", plan.counters)):
        addresses += [
            f"{space} + {shown(each.offset, f'{space}{place}', names)}"
            for place, each in enumerate(held)
        ]
    lines += ["try:"]
    for place, (number, step) in enumerate(launches):
        values = [shown(each, f"value{place}_{n}", names) for n, each in enumerate(step.values)]
        given = [*addresses, *values, str(number)]
        lines += [f"    {_launch_text(step, place, [given[at] for at in step.places], names)}"]
    lines += ["except RuntimeError as error:", "    raise refused(error) from error"]
    return (lines, names) if launches else None


def _launch_text(step: Step, place: int, args: list[str], names: dict[str, Any]) -> str:
    """The call of a step's C launcher."""
    assert step.raw is not None
    raw = step.raw
    names[f"launch{place}"] = raw.launch
    head = [shown(each, f"grid{place}_{n}", names) for n, each in enumerate(raw.grid)]
    head += ["stream"]
    head += [shown(each, f"option{place}_{n}", names) for n, each in enumerate(raw.rest)]
    last = [f"({''.join(f'{arg}, ' for arg in args)})"] if raw.listed else args
    return f"launch{place}({', '.join([*head, *last])})"


def packed(shapes: Sequence[tuple[tuple[int, ...], Any, int]]) -> tuple[tuple[Workspace, ...], int]:
    """Workspaces one after the other, each of (shape, dtype, bytes of an element); and all bytes.

    Empty ones have an address, too.
    """
    found: list[Workspace] = []
    offset = 0
    for shape, dtype, item in shapes:
        nbytes = item
        for extent in shape:
            nbytes *= extent
        found.append(Workspace(offset, nbytes, shape, dtype))
        offset += -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
    return tuple(found), offset


def picker(places: Sequence[int]) -> Pick:
    """What takes the items at `places` as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    only = tuple(places)
    return lambda items: tuple(items[place] for place in only)


def _keep(known: dict[Any, Any], key: Any, value: Any) -> None:
    """Remember, and forget everything before it fills memory."""
    if len(known) >= MAX_MAPS:
        known.clear()
    known[key] = value


def _launch_error(error: RuntimeError) -> BackendError:
    if "cooperative" in str(error):
        return BackendError(
            f"the GPU refused the launch: {error}",
            hint="programs that wait for each other must all run at the same time, and this device "
            "takes fewer: give compute_across a smaller grid, each program fewer warps, or fewer "
            "registers (launch(maxnreg=)); a schedule for fewer processors runs on all",
        )
    return BackendError(
        f"the GPU refused the launch: {error}",
        hint="an earlier kernel may have failed: set CUDA_LAUNCH_BLOCKING=1 and run again; a "
        "device that met an illegal address needs a new process",
    )
