"""The report's pictures: accuracy against cost, learning curves, who is called. Each as PNG and SVG.

In: `report.json` as plain data, rows of `metrics.jsonl`. Out: files, the same bytes for the same data.
Source: colours of Okabe and Ito, "Color Universal Design" (2008), which colour-blind readers can tell apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolorchestra.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

WIDTH_PX = 1200
_DPI = 120

_BLACK, _ORANGE, _SKY, _GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
_YELLOW, _BLUE, _RED, _PINK, _GREY = "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#8A8A8A"
_INK, _FAINT = "#333333", "#DDDDDD"
_DASHES = (0, (5, 2))

Point = tuple[float, float]
"""Cost and accuracy."""

_STYLE: dict[Any, Any] = {
    "font.size": 10.5,
    "axes.titlesize": 12.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _GREY,
    "axes.labelcolor": _INK,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.axisbelow": True,
    "grid.color": _FAINT,
    "svg.hashsalt": "toolorchestra",
}


@dataclass(frozen=True)
class _Mark:
    """How a role is drawn, and what the legend calls it."""

    color: str
    shape: str
    size: float
    name: str


_MARKS = {
    "expert": _Mark(_SKY, "o", 9, "an expert alone"),
    "rule": _Mark(_PINK, "s", 8, "always cheapest, always dearest"),
    "random": _Mark(_GREY, "X", 9, "random legal play"),
    "warmup": _Mark(_ORANGE, "v", 9, "warmed-up policy, before RL"),
    "knn": _Mark(_GREEN, "D", 8, "kNN router"),
    "idle": _Mark(_GREY, "P", 9, "does nothing"),
    "trained": _Mark(_RED, "*", 20, "trained policy"),
    "oracle": _Mark(_BLACK, "^", 9, "oracle, with hindsight"),
}


def save_plots(
    report: Mapping[str, Any], curves: Mapping[str, Sequence[Mapping[str, Any]]], folder: Path
) -> list[Path]:
    """Draw every picture for which there is data; returns the files.

    Args:
        report: as `build_report` made it.
        curves: of each training seed, by its label, the rows of its `metrics.jsonl`.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    pictures = [
        ("accuracy_cost", lambda: draw_accuracy_cost(report)),
        ("learning", lambda: draw_learning(curves, _subtitle(report))),
        ("calls", lambda: draw_calls(report)),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    return [path for name, draw in pictures for path in _save(draw, folder / name)]


def _save(draw: Callable[[], Figure | None], path: Path) -> list[Path]:
    try:
        import matplotlib as mpl
    except ImportError:
        raise MissingExtraError("plots", "train") from None
    with mpl.rc_context(_STYLE):
        figure = draw()
        if figure is None:
            return []
        png, svg = path.with_suffix(".png"), path.with_suffix(".svg")
        figure.savefig(png, dpi=_DPI, metadata={"Software": None})
        figure.savefig(svg, metadata={"Date": None, "Creator": None})
    return [png, svg]


def _figure(height_px: int) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
    figure = Figure(figsize=(WIDTH_PX / _DPI, height_px / _DPI), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def _subtitle(report: Mapping[str, Any]) -> str:
    header = report["header"]
    experts = "simulated experts" if header["simulated_experts"] else "experts"
    seeds = len(header["evaluation_seeds"])
    return f"{experts}; {header['tasks']} held-out tasks, {seeds} evaluation seed{'s' * (seeds != 1)}"


# -- accuracy against cost -------------------------------------------------------------------------------------------


def draw_accuracy_cost(report: Mapping[str, Any]) -> Figure | None:
    """Draw accuracy against cost, with 95 % intervals and the Pareto front; None when nothing costs anything."""
    rows = [row for row in report["rows"] if row["accuracy_percent"] and row["cost_cents"]]
    paid = [row["cost_cents"]["mean"] for row in rows if row["cost_cents"]["mean"] > 0]
    if not paid:
        return None
    figure = _figure(780)
    axes = figure.add_subplot()
    free_cents = min(paid) / 2.5  # a logarithmic axis has no zero: what is free stands at the left edge
    points = [(max(row["cost_cents"]["mean"], free_cents), row["accuracy_percent"]["mean"]) for row in rows]
    front = _front_line(points, rows)
    _draw_front(axes, front)
    for point, row in zip(points, rows, strict=True):
        _draw_point(axes, point, row)
    axes.set_xscale("log")
    axes.set_xlim(free_cents / 1.3, max(row["cost_cents"]["high"] for row in rows) * 1.8)
    axes.set_ylim(*_limits([row["accuracy_percent"] for row in rows]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    free = "; what is free stands at the left edge" if len(paid) < len(rows) else ""
    axes.set_xlabel(f"cost, US cents a task (logarithmic{free})")
    axes.set_ylabel("accuracy, %")
    axes.set_title(f"Accuracy against cost: {_subtitle(report)}")
    axes.grid(True)
    _draw_legend(axes, rows)
    figure.draw_without_rendering()  # fixes where in the picture the points are
    _label_points(axes, points, rows, _line_boxes(axes, front))
    return figure


def _limits(intervals: Sequence[Mapping[str, float]]) -> tuple[float, float]:
    """Leave room for labels around the points, but little beyond 0 and 100 %."""
    low, high = min(i["low"] for i in intervals), max(i["high"] for i in intervals)
    room = max(2.0, (high - low) * 0.09)
    return max(-4.0, low - room), min(104.0, high + room)


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """Keep the points that no other beats in accuracy at the same or a lower cost; from cheap to dear.

    Args:
        points: pairs of cost and accuracy.
    """
    front: list[Point] = []
    for cost, accuracy in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or accuracy > front[-1][1]:
            front.append((cost, accuracy))
    return front


def _front_line(points: Sequence[Point], rows: Sequence[Mapping[str, Any]]) -> list[Point]:
    """Draw the corners of the front's steps, on to the right of all points; the oracle is nobody's rival."""
    front = pareto_front([point for point, row in zip(points, rows, strict=True) if row["role"] != "oracle"])
    ends = [cost for cost, _ in front[1:]] + [max(cost for cost, _ in points) * 1.8]
    return [
        corner
        for (cost, accuracy), end in zip(front, ends, strict=True)
        for corner in ((cost, accuracy), (end, accuracy))
    ]


def _draw_front(axes: Axes, line: Sequence[Point]) -> None:
    costs, accuracies = [c for c, _ in line], [a for _, a in line]
    axes.fill_between(costs, accuracies, -100, color=_BLUE, alpha=0.05, linewidth=0)
    axes.plot(costs, accuracies, color=_BLUE, alpha=0.6, linewidth=1.5, linestyle=_DASHES)


def _line_boxes(axes: Axes, line: Sequence[Point]) -> list[Bbox]:
    """Return the boxes, in pixels, that the front's segments fill."""
    from matplotlib.transforms import Bbox

    corners = [axes.transData.transform(corner) for corner in line]
    return [
        Bbox.from_extents(min(x0, x1) - 2, min(y0, y1) - 2, max(x0, x1) + 2, max(y0, y1) + 2)
        for (x0, y0), (x1, y1) in pairwise(corners)
    ]


def _draw_point(axes: Axes, point: Point, row: Mapping[str, Any]) -> None:
    mark, cost, accuracy = _MARKS[row["role"]], row["cost_cents"], row["accuracy_percent"]
    wide = [[max(0.0, point[0] - cost["low"])], [max(0.0, cost["high"] - point[0])]] if cost["mean"] > 0 else None
    tall = [[point[1] - accuracy["low"]], [accuracy["high"] - point[1]]]
    axes.errorbar(
        *point,
        xerr=wide,
        yerr=tall,
        fmt=mark.shape,
        color=mark.color,
        markersize=mark.size,
        markeredgecolor="white",
        ecolor=mark.color,
        elinewidth=1.2,
        capsize=2.5,
        zorder=4 if row["role"] == "trained" else 3,
    )


def _draw_legend(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    from matplotlib.lines import Line2D

    present = {row["role"] for row in rows}
    handles = [
        Line2D(
            [],
            [],
            linestyle="",
            marker=m.shape,
            color=m.color,
            markeredgecolor="white",
            markersize=min(m.size, 14),
            label=m.name,
        )
        for role, m in _MARKS.items()
        if role in present
    ]
    handles.append(Line2D([], [], color=_BLUE, alpha=0.6, linestyle=_DASHES, label="Pareto front, oracle left out"))
    axes.figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9.5)


def _short_label(row: Mapping[str, Any]) -> str:
    name = row["label"].removesuffix(" alone").removesuffix(", before RL").removesuffix(" on offer")
    return f"{name.removeprefix('sim-')} (free)" if row["cost_cents"]["mean"] == 0 else name.removeprefix("sim-")


def _label_points(axes: Axes, points: Sequence[Point], rows: Sequence[Mapping[str, Any]], taken: list[Bbox]) -> None:
    """Put each label beside its point, where it hides as little as possible; the trained policy chooses first.

    Args:
        taken: boxes, in pixels, that a label should not hide; those of points and labels are added.
    """
    for point, row in zip(points, rows, strict=True):
        taken += _point_boxes(axes, point, row["accuracy_percent"], row["cost_cents"])
    important = {"trained": 0, "oracle": 1}
    for point, row in sorted(zip(points, rows, strict=True), key=lambda x: (important.get(x[1]["role"], 2), -x[0][1])):
        text, place = _short_label(row), axes.transData.transform(point).tolist()
        best = min(_OFFSETS, key=lambda offset: _badness(axes, text, place, offset, taken))
        taken.append(_write_label(axes, text, point, best, row["role"] == "trained"))


def _point_boxes(axes: Axes, point: Point, accuracy: Mapping[str, float], cost: Mapping[str, float]) -> list[Bbox]:
    """Return the boxes of a mark and of its error bars."""
    x, y = axes.transData.transform(point)
    low, high = (axes.transData.transform((point[0], accuracy[key]))[1] for key in ("low", "high"))
    edge = axes.get_xlim()[0]
    left, right = (axes.transData.transform((max(cost[key], edge), point[1]))[0] for key in ("low", "high"))
    bars = [_box(x, (low + high) / 2, 4, (high - low) / 2 + 3), _box((left + right) / 2, y, (right - left) / 2 + 3, 4)]
    return [_box(x, y, 11, 11), *(bars if cost["mean"] > 0 else bars[:1])]


_OFFSETS = [
    (x * far, y * far)
    for far in (1.0, 1.6, 2.4, 3.4, 4.6)
    for x, y in ((12, 0), (10, 9), (10, -9), (0, 15), (0, -15), (-12, 0), (-10, 9), (-10, -9))
]
"""Where a label may stand, in points from its mark, the nearest first."""


def _write_label(axes: Axes, text: str, point: Point, offset: Point, bold: bool) -> Bbox:
    """Write a label and return its box in pixels; a far label is tied to its point by a thin line."""
    far = max(map(abs, offset)) > 20
    note = axes.annotate(
        text,
        point,
        offset,
        textcoords="offset points",
        ha=_align(offset[0], "left", "right"),
        va=_align(offset[1], "bottom", "top"),
        fontsize=11 if bold else 9.5,
        fontweight="bold" if bold else "normal",
        arrowprops={"arrowstyle": "-", "color": _GREY, "linewidth": 0.6, "shrinkB": 5} if far else None,
        zorder=5,
        path_effects=_halo("white"),
    )
    return note.get_window_extent()


def _halo(color: str) -> list[Any]:
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=3, foreground=color)]


def _align(shift: float, positive: Any, negative: Any) -> Any:
    return "center" if shift == 0 else positive if shift > 0 else negative


def _badness(axes: Axes, text: str, place: Sequence[float], offset: Point, taken: Sequence[Bbox]) -> float:
    """Measure what a label would hide, in square pixels, with a little for its distance."""
    scale = _DPI / 72
    wide, tall = 6.0 * len(text) * scale * 0.93 + 6, 13 * scale
    x, y = place[0] + offset[0] * scale, place[1] + offset[1] * scale
    left = x - {"left": 0.0, "center": wide / 2, "right": wide}[_align(offset[0], "left", "right")]
    low = y - {"bottom": 0.0, "center": tall / 2, "top": tall}[_align(offset[1], "bottom", "top")]
    box = _box(left + wide / 2, low + tall / 2, wide / 2, tall / 2)
    hidden = sum(_overlap(box, other) for other in taken)
    inside = _overlap(box, axes.get_window_extent())
    return hidden + 5 * (wide * tall - inside) + 2 * (abs(offset[0]) + abs(offset[1]))


def _box(x: float, y: float, half_width: float, half_height: float) -> Bbox:
    from matplotlib.transforms import Bbox

    return Bbox.from_extents(x - half_width, y - half_height, x + half_width, y + half_height)


def _overlap(a: Bbox, b: Bbox) -> float:
    wide, tall = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
    return max(0.0, wide) * max(0.0, tall)


# -- learning curves -------------------------------------------------------------------------------------------------


_PANELS = (
    ("reward", "", "reward", 1.0),
    ("accuracy", "dev_accuracy", "accuracy, %", 100.0),
    ("cost_usd", "dev_cost_usd", "cost, US cents a task", 100.0),
    ("latency_s", "dev_latency_s", "latency, seconds a task", 1.0),
)
"""A panel's key in the rows of `metrics.jsonl`, that of its dev figure, its title, and the factor to its unit."""

_SEED_COLORS = (_BLUE, _RED, _GREEN, _ORANGE, _PINK, _SKY, _BLACK)


def draw_learning(
    curves: Mapping[str, Sequence[Mapping[str, Any]]], subtitle: str = "simulated experts"
) -> Figure | None:
    """Draw reward, accuracy, cost and latency against steps; None when there are no rows.

    Args:
        curves: by label, one line each: rows with `step`, `reward`, `accuracy`, `cost_usd`, `latency_s`, and where the
            dev tasks were looked at `dev_accuracy`, `dev_cost_usd`, `dev_latency_s`.
    """
    if not any(curves.values()):
        return None
    figure = _figure(820)
    panels = figure.subplots(2, 2, sharex=True).ravel()
    for axes, (key, dev_key, title, factor) in zip(panels, _PANELS, strict=True):
        for n, rows in enumerate(curves.values()):
            _draw_curve(axes, rows, key, dev_key, factor, _SEED_COLORS[n % len(_SEED_COLORS)])
        axes.set_title(title, fontsize=11, pad=6)
        axes.set_ylim(bottom=0)
        axes.margins(x=0.02)
        axes.grid(True)
    for axes in panels[2:]:
        axes.set_xlabel("optimizer step")
    figure.suptitle(f"Learning curves: {subtitle.split(';')[0]}", x=0.01, ha="left", fontweight="bold", fontsize=12.5)
    _draw_curve_legend(figure, list(curves))
    return figure


def _draw_curve(
    axes: Axes, rows: Sequence[Mapping[str, Any]], key: str, dev_key: str, factor: float, color: str
) -> None:
    steps, values = _series(rows, key, factor)
    axes.plot(steps, values, color=color, alpha=0.25, linewidth=1)
    axes.plot(steps, _smooth(values), color=color, linewidth=1.8)
    dev_steps, dev_values = _series(rows, dev_key, factor)
    axes.plot(dev_steps, dev_values, "o", color=color, markersize=7, markeredgecolor="white", zorder=4)


def _series(rows: Sequence[Mapping[str, Any]], key: str, factor: float) -> tuple[list[int], list[float]]:
    found = [row for row in rows if row.get(key) is not None]
    return [row["step"] for row in found], [row[key] * factor for row in found]


def _smooth(values: Sequence[float], reach: int = 4) -> list[float]:
    """Average each value with its neighbours, `reach` on either side."""
    windows = [values[max(0, n - reach) : n + reach + 1] for n in range(len(values))]
    return [sum(window) / len(window) for window in windows]


def _draw_curve_legend(figure: Figure, labels: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    colored = [
        Line2D([], [], color=_SEED_COLORS[n % len(_SEED_COLORS)], linewidth=2, label=label)
        for n, label in enumerate(labels)
    ]
    dots = Line2D([], [], linestyle="", marker="o", color=_GREY, label="dev tasks, likeliest choices")
    figure.legend(handles=[*colored, dots], loc="outside lower center", ncols=len(labels) + 1, frameon=False)


# -- who is called ---------------------------------------------------------------------------------------------------


_BAR_COLORS = (_BLUE, _ORANGE, _GREEN, _PINK, _SKY, _RED, _YELLOW, _GREY)
_HATCHES = ("", "///", "...")
_BAR_ROLES = ("random", "trained", "oracle")


def draw_calls(report: Mapping[str, Any]) -> Figure | None:
    """Draw the shares of calls per tool and expert as stacked bars; None when nobody called anything."""
    labels = [row["label"] for row in report["rows"] if row["role"] in _BAR_ROLES and report["calls"][row["label"]]]
    if not labels:
        return None
    names = _bar_names([report["calls"][label] for label in labels])
    figure = _figure(230 + 120 * len(labels))
    axes = figure.add_subplot()
    for n, name in enumerate(names):
        _draw_segment(axes, n, name, [report["calls"][label].get(name, 0.0) for label in labels], names, report, labels)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of calls, % (the call that ends a rollout is not counted)")
    axes.set_title(f"Who is called: {_subtitle(report)}")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=9.5)
    return figure


def _bar_names(shares: Sequence[Mapping[str, float]]) -> list[str]:
    """Order names: basic tools first, then by what they take over all bars together."""
    total = {name: sum(share.get(name, 0.0) for share in shares) for share in shares for name in share}
    return sorted(total, key=lambda name: (name not in ("python", "search"), -total[name], name))


def _draw_segment(
    axes: Axes,
    number: int,
    name: str,
    shares: Sequence[float],
    names: Sequence[str],
    report: Mapping[str, Any],
    labels: Sequence[str],
) -> None:
    lefts = [100 * sum(report["calls"][label].get(other, 0.0) for other in names[:number]) for label in labels]
    color = _BAR_COLORS[number % len(_BAR_COLORS)]
    hatch = _HATCHES[number // len(_BAR_COLORS) % len(_HATCHES)]
    widths = [100 * share for share in shares]
    axes.barh(
        range(len(labels)), widths, left=lefts, height=0.62, color=color, hatch=hatch, edgecolor="white", label=name
    )
    for place, (left, width) in enumerate(zip(lefts, widths, strict=True)):
        if width >= 4:
            ink = "white" if color in (_BLUE, _RED, _GREEN) else _INK
            text = axes.text(left + width / 2, place, f"{width:.0f}", ha="center", va="center", color=ink)
            text.set_path_effects(_halo(color))
