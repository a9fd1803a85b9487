"""The training loop's decisions: who trains, in which order, and what a step without signal does."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from toolorchestra.chat.scripted import Scripted
from toolorchestra.configs import Recipe, RolloutConfig, TrainConfig, WarmupConfig
from toolorchestra.environments.qa import QuestionEnvironment
from toolorchestra.errors import JudgeError, ToolOrchestraError
from toolorchestra.protocols import Sampling
from toolorchestra.records import RunFolder
from toolorchestra.tools.submit import SubmitTool
from toolorchestra.train.loop import Trainer, stable_seed
from toolorchestra.types import Completion, Message, Outcome, Sample, Task, Tokens, ToolSpec, Trajectory

TASKS = [Task(f"t{n}", "sums", f"question {n}", {"gold": "yes"}, tools=(SubmitTool().spec,)) for n in range(6)]


class Talker(Scripted):
    """A policy that says yes or no by its seed, or always the same, and keeps made-up tokens."""

    def __init__(self, always: str = "") -> None:
        super().__init__(lambda messages, tools, sampling: always or ("yes" if sampling.seed % 2 else "no"))
        self.version = 0

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        said = await super().complete(messages, tools, sampling)
        return replace(said, tokens=Tokens((1, 2), (3, 4), (-0.5, -0.5)))


@dataclass
class RecordingEngine:
    """Records what it is given to learn from."""

    policy: Talker
    updates: list[Sequence[Sample]] = field(default_factory=list)

    def update(self, samples: Sequence[Sample], lr: float) -> Mapping[str, float]:
        self.updates.append(samples)
        return {"loss": 0.0}

    def save(self, folder: Path) -> None:
        (folder / "weights").write_text("w")

    def load(self, folder: Path) -> None:
        assert (folder / "weights").read_text() == "w"


def judge(task: Task, answer: str) -> Outcome:
    if answer == "unjudgeable":
        raise JudgeError("no verdict")
    return Outcome(float(answer == task.reference["gold"]))


def trainer(tmp_path: Path, engine: RecordingEngine, **knobs: float) -> Trainer:
    train = replace(TrainConfig(steps=2, batch_tasks=3, group=4, dev_every=0, checkpoint_every=1), **knobs)
    recipe = Recipe(rollout=RolloutConfig(turns=2), warmup=WarmupConfig(drill_steps=0, tasks=0), train=train)
    return Trainer(
        recipe,
        0,
        RunFolder(tmp_path),
        engine,  # type: ignore[arg-type]
        TASKS,
        TASKS,
        lambda task: QuestionEnvironment(task, [SubmitTool()], judge),
        lambda *_: None,
    )


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_a_step_learns_from_groups_that_differ_and_writes_its_logs(tmp_path: Path):
    engine = RecordingEngine(Talker())
    asyncio.run(trainer(tmp_path, engine).run())
    assert len(engine.updates) == 2
    for samples in engine.updates:
        assert all(s.token_ids_T == (1, 2, 3, 4) and s.mask_T == (False, False, True, True) for s in samples)
        assert {s.advantage > 0 for s in samples} == {True, False}
    assert lines(tmp_path / "trajectories.jsonl") == 24 and lines(tmp_path / "metrics.jsonl") == 2


def test_a_step_without_any_signal_ends_normally_and_updates_nothing(tmp_path: Path):
    engine = RecordingEngine(Talker("yes"))
    asyncio.run(trainer(tmp_path, engine).run())
    assert engine.updates == [] and lines(tmp_path / "metrics.jsonl") == 2


def test_trajectories_without_a_verdict_have_no_reward_and_do_not_train(tmp_path: Path):
    engine = RecordingEngine(Talker("unjudgeable"))
    one = trainer(tmp_path, engine)
    groups = asyncio.run(one._rollouts(0))
    assert all(g.rewards_G == (None,) * 4 and g.advantages_G == (None,) * 4 for g in groups)


def test_a_pass_uses_every_task_once(tmp_path: Path):
    one = trainer(tmp_path, RecordingEngine(Talker()))
    passes = [[t.id for step in (0, 1) for t in one._batch(step + 2 * n)] for n in range(2)]
    assert all(sorted(ids) == [t.id for t in TASKS] for ids in passes)
    assert passes[0] != passes[1]


def test_a_group_with_different_tools_is_refused(tmp_path: Path):
    one = trainer(tmp_path, RecordingEngine(Talker()))
    (group, *_) = asyncio.run(one._rollouts(0))
    first, *others = group.trajectories
    odd = replace(first, task=replace(first.task, tools=()))
    with pytest.raises(ToolOrchestraError, match="different tools"):
        one._judge((odd, *others))


def test_when_every_rollout_fails_the_run_says_so(tmp_path: Path):
    engine = RecordingEngine(Talker())
    engine.policy._script = []  # nothing to say: every completion fails
    with pytest.raises(ToolOrchestraError, match="every rollout of the step failed"):
        asyncio.run(trainer(tmp_path, engine).run())


def trained_on(tmp_path: Path, said: str, reason: str = "stop", **knobs: bool) -> bool:
    from toolorchestra.chat.parse import parse_message
    from toolorchestra.pricing import Usage
    from toolorchestra.types import Turn

    completion = Completion(parse_message(said)[0], reason, Usage(), "m")  # type: ignore[arg-type]
    trajectory = Trajectory("r", TASKS[0], "m", (Turn(completion),), "", "turn_limit")
    return trainer(tmp_path, RecordingEngine(Talker()), **knobs)._is_trained_on(trajectory)


def test_the_format_filter_drops_what_cannot_be_read_or_was_cut(tmp_path: Path):
    assert not trained_on(tmp_path, "<tool_call>{oops</tool_call>")
    assert not trained_on(tmp_path, "an answer", reason="length")
    assert trained_on(tmp_path, "<tool_call>{oops</tool_call>", format_filter=False, output_filter=False)


def test_the_output_filter_drops_silence_but_not_a_wrong_call(tmp_path: Path):
    assert not trained_on(tmp_path, "<think>hm</think>")
    assert trained_on(tmp_path, "<think>hm</think>", output_filter=False)
    assert trained_on(tmp_path, '<tool_call>{"name": "nobody"}</tool_call>')  # its reward of 0 teaches


def test_seeds_do_not_depend_on_the_process():
    assert stable_seed(1, "train", 2) == 5109684609802247846
