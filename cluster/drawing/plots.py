"""Draws plots as SVG text from values alone, without library or script, so that a page with them is one file.

Colours and fonts are the page's (classes and CSS variables of `page.css`); a tip over each mark shows its numbers.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from html import escape
from typing import Final

from raftlog.cluster.drawing.page import colours, style

WIDTH: Final = 920
HEIGHT: Final = 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 12, 34
_BAR_HEIGHT: Final = 20
_LABEL_WIDTH: Final = 260
_LABEL_LENGTH: Final = 38
_NAME_LENGTH: Final = 28  # of a line: as many as a row of four has room for
_NUMBER_WIDTH: Final = 90  # beside a bar
_TICKS: Final = 5


@dataclass(frozen=True, slots=True)
class LinePlot:
    """Values over time, one line per name; None is a gap, and so is a time more than `step` after the one before."""

    title: str
    times: Sequence[datetime]
    series: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    unit: str = ""
    step: timedelta | None = None

    def _repr_svg_(self) -> str:
        return alone(self)


@dataclass(frozen=True, slots=True)
class BarPlot:
    """One bar per label, from zero to the right, and of a value below zero to the left."""

    title: str
    labels: Sequence[str]
    values: Sequence[float]
    unit: str = ""

    def _repr_svg_(self) -> str:
        return alone(self)


Plot = LinePlot | BarPlot


def svg(plot: Plot) -> str:
    return _lines(plot) if isinstance(plot, LinePlot) else _bars(plot)


def alone(plot: Plot) -> str:
    """The plot as a file of SVG that needs no page around it. A notebook shows a plot so."""
    figure = svg(plot)
    drawing = figure[figure.index("<svg ") + len("<svg ") : figure.index("</figure>")]
    head, _, body = drawing.partition(">")
    names = "".join(f"--{name}:{colour};" for name, colour in colours().items())
    marks = "".join(re.findall(r"^\.(?:grid|tick|line|dot|s0).*\n", style(), re.MULTILINE))
    look = f'style="{names}font:12px sans-serif"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {look} {head}><style>{marks}</style>{body}'


def number(value: float) -> str:
    """A number for people: few digits, thousands apart."""
    if value != 0 and abs(value) < 0.001:
        return f"{value:.1e}"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def ticks(lowest: float, highest: float, about: int = _TICKS) -> list[float]:
    """Round numbers from at most `lowest` to at least `highest`, in steps of 1, 2 or 5 times a power of 10."""
    span = highest - lowest or abs(highest) or 1.0
    power = 10.0 ** math.floor(math.log10(span / about))
    step = next(power * each for each in (1, 2, 5, 10) if power * each * about >= span)
    first = math.floor(lowest / step)
    last = max(math.ceil(highest / step - 1e-9), first + 1)
    return [round(step * place, 12) for place in range(first, last + 1)]


# ---------------------------------------------------------------------------------------------------------------


def _lines(plot: LinePlot) -> str:
    known = [value for values in plot.series.values() for value in values if value is not None]
    if not known:
        return _empty(plot.title)
    marks = ticks(min(0.0, *known), max(0.0, *known))
    begin, end = plot.times[0].timestamp(), plot.times[-1].timestamp()
    across = _scale(begin, end if end > begin else begin + 1, _LEFT, WIDTH - _RIGHT)
    up = _scale(marks[0], marks[-1], HEIGHT - _BOTTOM, _TOP)
    parts = [_grid(up(mark), number(mark)) for mark in marks]
    parts += _times(plot.times[0], plot.times[-1], across)
    for place, (name, values) in enumerate(plot.series.items()):
        path = ""
        for stretch in _stretches(plot, values):
            for at, (time, value) in enumerate(stretch):
                x, y = across(time.timestamp()), up(value)
                path += f"{'L' if at else 'M'}{x:.1f} {y:.1f}"
                tip = escape(f"{name}: {number(value)} {plot.unit} at {time:%Y-%m-%d %H:%M:%S}")
                kind = "lone" if len(stretch) == 1 else "dot"
                parts.append(
                    f'<circle class="s{place} {kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{tip}</title></circle>'
                )
        parts.insert(0, f'<path class="s{place} line" d="{path}"/>')
    names = "".join(
        f'<tspan class="s{place} name" dx="{14 if place else 0}">{escape(_short(name, _NAME_LENGTH))}</tspan>'
        for place, name in enumerate(plot.series)
    )
    parts.append(f'<text x="{WIDTH - _RIGHT}" y="{_TOP + 4}" text-anchor="end">{names}</text>')
    return _frame(plot.title, HEIGHT, parts)


def _stretches(plot: LinePlot, values: Sequence[float | None]) -> list[list[tuple[datetime, float]]]:
    stretches: list[list[tuple[datetime, float]]] = []
    before: datetime | None = None
    for time, value in zip(plot.times, values, strict=True):
        if value is None:
            before = None
            continue
        if before is None or (plot.step is not None and time - before > plot.step):
            stretches.append([])
        stretches[-1].append((time, value))
        before = time
    return stretches


def _times(first: datetime, last: datetime, across: Callable[[float], float]) -> list[str]:
    seconds = (last - first).total_seconds()
    shape = "%Y-%m-%d" if seconds > 10 * 86_400 else "%Y-%m-%d %H:%M" if seconds > 600 else "%Y-%m-%d %H:%M:%S"
    parts = []
    for place in range(_TICKS):
        time = first + (last - first) * place / (_TICKS - 1)
        anchor = "start" if place == 0 else "end" if place == _TICKS - 1 else "middle"
        x = across(time.timestamp())
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 12}" text-anchor="{anchor}">{time.strftime(shape)}</text>'
        )
        if seconds == 0:
            break
    return parts


def _bars(plot: BarPlot) -> str:
    if not plot.values:
        return _empty(plot.title)
    lowest, highest = min(*plot.values, 0.0), max(*plot.values, 0.0)
    begin = _LABEL_WIDTH + (_NUMBER_WIDTH if lowest < 0 else 0)
    along = _scale(lowest, highest if highest > lowest else lowest + 1, begin, WIDTH - _NUMBER_WIDTH)
    zero = along(0.0)
    parts = []
    for place, (label, value) in enumerate(zip(plot.labels, plot.values, strict=True)):
        y = place * (_BAR_HEIGHT + 4)
        amount = f"{number(value)} {plot.unit}".rstrip()
        end = along(value)
        width = max(abs(end - zero), 1.0)
        aside = f'x="{end - 6:.1f}" text-anchor="end"' if value < 0 else f'x="{zero + width + 6:.1f}"'
        parts += [
            f'<text class="tick" x="{_LABEL_WIDTH - 8}" y="{y + 14}" text-anchor="end">{escape(_short(label))}</text>',
            f'<rect class="s0 bar" x="{min(zero, end):.1f}" y="{y}" width="{width:.1f}" height="{_BAR_HEIGHT}" rx="2">'
            f"<title>{escape(f'{label}: {amount}')}</title></rect>",
            f'<text class="tick" {aside} y="{y + 14}">{escape(amount)}</text>',
        ]
    return _frame(plot.title, len(plot.values) * (_BAR_HEIGHT + 4), parts)


def _short(text: str, length: int = _LABEL_LENGTH) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _scale(low: float, high: float, start: float, stop: float) -> Callable[[float], float]:
    return lambda value: start + (value - low) / (high - low) * (stop - start)


def _grid(y: float, label: str) -> str:
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>'
    )


def _frame(title: str, height: int, parts: list[str]) -> str:
    name, body = escape(title), "".join(parts)
    return (
        f'<figure class="plot" tabindex="0"><figcaption>{name}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{name}">{body}</svg></figure>'
    )


def _empty(title: str) -> str:
    return _frame(title, 24, ['<text class="tick" y="16">nothing to show</text>'])
