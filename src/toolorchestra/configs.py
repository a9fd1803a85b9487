"""Every knob of a recipe, with its unit and its default. A recipe is a TOML file whose tables are these classes.

In: TOML. Out: frozen dataclasses that `assemble` turns into live objects. An unknown key is refused.
Source: project; defaults of the optimizer follow arXiv 2511.21689, sec. 3.3 and the released recipe, except where a
policy a thousand times smaller needs others (said at the knob).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict

from toolorchestra.errors import ConfigError
from toolorchestra.preferences import Preference
from toolorchestra.records import from_mapping, read_toml

Dtype = Literal["float32", "bfloat16"]
"""What numbers are kept and computed in."""


class _Strict:
    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class WorldConfig(_Strict):
    """The tasks and the tools on offer.

    Attributes:
        seed: seed of the tasks and of the simulated experts' luck; not of the policy.
        train_tasks: number of training tasks.
        dev_tasks: number of tasks watched during training.
        test_tasks: number of held-out tasks that the report is about.
        facts_share: share of factual questions among the tasks, 0 to 1; the rest are puzzles.
        experts: TOML file of the expert pool; empty for the bundled simulated one.
        offer_min: fewest experts on offer in a task.
        offer_max: most experts on offer in a task.
        passages: passages that a local search returns.
    """

    seed: int = 0
    train_tasks: int = 3000
    dev_tasks: int = 128
    test_tasks: int = 400
    facts_share: float = 0.3
    experts: str = ""
    offer_min: int = 3
    offer_max: int = 5
    passages: int = 3


BUNDLED, NEW = "nano", "new-nano"
"""Values of `policy.model` that are no folder: the nano that travels with the package, and one made from nothing."""


@dataclass(frozen=True)
class PolicyConfig(_Strict):
    """The policy that is trained.

    Attributes:
        model: `nano` for the bundled small policy, `new-nano` for the same from random weights, a name that
            `toolorchestra model` lists, a hub id (OWNER/NAME), or the folder of a Hugging Face causal language model.
        lora_rank: rank of the LoRA adapter that is trained beside the model's weights; 0 trains the weights themselves.
        lora_alpha: the adapter's update is scaled by lora_alpha / lora_rank.
        dtype: numbers that the model is kept and computed in. `bfloat16` takes half the memory and, on processors that
            know it, half the time; what is trained stays float32, so training in it needs a lora_rank.
        history: what is done where the model's chat template rewrites earlier turns, for example drops their thinking:
            `keep` the tokens that were sampled, or `split`, begin the context anew and train on one sample a part.
        input_usd_per_mtok: US dollars per million input tokens; the paper bills its 8B policy at 0.2.
        output_usd_per_mtok: US dollars per million output tokens.
        latency_s_per_tok: seconds charged per sampled token, on the virtual clock.
        hidden: width of a layer of `new-nano`, a multiple of 32.
        layers: layers of `new-nano`.
        vocab_tok: most tokens in the vocabulary of `new-nano`.
    """

    model: str = "nano"
    lora_rank: int = 0
    lora_alpha: float = 32.0
    dtype: Dtype = "float32"
    history: Literal["keep", "split"] = "keep"
    input_usd_per_mtok: float = 0.2
    output_usd_per_mtok: float = 0.2
    latency_s_per_tok: float = 0.01
    hidden: int = 128
    layers: int = 3
    vocab_tok: int = 2048


@dataclass(frozen=True)
class RolloutConfig(_Strict):
    """Limits of one rollout.

    Attributes:
        turns: most turns of the policy.
        turn_tok: most tokens of one turn of the policy.
        temperature: of the policy's sampling in training; 1 samples from the model itself.
        call_deadline_s: wall-clock seconds after which a tool call is given up.
        deadline_s: wall-clock seconds after which a rollout is given up.
        unknown_tool_streak: so many calls to unknown tools running end the rollout.
        repeated_call_streak: so many identical calls running end the rollout.
        observation_chars: most characters of an observation that the policy reads; head and tail are kept. Experts are
            given all of it.
        context: what the policy is shown: the growing `history`, or a `digest` that is written anew each turn; policies
            made of rules read the history.
        digest_tok: most tokens of a digest, without system text and tools.
    """

    turns: int = 6
    turn_tok: int = 96
    temperature: float = 1.0
    call_deadline_s: float = 60.0
    deadline_s: float = 600.0
    unknown_tool_streak: int = 5
    repeated_call_streak: int = 3
    observation_chars: int = 160
    context: Literal["history", "digest"] = "history"
    digest_tok: int = 1024


@dataclass(frozen=True)
class WarmupConfig(_Strict):
    """Supervised start: drills, then demonstrations of random legal play. The form, not what is good.

    Attributes:
        echo_steps: optimizer steps on copying drills, for `new-nano`; 0 for a model that can read, such as `nano`.
        drill_steps: optimizer steps on reading drills, likewise.
        drill_batch: drills in a step.
        tasks: training tasks to demonstrate.
        demos: demonstrations of each task.
        epochs: passes over the demonstrations.
        batch_tasks: tasks in an optimizer step.
        lr: peak learning rate of AdamW.
        explain: before each move a demonstration thinks: the task's subject, and what the offer says about the move.
    """

    echo_steps: int = 0
    drill_steps: int = 0
    drill_batch: int = 64
    tasks: int = 160
    demos: int = 4
    epochs: int = 1
    batch_tasks: int = 16
    lr: float = 1e-3
    explain: bool = True


@dataclass(frozen=True)
class TrainConfig(_Strict):
    """Group-relative policy optimisation.

    Attributes:
        steps: optimizer steps.
        batch_tasks: tasks in a step (paper: 16).
        group: rollouts of each task (paper: 8).
        minibatches: optimizer updates that share a step's rollouts.
        lr: peak learning rate of AdamW (paper: 1e-6 for 8B parameters; nano needs about a thousand times that).
        weight_decay: of AdamW.
        grad_norm: gradients are scaled down to this norm.
        clip_low: lower clip of the probability ratio.
        clip_high: upper clip of the probability ratio.
        dual_clip: bound on the loss of bad tokens, in multiples of the advantage; 0 for none.
        kl: weight of the distance from the start model; 0 for none.
        advantage_clip: bound on the absolute advantage.
        min_std: homogeneity filter, a group whose rewards vary less has no signal.
        format_filter: drop rollouts with a call that cannot be read or a turn that was cut short.
        output_filter: drop rollouts in which nothing readable was called or said.
        threads: CPU threads; 0 for half of the cores, at least one.
        checkpoint_every: steps between checkpoints.
        dev_every: steps between looks at the dev tasks; 0 for never.
        collapse_share: alarm when one expert takes a larger share of the expert calls, 0 to 1.
        collapse_entropy: alarm when the entropy of the choice of tool falls below, in nats.
        collapse_invalid: alarm when a larger share of turns is malformed, 0 to 1.
    """

    steps: int = 80
    batch_tasks: int = 16
    group: int = 8
    minibatches: int = 1
    lr: float = 5e-4
    weight_decay: float = 0.01
    grad_norm: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 10.0
    kl: float = 0.0
    advantage_clip: float = 3.0
    min_std: float = 0.1
    format_filter: bool = True
    output_filter: bool = True
    threads: int = 0
    checkpoint_every: int = 10
    dev_every: int = 20
    collapse_share: float = 0.9
    collapse_entropy: float = 0.3
    collapse_invalid: float = 0.5


@dataclass(frozen=True)
class EvaluateConfig(_Strict):
    """The report.

    Attributes:
        seeds: seeds of the evaluation; each draws the policy's sampling and the simulated experts' luck anew.
        resamples: bootstrap resamples behind each 95 % interval.
        temperature: of the policy's sampling; 0 takes its likeliest token.
        knn_neighbours: neighbours of the kNN baseline.
        knn_tasks: training tasks on which the kNN baseline is fitted.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    resamples: int = 2000
    temperature: float = 0.0
    knn_neighbours: int = 20
    knn_tasks: int = 600


@dataclass(frozen=True)
class Recipe(_Strict):
    """Everything that makes a run.

    Attributes:
        name: the run's folder is `runs/NAME`.
        seeds: training seeds; each trains a policy of its own, and the report is about all of them.
    """

    name: str = "run"
    seeds: tuple[int, ...] = (0,)
    world: WorldConfig = field(default_factory=WorldConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    preference: Preference = field(default_factory=Preference)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)


def load_recipe(path: Path) -> Recipe:
    """Read and check a recipe.

    Raises:
        ConfigError: names file, key and fix.
    """
    return check_recipe(from_mapping(Recipe, read_toml(path), str(path)), str(path))


def check_recipe(recipe: Recipe, place: str) -> Recipe:
    """Refuse values that no run can use.

    Raises:
        ConfigError: names `place`, the key and the range.
    """
    for key, value, low, high in _ranges(recipe):
        if not low <= value <= high:
            raise ConfigError(f"{place}: {key} = {value} must lie between {low:g} and {high:g}")
    if not recipe.name or "/" in recipe.name or recipe.name.startswith("."):
        raise ConfigError(f"{place}: name = {recipe.name!r} must be a plain folder name")
    if not recipe.seeds or not recipe.evaluate.seeds:
        raise ConfigError(f"{place}: seeds must hold at least one number")
    for seeds in (recipe.seeds, recipe.evaluate.seeds):
        if min(seeds) < 0 or len(set(seeds)) < len(seeds):
            raise ConfigError(f"{place}: seeds = {list(seeds)} must be different numbers of at least 0")
    if recipe.policy.hidden % 32:
        raise ConfigError(f"{place}: policy.hidden = {recipe.policy.hidden} must be a multiple of 32")
    if recipe.policy.dtype != "float32" and not recipe.policy.lora_rank:
        raise ConfigError(f"{place}: policy.dtype = {recipe.policy.dtype!r} needs a policy.lora_rank, such as 16")
    if recipe.world.offer_min > recipe.world.offer_max:
        raise ConfigError(f"{place}: world.offer_min must not be larger than world.offer_max")
    return recipe


def _ranges(recipe: Recipe) -> list[tuple[str, float, float, float]]:
    world, rollout, warmup, train = recipe.world, recipe.rollout, recipe.warmup, recipe.train
    many = 10_000_000
    return [
        ("world.train_tasks", world.train_tasks, 1, many),
        ("world.dev_tasks", world.dev_tasks, 1, many),
        ("world.test_tasks", world.test_tasks, 1, many),
        ("world.facts_share", world.facts_share, 0, 1),
        ("world.offer_min", world.offer_min, 1, 100),
        ("world.passages", world.passages, 1, 50),
        ("policy.lora_rank", recipe.policy.lora_rank, 0, 65_536),
        ("policy.lora_alpha", recipe.policy.lora_alpha, 0, 65_536),
        ("policy.input_usd_per_mtok", recipe.policy.input_usd_per_mtok, 0, 2_000),
        ("policy.output_usd_per_mtok", recipe.policy.output_usd_per_mtok, 0, 2_000),
        ("policy.hidden", recipe.policy.hidden, 32, 65_536),
        ("policy.layers", recipe.policy.layers, 1, 1_000),
        ("policy.vocab_tok", recipe.policy.vocab_tok, 512, many),
        ("policy.latency_s_per_tok", recipe.policy.latency_s_per_tok, 0, 100),
        ("rollout.turns", rollout.turns, 1, 1000),
        ("rollout.turn_tok", rollout.turn_tok, 1, many),
        ("rollout.temperature", rollout.temperature, 0, 10),
        ("rollout.call_deadline_s", rollout.call_deadline_s, 0.001, 86_400),
        ("rollout.deadline_s", rollout.deadline_s, 0.001, 864_000),
        ("rollout.unknown_tool_streak", rollout.unknown_tool_streak, 1, 1000),
        ("rollout.repeated_call_streak", rollout.repeated_call_streak, 2, 1000),
        ("rollout.observation_chars", rollout.observation_chars, 100, many),
        ("rollout.digest_tok", rollout.digest_tok, 64, many),
        ("warmup.echo_steps", warmup.echo_steps, 0, many),
        ("warmup.drill_steps", warmup.drill_steps, 0, many),
        ("warmup.drill_batch", warmup.drill_batch, 1, many),
        ("warmup.tasks", warmup.tasks, 0, many),
        ("warmup.demos", warmup.demos, 1, 1000),
        ("warmup.epochs", warmup.epochs, 0, 1000),
        ("warmup.batch_tasks", warmup.batch_tasks, 1, many),
        ("warmup.lr", warmup.lr, 0, 1),
        ("train.steps", train.steps, 0, many),
        ("train.batch_tasks", train.batch_tasks, 1, world.train_tasks),
        ("train.group", train.group, 2, 10_000),
        ("train.minibatches", train.minibatches, 1, train.batch_tasks),
        ("train.lr", train.lr, 0, 1),
        ("train.clip_low", train.clip_low, 0, 1),
        ("train.clip_high", train.clip_high, 0, 100),
        ("train.dual_clip", train.dual_clip, 0, many),
        ("train.kl", train.kl, 0, many),
        ("train.weight_decay", train.weight_decay, 0, 1),
        ("train.grad_norm", train.grad_norm, 0, many),
        ("train.advantage_clip", train.advantage_clip, 0, many),
        ("train.min_std", train.min_std, 0, many),
        ("train.dev_every", train.dev_every, 0, many),
        ("train.collapse_share", train.collapse_share, 0, 1),
        ("train.collapse_entropy", train.collapse_entropy, 0, 100),
        ("train.collapse_invalid", train.collapse_invalid, 0, 1),
        ("train.threads", train.threads, 0, 1024),
        ("train.checkpoint_every", train.checkpoint_every, 1, many),
        ("evaluate.temperature", recipe.evaluate.temperature, 0, 10),
        ("evaluate.knn_neighbours", recipe.evaluate.knn_neighbours, 1, many),
        ("evaluate.knn_tasks", recipe.evaluate.knn_tasks, 1, many),
        ("evaluate.resamples", recipe.evaluate.resamples, 10, many),
    ]


def show_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as plain data, for `config.json`."""
    from dataclasses import asdict

    return asdict(recipe)
