"""Rules and passes go by the shape of loops: none of them knows an operator."""

from __future__ import annotations

import re

import pytest
from rule_corpus import corpus
from sources import python_files

from tedsl.schedules import schedule_for

OPERATORS = re.compile(
    r"(?<![a-z])(softmax|matmul|gemm|conv(?:olution)?(?:\dd)?|gelu|silu|relu|attention"
    r"|(?:layer|rms|batch|group)_?norm|embedding|pooling)(?![a-z])",
    re.IGNORECASE,
)
FOLDERS = ("schedules", "tedsl/lower", "tedsl/backends", "tedsl/scheduling", "tedsl/ir")


def test_no_operator_is_known_by_name() -> None:
    wrong = [
        f"{source.where}:{number} {line.strip()}"
        for source in python_files(*FOLDERS, "tedsl/index")
        for number, line in enumerate(source.text.splitlines(), 1)
        if OPERATORS.search(line.replace("np.matmul(", ""))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
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
