"""`build` and `lower`: from a tensor or a schedule to a kernel or to loop IR.

The last room of the pipeline below the public names; imports everything above it, and the default
rules of `tedsl.schedules` by name when a tensor comes without a schedule.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tedsl.counterparts import LOWERED
from tedsl.deep import deep
from tedsl.dtypes import DType
from tedsl.errors import BackendError, ExprError, ScheduleError, TuneError
from tedsl.expr.nodes import Expr, Var
from tedsl.ir.nodes import Module
from tedsl.late import late
from tedsl.scheduling.handles.schedule import Schedule, storing
from tedsl.slips import advice, suggests
from tedsl.target import Target, TargetKind
from tedsl.tensor.axis import size_var
from tedsl.tensor.computes import listed
from tedsl.tensor.tensor import Outputs, PlaceholderOp, Tensor

if TYPE_CHECKING:
    from tedsl import detect, devices
    from tedsl.backends.processes import beside
    from tedsl.lower import pipeline
    from tedsl.runtime import kernel
    from tedsl.runtime.arguments import order
    from tedsl.runtime.arguments import signature as arguments
    from tedsl.runtime.cache import disk as runtime_cache
    from tedsl.runtime.cache import lowered
    from tedsl.runtime.executors import by_target as executors
    from tedsl.scheduling.plan import scan_structure
    from tedsl.workload import workload
else:
    beside = late("tedsl.backends.processes.beside")
    detect = late("tedsl.detect")
    devices = late("tedsl.devices")
    pipeline = late("tedsl.lower.pipeline")
    arguments = late("tedsl.runtime.arguments.signature")
    executors = late("tedsl.runtime.executors.by_target")
    kernel = late("tedsl.runtime.kernel")
    lowered = late("tedsl.runtime.cache.lowered")
    order = late("tedsl.runtime.arguments.order")
    runtime_cache = late("tedsl.runtime.cache.disk")
    scan_structure = late("tedsl.scheduling.plan.scan_structure")
    workload = late("tedsl.workload.workload")

# The empty package is bound now, so that loading the lowering later does not hide `te.lower`.
importlib.import_module("tedsl.lower")

Buildable = Schedule | Outputs | Module
Arguments = Sequence[Tensor | Var]


@suggests(ExprError, LOWERED, "what te.lower gives")
class Lowered(Module):
    """What `lower` made, of what, and with which arguments: `build` makes a kernel of these.  A
    module that somebody changed (`replace`) has them no more."""

    __slots__ = ("args", "made_of")

    def __getitem__(self, name: str) -> Lowered:
        """The module itself, whose loops are those of all kernels: TVM's `lower(...)["main"]`."""
        return self

    @staticmethod
    def of(module: Module, made_of: object, args: tuple[Tensor | Var, ...] | None) -> Lowered:
        """A module with these."""
        made = Lowered(*(getattr(module, each.name) for each in fields(Module)))
        object.__setattr__(made, "made_of", made_of)
        object.__setattr__(made, "args", args)
        return made

    def __reduce__(self) -> tuple[type[Module], tuple[object, ...]]:
        """On disk it is the module."""
        return Module, tuple(getattr(self, each.name) for each in fields(Module))


Result = TypeVar("Result")
Dump = Callable[[str, "pipeline.Nests | Module"], None]
Judge = Callable[["Module"], None]
"""Refuses what is lowered where something simpler would do."""


@deep
def build(
    obj: Buildable,
    args: Arguments | str | Target | None = None,
    target: str | Target | None = None,
    *,
    name: str | None = None,
    cache: bool = True,
) -> kernel.Kernel:
    """Compile a computation.

    Args:
        obj: a schedule; or tensors to compute or a program of `tedsl.torch.trace`, scheduled by the
            default rules; or what `lower` made of either, with its arguments.
        args: TVM's list of arguments: all inputs and results, and scalars that no shape determines,
            in the order in which the kernel is to take them.  `te.build(s, [A, B, C])` is called as
            `kernel(a, b, c)` and writes `c`.  Without a list the kernel takes the inputs and
            returns the results.  An argument may repeat, be an input that nothing reads, a size, or
            the result of a stage in between, which is then stored in it; of one that is inlined
            nothing is.  The target may stand here instead: `te.build(s, "cpu")`.
        target: `"cpu"`, `"cuda"`, `"cuda:sm_90"` (compile only) or `"triton-interpret"`; by default
            `"cuda"` where there is a GPU and PyTorch to reach it, else `"cpu"`.
        name: what the kernel calls itself in messages and listings.
        cache: use the on-disk cache of generated code.

    Returns:
        The kernel; call it with the inputs in the order of `kernel.signature`.

    Raises:
        LowerError: the schedule cannot be carried out on the target.
        BackendError: the target's compiler or device refused, or there is no such device; or `args`
            are not the arguments of the computation.
    """
    if isinstance(obj, Lowered) and hasattr(obj, "made_of"):
        if isinstance(args, (str, Target)):
            args, target = None, args
        obj, args = obj.made_of, args or obj.args
    given, chosen = _told("build", args, target)
    executors.check_target(chosen)
    seconds: dict[str, float] = {}

    def built(schedule: Schedule, judge: Judge) -> kernel.Kernel:
        schedule, stored = storing(schedule, (t for t in given or () if isinstance(t, Tensor)))
        seconds["schedule"] = time.perf_counter() - begin - sum(seconds.values())
        with _timed(seconds, "lower"):
            module, digest = _found(schedule, chosen, name, cache)
            judge(module)
        places = None if given is None else _order(schedule, module, given, stored)
        with _timed(seconds, "compile"):
            executor = executors.make_executor(module, chosen, cache=cache, digest=digest)
            if not isinstance(obj, Schedule):
                executors.check_fits(executor, chosen)
        return kernel.Kernel(
            module, chosen, executor, schedule=schedule, build_seconds=seconds, order=places
        )

    begin = time.perf_counter()
    return _carried_out(obj, chosen, built)


@deep
def schedule_for(
    obj: Outputs,
    target: str | Target | None = None,
    decisions: Mapping[str, object] | None = None,
) -> Schedule:
    """The schedule that `build` makes of tensors by default rules: to read, to go on with by hand,
    and to build.

    Args:
        obj: the tensors to compute, or a program of `tedsl.torch.trace`.
        target: as for `build`.
        decisions: values of knobs by name, for some of those that `schedule.knobs` lists; the
            others have their defaults.

    Raises:
        BackendError: no tensors were given.
        ScheduleError: a decision of a knob that is not met, or that is not among its choices.
    """
    rules, items = importlib.import_module("tedsl.schedules"), _computed(obj, building=False)
    where = default_target() if target is None else Target.parse(target)
    if not decisions:
        made: Schedule = rules.default_schedule(items, where)
        return made
    made = rules.schedule_for(items, where, decisions)
    known = [knob.name for knob in made.knobs]
    for name in decisions:
        if name not in known:
            raise ScheduleError(
                f"the rules meet no knob {name!r} here",
                subject="schedule_for",
                facts=[("knobs", ", ".join(known) or "none")],
                hint=advice(name, known),
            )
    return made


@deep
def build_unseen(
    schedule: Schedule, arch: str, sizes: Mapping[str, int] | None = None
) -> kernel.Kernel:
    """What `build(schedule, "cuda")` makes where the device is of `arch`, without asking for it.

    The kernel has the code and the resources of the other and cannot be called.  PyTorch is not
    loaded, and what was compiled is found again on disk by a process that has the device.

    Args:
        schedule: of what is to be compiled.
        arch: `sm_90`; not one of those that `build` knows alone.
        sizes: values of symbolic sizes, by name, of the calls that it is compiled for.

    Raises:
        LowerError: the schedule cannot be carried out on the target.
        BackendError: Triton refused.
    """
    chosen = Target(TargetKind.CUDA)
    seconds, made = dict[str, float](), schedule.copy(target=chosen)
    with _timed(seconds, "lower"):
        module, _ = _found(made, chosen, None, True)
    with _timed(seconds, "compile"):
        compilers: Any = importlib.import_module("tedsl.runtime.executors.triton")
        executor = compilers.compile_unseen(module, arch, sizes)
    return kernel.Kernel(
        module,
        chosen,
        executor,
        schedule=schedule.copy(target=chosen),
        build_seconds=seconds,
        order=None,
    )


@deep
def compile_unseen_calls(schedule: Schedule, arch: str, calls: Sequence[Mapping[str, int]]) -> None:
    """Compile what calls of `build(schedule, "cuda")` at some sizes launch, without the device: a
    process that has it finds all of that on disk.

    Args:
        schedule: of what is called.
        arch: as for `build_unseen`.
        calls: values of symbolic sizes, by name, of each call.

    Raises:
        LowerError: the schedule cannot be carried out on the target.
        BackendError: Triton refused, or no call has these sizes.
    """
    module, _ = _found(schedule, Target(TargetKind.CUDA), None, True)
    compilers: Any = importlib.import_module("tedsl.runtime.executors.triton")
    compilers.compile_calls(module, arch, calls)


BESIDE = f"{__name__}:build_from_json"
BESIDE_SECONDS = 0.6
"""About how long that takes."""


def build_beside(
    where: beside.Beside, outputs: Sequence[Tensor], key: str, sizes: Sequence[str]
) -> list[Tensor] | None:
    """Have another process build `outputs` for the GPU that is here, by the default rules, and keep
    the module on disk.

    Args:
        where: who is asked.
        outputs: what to compute.
        key: under what the module is kept.
        sizes: the names of its symbolic sizes, in the order in which the module is kept.

    Returns:
        The inputs that the kernel takes, in its order; None where it was not built.
    """
    try:
        written = workload.Workload.of(outputs)
    except TuneError:
        return None  # not all that can be built can be written down
    given = {
        "workload": written.to_json(),
        "gpu": devices.gpu_to_json(Target(TargetKind.CUDA).resolve_gpu()),
        "key": key,
        "sizes": list(sizes),
    }
    made = beside.made_beside(where, BESIDE, given)
    if made is None:
        return None
    places: list[int] = made["places"]
    return [written.placeholders[place].outputs[0] for place in places]


def build_from_json(given: Mapping[str, Any]) -> dict[str, Any]:
    """Build what `build_beside` has written down: in a process that touches no device, and does not
    load PyTorch."""
    detect.take_for_here(devices.gpu_from_json(given["gpu"]))
    read = workload.Workload.from_json(given["workload"])
    made = build(list(read.outputs), "cuda")
    sizes = {name: size_var(name, DType.int64) for name in given["sizes"]}
    sizes |= {size.name: size for size in read.variables}
    disk = runtime_cache.disk_cache()
    if disk is not None:
        variables = tuple(sizes[name] for name in given["sizes"])
        lowered.keep(disk, lowered.PlanKey(given["key"], variables), made.module)
    schedule: Any = made.schedule
    numbers = {op.outputs[0]: place for place, op in enumerate(read.placeholders)}
    inputs = (schedule[buffer.name].op.outputs[0] for buffer in made.module.inputs)
    return {"places": [numbers[tensor] for tensor in inputs]}


@deep
def lower(
    obj: Buildable,
    args: Arguments | str | Target | None = None,
    target: str | Target | None = None,
    *,
    name: str | None = None,
    dump: Dump | None = None,
    check: bool = False,
    simple_mode: bool = True,
) -> Module:
    """The loop IR that `build` would compile; `print` shows it.

    Args:
        obj: as for `build`.
        args: as for `build`, or some of them; the module is the same with and without.
        target: as for `build`.
        name: as for `build`.
        dump: called with the name of each pass and what it leaves, of which `str()` is a text:
            first passes over the schedule, whose loop nests are shown, then those over loop IR.
        check: verify the invariants of schedules, then the rules of the level, after each pass.
        simple_mode: TVM's word for the short text; there is no other here.

    Raises:
        LowerError: the schedule cannot be carried out on the target.
        BackendError: `args` are not the arguments of the computation.
    """
    given, chosen = _told("lower", args, target)

    def lowered_as(schedule: Schedule, judge: Judge) -> Module:
        schedule, stored = storing(schedule, (t for t in given or () if isinstance(t, Tensor)))
        module = _lowered(schedule, chosen, name, dump, check)
        judge(module)
        if given is not None:
            _order(schedule, module, given, stored, whole=False)
        return module

    found = _carried_out(obj, chosen, lowered_as)
    return Lowered.of(found, obj.copy() if isinstance(obj, Schedule) else obj, given)


def default_target() -> Target:
    """The one of a `with te.Target(...):` around; else `cuda` where an NVIDIA GPU and PyTorch are,
    else `cpu`.  Imports neither."""
    chosen = Target.current()
    if chosen is not None:
        return chosen
    device = any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg"))
    usable = device and importlib.util.find_spec("torch") and importlib.util.find_spec("triton")
    return Target(TargetKind.CUDA if usable else TargetKind.CPU)


def _told(
    subject: str, args: object, target: str | Target | None
) -> tuple[tuple[Tensor | Var, ...] | None, Target]:
    """The list of arguments and the target, which is the second argument where there is no list."""
    items: tuple[object, ...] | None = None
    if isinstance(args, (list, tuple)):
        items = tuple(cast("Sequence[object]", args))
    elif args is not None:
        if target is not None or not isinstance(args, (str, Target)):
            raise BackendError(
                f"the arguments are {type(args).__name__}, not a list",
                subject=subject,
                facts=[("allowed", "a list of tensors, or the target")],
                hint=f"write te.{subject}(s, [A, B, C], target), or te.{subject}(s, target)",
            )
        target = args
    wrong = [item for item in items or () if not isinstance(item, (Tensor, Var))]
    if wrong:
        raise BackendError(
            f"an argument is {type(wrong[0]).__name__}",
            subject=subject,
            facts=[("allowed", "tensors, and te.var scalars that no shape determines")],
            hint="buffers are made by the kernel itself: list the tensors of te.placeholder and "
            "te.compute",
        )
    chosen = default_target() if target is None else Target.parse(target)
    return cast("tuple[Tensor | Var, ...] | None", items), chosen


def _order(
    schedule: Schedule,
    module: Module,
    args: tuple[Tensor | Var, ...],
    stored: Mapping[Tensor, Tensor],
    *,
    whole: bool = True,
) -> order.ArgumentOrder | None:
    """Where each argument stands in the list; `stored` are outputs by other tensors that they are.
    None for a list that is not to be the `whole` and has no wrong ones.

    Raises:
        BackendError: something in the list is no argument, or one is missing.
    """
    signature = arguments.Signature.of(module)
    known: dict[Tensor | Var, tuple[str, int | str]] = {}
    for place, buffer in enumerate(module.inputs):
        known[schedule[buffer.name].op.outputs[0]] = ("input", place)
    for tensors in (schedule.definition, schedule.outputs):
        known.update({tensor: ("output", place) for place, tensor in enumerate(tensors)})
    known.update({tensor: known[result] for tensor, result in stored.items()})
    known.update({var: ("scalar", name) for name, var in signature.keywords.items()})
    found: dict[tuple[str, int | str], int] = {}
    again, sizes = dict[int, int](), dict[int, tuple[int, int]]()
    buffers = [[b.name for b in each] for each in (module.inputs, module.outputs)]
    facts = [("allowed", ", ".join([*buffers[0], *signature.keywords, *buffers[1]]))]
    shapes = _dimensions(item for item in args if isinstance(item, Tensor))
    for place, item in enumerate(args):
        role = known.get(item)
        if role in found:
            again[place] = found[role]
        elif role is not None:
            found[role] = place
        elif isinstance(item, Var) and item in shapes:
            sizes[place] = _place_of(args, *shapes[item])
        elif not _is_unread(schedule, item):
            raise BackendError(
                f"{item.name} is no argument of the kernel",
                subject="the list of arguments",
                facts=facts,
                hint="list each input and each result; sizes follow from shapes, and may be listed",
            )
    if not whole:
        return None
    scalars, read = dict[str, int](), dict[str, tuple[int, int]]()
    for name, var in signature.keywords.items():
        if ("scalar", name) in found:
            scalars[name] = found["scalar", name]
        elif var in shapes:
            read[name] = _place_of(args, *shapes[var])
        else:
            raise _missing(name, facts)
    places: dict[str, tuple[int, ...]] = {}
    for role, listed_names in zip(("input", "output"), buffers, strict=True):
        for number, name in enumerate(listed_names):
            if (role, number) not in found:
                raise _missing(name, facts)
        places[role] = tuple(found[role, number] for number in range(len(listed_names)))
    names, (inputs, outputs) = tuple(item.name for item in args), places.values()
    return order.ArgumentOrder(names, inputs, outputs, scalars, read, again, sizes)


def _missing(name: str, facts: list[tuple[str, str]]) -> BackendError:
    return BackendError(
        f"{name} is missing",
        subject="the list of arguments",
        facts=facts,
        hint=f"add {name}, or leave the list away: the kernel then takes the inputs and "
        "returns the results",
    )


def _dimensions(tensors: Iterable[Tensor]) -> dict[Expr, tuple[Tensor, int]]:
    """The sizes that are a dimension of some tensor: the first such tensor, and which."""
    found: dict[Expr, tuple[Tensor, int]] = {}
    for tensor in tensors:
        for number, extent in enumerate(tensor.shape):
            found.setdefault(extent, (tensor, number))
    return found


def _place_of(args: Sequence[Tensor | Var], tensor: Tensor, number: int) -> tuple[int, int]:
    return next(place for place, item in enumerate(args) if item is tensor), number


def _is_unread(schedule: Schedule, item: Tensor | Var) -> bool:
    """True for an input that no stage reads, for the state of a scan, and for what is substituted
    into its readers."""
    if not isinstance(item, Tensor):
        return False
    if isinstance(item.op, PlaceholderOp):
        return not schedule.knows(item) or scan_structure.is_state(schedule.plan, item.op)
    return schedule.knows(item) and schedule[item].plan.placement.inlined


def _carried_out(obj: object, target: Target, use: Callable[[Schedule, Judge], Result]) -> Result:
    """What `use` makes of a copy of the user's schedule, so that the kernel's does not change
    later; or of the rules', of which the next simpler one follows one that is refused."""
    if isinstance(obj, Schedule):
        return use(obj.copy(target=target), lambda module: None)
    items = _computed(obj)
    rules = importlib.import_module("tedsl.schedules")
    made: Result = rules.attempts(items, target).carried_out(use)
    return made


def _computed(obj: object, *, building: bool = True) -> list[Tensor]:
    """The tensors that were given, alone, as a list, or as what computes them."""
    items = listed(obj)
    if not items or not all(isinstance(item, Tensor) for item in items):
        raise BackendError(
            f"{type(obj).__name__} cannot be {'built' if building else 'scheduled by rules'}",
            subject="build" if building else "schedule_for",
            facts=[("allowed", f"{'a schedule, ' * building}a tensor, or a list of tensors")],
            hint="pass the tensors that te.compute returned"
            + ", or te.create_schedule of them" * building,
        )
    return cast("list[Tensor]", items)


def _found(
    schedule: Schedule, target: Target, name: str | None, cache: bool
) -> tuple[Module, str | None]:
    """The module of a schedule, from the on-disk cache where it is there, and its digest."""
    disk = runtime_cache.disk_cache() if cache and name is None else None
    key = None if disk is None else lowered.plan_key(schedule.plan, target)
    if disk is None or key is None:
        return _lowered(schedule, target, name), None
    found = lowered.find(disk, key)
    if found is None:
        found = lowered.keep(disk, key, _lowered(schedule, target, name))
    return found.module, found.digest


def _lowered(
    schedule: Schedule,
    target: Target,
    name: str | None,
    dump: Dump | None = None,
    check: bool = False,
) -> Module:
    module = pipeline.lower(schedule.plan, target, dump=dump, check=check)
    return module if name is None else replace(module, name=name)


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Generator[None]:
    begin = time.perf_counter()
    yield
    seconds[phase] = time.perf_counter() - begin
