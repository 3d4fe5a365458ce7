"""The front page and the documentation: their code runs, the site builds, nothing is left out."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from blocks import python_of, run_page
from sources import ROOT

import tedsl as te

DOCS = ROOT / "tutorials" / "docs"
PAGES = sorted(
    page
    for page in (ROOT / "README.md", *DOCS.rglob("*.md"))
    if "```python" in page.read_text(encoding="utf-8")
)


def subjects() -> ModuleType:
    """The table of names by subject, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("subjects", ROOT / "tutorials/site/subjects.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.ptxas
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    if not python_of(page):
        pytest.skip("all of it needs PyTorch")
    run_page(page, tmp_path)


@pytest.mark.ptxas
def test_the_attention_of_the_guide_does_not_spill() -> None:
    text = (DOCS / "guide.md").read_text(encoding="utf-8")
    found = re.search(r"(?ms)^(def attention.*?)^kernel = te\.build\(s", text)
    assert found is not None
    names: dict[str, Any] = {"te": te}
    exec(found[1], names)
    (used,) = te.build(names["s"], "cuda:sm_90").resources.values()
    assert used.stack == 0


def test_every_public_name_has_a_subject() -> None:
    table = subjects()
    groups = {**table.LANGUAGE, **table.RUNNING}
    named = [name for names in groups.values() for name in names.split()]
    assert sorted(named) == sorted(te.__all__)


def test_the_front_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 200


@pytest.mark.ptxas
def test_the_site_builds_and_needs_no_network(tmp_path: Path) -> None:
    """Strict: a dead link, an unknown anchor or a page that no menu names fails the build."""
    pytest.importorskip("mkdocs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 35
    loaded = re.compile(r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?://[^\" >]+)")
    for page in pages:
        assert not loaded.findall(page.read_text(encoding="utf-8")), page.name
    reference = (tmp_path / "reference" / "primitives.html").read_text(encoding="utf-8")
    assert 'id="sT.compute_at"' in reference and "Rewrites" in reference
    printed = (tmp_path / "gallery.html").read_text(encoding="utf-8")
    assert printed.count("Its page") == 5


def test_the_files_of_the_architecture_exist() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:tedsl|schedules|autotune)/[\w/]+(?:\.py|/))`", text)
    assert len(named) > 30
    assert not [name for name in named if not (ROOT / name).exists()]
