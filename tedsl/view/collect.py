"""From a schedule or a kernel to the data of its page."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from tedsl.build import default_target
from tedsl.cost.devices import measured
from tedsl.devices import GpuDevice
from tedsl.dtypes import DType
from tedsl.errors import BackendError, LowerError
from tedsl.explaining.data import Explanation
from tedsl.ir.nodes import Module
from tedsl.ir.printer import print_module
from tedsl.lower import pipeline
from tedsl.lower.nests.kernels import build_nests
from tedsl.runtime.kernel import Kernel
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.kernels.printer import definition, print_plan
from tedsl.scheduling.plan import Plan
from tedsl.scheduling.regions.recompute_report import explain_plan
from tedsl.target import Target, TargetKind
from tedsl.tensor.printer import print_operation
from tedsl.tensor.tensor import ComputeOp
from tedsl.view.code import llvm_lines, native_lines, ptx_lines, resource_table, triton_lines
from tedsl.view.data import Code, Graph, Page, Pass, Point, Roofline, Section, StageInfo, Step
from tedsl.view.graph import graph_of
from tedsl.view.texts import (
    Buffers,
    Lines,
    MarkingNamer,
    Stages,
    Told,
    bracketed,
    nest_lines,
    python_line,
)
from tedsl.view.walks import walks_of


def page_of_schedule(schedule: Schedule, target: Target | None = None) -> Page:
    """The page of a schedule: no code, and the loop IR or the reason why it cannot be lowered."""
    chosen = target or (Target.parse(schedule.target) if schedule.target else default_target())
    page = _Collected(schedule, chosen)
    facts = (("stages", str(len(schedule.stages))), ("steps", str(len(schedule.trace))))
    return page.finished("schedule", ", ".join(t.name for t in schedule.outputs), facts)


def page_of_kernel(kernel: Kernel) -> Page:
    """The page of a kernel: its schedule's, with the code and what it needs of the device."""
    if kernel.schedule is None:
        raise BackendError(
            "the kernel was made of loop IR, without a schedule to show",
            subject=f"{kernel.name}: view()",
            hint="build it from tensors or a schedule: te.build(s, target)",
        )
    page = _Collected(kernel.schedule, kernel.target, kernel)
    seconds = ", ".join(f"{name} {value:.2f} s" for name, value in kernel.build_seconds.items())
    facts = (("signature", str(kernel.signature)), ("built in", seconds))
    return page.finished("kernel", kernel.name, facts)


class _Collected:
    """What has been found so far; the tables fill as texts are read."""

    def __init__(self, schedule: Schedule, target: Target, kernel: Kernel | None = None) -> None:
        self.schedule, self.target, self.kernel = schedule, target, kernel
        self.lines = Lines()
        self.stages = Stages()
        self.latest: dict[str, Plan] = {}
        self.graphs: dict[Graph, int] = {}
        self.steps = self._steps()
        self.passes, self.refusal = self._passes()
        self.code = () if kernel is None else self._code(kernel)
        self.told, self.untold = (None, "") if kernel is None else _explained(kernel)

    def finished(self, subject: str, title: str, facts: tuple[tuple[str, str], ...]) -> Page:
        """The page."""
        names = self.stages.numbers
        return Page(
            title=title,
            subject=subject,
            target=str(self.target),
            version=version("tedsl"),
            facts=facts,
            stages=tuple(StageInfo(name, self._definition(name)) for name in names),
            lines=self.lines.table(),
            graphs=tuple(self.graphs),
            steps=self.steps,
            passes=self.passes,
            refusal=self.refusal,
            code=self.code,
            resources=None if self.kernel is None else resource_table(self.kernel.resources),
            explanation=self._explanation(),
            roofline=None if self.told is None else self._roofline(self.told),
            walks=walks_of(self.schedule.plan, names),
        )

    def _steps(self) -> tuple[Step, ...]:
        """`create_schedule`, then each step of the trace."""
        schedule, told = self.schedule, Told(self.lines)
        trace = schedule.trace.steps
        plans, texts = schedule.plans, schedule.python_steps()
        found: list[Step] = []
        for place, (plan, text) in enumerate(zip(plans, texts, strict=True)):
            for stage in plan.stages:
                self.stages.number(stage.name)
                self.latest[stage.name] = plan
            graph = graph_of(plan, self.stages)
            known = self._known(plan)
            step = trace[place - 1] if place else None
            python = (python_line(line, self.stages.numbers) for line in text)
            found.append(
                Step(
                    python=self.lines.places(python),
                    stage=self.stages.numbers.get(step.stage, -1) if step else -1,
                    site=step.site if step else "",
                    nest=told.tell(nest_lines(print_plan(plan, self.target), known)),
                    graph=self.graphs.setdefault(graph, len(self.graphs)),
                )
            )
        return tuple(found)

    def _definition(self, name: str) -> str:
        """A stage as it was last defined, over the names of stages and axes."""
        plan = self.latest[name]
        stage = plan.stage(name)
        if isinstance(stage.op, ComputeOp):
            return "\n".join(definition(plan, stage, stage.op))
        return print_operation(stage.op)

    def _passes(self) -> tuple[tuple[Pass, ...], str]:
        """The loop IR after each pass, and the refusal where there is one."""
        told = Told(self.lines)
        found: list[Pass] = []
        buffers = Buffers(self.schedule.plan, self.stages)
        steps = pipeline.BLOCK_PASSES if self.target.is_triton else pipeline.CPU_PASSES
        documented: Mapping[str, Any] = {step.name: step.run for step in steps}
        documented = {**documented, **pipeline.MODULE_PASSES}

        def dump(name: str, module: pipeline.Nests | Module) -> None:
            if isinstance(module, pipeline.Nests):
                return  # the last step of the schedule shows the nests
            text = print_module(module, MarkingNamer(buffers))
            what = _summary(documented.get(name, build_nests))
            found.append(Pass(name, what, told.tell(bracketed(text))))

        try:
            pipeline.lower(self.schedule.plan, self.target, dump=dump)
        except (LowerError, BackendError) as error:
            return tuple(found), f"{type(error).__name__}: {error}"
        return tuple(found), ""

    def _code(self, kernel: Kernel) -> tuple[Code, ...]:
        """What was generated, and what the target's compiler made of it."""
        buffers = Buffers(self.schedule.plan, self.stages)
        if not self.target.is_triton:
            llvm = llvm_lines(kernel.source, kernel.module, buffers)
            asm = native_lines(kernel.asm, kernel.module, buffers)
            return (
                Code("LLVM IR", "llvm", self.lines.places(llvm)),
                Code("Assembly", "asm", self.lines.places(asm)),
            )
        source = triton_lines(kernel.source, buffers)
        found = [Code("Triton", "python", self.lines.places(source))]
        if self.target.kind is not TargetKind.TRITON_INTERPRET:
            ptx = ptx_lines(kernel.asm, source)
            found.append(Code("PTX", "ptx", self.lines.places(ptx)))
        return tuple(found)

    def _known(self, plan: Plan) -> dict[str, int]:
        """The stages of one plan."""
        return {stage.name: self.stages.number(stage.name) for stage in plan.stages}

    def _roofline(self, told: Explanation) -> Roofline:
        """The program, its kernels and the unfused program, under the roof of the model."""
        facts = measured(self.target.resolve())
        if isinstance(facts, GpuDevice):
            rates = facts.fma[DType.float32], facts.tensor[DType.bfloat16]
            peaks = (("float32", rates[0]), ("16-bit products of matrix units", rates[1]))
        else:
            peaks = (("float32", facts.flops * facts.cores),)
        units = [Point("all kernels", -1, told.flops, told.nbytes, told.seconds)]
        if told.unfused is not None:
            whole = told.unfused
            units.append(Point("unfused", -1, whole.flops, whole.nbytes, whole.seconds))
        for each in told.kernels if len(told.kernels) > 1 else ():
            stage = self.stages.numbers.get(each.name, -1)
            units.append(Point(each.name, stage, each.flops, each.nbytes, each.seconds))
        return Roofline(facts.name, facts.bandwidth, peaks, tuple(units))

    def _explanation(self) -> tuple[Section, ...]:
        """What can be told of the fusion in words; further reports are further sections."""
        sections: list[Section] = []
        if self.kernel is not None:
            told = self.untold if self.told is None else str(self.told)
            sections.append(Section("What each kernel moves and does", told))
        plan, target = self.schedule.plan, self.target
        recomputed = str(explain_plan(plan, {}, target))
        sections.append(Section("How often each stage computes an element", recomputed))
        return tuple(sections)


def _explained(kernel: Kernel) -> tuple[Explanation | None, str]:
    """What the kernel says of itself, or why it cannot: a size that no call has given."""
    try:
        return kernel.explain(), ""
    except BackendError as error:
        return None, str(error)


def _summary(function: Any) -> str:
    """The first sentence of what a pass says it does."""
    inner = function.func if isinstance(function, functools.partial) else function
    return (inspect.getdoc(inner) or "").partition("\n\n")[0].replace("\n", " ")
