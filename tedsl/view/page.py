"""The page: one HTML file made of the data, the style and the scripts in `assets/`."""

from __future__ import annotations

import html
import re
import webbrowser
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from os import PathLike
from pathlib import Path

from tedsl.errors import BackendError
from tedsl.runtime.kernel import Kernel
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.target import Target
from tedsl.view.collect import page_of_kernel, page_of_schedule
from tedsl.view.data import Page, to_json

STYLES = ("theme.css", "graph.css", "text.css", "frame.css")
SCRIPTS = (
    "store.js",
    "layout.js",
    "colour.js",
    "listing.js",
    "picture.js",
    "state.js",
    "roofline.js",
    "walk.js",
    "panes.js",
    "search.js",
    "main.js",
)
"""The page's scripts, each of which uses only those before it."""
_FRAME_HEIGHT = 720


@dataclass(frozen=True, slots=True)
class View(PathLike[str]):
    """A page that was written.  A notebook shows it in its cell; `open(view)` reads the file."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        page = html.escape(self.path.read_text(encoding="utf-8"))
        return (
            f'<iframe srcdoc="{page}" sandbox="allow-scripts" title="{html.escape(self.path.name)}"'
            f' style="width:100%;height:{_FRAME_HEIGHT}px;border:1px solid #8888"></iframe>'
        )


def view(
    thing: Schedule | Kernel,
    path: str | PathLike[str] | None = None,
    *,
    target: str | Target | None = None,
    show: bool = False,
) -> View:
    """Write the page of a schedule or a kernel; see `tedsl.shown.Viewable.view`."""
    chosen = None if target is None else Target.parse(target)
    if isinstance(thing, Kernel):
        if chosen not in (None, thing.target):
            raise BackendError(
                f"the kernel was built for {thing.target}, not for {chosen}",
                subject=f"{thing.name}: view()",
                hint=f"leave target= away, or view the schedule: "
                f'kernel.schedule.view(target="{chosen}")',
            )
        page = page_of_kernel(thing)
    else:
        page = page_of_schedule(thing, chosen)
    where = Path(path) if path is not None else Path(f"{_file_name(page.title)}.html")
    where.write_text(render(page), encoding="utf-8")
    if show:
        webbrowser.open(where.resolve().as_uri())
    return View(where)


def render(page: Page) -> str:
    """The HTML text.  What a user wrote stands in the data and in the title, escaped in both."""
    parts = {
        "title": html.escape(f"{page.title}: {page.subject} for {page.target}"),
        "style": "\n".join(map(_asset, STYLES)),
        "data": in_script(to_json(page)),
        "script": "\n".join(map(_asset, SCRIPTS)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


def in_script(json_text: str) -> str:
    """JSON that may stand inside a `script` element: nothing in it ends or nests one."""
    return (
        json_text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    )


@cache
def _asset(name: str) -> str:
    return (files("tedsl.view") / "assets" / name).read_text(encoding="utf-8")


def _file_name(title: str) -> str:
    """A title as the name of a file."""
    return re.sub(r"[^\w.-]+", "_", title).strip("._")[:80] or "view"
