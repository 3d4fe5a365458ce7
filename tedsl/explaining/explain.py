"""`te.explain`: a schedule, a kernel or tensors, explained.  Imports the rest of `explaining`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tedsl.build import default_target
from tedsl.cost.devices import device_for
from tedsl.devices import Device
from tedsl.errors import BackendError
from tedsl.explaining.alone import stages_alone, unfused
from tedsl.explaining.data import Explanation, Figures, KernelCost, Pair, StagePlace, Unfused
from tedsl.explaining.invariants import require_whole
from tedsl.explaining.kernels import Compiled, buffer_bytes, kernel_costs
from tedsl.explaining.pairs import Judge
from tedsl.explaining.places import stage_places
from tedsl.expr.nodes import Var
from tedsl.ir.nodes import Dot, Module
from tedsl.ir.visit import walk_stmts
from tedsl.lower.pipeline import Nests, lower
from tedsl.lower.tile_operations.find_dots import find_dots
from tedsl.lower.tile_operations.missed_dots import Missed, missed_dots
from tedsl.runtime.arguments.sizes import Number
from tedsl.runtime.kernel import Kernel
from tedsl.schedules import default_schedule
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.regions.recompute_report import PLAUSIBLE
from tedsl.target import Target
from tedsl.tensor.computes import listed
from tedsl.tensor.tensor import Outputs, Tensor

Explainable = Schedule | Kernel | Outputs


def explain(
    what: Explainable,
    target: str | Target | None = None,
    *,
    device: str = "",
    sizes: Mapping[str, int] | None = None,
    caches: bool = True,
) -> Explanation:
    """What a schedule or a kernel has fused, what that saves, and why the rest is not fused.

    Args:
        what: a schedule, a kernel, or tensors, which are scheduled by the default rules.
        target: as for `te.build`; that of the kernel by default.  Needs no GPU.
        device: the name of the GPU to predict for, as its driver calls it (`"NVIDIA H200"`); by
            default the one that is there, else the first known one of the architecture.
        sizes: values of runtime sizes, by name; by default those of the kernel's last call, else
            1024.
        caches: True for bytes from and to device memory as the static model predicts them, what its
            caches keep counted, the unfused program alike; False for the bytes of every access,
            exact.  Times, and what is said of pairs, are with caches always.

    Returns:
        The explanation: print it, or use `.kernels`, `.pairs`, `.to_json()`, `.to_html()`.  What is
        not fused, and the unfused program, are looked at when they are asked for.

    Raises:
        InternalError: the counts contradict what the program means: a bug in tedsl.
        LowerError: the schedule cannot be carried out on the target.
        BackendError: `what` cannot be explained, a size is not the computation's, or a device is
            named for the CPU.
    """
    schedule, module, where, compiled, known = _subject(what, target)
    _require_gpu(where, device)
    facts = device_for(where, device)
    values = _values(module, sizes or {}, known)
    costs = kernel_costs(module, facts, values, compiled, caches=caches)
    if schedule is not None and where.is_triton:
        missed = _missed(schedule, where, costs)
        costs = tuple(replace(cost, missed=found) for cost, found in missed)
    if schedule is not None:
        require_whole(module, costs, values)
    counted = {var.name: int(value) for var, value in values.items() if not var.dtype.is_float}
    if schedule is not None:
        places = stage_places(schedule, schedule.explain(**counted))
        costs = tuple(_placed(kernel, places) for kernel in costs)
    return Explanation(
        name=module.name,
        target=str(where),
        device=facts.name,
        sizes=counted,
        kernels=costs,
        least_bytes=buffer_bytes((*module.inputs, *module.outputs), values),
        workspace_bytes=buffer_bytes(module.workspaces, values),
        fallbacks=() if schedule is None else schedule.fallbacks,
        caches=caches,
        finder=None if schedule is None else _Finder(schedule, where, facts, values, caches),
    )


def _require_gpu(where: Target, device: str) -> None:
    if device and not where.is_triton:
        raise BackendError(
            f"a device is named, {device!r}, and the target is {where}",
            subject="explain",
            facts=[("allowed", "the name of a GPU, for a target such as cuda:sm_90")],
            hint='pass target="cuda" or an architecture, or leave device out',
        )


def _missed(
    schedule: Schedule, target: Target, costs: Sequence[KernelCost]
) -> Iterator[tuple[KernelCost, tuple[Missed, ...]]]:
    """Each kernel with its sums of products that are no `tl.dot`."""
    before: dict[str, Module] = {}
    last: list[Module] = []

    def note(name: str, module: Nests | Module) -> None:
        if not isinstance(module, Module):
            return
        if name == find_dots.__name__:
            before.update({func.name: last[0] for func in last[0].funcs})
        last[:] = [module]

    after = lower(schedule.plan, target, dump=note)
    dots = {
        func.name: {s.buffer.name for s in walk_stmts(func.body) if isinstance(s, Dot)}
        for func in after.funcs
    }
    for cost in costs:
        module = before.get(cost.name)
        funcs = () if module is None else tuple(f for f in module.funcs if f.name == cost.name)
        made = dots.get(cost.name, set())
        yield cost, tuple(m for f in funcs for m in missed_dots(f) if m.stage not in made)


class _Finder:
    """Finds what only a schedule tells (`data.Finder`)."""

    def __init__(
        self,
        schedule: Schedule,
        target: Target,
        facts: Device,
        values: Mapping[Var, Number],
        caches: bool,
    ) -> None:
        self.caches = caches
        self.definition = schedule.definition
        self.target = target
        self.facts = facts
        self.sizes = {var.name: value for var, value in values.items()}
        whole = {name: int(value) for name, value in self.sizes.items()}
        self.judge = Judge(schedule, target, facts, whole)

    def unfused(self) -> Unfused | None:
        """The program without any fusion."""
        stages = stages_alone(
            self.definition, self.target, self.facts, self.sizes, caches=self.caches
        )
        return None if stages is None else unfused(stages)

    def now(self) -> Figures:
        """What the static model says of the schedule as it is."""
        return self.judge.now

    def pairs(self) -> tuple[Pair, ...]:
        """Why kernels are not one."""
        return self.judge.pairs()


def _subject(
    what: object, target: str | Target | None
) -> tuple[Schedule | None, Module, Target, Compiled | None, Mapping[Var, Number]]:
    """The schedule where there is one, the program, the target, what is known of the machine code,
    and the sizes of the last call."""
    if isinstance(what, Kernel) and target in (None, str(what.target), what.target):
        schedule = what.schedule if isinstance(what.schedule, Schedule) else None
        return schedule, what.module, what.target, _compiled(what), what.last_sizes
    if isinstance(what, Kernel):
        what = what.schedule
    where = default_target() if target is None else Target.parse(target)
    if not isinstance(what, Schedule):
        items = listed(what)
        outputs = [item for item in items if isinstance(item, Tensor)]
        if not outputs or len(outputs) != len(items):
            raise BackendError(
                f"{type(what).__name__} cannot be explained",
                subject="explain",
                facts=[("allowed", "a schedule, a kernel, a tensor, or a list of tensors")],
                hint="pass the schedule, or what te.build returned",
            )
        what = default_schedule(outputs, where)
    return what.copy(), lower(what.plan, where), where, None, {}


def _compiled(kernel: Kernel) -> Compiled | None:
    """What is known of the machine code of each kernel of a program for a GPU."""
    if not kernel.target.is_triton:
        return None
    names = [func.name for func in kernel.module.funcs if func.host_call is None]
    known = list(kernel.resources.values())
    return dict(zip(names, known, strict=True)) if len(names) == len(known) else None


def _values(
    module: Module, sizes: Mapping[str, int], known: Mapping[Var, Number]
) -> dict[Var, Number]:
    """The values of the runtime scalars."""
    names = [var.name for var in module.sizes]
    wrong = [name for name in sizes if name not in names]
    if wrong:
        raise BackendError(
            f"the computation has no size {wrong[0]!r}",
            subject="explain",
            facts=[("sizes", ", ".join(names) or "none")],
            hint="use one of the sizes listed",
        )
    return {var: sizes.get(var.name, known.get(var, PLAUSIBLE)) for var in module.sizes}


def _placed(kernel: KernelCost, places: Mapping[str, Sequence[StagePlace]]) -> KernelCost:
    """A kernel with its stages as the schedule knows them."""
    stages = places.get(kernel.name.partition(".v")[0], places.get(kernel.name, kernel.stages))
    return replace(kernel, stages=tuple(stages))
