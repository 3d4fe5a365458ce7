"""An explanation as HTML: one document without scripts, fonts or pictures from elsewhere.

Everything that came from the user is escaped.  Imports `data` and `text`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from tedsl.explaining.data import Explanation, KernelCost, Pair, Relation, Verdict
from tedsl.explaining.text import (
    buffers_text,
    call_text,
    resources_text,
    scaled,
    stage_text,
    unfused_text,
)
from tedsl.runtime.timing import format_seconds

STYLE = """
.tedsl-explain { font: 14px/1.45 system-ui, sans-serif; color: #1f2530; max-width: 72rem; }
.tedsl-explain table { border-collapse: collapse; margin: .6em 0 1.4em; width: 100%; }
.tedsl-explain th, .tedsl-explain td { text-align: left; vertical-align: top;
  padding: .35em .8em .35em 0; border-bottom: 1px solid #d9dee6; }
.tedsl-explain td.n { white-space: nowrap; font-variant-numeric: tabular-nums; }
.tedsl-explain code, .tedsl-explain pre { font: 12.5px/1.4 ui-monospace, monospace; }
.tedsl-explain pre { white-space: pre-wrap; margin: .2em 0; }
.tedsl-explain .bar { height: .5em; border-radius: 2px; background: #2b5fad; }
.tedsl-explain .bar.other { background: #9aa4b1; }
.tedsl-explain .verdict { font-weight: 600; }
.tedsl-explain .illegal { color: #a03325; }
.tedsl-explain .better { color: #0b6e4f; }
.tedsl-explain .muted { color: #667080; }
@media (prefers-color-scheme: dark) {
  .tedsl-explain { color: #dfe4ec; }
  .tedsl-explain th, .tedsl-explain td { border-color: #3a4250; }
  .tedsl-explain .bar { background: #6f9fe8; }
  .tedsl-explain .illegal { color: #f08a7b; }
  .tedsl-explain .better { color: #62c9a4; }
  .tedsl-explain .muted { color: #97a1b0; }
  body.tedsl-page { background: #161a20; }
}
"""
CLASSES = {Verdict.ILLEGAL: "illegal", Verdict.BETTER: "better"}


def document(found: Explanation) -> str:
    """A whole page."""
    title = escape(f"{found.name} for {found.target}")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{title}</title></head>'
        f'<body class="tedsl-page">{fragment(found)}</body></html>\n'
    )


def fragment(found: Explanation) -> str:
    """What a notebook shows."""
    rows = [
        f"<style>{STYLE}</style>",
        f"<h2>{escape(found.name)} <span class='muted'>for {escape(found.target)}, figures of "
        f"{escape(found.device)}</span></h2>",
        *_totals(found),
        _table(_KERNELS, (_kernel(kernel, found) for kernel in found.kernels)),
    ]
    if found.pairs:
        rows.append("<h3>Not fused</h3>")
        rows.append(_table(("stages", "verdict", "why", "what would do it"), _pairs(found.pairs)))
    return f'<div class="tedsl-explain">{"".join(rows)}</div>'


_KERNELS = ("kernel", "stages", "reads and writes", "saves", "work", "bound", "resources")


def _totals(found: Explanation) -> Iterator[str]:
    sizes = ", ".join(f"{name} = {value}" for name, value in found.sizes.items())
    if sizes:
        yield f"<p class='muted'>with {escape(sizes)}</p>"
    least = f"inputs and outputs once each: {scaled(found.least_bytes)}B"
    yield (
        f"<p>{found.launches} launches, {scaled(found.nbytes)}B moved, {scaled(found.flops)}flop, "
        f"predicted {format_seconds(found.seconds)}. {least}."
    )
    if found.unfused is not None:
        yield f"<br>{escape(unfused_text(found))}.</p>"
        most = max(found.nbytes, found.unfused.nbytes, 1)
        for name, amount, kind in (
            ("fused", found.nbytes, "bar"),
            ("unfused", found.unfused.nbytes, "bar other"),
        ):
            width = 100 * amount / most
            yield f"<div class='muted'>{name}, {scaled(amount)}B</div>"
            yield f"<div class='{kind}' style='width:{width:.1f}%'></div>"
    else:
        yield "</p>"


def _kernel(kernel: KernelCost, found: Explanation) -> tuple[str, ...]:
    name = f"<code>{escape(kernel.name)}</code>"
    name += f" x {kernel.times}" if kernel.times != 1 else ""
    stages = "<br>".join(escape(stage_text(stage)) for stage in kernel.stages)
    read, written = escape(buffers_text(kernel.reads)), escape(buffers_text(kernel.writes))
    moved = f"reads {read}<br>writes {written}"
    if kernel.calls:
        return name, stages, moved, "", "", escape(f"a call of {kernel.calls}"), ""
    less = found.alone(kernel) - kernel.nbytes
    saved = f"{scaled(less)}B" if less > 0 else ""
    work = f"{scaled(kernel.flops)}flop<br>{kernel.intensity:.3g} per byte"
    share = 100 * kernel.seconds / found.seconds if found.seconds else 0.0
    bound = (
        f"{kernel.bound.value}, {format_seconds(kernel.seconds)}"
        f"<div class='bar' style='width:{share:.0f}%'></div>"
    )
    used = "" if kernel.resources is None else resources_text(kernel.resources)
    return name, stages, moved, saved, work, bound, escape(used)


def _pairs(pairs: Iterable[Pair]) -> Iterator[tuple[str, ...]]:
    for pair in pairs:
        if pair.relation is Relation.READS:
            who = f"{pair.second} reads {pair.first}"
        else:
            who = f"{pair.first} and {pair.second} read {', '.join(pair.shared)}"
        kind = f"verdict {CLASSES.get(pair.verdict, '')}".strip()
        verdict = f"<span class='{kind}'>{escape(pair.verdict.value)}</span>"
        best = pair.best
        code = "" if best is None else f"<code>{escape(call_text(best.code))}</code>"
        yield escape(who), verdict, f"<pre>{escape(pair.reason)}</pre>", code


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    cells = "".join(f"<th>{title}</th>" for title in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"
