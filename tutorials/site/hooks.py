"""Pages of the site that are made from code, as hooks of MkDocs (`mkdocs.yml` names this file).

A page that can be computed is: what is written by hand goes out of date.  The tutorials' text and
code come from the scripts, what they printed from `recorded/`; primitives, gallery and errors are
run while the site is built; the reference is the docstrings, by the subjects of `subjects.py`.
Needs no GPU: kernels for one are compiled, or shown as Triton source.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import pages_of_code  # noqa: E402
import pages_of_tutorials  # noqa: E402
from mkdocs.structure.files import File  # noqa: E402


def on_config(config: Any) -> Any:
    """Fill the parts of the navigation that follow from the code."""
    for entry in config.nav:
        if "Tutorials" in entry:
            entry["Tutorials"] = pages_of_tutorials.navigation()
        for part in entry.get("Reference", ()) if isinstance(entry.get("Reference"), list) else ():
            if "By subject" in part:
                part["By subject"] = pages_of_code.navigation()
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages, pictures and viewer pages that are made here."""
    for where, content in {**pages_of_tutorials.pages(), **pages_of_code.pages()}.items():
        files.append(File.generated(config, where, content=content))
    return files
