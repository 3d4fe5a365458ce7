"""Rules and passes go by the shape of loops: no operator's name decides anything.

Comments and docstrings use the field's words; code does not: no identifier and no string names an
operator, and names of stages, whatever they are, change no schedule.
"""

from __future__ import annotations

import ast
import io
import random
import re
import tokenize
from collections.abc import Callable, Iterator, Sequence

import pytest
from drawn_definitions import draw
from rule_corpus import corpus
from sources import Source, python_files

import tedsl as te
from tedsl import schedules
from tedsl.schedules import schedule_for
from tedsl.schedules.analysis.groups import Group
from tedsl.schedules.fallback import schedule_kernel
from tedsl.schedules.fusion.horizontal import Beside
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.target import Target
from tedsl.tensor.printer import operations
from tedsl.tensor.tensor import Tensor

OPERATORS = re.compile(
    r"(?<![a-z])(softmax|matmul|gemm|conv(?:olution)?(?:\dd)?|gelu|silu|relu|attention"
    r"|(?:layer|rms|batch|group)_?norm|embedding|pooling)(?![a-z])",
    re.IGNORECASE,
)
FOLDERS = ("schedules", "tedsl/lower", "tedsl/backends", "tedsl/scheduling", "tedsl/ir")
CODE = {tokenize.NAME, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
# Names that the renamed stages get: a rule that went by one of these would do so for any of them.
NAMES = ("softmax", "matmul", "conv2d", "attention", "layer_norm", "relu", "bias", "q", "x", "Z")
TARGETS = ("cpu", "cuda")


def code_of(text: str) -> Iterator[tuple[int, str]]:
    """Identifiers and strings of a file with their lines; docstrings, comments and imports are
    left out: a module may be called what its reader looks for."""
    tree = ast.parse(text)
    imports = {
        line
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    docstrings = {
        (node.lineno, node.col_offset)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }
    before: tuple[str, ...] = ("", "")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        numpy = before == ("np", ".")
        is_code = token.type in CODE and token.start not in docstrings
        if is_code and token.start[0] not in imports and not numpy:
            yield token.start[0], token.string
        before = (before[1], token.string)


def names_operators(source: Source) -> list[str]:
    """The lines of code in which an operator is named."""
    return [f"{source.where}:{n} {s}" for n, s in code_of(source.text) if OPERATORS.search(s)]


def test_no_operator_is_named_in_code() -> None:
    files = python_files(*FOLDERS, "tedsl/index")
    wrong = [line for source in files for line in names_operators(source)]
    assert not wrong, "\n".join(wrong)


def test_names_are_sought_in_code_alone() -> None:
    text = '''
"""A softmax."""
# a softmax
def f(op):
    """A softmax."""
    np.matmul(op, op)
    return op.name == "softmax" or matmul(f"a {op} gemm", op.attention)
SIZE = 1
"""For matmul."""
'''
    found = [word for _, word in code_of(text) if OPERATORS.search(word)]
    assert [OPERATORS.findall(word)[0] for word in found] == [
        "softmax",
        "matmul",
        "gemm",
        "attention",
    ]


def renamed(outputs: Sequence[Tensor], seed: int) -> None:
    """Give every stage and input of a new computation another name, none of them twice."""
    ops = list(operations(outputs))
    rng = random.Random(seed)
    for place, number in enumerate(rng.sample(range(len(ops)), len(ops))):
        object.__setattr__(ops[place], "name", f"{rng.choice(NAMES)}N{number}")


Described = tuple[str, tuple[tuple[object, ...], ...]]


def described(outputs: Sequence[Tensor], target: str, back: dict[str, str]) -> Described:
    """The schedule of the rules and its knobs as text, in which names are mapped `back`."""
    words = re.compile("(" + "|".join(map(re.escape, back)) + r")(?!\d)") if back else None

    def text(made: object) -> str:
        shown = str(made)
        if words is not None:
            shown = words.sub(lambda match: back[match.group()], shown)
        return re.sub(" +", " ", shown)

    s = schedule_for(outputs, target)
    return text(s), tuple((text(k.name), *map(text, (*k.choices, k.chosen))) for k in s.knobs)


def changed_by_names(make: Callable[[], Sequence[Tensor]], target: str, seed: int) -> bool:
    """True when the rules decide otherwise for other names of the same stages."""
    plain, other = make(), make()
    renamed(other, seed)
    stages = [[stage.name for stage in te.create_schedule(each).stages] for each in (plain, other)]
    back = dict(zip(stages[1], stages[0], strict=True))
    return described(plain, target, {}) != described(other, target, back)


@pytest.mark.parametrize("target", TARGETS)
def test_names_of_stages_change_no_schedule(target: str) -> None:
    cases = corpus()[::4]
    wrong = [case.name for n, case in enumerate(cases) if changed_by_names(case.outputs, target, n)]
    assert not wrong


@pytest.mark.parametrize("target", TARGETS)
def test_names_of_drawn_stages_change_no_schedule(target: str) -> None:
    wrong = [
        seed
        for seed in range(16)
        if changed_by_names(lambda seed=seed: draw(seed).outputs, target, seed)
    ]
    assert not wrong


def test_a_rule_that_looks_at_a_name_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The property fails for a rule that takes kernels by what their stages are called."""

    def by_name(s: Schedule, group: Group, where: Target, beside: Beside) -> None:
        if group.root == "matmul":
            s[group.root].split(s[group.root].op.axis[-1], factor=8)
        else:
            schedule_kernel(s, group, where, beside)

    make = next(case.outputs for case in corpus() if case.name.startswith("matmul"))
    assert not changed_by_names(make, "cpu", 1)
    monkeypatch.setattr(schedules, "schedule_kernel", by_name)
    assert changed_by_names(make, "cpu", 1)


@pytest.mark.parametrize("target", TARGETS)
def test_knobs_are_called_after_a_stage_and_a_choice(target: str) -> None:
    """A search that renames stages meets the same knobs: the rest of a name is the rule's."""
    rest: set[str] = set()
    for case in corpus()[::5]:
        schedule = schedule_for(case.outputs(), target)
        for knob in schedule.knobs:
            owner, _, choice = knob.name.rpartition(".")
            assert any(owner == stage.name for stage in schedule.stages), knob.name
            assert len(knob.choices) > 1 and len(set(knob.choices)) == len(knob.choices)
            assert knob.chosen in knob.choices
            rest.add(choice)
    assert rest and not any(OPERATORS.search(choice) for choice in rest)
