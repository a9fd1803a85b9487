"""The report: scores in, tables with intervals and an honest verdict on each claim out. Pure functions.

In: contestants, their scores, and what made them. Out: `report.json` as plain data, and `report.md` as text made of it.
Every mean is over evaluation seeds and tasks; the policies of several training seeds are pooled into one row. Invalid
rollouts are counted and left out of means. Ratios are to the best single expert, chosen by its accuracy on these same
tasks, which favours it.
Source: project; the claims have the shape of arXiv 2511.21689, sec. 5.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from toolorchestra.errors import DataError
from toolorchestra.evaluate.evaluation import Contestant, Score
from toolorchestra.evaluate.stats import Interval, bootstrap_difference, bootstrap_mean, bootstrap_ratio

COST_TARGET = 0.30
LATENCY_TARGET = 0.40
SHARE_TARGET = 0.60
USE_TARGET = 0.50
"""How often, of the rollouts where the oracle used a basic tool, the trained policy should use it as well."""

BASIC_TOOLS = ("python", "search")

POOLED = {"trained": "trained policy", "warmup": "warmed-up policy, before RL"}
"""Roles whose contestants, one a training seed, are one row, and that row's label."""

_ORDER = ("idle", "expert", "rule", "random", "warmup", "knn", "trained", "oracle")

Data = dict[str, Any]


@dataclass(frozen=True)
class Header:
    """What a reader must know before the figures.

    Attributes:
        command: the command that made the report.
        training_seeds: one trained policy each.
        policy_parameters: size of the trained policy; None when unknown.
        resamples: bootstrap resamples behind each interval.
        virtual_latency: seconds are charged on a virtual clock from declared latencies, not measured.
    """

    command: str
    training_seeds: tuple[int, ...]
    policy_parameters: int | None = None
    resamples: int = 2000
    virtual_latency: bool = True


class _Row:
    """The scores of one row of the table, as matrices of S seeds x T tasks; NaN where there is no valid score.

    The seeds are those of the evaluation. Where a row pools several trained policies they are those of training, over
    whose evaluation seeds a value is averaged: policies differ more than repeats of one, and the interval must show it.
    """

    def __init__(self, contestant: Contestant, scores: Sequence[Score], tasks: Sequence[str]) -> None:
        self.contestant = contestant
        self.scores = scores
        self._column = {task: t for t, task in enumerate(tasks)}
        self._policies = {name: p for p, name in enumerate(sorted({x.policy for x in scores}))}
        self._seeds = {seed: s for s, seed in enumerate(sorted({x.seed for x in scores}))}
        self.solved_ST = self._fill(lambda x: float(bool(x.solved)))
        self.cost_ST = self._fill(lambda x: x.cost_usd)
        self.latency_ST = self._fill(lambda x: x.latency_s)

    def _fill(self, value: Callable[[Score], float]) -> np.ndarray:
        values_PST = np.full((len(self._policies), len(self._seeds), len(self._column)), np.nan)
        for score in self.scores:
            if score.solved is not None:
                place = self._policies[score.policy], self._seeds[score.seed], self._column[score.task_id]
                values_PST[place] = value(score)
        return values_PST[0] if len(values_PST) == 1 else _mean_over_seeds(values_PST)

    @property
    def accuracy(self) -> float:
        return float(np.nanmean(self.solved_ST)) if np.isfinite(self.solved_ST).any() else math.nan

    @property
    def cost_usd(self) -> float:
        return float(np.nanmean(self.cost_ST)) if np.isfinite(self.cost_ST).any() else math.nan

    @property
    def missing(self) -> int:
        return len(self._policies) * len(self._seeds) * len(self._column) - len(self.scores)


def _mean_over_seeds(values_PST: np.ndarray) -> np.ndarray:
    """Average the valid values over the second axis; NaN where there is none."""
    valid_PST = np.isfinite(values_PST)
    count_PT = valid_PST.sum(axis=1)
    total_PT = np.where(valid_PST, values_PST, 0.0).sum(axis=1)
    return np.divide(total_PT, count_PT, out=np.full(total_PT.shape, np.nan), where=count_PT > 0)


def build_report(contestants: Sequence[Contestant], scores: Sequence[Score], header: Header) -> Data:
    """Make the report as plain data.

    Raises:
        DataError: there are no scores, or a rollout was scored twice.
    """
    _check(scores)
    tasks = sorted({score.task_id for score in scores})
    rows = _rows(contestants, scores, tasks)
    best = _best_expert(rows)
    by_role = {row.contestant.role: row for row in rows}
    trained, oracle = by_role.get("trained"), by_role.get("oracle")
    return {
        "header": _header(header, scores, tasks, trained),
        "best_expert": best.contestant.label if best else None,
        "rows": [_row(row, best, header.resamples) for row in rows],
        "by_training_seed": [
            _row(_Row(c, _of(scores, {c.name}), tasks), best, header.resamples)
            for c in contestants
            if c.role == "trained"
        ],
        "calls": {row.contestant.label: _shares(_call_counts(row.scores)) for row in rows},
        "kinds": _kinds(trained, best, oracle),
        "claims": _claims(trained, best, oracle, header.resamples),
    }


def _check(scores: Sequence[Score]) -> None:
    if not scores:
        raise DataError("there are no scores to report; run `toolorchestra evaluate` first")
    twice = [key for key, count in Counter(score.key for score in scores).items() if count > 1]
    if twice:
        raise DataError(f"policy '{twice[0][0]}', seed {twice[0][1]}, task '{twice[0][2]}' was scored twice")


def _rows(contestants: Sequence[Contestant], scores: Sequence[Score], tasks: Sequence[str]) -> list[_Row]:
    """Make a row for each contestant that has scores, in the table's order; pooled roles make one row each."""
    ordered = sorted(contestants, key=lambda c: _ORDER.index(c.role))
    groups: dict[str, list[Contestant]] = {}
    for contestant in ordered:
        groups.setdefault(POOLED.get(contestant.role, contestant.name), []).append(contestant)
    rows = [(members, _of(scores, {c.name for c in members})) for members in groups.values()]
    return [_Row(_merged(members), mine, tasks) for members, mine in rows if mine]


def _merged(members: Sequence[Contestant]) -> Contestant:
    label = POOLED.get(members[0].role, members[0].label)
    return replace(members[0], label=label)


def _of(scores: Iterable[Score], names: set[str]) -> list[Score]:
    return [score for score in scores if score.policy in names]


def _best_expert(rows: Sequence[_Row]) -> _Row | None:
    """Choose the single expert with the highest accuracy; of equals, the cheaper."""
    experts = [row for row in rows if row.contestant.role == "expert" and not math.isnan(row.accuracy)]
    return max(experts, key=lambda row: (row.accuracy, -row.cost_usd), default=None)


def _header(header: Header, scores: Sequence[Score], tasks: Sequence[str], trained: _Row | None) -> Data:
    return {
        "command": header.command,
        "simulated_experts": any(score.simulated for score in scores),
        "virtual_latency": header.virtual_latency,
        "unpriced": any(score.unpriced for score in scores),
        "tasks": len(tasks),
        "evaluation_seeds": sorted({score.seed for score in scores}),
        "training_seeds": list(header.training_seeds) if trained else [],
        "policy_parameters": header.policy_parameters,
        "resamples": header.resamples,
    }


# -- rows ------------------------------------------------------------------------------------------------------------


def _row(row: _Row, best: _Row | None, resamples: int) -> Data:
    turns = sum(score.turns for score in row.scores)
    return {
        "name": row.contestant.name,
        "role": row.contestant.role,
        "label": row.contestant.label,
        "rollouts": len(row.scores),
        "invalid": sum(score.solved is None for score in row.scores),
        "missing": row.missing,
        "accuracy_percent": _mean(row.solved_ST * 100, resamples),
        "cost_cents": _mean(row.cost_ST * 100, resamples),
        "latency_s": _mean(row.latency_ST, resamples),
        "cost_ratio": _ratio(row.cost_ST, best and best.cost_ST, resamples),
        "latency_ratio": _ratio(row.latency_ST, best and best.latency_ST, resamples),
        "turns": turns / max(1, len(row.scores)),
        "well_formed_share": sum(score.well_formed_turns for score in row.scores) / max(1, turns),
        "stops": dict(sorted(Counter(score.stop for score in row.scores).items())),
    }


def _interval(interval: Interval) -> Data | None:
    """Write an interval as plain data; None where there is no figure, since JSON has no NaN."""
    values = {"mean": interval.mean, "low": interval.low, "high": interval.high}
    return values if all(map(math.isfinite, values.values())) else None


def _mean(values_ST: np.ndarray, resamples: int) -> Data | None:
    return _interval(bootstrap_mean(values_ST, resamples, 0))


def _ratio(top_ST: np.ndarray, bottom_ST: np.ndarray | None, resamples: int) -> Data | None:
    if top_ST is bottom_ST:
        return {"mean": 1.0, "low": 1.0, "high": 1.0}  # the best expert against itself, with the very same luck
    return None if bottom_ST is None else _interval(bootstrap_ratio(top_ST, bottom_ST, resamples, 0))


# -- calls -----------------------------------------------------------------------------------------------------------


def _call_counts(scores: Iterable[Score]) -> Counter[str]:
    """Count calls by tool, and those of experts by model."""
    counts: Counter[str] = Counter()
    for score in scores:
        counts.update(score.calls)
        counts.update(score.calls_by_model)
    return counts


def _expert_counts(scores: Iterable[Score]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for score in scores:
        counts.update(score.calls_by_model)
    return counts


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    """Turn counts into shares of their sum, the largest first."""
    total = sum(counts.values())
    return {name: count / total for name, count in sorted(counts.items(), key=lambda x: (-x[1], x[0]))} if total else {}


def _kinds(trained: _Row | None, best: _Row | None, oracle: _Row | None) -> list[Data]:
    shown = {"trained": trained, "best_expert": best, "oracle": oracle}
    present = [row for row in shown.values() if row]
    kinds = sorted({score.kind for row in present for score in row.scores})
    return [_kind(kind, shown) for kind in kinds]


def _kind(kind: str, shown: Mapping[str, _Row | None]) -> Data:
    of_kind = {who: [s for s in row.scores if s.kind == kind] if row else [] for who, row in shown.items()}
    data: Data = {"kind": kind, "tasks": len({s.task_id for scores in of_kind.values() for s in scores})}
    for who, scores in of_kind.items():
        valid = [s.solved for s in scores if s.solved is not None]
        data[who] = 100 * sum(valid) / len(valid) if valid else None
    for who in ("trained", "oracle"):
        data[f"{who}_most_used"] = next(iter(_shares(_call_counts(of_kind[who])).items()), None)
    return data


# -- claims ----------------------------------------------------------------------------------------------------------


def _claims(trained: _Row | None, best: _Row | None, oracle: _Row | None, resamples: int) -> list[Data]:
    """Judge what the report must show; a claim that cannot be measured neither holds nor fails."""
    if not trained:
        return []
    claims = _headline_claims(trained, best, resamples) if best else []
    if oracle:
        claims += [_use_claim(tool, trained, oracle) for tool in BASIC_TOOLS]
    return [*claims, *_share_claims(trained, oracle)]


def _headline_claims(trained: _Row, best: _Row, resamples: int) -> list[Data]:
    gain = bootstrap_difference(trained.solved_ST * 100, best.solved_ST * 100, resamples, 0)
    cost = _ratio(trained.cost_ST, best.cost_ST, resamples)
    latency = _ratio(trained.latency_ST, best.latency_ST, resamples)
    return [
        _claim(
            "accuracy above the best single expert's, in percentage points", _interval(gain), "> 0", lambda x: x > 0
        ),
        _claim("cost, as a share of the best single expert's", cost, f"<= {COST_TARGET}", lambda x: x <= COST_TARGET),
        _claim(
            "latency, as a share of the best single expert's",
            latency,
            f"<= {LATENCY_TARGET}",
            lambda x: x <= LATENCY_TARGET,
        ),
    ]


def _claim(claim: str, measured: Data | None, target: str, test: Callable[[float], bool]) -> Data:
    """Judge a measured figure: `holds` by its mean, `certain` when both bounds of its interval agree."""
    data: Data = {"claim": claim, "measured": measured, "target": target, "holds": None, "certain": None}
    if measured:
        holds = test(measured["mean"])
        bounds = [test(measured[key]) for key in ("low", "high") if key in measured]
        data |= {"holds": holds, "certain": all(bound == holds for bound in bounds) if bounds else None}
    return data


def _use_claim(tool: str, trained: _Row, oracle: _Row) -> Data:
    """Measure how often the policy calls a basic tool in the rollouts where the oracle does and solves the task."""
    right = {(s.seed, s.task_id) for s in oracle.scores if s.solved and s.calls.get(tool)}
    mine = [bool(s.calls.get(tool)) for s in trained.scores if (s.seed, s.task_id) in right]
    measured = {"mean": sum(mine) / len(mine), "rollouts": len(mine)} if mine else None
    claim = f"share of rollouts that call {tool}, where the oracle finds it the cheapest right way"
    return _claim(claim, measured, f">= {USE_TARGET}", lambda x: x >= USE_TARGET)


def _share_claims(trained: _Row, oracle: _Row | None) -> list[Data]:
    """Compare the largest expert's share, of all calls and of expert calls alone, with the target or the oracle's."""
    return [
        _share_claim("all calls", _call_counts, trained, oracle),
        _share_claim("expert calls", _expert_counts, trained, oracle),
    ]


def _share_claim(
    of: str, counted: Callable[[Iterable[Score]], Counter[str]], trained: _Row, oracle: _Row | None
) -> Data:
    top, share = _top_expert(trained, counted)
    best = _top_expert(oracle, counted)[1] if oracle else None
    allowed = max(SHARE_TARGET, best or 0.0)
    name = f"largest single expert's share of {of}" + (f" ({top})" if top else "")
    target = f"<= {allowed:.2f}" + (" (the oracle's)" if allowed > SHARE_TARGET else "")
    return _claim(name, None if share is None else {"mean": share}, target, lambda x: x <= allowed)


def _top_expert(row: _Row, counted: Callable[[Iterable[Score]], Counter[str]]) -> tuple[str, float | None]:
    """Find the expert that is called most and its share; no share where nothing is called."""
    experts, shares = _expert_counts(row.scores), _shares(counted(row.scores))
    if not shares:
        return "", None
    return next(((name, share) for name, share in shares.items() if name in experts), ("", 0.0))


# -- text ------------------------------------------------------------------------------------------------------------


def render_markdown(report: Data) -> str:
    """Write `report.md`."""
    parts = [
        "# Report",
        _header_text(report),
        "## Who is better, cheaper, faster",
        _main_table(report),
        _notes(report),
        "## What it must show",
        _claims_table(report["claims"]),
        "## Who is called",
        _calls_table(report),
        "## By kind of task",
        _kinds_table(report),
        "## How rollouts end",
        _stops_table(report["rows"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _header_text(report: Data) -> str:
    h = report["header"]
    size = f"{h['policy_parameters']:,} parameters" if h["policy_parameters"] else "size unknown"
    lines = [
        "**Experts are SIMULATED**: answers, tokens and delays are drawn from declared skills; no real model answers."
        if h["simulated_experts"]
        else "",
        "**Latency is virtual**: charged from declared latencies, not measured." if h["virtual_latency"] else "",
        "**Some prices are unknown**: costs are at least what is shown." if h["unpriced"] else "",
        f"Tasks: {h['tasks']}, held out. Evaluation seeds: {_list(h['evaluation_seeds'])}. "
        f"Training seeds: {_list(h['training_seeds'])}. Policy: {size}.",
        f"Brackets hold 95 % intervals, bootstrap over seeds and tasks, {h['resamples']} resamples.",
        f"Made by `{h['command']}`.",
    ]
    return "\n".join(f"- {line}" for line in lines if line)


def _list(values: Sequence[object]) -> str:
    return ", ".join(map(str, values)) or "none"


def _main_table(report: Data) -> str:
    figures = ("accuracy %", "US cents a task", "seconds a task", "cost, % of best", "latency, % of best", "invalid")
    head = ("contestant", *figures)
    rows = [_main_cells(row, bold=row["role"] == "trained") for row in report["rows"]]
    seeds = report["by_training_seed"]
    if len(seeds) > 1:
        rows += [_main_cells(row) for row in seeds]
    return _table(head, rows)


def _main_cells(row: Data, bold: bool = False) -> list[str]:
    figures = (("accuracy_percent", 1, 1), ("cost_cents", 3, 1), ("latency_s", 1, 1))
    ratios = (("cost_ratio", 1, 100), ("latency_ratio", 1, 100))
    cells = [_show(row[key], digits, factor) for key, digits, factor in figures + ratios]
    lost = f"{row['invalid']}" + (f" + {row['missing']} missing" if row["missing"] else "")
    return [f"**{row['label']}**" if bold else row["label"], *cells, lost]


def _show(interval: Data | None, digits: int, factor: float = 1) -> str:
    if not interval:
        return "-"
    mean, low, high = (f"{interval[key] * factor:.{digits}f}" for key in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def _notes(report: Data) -> str:
    best = report["best_expert"]
    lines = [
        f"The best is the expert that is most often right, {best}; it was found on these same tasks, which favours it."
        if best
        else "",
        "An expert alone may be asked in every task; every other row sees the task's own offer of tools and experts.",
        "Experts alone, rules, router and oracle run no language model of their own and so pay nothing for deciding.",
        "The oracle chooses with hindsight, in each task and seed, the cheapest right one of these plans: one expert, "
        "one example program, or a search followed by one expert. Nobody can do so in advance.",
        "Invalid rollouts ended by an error or could not be scored; they are left out of the means.",
    ]
    return "\n".join(f"- {line}" for line in lines if line)


def _claims_table(claims: Sequence[Data]) -> str:
    if not claims:
        return "Nothing was claimed: no trained policy was evaluated."
    return _table(("claim", "measured", "target", "holds"), [_claim_cells(claim) for claim in claims])


def _claim_cells(claim: Data) -> list[str]:
    measured = claim["measured"]
    if measured and "low" in measured:
        shown = _show(measured, 2)
    else:
        shown = f"{measured['mean']:.2f}" if measured else "not measured"
    verdict = {True: "yes", False: "**no**", None: "-"}[claim["holds"]]
    return [claim["claim"], shown, claim["target"], verdict + (", within noise" if claim["certain"] is False else "")]


def _calls_table(report: Data) -> str:
    """Show shares of calls of random play, trained policy and oracle; a call that ends the rollout is not counted."""
    roles = ("random", "trained", "oracle")
    labels = [row["label"] for row in report["rows"] if row["role"] in roles]
    names = dict.fromkeys(name for label in reversed(labels) for name in report["calls"][label])
    rows = [[name, *(f"{report['calls'][label].get(name, 0):.1%}" for label in labels)] for name in names]
    return _table(("tool or expert", *labels), rows) if rows else "No calls."


def _kinds_table(report: Data) -> str:
    head = ("kind", "tasks", "trained %", "best expert %", "oracle %", "trained mostly calls", "oracle mostly calls")
    rows = [
        [
            kind["kind"],
            str(kind["tasks"]),
            *("-" if kind[who] is None else f"{kind[who]:.1f}" for who in ("trained", "best_expert", "oracle")),
            *(_most_used(kind[f"{who}_most_used"]) for who in ("trained", "oracle")),
        ]
        for kind in report["kinds"]
    ]
    return _table(head, rows) if rows else "Nothing to compare."


def _most_used(entry: Sequence[Any] | None) -> str:
    return f"{entry[0]} ({entry[1]:.0%})" if entry else "nothing"


def _stops_table(rows: Sequence[Data]) -> str:
    reasons = sorted({reason for row in rows for reason in row["stops"]})
    head = ("contestant", "turns", "well-formed turns", *reasons)
    body = [
        [
            row["label"],
            f"{row['turns']:.2f}",
            f"{row['well_formed_share']:.1%}",
            *(f"{row['stops'].get(reason, 0) / max(1, row['rollouts']):.1%}" for reason in reasons),
        ]
        for row in rows
    ]
    return _table(head, body)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table: the first column to the left, the rest to the right; a pipe in a cell is escaped."""
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
