"""Draws plots as SVG text for a self-contained page: lines over a logarithmic axis, and bars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 760, 300, 70, 30, 40
_COLOURS = (
    "#0b6e4f", "#d1495b", "#2e86ab", "#edae49", "#66a182", "#8d5a97", "#5c4d3c", "#00a6a6", "#b56576", "#3d405b",
)  # fmt: skip


def _open(title: str, height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}"><text x="8" y="18" class="title">{escape(title)}</text>'
    )


def short(number: float) -> str:
    """1234567 as 1.2M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def lines(title: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """One line a series; both axes logarithmic, so that ratios look alike everywhere."""
    points = [point for each in series.values() for point in each if point[0] > 0 and point[1] > 0]
    if not points:
        return ""
    xs, ys = sorted({x for x, _ in points}), [y for _, y in points]
    low, high = math.log10(min(ys)), math.log10(max(ys))
    low, high = math.floor(low * 2) / 2, max(math.ceil(high * 2) / 2, math.floor(low * 2) / 2 + 0.5)
    first, last = math.log10(xs[0]), max(math.log10(xs[-1]), math.log10(xs[0]) + 0.1)
    right = _WIDTH - 230

    def at(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (math.log10(x) - first) / (last - first) * (right - _LEFT)
        down = _HEIGHT - _BOTTOM - (math.log10(y) - low) / (high - low) * (_HEIGHT - _BOTTOM - _TOP)
        return round(across, 1), round(down, 1)

    parts = [_open(title, _HEIGHT)]
    for half in range(round(low * 2), round(high * 2) + 1):
        y = at(xs[0], 10 ** (half / 2))[1]
        parts.append(f'<path class="grid" d="M{_LEFT} {y}H{right}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{short(10 ** (half / 2))}</text>')
    for x in xs:
        where = at(x, 10**low)[0]
        parts.append(f'<text x="{where}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{short(x)}</text>')
    for number, (name, each) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        drawn = [at(x, y) for x, y in each if x > 0 and y > 0]
        path = " ".join(f"{x},{y}" for x, y in drawn)
        width = 3 if name.startswith("raftlog") else 1.5
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="{width}" points="{path}"/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in drawn]
        place = _TOP + 14 + 18 * number
        parts.append(f'<rect x="{right + 14}" y="{place - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{right + 30}" y="{place}">{escape(name)}</text>')
    return "".join([*parts, "</svg>"])


def bars(title: str, rows: Mapping[str, float], unit: str) -> str:
    """One bar a row, from the greatest down."""
    if not rows:
        return ""
    most = max(rows.values()) or 1.0
    ordered = sorted(rows.items(), key=lambda row: -row[1])
    height = _TOP + 10 + 24 * len(ordered)
    parts = [_open(title, height)]
    for number, (name, value) in enumerate(ordered):
        y = _TOP + 6 + 24 * number
        width = round(380 * value / most, 1)
        colour = _COLOURS[0] if name.startswith("raftlog") else _COLOURS[2]
        parts.append(f'<text x="232" y="{y + 13}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="240" y="{y}" width="{width}" height="18" fill="{colour}"/>')
        parts.append(f'<text x="{246 + width}" y="{y + 13}">{short(value)} {escape(unit)}</text>')
    return "".join([*parts, "</svg>"])
