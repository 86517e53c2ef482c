"""One self-contained HTML page of what was tuned; also well-formed XML."""

from collections.abc import Sequence
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, tostring

from autoswizzle.cache.entry import CacheEntry
from autoswizzle.report.tables import text_of
from autoswizzle.report.tuned import (
    ENTRY_TITLES,
    STUDY_TITLES,
    Tuned,
    entry_row,
    study_row,
)

if TYPE_CHECKING:
    from autoswizzle.search.studies import Study

TITLE = "What autoswizzle tuned"
STYLE = """
:root { color-scheme: light dark; font: 14px system-ui, sans-serif; }
body { margin: 2em; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { padding: 0.2em 0.7em; text-align: left; border-bottom: 1px solid #8884; }
td { font-variant-numeric: tabular-nums; white-space: nowrap; }
figure { display: inline-block; margin: 0 2em 1em 0; }
figcaption { font-size: 12px; }
svg { overflow: visible; font-size: 10px; fill: currentColor; }
line, polyline { stroke: currentColor; fill: none; }
.ours { stroke: #2a7de1; stroke-width: 2; }
rect { fill-opacity: 0.4; }
.win { fill-opacity: 1; fill: #2a7de1; }
.torch { stroke-dasharray: 4 3; }
"""
BAR_WIDTH, BAR_HEIGHT = 160, 12  # pixels
CURVE_WIDTH, CURVE_HEIGHT = 300, 120


def page(gpus: Sequence[Tuned]) -> str:
    """The page: for each GPU its summary, its problems, its searches and how they converged."""
    head = _element(
        "head",
        _element("meta", charset="utf-8"),
        _element("title", TITLE),
        _element("style", STYLE),
    )
    parts = [part for gpu in gpus for part in _gpu(gpu)] or [_element("p", "Nothing yet.")]
    body = _element("body", _element("h1", TITLE), *parts)
    html = _element("html", head, body, lang="en")
    return "<!DOCTYPE html>\n" + tostring(html, encoding="unicode") + "\n"


def _gpu(gpu: Tuned) -> list[Element]:
    parts = [_element("h2", gpu.title), _element("p", str(gpu.summary))]
    if gpu.entries:
        parts.append(_entries(gpu.entries))
    if gpu.studies:
        parts.append(_element("h3", "Searches"))
        parts.append(_table(STUDY_TITLES, [_cells(study_row(study)) for study in gpu.studies]))
        parts += [_convergence(study) for study in gpu.studies if study.curve]
    return parts


def _entries(entries: Sequence[CacheEntry]) -> Element:
    longest = max(1.0, *(entry.ratio_high or entry.ratio or 1.0 for entry in entries))
    rows = [[*_cells(entry_row(entry)), _bar(entry, longest)] for entry in entries]
    return _table((*ENTRY_TITLES, "dashed: torch"), rows)


def _bar(entry: CacheEntry, longest: float) -> Element:
    """The ratio as a bar from 0 to longest, its interval across it, and a line at torch's 1."""
    scale = BAR_WIDTH / longest
    middle = BAR_HEIGHT / 2
    parts = []
    if entry.ratio is not None:
        color = "win" if entry.won else "kept"
        width = entry.ratio * scale
        parts.append(_element("rect", class_=color, x=0, y=2, width=width, height=BAR_HEIGHT - 4))
    if entry.ratio_low is not None and entry.ratio_high is not None:
        ends = {"x1": entry.ratio_low * scale, "x2": entry.ratio_high * scale}
        parts.append(_element("line", **ends, y1=middle, y2=middle))
    parts.append(_element("line", class_="torch", x1=scale, x2=scale, y1=0, y2=BAR_HEIGHT))
    return _element("svg", *parts, width=BAR_WIDTH, height=BAR_HEIGHT)


def _convergence(study: "Study") -> Element:
    """The time of the fastest of ours so far, over the trials; torch's as a line."""
    trials, curve, torch_us = len(study.records), study.curve, study.torch_us
    times = [time_us for _, time_us in curve] + ([] if torch_us is None else [torch_us])
    low, high = min(times), max(times)

    def y(time_us: float) -> float:
        return CURVE_HEIGHT * (high - time_us) / (high - low or 1)

    ends = [*(trial for trial, _ in curve[1:]), trials]
    corners = [
        f"{CURVE_WIDTH * trial / trials:.1f},{y(time_us):.1f}"
        for (begin, time_us), end in zip(curve, ends, strict=True)
        for trial in (begin, end)
    ]
    parts = [
        _element("line", x1=0, x2=CURVE_WIDTH, y1=CURVE_HEIGHT, y2=CURVE_HEIGHT),
        _element("line", x1=0, x2=0, y1=0, y2=CURVE_HEIGHT),
        _element("polyline", class_="ours", points=" ".join(corners)),
        _element("text", f"{high:,.1f} us", x=CURVE_WIDTH + 4, y=8),
        _element("text", f"{low:,.1f} us", x=CURVE_WIDTH + 4, y=CURVE_HEIGHT),
    ]
    caption = f"{study.problem}: fastest so far, {trials} trials"
    if torch_us is not None:
        level = y(torch_us)
        parts.append(_element("line", class_="torch", x1=0, x2=CURVE_WIDTH, y1=level, y2=level))
        caption += f"; dashed: torch, {torch_us:,.1f} us"
    drawing = _element("svg", *parts, width=CURVE_WIDTH + 90, height=CURVE_HEIGHT + 4)
    return _element("figure", drawing, _element("figcaption", caption))


def _table(titles: Sequence[str], rows: Sequence[Sequence[Element | str]]) -> Element:
    lines = [_element("tr", *(_element("td", cell) for cell in row)) for row in rows]
    head = _element("thead", _element("tr", *(_element("th", title) for title in titles)))
    return _element("table", head, _element("tbody", *lines))


def _cells(row: Sequence[object]) -> list[Element | str]:
    return [text_of(value) or "-" for value in row]  # in HTML, no empty element may close itself


def _element(tag: str, *children: Element | str, **attributes: str | float) -> Element:
    """An element of elements, or of one text, which is escaped when it is written."""
    found = Element(tag)
    for name, value in attributes.items():
        text = value if isinstance(value, str) else f"{value:.1f}"
        found.set(name.rstrip("_"), text)
    for child in children:
        if isinstance(child, str):
            found.text = child
        else:
            found.append(child)
    return found
