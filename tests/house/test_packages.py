"""Hints about missing packages work where tedsl came from a clone, and name the right versions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from sources import PACKAGES, python_files

from tedsl.packages import REQUIRED, install

ROOT = Path(__file__).resolve().parents[2]


def test_versions_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    plain = {text.partition(";")[0].strip() for group in groups for text in group}
    assert set(REQUIRED.values()) <= plain
    assert all(text.startswith(f"{name}>=") for name, text in REQUIRED.items())


def test_an_index_is_told_what_this_is():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    least, most = re.findall(r"3\.(\d+)", project["requires-python"])
    named = {f"Programming Language :: Python :: 3.{n}" for n in range(int(least), int(most))}
    told = set(project["classifiers"])
    assert named == {each for each in told if each.startswith("Programming Language")}
    assert "Typing :: Typed" in told and (ROOT / "tedsl/py.typed").exists()


def test_the_command_names_the_package():
    assert install("matplotlib") == "python -m pip install 'matplotlib>=3.8'"
    assert install("scikit-learn") == "python -m pip install scikit-learn"


def test_no_hint_needs_tedsl_on_an_index():
    files = [*python_files(*PACKAGES), *python_files("tutorials")]
    wrong = [s.where for s in files if re.search(r"pip install\s+['\"]?tedsl", s.text)]
    assert wrong == ["tedsl/packages.py"]  # which says why
