"""Small PyTorch modules that nobody chose, drawn from a grammar: each a short program of its own.

A module is a list of lines, each an expression of `x`, the value before, and `y`, an earlier one;
lines that hold parameters call a submodule.  What eager PyTorch refuses is drawn again, so that
every program is valid; the text of one runs by itself.
"""

from __future__ import annotations

import importlib
import random
import warnings
from dataclasses import dataclass, replace
from typing import Any

import drawn_steps

import tedsl.torch as tt
from tedsl.torch.backend.entry import tedsl as backend

torch: Any = importlib.import_module("torch")
LARGEST, SMALLEST = 6000, 1
GREATEST = 1e3
REFUSED = (RuntimeError, ValueError, IndexError, TypeError, AttributeError)
"""What eager PyTorch raises of a step that does not fit."""


@dataclass(frozen=True)
class Program:
    """A drawn module.

    Attributes:
        shape: of its input.
        modules: constructors, in order.
        lines: `x = ...`, in order.
        seed: of the parameters and the input.
        dtype: of the parameters and the input; parameters of a module of integers are float32.
        lies: the input as a view of the memory `x` that is made for it.
    """

    shape: tuple[int, ...]
    modules: tuple[str, ...]
    lines: tuple[str, ...]
    seed: int
    dtype: str = "float32"
    lies: str = "x"

    def __str__(self) -> str:
        held = [f"m{n} = {each}" for n, each in enumerate(self.modules)]
        made = f"x = torch.randn({self.shape}).to({self.dtype})  # seed {self.seed}, as {self.lies}"
        return "\n".join([made, *held, *self.lines])

    def module(self, rows: int = 0) -> tuple[Any, Any]:
        """The module with its parameters, and an input, of more `rows` than its shape says."""
        torch.manual_seed(self.seed)
        dtype = getattr(torch, self.dtype)
        module: Any = Drawn(self.modules, self.lines)
        shape = (self.shape[0] + rows, *self.shape[1:])
        if dtype.is_floating_point:
            return module.to(dtype), eval(self.lies, {"x": torch.randn(shape).to(dtype)})
        return module, eval(self.lies, {"x": torch.randint(-4, 5, shape).to(dtype)})


class Drawn(torch.nn.Module):
    """A module that runs lines of text."""

    def __init__(self, modules: tuple[str, ...], lines: tuple[str, ...]) -> None:
        super().__init__()
        for n, text in enumerate(modules):
            setattr(self, f"m{n}", eval(text, dict(drawn_steps.NAMES)))
        body = "\n".join(f"    {line}" for line in lines)
        names = "".join(f"    m{n} = self.m{n}\n" for n in range(len(modules)))
        scope = dict(drawn_steps.NAMES)
        code = f"def forward(self, x):\n{names}    y = x\n{body}\n    return x, y\n"
        exec(compile(code, f"<drawn {hash(code)}>", "exec"), scope)
        self.run = scope["forward"]

    def forward(self, x: Any) -> Any:
        return self.run(self, x)


def draw(seed: int) -> Program:
    """The module of a seed, of float32 in row-major memory."""
    pick = random.Random(seed)
    return _drawn(pick, Program(drawn_steps.shape(pick), (), (), seed), drawn_steps.STEPS)


def draw_wide(seed: int) -> Program:
    """The module of a seed: of any type, of an input that lies anyhow, which it may change."""
    pick = random.Random(f"wide {seed}")
    shape, dtype = drawn_steps.shape(pick), pick.choice(drawn_steps.TYPES)
    lies = pick.choice(drawn_steps.LIES) if len(shape) > 1 else "x"
    return _drawn(pick, Program(shape, (), (), seed, dtype, lies), drawn_steps.WIDE)


def _drawn(pick: random.Random, program: Program, steps: list[drawn_steps.Step]) -> Program:
    """The program with lines."""
    wanted = pick.choice((1, 2, 3, 3, 4, 5, 6, 8))
    for _ in range(40):
        if len(program.lines) >= wanted:
            break
        program = _longer(pick, program, steps) or program
    return program


def _longer(pick: random.Random, program: Program, steps: list[drawn_steps.Step]) -> Program | None:
    """One more line, None where eager PyTorch refuses it or its numbers run away."""
    try:
        value, _ = ran(program)
    except REFUSED:
        return None
    if torch._debug_has_internal_overlap(value):  # what PyTorch leaves open when it is changed
        steps = drawn_steps.STEPS
    step = pick.choice(steps)(pick, tuple(value.shape))
    if step is None:
        return None
    text, *modules = step
    held = program.modules
    for module in modules:
        text = text.replace("$", f"m{len(held)}", 1)
        held = (*held, module)
    lines = program.lines
    if pick.random() < 0.15:
        lines = (*lines, "y = x")
    longer = replace(program, modules=held, lines=(*lines, f"x = {text}"))
    try:
        value, earlier = ran(longer)
        module, x = longer.module()
        outcome(module, module, x, True)
    except REFUSED:
        return None
    known = (torch.float32, getattr(torch, program.dtype))
    sound = SMALLEST <= value.numel() <= LARGEST and value.dtype in known
    sound = sound and earlier.dtype in known and bool(value.isfinite().all())
    return longer if sound and float(value.detach().abs().max()) < GREATEST else None


def ran(program: Program) -> Any:
    """What eager PyTorch returns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module, x = program.module()
        torch.manual_seed(1)
        return module(x)


def outcome(module: Any, call: Any, x: Any, train: bool) -> list[Any]:
    """Results, gradients and buffers of a call, and what it made of its input.

    Args:
        module: whose parameters and buffers are looked at.
        call: it, compiled or not.
        x: the input.
        train: in training mode, backward too.
    """
    module.train(train)
    differs = train and x.is_floating_point()
    given = x.detach().requires_grad_(differs)
    torch.manual_seed(1)
    with torch.set_grad_enabled(train):
        passed = given * 1.0 if differs else given
        results = call(passed)
    found = [each.detach() for each in (*results, passed)]
    if any(each.requires_grad for each in results):
        total: Any = 0
        for each in results:
            weights = torch.linspace(0.5, 1.5, each.numel(), dtype=torch.float64).to(each.dtype)
            total = total + (each * weights.reshape(each.shape)).sum()
        total.backward()
        held = [p.grad for p in module.parameters()]
        found += [each for each in (given.grad, *held) if each is not None]
    return found + [each.clone() for each in module.buffers()]


MORE_ROWS = (3, 1)
"""By which the batches of further calls are larger, where sizes are open."""


def unlike(program: Program, train: bool, dynamic: bool | None) -> tuple[str, Any]:
    """How a module by the backend differs from eager, "" where it does not; and the report.

    With open sizes it is called with other batches too, as far as eager PyTorch takes them.
    """
    torch._dynamo.reset()
    report = tt.Report()
    module, _ = program.module()
    options = {"report": report}
    call = torch.compile(module, backend=backend, options=options, dynamic=dynamic)
    for rows in (0, *MORE_ROWS) if dynamic else (0,):
        own, x = program.module(rows)
        try:
            expected = outcome(own, own, x, train)
        except REFUSED:
            if not rows:
                raise
            continue
        module.load_state_dict(program.module()[0].state_dict())
        module.zero_grad()
        found = outcome(module, call, program.module(rows)[1], train)
        fault = _difference(program, rows, train, found, expected)
        if fault and not _pytorchs_own(program, rows, train, found):
            return f"{rows} more rows: {fault}" if rows else fault, report
    return "", report


def _pytorchs_own(program: Program, rows: int, train: bool, found: list[Any]) -> bool:
    """True where PyTorch's own graphs, run by PyTorch, have the same results: what differs from
    eager then is what AOTAutograd or a decomposition makes of the program."""
    torch._dynamo.reset()
    module, x = program.module(rows)
    call = torch.compile(module, backend="aot_eager_decomp_partition")
    return not _difference(program, rows, train, found, outcome(module, call, x, train))


def _difference(
    program: Program, rows: int, train: bool, found: list[Any], expected: list[Any]
) -> str:
    """What is unlike: a difference counts beyond eight times what eager is off itself, as a drawn
    chain may enlarge the roundings of its first step."""
    told = _apart(found, expected, 1e-4)
    if not told:
        return ""
    exact, x = program.module(rows)
    wide = x.double() if x.is_floating_point() else x
    try:
        right = outcome(exact.double(), exact, wide, train)
    except REFUSED:  # it names float32 itself, behind float16: a rounding may fall otherwise
        return _apart(found, expected, 5e-3)
    kinds = [getattr(torch, program.dtype)] * len(right)
    if len(found) == len(right) and all(map(_near, found, expected, right, kinds)):
        return ""
    return told


def _apart(found: list[Any], expected: list[Any], close: float) -> str:
    try:
        torch.testing.assert_close(found, expected, equal_nan=True, rtol=close, atol=close / 10)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return ""


def _near(ours: Any, theirs: Any, right: Any, kind: Any) -> bool:
    """A result of a wider type than the `kind` of the input may come from one that was rounded."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    if not torch.equal(ours.isfinite(), theirs.isfinite()):
        return False
    if not ours.numel():
        return True
    own, off = ((each.double() - right).nan_to_num(0.0).abs().max() for each in (ours, theirs))
    size = right.double().nan_to_num(0.0).abs().max()
    share = 0.0
    if ours.is_floating_point():
        floats = [each for each in (ours.dtype, kind) if each.is_floating_point]
        share = max(1e-5, *(torch.finfo(each).eps for each in floats))
    return bool(own <= 8 * off + share * size + 1e-5)
