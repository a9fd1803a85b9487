"""Compare one policy update with TRL's and with the plain one, on the same trajectories, in one run.

All sides get the same model folder and the same group of rollouts, made here. Each step is a process of its own, so
that its memory is its own; the sides take turns, so that a busy machine slows all of them alike. The figures that
count are the ratios. Gradients must agree, else the comparison is refused.
In: nothing. Out: a table, and `benchmarks/results/update.json`.
Source: project; the peer is TRL (https://pypi.org/project/trl), installed by `make bench-update` beside this file.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from floor import least_flop, product_flop_s

HERE = Path(__file__).parent
TRL_PYTHON = HERE / ".venv-trl" / "bin" / "python"
DEADLINE_S = 1800.0
ROLLOUTS, ACTION_TOK, OBSERVATION_TOK = 8, 40, 80
CLIP_LOW, CLIP_HIGH = 0.2, 0.28


@dataclass(frozen=True)
class Case:
    """A model and the size of its rollouts; `micro` rollouts at once is what lets the padded sides fit into memory."""

    model: str
    prompt_tok: int
    turns: int
    micro: int
    dtype: str = "float32"

    @property
    def name(self) -> str:
        """Say what is measured."""
        return f"{self.model}, {self.prompt_tok} prompt tokens, {self.turns} turns, {self.dtype}"


CASES = (
    Case("nano", 600, 3, 8),
    Case("llama-135m", 600, 3, 8),
    Case("llama-135m", 2400, 6, 2),
)


@dataclass
class Side:
    """One way to compute the step, and what its runs have reported."""

    name: str
    command: Sequence[str]
    reports: list[dict[str, float]] = field(default_factory=list)

    def measure(self) -> None:
        """Take one step to warm up and one that counts, in a process that holds the machine's memory alone."""
        done = subprocess.run(
            self.command, cwd=HERE / "peers", input="\n\n", stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S
        )
        if done.returncode:
            raise SystemExit(f"{self.name} ended with exit code {done.returncode}; its last words are above")
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        self.reports.append(json.loads(lines[1]))

    def median_s(self) -> float:
        """Middle of the measured steps."""
        return statistics.median(r["seconds"] for r in self.reports)

    def peak_mb(self) -> float:
        """Most memory that a process has held."""
        return max(r["peak_mb"] for r in self.reports)


def main() -> None:
    """Run the cases and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="measured steps of each side")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of each side")
    parser.add_argument("--only", default="", help="run the cases whose name contains this text")
    options = parser.parse_args()
    results = []
    for case in CASES:
        if options.only in case.name:
            results.append(measure(case, options.rounds, options.threads))
            show(results[-1])
    target = HERE / "results" / "update.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(results, indent=2) + "\n")
    print(f"written: {target.relative_to(HERE.parent)}")


def measure(case: Case, rounds: int, threads: int) -> dict[str, object]:
    """Let all sides take turns on one case."""
    with tempfile.TemporaryDirectory() as place:
        folder = make_model(case.model, Path(place))
        batch = Path(place) / "batch.json"
        batch.write_text(json.dumps(make_batch(case, folder)))
        sides = make_sides(case, folder, batch, threads)
        for number in range(rounds):
            for side in sides:
                print(f"{case.name}: round {number + 1}/{rounds}, {side.name}    ", end="\r", file=sys.stderr)
                side.measure()
        least_s = floor_s(case, folder, threads)
    check_agreement(sides)
    return {
        "case": asdict(case),
        "floor_s": least_s,
        "threads": threads,
        "rounds": rounds,
        "sides": {s.name: {"median_s": s.median_s(), "peak_mb": s.peak_mb(), "reports": s.reports} for s in sides},
    }


def make_sides(case: Case, folder: Path, batch: Path, threads: int) -> list[Side]:
    """List the sides, ours first; a missing peer is said."""
    shared = [str(folder), str(batch)]
    padded = [*shared, str(case.micro), str(threads), case.dtype]
    ours = Side("ours", [sys.executable, "update_ours.py", *shared, str(threads), case.dtype])
    plain = Side("plain", [sys.executable, "update_plain.py", *padded])
    if not TRL_PYTHON.exists():
        print("TRL is not installed, so it is not compared: run `make bench-update`", file=sys.stderr)
        return [ours, plain]
    trl = [str(TRL_PYTHON), "update_trl.py", *padded]
    return [ours, plain, Side("TRL", [*trl, "plain"]), Side("TRL, checkpointing", [*trl, "checkpointing"])]


def make_model(name: str, place: Path) -> Path:
    """Write the model's folder: the bundled nano, or a Llama of the shape of SmolLM2-135M with random weights."""
    from toolorchestra.models.shelf import find_model

    nano = find_model("nano")
    if name == "nano":
        return nano
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    folder = place / name
    LlamaForCausalLM(shape).save_pretrained(folder)
    AutoTokenizer.from_pretrained(nano).save_pretrained(folder)
    return folder


def make_batch(case: Case, folder: Path) -> dict[str, object]:
    """Draw one group: a common prompt, and rollouts whose turns are sampled tokens followed by an observation."""
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    luck = random.Random(0)

    def ids(count: int) -> list[int]:
        return [luck.randrange(vocabulary) for _ in range(count)]

    turn_mask = [1] * ACTION_TOK + [0] * OBSERVATION_TOK
    mask = (turn_mask * case.turns)[:-OBSERVATION_TOK]  # nothing is observed after the last turn
    return {
        "prompt": ids(case.prompt_tok),
        "completions": [ids(len(mask)) for _ in range(ROLLOUTS)],
        "masks": [mask] * ROLLOUTS,
        "advantages": [luck.gauss(0, 1) for _ in range(ROLLOUTS)],
        "logprob": -11.0,
        "clip_low": CLIP_LOW,
        "clip_high": CLIP_HIGH,
    }


def floor_s(case: Case, folder: Path, threads: int) -> float:
    """Compute the seconds that the matrix products of a step take by themselves."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    sampled_tok, rest_tok = case.turns * ACTION_TOK, case.turns * (ACTION_TOK + OBSERVATION_TOK) - OBSERVATION_TOK
    flop = least_flop(config, case.prompt_tok, rest_tok, sampled_tok, ROLLOUTS)
    return flop / product_flop_s(ROLLOUTS * rest_tok, config.hidden_size, config.intermediate_size, threads)


def check_agreement(sides: Sequence[Side]) -> None:
    """Refuse to compare sides that computed different things."""
    ours = sides[0].reports[0]["grad_norm"]
    for side in sides[1:]:
        theirs = side.reports[0]["grad_norm"]
        if abs(theirs - ours) > 0.02 * ours:
            raise SystemExit(f"the gradients differ: norm {ours:.6g} ours, {theirs:.6g} {side.name}")


def show(result: dict) -> None:
    """Print one case."""
    case, sides = Case(**result["case"]), result["sides"]
    print(f"\n{case.name}, {result['threads']} threads, median of {result['rounds']}")
    ours = sides["ours"]
    print(f"  floor                {result['floor_s']:8.2f} s {result['floor_s'] / ours['median_s']:6.2f} times ours")
    for name, side in sides.items():
        print(
            f"  {name:20s} {side['median_s']:8.2f} s {side['median_s'] / ours['median_s']:6.2f} times ours"
            f"   {side['peak_mb']:8.0f} MB {side['peak_mb'] / ours['peak_mb']:6.2f} times ours"
            f"   gradient {side['reports'][0]['grad_norm']:.5g}"
        )


if __name__ == "__main__":
    main()
