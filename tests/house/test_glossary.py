"""The glossary names primitives, knobs and files that exist."""

from __future__ import annotations

import re

from sources import ROOT, python_files

import tedsl as te
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage

PAGE = ROOT / "tutorials" / "docs" / "glossary.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_files_of_the_glossary_exist() -> None:
    files = set(re.findall(r"`((?:schedules|tedsl)/[\w/]+\.py)`", TEXT))
    assert len(files) > 20
    assert not [name for name in files if not (ROOT / name).exists()]


def test_every_rule_for_a_kernel_of_matrices_or_rows_is_in_the_glossary() -> None:
    """A new file of `schedules` for the GPU is a pattern that a reader looks for."""
    helpers = {
        "schedules/gpu/select.py",
        "schedules/gpu/compile_time.py",
        "schedules/gpu/rows/reverse_second_pass.py",
        "schedules/gpu/gemm/shared_operand.py",
    }
    rules = {s.where for s in python_files("schedules/gpu") if s.path.name != "__init__.py"}
    assert len(rules) > 20
    assert not [name for name in rules - helpers if name not in TEXT]


def test_primitives_of_the_glossary_exist() -> None:
    for owner, pattern in (
        (Stage, r"`s\[T\]\.(\w+)"),
        (Schedule, r"`s\.(\w+)"),
        (te, r"`te\.(\w+)"),
    ):
        names = set(re.findall(pattern, TEXT))
        assert names
        assert not [name for name in names if not hasattr(owner, name)], owner


def test_knobs_of_the_glossary_exist() -> None:
    rules = "".join(source.text for source in python_files("schedules"))
    lists = re.findall(r"knobs? ((?:`\w+`(?:, )?)+)", TEXT)
    knobs = {name for found in lists for name in re.findall(r"`(\w+)`", found)}
    assert len(knobs) > 20
    known = set(re.findall(r'\.(\w+)"', rules)) | {"join_rows", "join_columns"}
    assert 'f"{name}.join_{kind}"' in rules
    assert not knobs - known


def test_the_glossary_is_linked_and_its_headings_are_listed() -> None:
    assert "tutorials/docs/glossary.md" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "(docs/glossary.md)" in (PAGE.parent.parent / "README.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", TEXT, re.MULTILINE)
    for heading in headings:
        assert f"[{heading}](#{heading.lower().replace(' ', '-')})" in TEXT, heading
