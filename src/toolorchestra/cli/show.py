"""What the terminal shows: progress with the figures that matter, and receipts.

In: figures and trajectories. Out: lines on the terminal.
Source: project.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from toolorchestra.pricing import Usage, format_usd
from toolorchestra.types import Trajectory, Turn

STOP_TEXT = {
    "answered": "the policy gave its answer",
    "submitted": "the policy submitted the latest result as its answer",
    "turn_limit": "the limit of turns was reached",
    "token_limit": "the context is full",
    "no_progress": "the policy neither called nor said anything",
    "unknown_tool": "the policy kept calling tools that do not exist",
    "repeated_call": "the policy kept repeating one call",
    "deadline": "the deadline passed",
    "error": "an error ended it",
}


class ProgressView:
    """Progress bars, one a stage, with the latest figures; prints plain lines when the output is no terminal."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=self._console,
            disable=quiet,
        )
        self._stages: dict[str, Any] = {}
        self.prefix = ""

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def __call__(self, stage: str, done: int, total: int, figures: Mapping[str, object]) -> None:
        """Show that `done` of `total` are complete."""
        name, text = self.prefix + stage, figures_text(figures)
        if self._console.is_terminal:
            if name not in self._stages:
                self._stages[name] = self._bars.add_task(name, total=total, figures="")
            self._bars.update(self._stages[name], completed=done, total=total, figures=text)
        elif done == total or done % max(1, total // 10) == 0:
            self._console.print(f"{name} {done}/{total}  {text}", highlight=False)
        for alarm in _list(figures.get("alarms")):
            self._console.print(f"[bold red]collapse alarm[/] step {done}: {alarm}", highlight=False)

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self._console.print(text, highlight=False, markup=False)


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []


def figures_text(figures: Mapping[str, object]) -> str:
    """Write a step's figures: reward, accuracy, cost, latency, and who is called how often."""
    shown = [
        f"{label} {float(value) * factor:.{digits}f}{unit}"
        for key, label, factor, digits, unit in (
            ("reward", "reward", 1, 3, ""),
            ("accuracy", "accuracy", 100, 1, " %"),
            ("cost_usd", "cost", 100, 3, " ¢"),
            ("latency_s", "latency", 1, 1, " s"),
            ("true_moves", "moves explained truly", 100, 0, " %"),
            ("loss", "loss", 1, 3, ""),
        )
        if isinstance(value := figures.get(key), int | float)
    ]
    shares = figures.get("call_share")
    if isinstance(shares, Mapping):
        shown.append(" ".join(f"{name.removeprefix('sim-')} {share:.0%}" for name, share in list(shares.items())[:6]))
    return "  ".join(shown)


def receipt(trajectory: Trajectory) -> Table:
    """Lay out a receipt: every call with its tokens, dollars and seconds, the total, and why it stopped."""
    table = Table(title="receipt", caption=escape(_caption(trajectory)), caption_justify="left")
    for name in ("turn", "call", "tokens in", "tokens out", "USD", "seconds"):
        table.add_column(name, justify="left" if name == "call" else "right", no_wrap=name != "call")
    for number, turn in enumerate(trajectory.turns, 1):
        for label, usage in _lines(turn, trajectory):
            table.add_row(str(number), escape(label), *_cells(usage))
    table.add_section()
    table.add_row("", "total", *_cells(trajectory.usage))
    return table


def _lines(turn: Turn, trajectory: Trajectory) -> list[tuple[str, Usage]]:
    lines = [(f"policy {trajectory.policy}", turn.completion.usage)]
    for o in turn.observations:
        label = f"{o.source} ({_model_of(o.source, trajectory)}, simulated)" if o.simulated else o.source
        lines.append((f"{label}: error" if not o.is_result else label, o.usage))
    return lines


def _model_of(source: str, trajectory: Trajectory) -> str:
    specs = trajectory.task.tools or ()
    return next((e.model for s in specs for e in s.experts if f"{s.name}:{e.alias}" == source), "unknown model")


def _cells(usage: Usage) -> tuple[str, str, str, str]:
    mark = "~" if usage.estimated else ""
    return f"{mark}{usage.input_tok}", f"{mark}{usage.output_tok}", format_usd(usage)[:-4], f"{usage.latency_s:.2f}"


def _caption(trajectory: Trajectory) -> str:
    lines = [f"stopped: {STOP_TEXT[trajectory.stop]}"]
    is_open = not trajectory.task.reference  # nobody expected a score of a user's own question
    if trajectory.error and (trajectory.stop == "error" or not is_open):
        lines.append(f"error: {trajectory.error}")
    if trajectory.simulated:
        lines.append("simulated: expert answers come from the embedded world's simulation")
    lines.append("seconds are charged on a virtual clock from declared latencies; calls of one turn overlap")
    return "\n".join([*lines, *(f"notice: {n}" for n in trajectory.notices)])
