"""Small PyTorch modules that nobody chose, drawn from a grammar: each a short program of its own.

A module is a list of lines, each an expression of `x`, the value before, and `y`, an earlier one;
lines that hold parameters call a submodule.  What eager PyTorch refuses is drawn again, so that
every program is valid; the text of one runs by itself.
"""

from __future__ import annotations

import importlib
import random
import warnings
from dataclasses import dataclass
from typing import Any

import drawn_steps

import tedsl.torch as tt
from tedsl.torch.backend.entry import tedsl as backend

torch: Any = importlib.import_module("torch")
LARGEST, SMALLEST = 6000, 1
GREATEST = 1e3


@dataclass(frozen=True)
class Program:
    """A drawn module.

    Attributes:
        shape: of its input.
        modules: constructors, in order.
        lines: `x = ...`, in order.
        seed: of the parameters and the input.
    """

    shape: tuple[int, ...]
    modules: tuple[str, ...]
    lines: tuple[str, ...]
    seed: int

    def __str__(self) -> str:
        held = [f"m{n} = {each}" for n, each in enumerate(self.modules)]
        return "\n".join([f"x = torch.randn({self.shape})  # seed {self.seed}", *held, *self.lines])

    def module(self) -> tuple[Any, Any]:
        """The module with its parameters, and an input."""
        torch.manual_seed(self.seed)
        return Drawn(self.modules, self.lines), torch.randn(self.shape)


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
    """The module of a seed."""
    pick = random.Random(seed)
    shape = drawn_steps.shape(pick)
    program = Program(shape, (), (), seed)
    wanted = pick.choice((1, 2, 3, 3, 4, 5, 6, 8))
    for _ in range(40):
        if len(program.lines) >= wanted:
            break
        program = _longer(pick, program) or program
    return program


def _longer(pick: random.Random, program: Program) -> Program | None:
    """One more line, None where eager PyTorch refuses it or its numbers run away."""
    try:
        value, _ = ran(program)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return None
    step = pick.choice(drawn_steps.STEPS)(pick, tuple(value.shape))
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
    longer = Program(program.shape, held, (*lines, f"x = {text}"), program.seed)
    try:
        value, earlier = ran(longer)
        module, x = longer.module()
        outcome(module, module, x, True)
    except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError):
        return None
    sound = SMALLEST <= value.numel() <= LARGEST and value.dtype == torch.float32
    sound = sound and earlier.dtype == torch.float32 and bool(value.isfinite().all())
    return longer if sound and float(value.detach().abs().max()) < GREATEST else None


def ran(program: Program) -> Any:
    """What eager PyTorch returns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module, x = program.module()
        torch.manual_seed(1)
        return module(x)


def outcome(module: Any, call: Any, x: Any, train: bool) -> list[Any]:
    """Results, gradients and buffers of a call.

    Args:
        module: whose parameters and buffers are looked at.
        call: it, compiled or not.
        x: the input.
        train: in training mode, backward too.
    """
    module.train(train)
    given = x.detach().clone().requires_grad_(train)
    torch.manual_seed(1)
    with torch.set_grad_enabled(train):
        results = call(given * 1.0 if train else given)
    found = [each.detach() for each in results]
    if train and any(each.requires_grad for each in results):
        total: Any = 0
        for each in results:
            weights = torch.linspace(0.5, 1.5, each.numel(), dtype=each.dtype)
            total = total + (each * weights.reshape(each.shape)).sum()
        total.backward()
        held = [p.grad for p in module.parameters()]
        found += [each for each in (given.grad, *held) if each is not None]
    return found + [each.clone() for each in module.buffers()]


def unlike(program: Program, train: bool, dynamic: bool | None) -> tuple[str, Any]:
    """How a module by the backend differs from eager, "" where it does not; and the report.

    A difference counts beyond eight times what eager is off itself: a drawn chain may enlarge the
    roundings of its first step.
    """
    torch._dynamo.reset()
    module, x = program.module()
    expected = outcome(module, module, x, train)
    module, x = program.module()
    report = tt.Report()
    options = {"report": report}
    call = torch.compile(module, backend=backend, options=options, dynamic=dynamic)
    found = outcome(module, call, x, train)
    try:
        torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-4, atol=1e-5)
    except AssertionError as error:
        exact, x = program.module()
        exact = exact.double()
        right = outcome(exact, exact, x.double(), train)
        if len(found) == len(right) and all(map(_near, found, expected, right)):
            return "", report
        return " ".join(str(error).split())[:300], report
    return "", report


def _near(ours: Any, theirs: Any, right: Any) -> bool:
    if not torch.equal(ours.isfinite(), theirs.isfinite()):
        return False
    if not ours.numel():
        return True
    own, off = ((each.double() - right).nan_to_num(0.0).abs().max() for each in (ours, theirs))
    size = right.double().nan_to_num(0.0).abs().max()
    return bool(own <= 8 * off + 1e-5 * size + 1e-5)
