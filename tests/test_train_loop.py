"""The training loop's decisions: who trains, in which order, and what a step without signal does."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolorchestra.chat.scripted import Script, Scripted
from toolorchestra.configs import Recipe, RolloutConfig, TrainConfig, WarmupConfig
from toolorchestra.environments.qa import QuestionEnvironment
from toolorchestra.errors import JudgeError, ModelError, ToolOrchestraError
from toolorchestra.pricing import Price
from toolorchestra.protocols import Sampling
from toolorchestra.records import RunFolder
from toolorchestra.tools.expert import ExpertTool, expert_spec
from toolorchestra.tools.submit import SubmitTool
from toolorchestra.train.loop import Trainer, stable_seed
from toolorchestra.types import Completion, Expert, Message, Outcome, Sample, Task, Tokens, ToolSpec, Trajectory

TASKS = [Task(f"t{n}", "sums", f"question {n}", {"gold": "yes"}, tools=(SubmitTool().spec,)) for n in range(6)]


class Talker(Scripted):
    """A policy that says yes or no by its seed, or always the same, and keeps made-up tokens."""

    def __init__(self, always: str = "", script: Script | None = None) -> None:
        super().__init__(script or (lambda messages, tools, sampling: always or ("yes", "no")[1 - sampling.seed % 2]))
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


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_step_learns_from_groups_that_differ_and_writes_its_logs(tmp_path: Path):
    engine = RecordingEngine(Talker())
    asyncio.run(trainer(tmp_path, engine).run())
    assert len(engine.updates) == 2
    for samples in engine.updates:
        assert all(s.token_ids_T == (1, 2, 3, 4) and s.mask_T == (False, False, True, True) for s in samples)
        assert {s.advantage > 0 for s in samples} == {True, False}
    assert lines(tmp_path / "trajectories.jsonl") == 24 and lines(tmp_path / "metrics.jsonl") == 2
    assert lines(tmp_path / "timing.jsonl") == 2


class Forgetful(Talker):
    """Says nothing at first, and begins its context anew before it answers."""

    def __init__(self) -> None:
        super().__init__(script=lambda messages, _, sampling: ("yes", "no")[sampling.seed % 2] * (len(messages) > 2))

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        said = await super().complete(messages, tools, sampling)
        return replace(said, tokens=Tokens((1, len(messages)), (3,), (-0.5,), fresh=len(messages) > 2))


def test_a_context_that_was_begun_anew_is_a_sample_of_its_own(tmp_path: Path):
    engine = RecordingEngine(Forgetful())
    asyncio.run(trainer(tmp_path, engine).run())
    assert engine.updates
    for samples in engine.updates:
        first, second = samples[::2], samples[1::2]
        assert {s.token_ids_T for s in first} == {(1, 2, 3)} and {s.token_ids_T for s in second} == {(1, 4, 3)}
        assert [(s.advantage, s.group) for s in first] == [(s.advantage, s.group) for s in second]


def test_a_step_without_any_signal_ends_normally_and_updates_nothing(tmp_path: Path):
    engine = RecordingEngine(Talker("yes"))
    asyncio.run(trainer(tmp_path, engine).run())
    assert engine.updates == [] and lines(tmp_path / "metrics.jsonl") == 2
    for figures in metrics(tmp_path):
        assert (figures["samples"], figures["groups_with_signal"], figures["accuracy"]) == (0, 0, 1)
    assert (tmp_path / "checkpoints" / "step-000002").is_dir()


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
    def fail(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> str:
        raise ModelError("the model is down")

    engine = RecordingEngine(Talker(script=fail))
    with pytest.raises(ToolOrchestraError) as caught:
        asyncio.run(trainer(tmp_path, engine).run())
    said = str(caught.value)
    assert said.startswith("every rollout of the step failed; the first: ") and "the model is down" in said
    assert "\n" not in said and engine.updates == [] and lines(tmp_path / "trajectories.jsonl") == 0


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


@given(st.integers(0, 2**32), st.integers(1, 6))
def test_every_task_is_used_once_before_any_is_used_again(
    tmp_path_factory: pytest.TempPathFactory, seed: int, batch_tasks: int
):
    one = trainer(tmp_path_factory.getbasetemp(), RecordingEngine(Talker()), batch_tasks=batch_tasks)
    one.seed = seed
    drawn = [task.id for step in range(12) for task in one._batch(step)]
    whole = len(drawn) - len(drawn) % len(TASKS)
    for start in range(0, whole, len(TASKS)):
        assert sorted(drawn[start : start + len(TASKS)]) == [t.id for t in TASKS]


def by_place(*said: str) -> Script:
    """A policy that says, in the rollout with number g of every group, the text at place g."""
    return lambda messages, tools, sampling: said[int(sampling.conversation.rpartition("-")[2])]


def test_one_rollout_without_a_verdict_changes_nothing_for_its_siblings(tmp_path: Path):
    engine = RecordingEngine(Talker(script=by_place("yes", "no", "unjudgeable", "no")))
    group = asyncio.run(trainer(tmp_path, engine)._rollouts(0))[0]
    assert group.rewards_G == (1.0, 0.0, None, 0.0)
    assert group.advantages_G[2] is None
    assert group.advantages_G[0] == pytest.approx(2**0.5) and group.advantages_G[1] == pytest.approx(-(2**-0.5))


def test_what_a_filter_drops_is_counted_and_not_learned_from(tmp_path: Path):
    said = by_place("yes", "no", "no<tool_call>{oops</tool_call>", "<think>hm</think>")
    engine = RecordingEngine(Talker(script=said))
    asyncio.run(trainer(tmp_path, engine, steps=1).run())
    (figures,), (samples,) = metrics(tmp_path), engine.updates
    assert (figures["filtered"], figures["samples"]) == (6, 6)  # two of four rollouts of each of three tasks
    assert sorted(s.advantage for s in samples) == pytest.approx([-1.0] * 3 + [1.0] * 3)


def test_without_filters_everything_is_learned_from(tmp_path: Path):
    said = by_place("yes", "no", "no<tool_call>{oops</tool_call>", "<think>hm</think>")
    engine = RecordingEngine(Talker(script=said))
    asyncio.run(trainer(tmp_path, engine, steps=1, format_filter=False, output_filter=False).run())
    assert [len(samples) for samples in engine.updates] == [12]


def test_minibatches_split_a_step_between_groups(tmp_path: Path):
    engine = RecordingEngine(Talker(script=by_place("yes", "no", "yes", "no")))
    asyncio.run(trainer(tmp_path, engine, steps=1, minibatches=2).run())
    assert [sorted({s.group for s in samples}) for samples in engine.updates] == [[0, 1], [2]]
    assert [len(samples) for samples in engine.updates] == [8, 4]


def test_a_finished_run_that_is_run_again_changes_nothing(tmp_path: Path):
    asyncio.run(trainer(tmp_path, RecordingEngine(Talker())).run())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    again = RecordingEngine(Talker())
    asyncio.run(trainer(tmp_path, again).run())
    assert again.updates == [] and before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}


def test_a_run_goes_on_after_its_latest_checkpoint(tmp_path: Path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder, stages in ((whole, (4,)), (parts, (2, 4))):
        folder.mkdir()
        for steps in stages:
            asyncio.run(trainer(folder, RecordingEngine(Talker()), steps=steps, lr=0.0).run())
    assert (parts / "trajectories.jsonl").read_bytes() == (whole / "trajectories.jsonl").read_bytes()
    assert [figures["step"] for figures in metrics(parts)] == [1, 2, 3, 4]


def test_the_dev_tasks_are_looked_at_when_due_and_at_the_end(tmp_path: Path):
    asyncio.run(trainer(tmp_path, RecordingEngine(Talker()), steps=3, dev_every=2).run())
    assert ["dev_accuracy" in figures for figures in metrics(tmp_path)] == [False, True, True]


def test_a_policy_that_only_ever_calls_one_expert_sets_off_the_alarm(tmp_path: Path):
    experts = (Expert("amber", "m1", Price(1, 1), "", 1.0), Expert("basil", "m2", Price(1, 1), "", 1.0))
    models = {name: Scripted(["yes"], repeat=True) for name in ("m1", "m2")}
    asking = Talker('<tool_call>{"name": "ask", "arguments": {"expert": "amber"}}</tool_call>')
    one = trainer(tmp_path, RecordingEngine(asking), steps=1)
    one.train_tasks = [replace(task, tools=(expert_spec(experts),)) for task in TASKS]
    one.environments = lambda task: QuestionEnvironment(task, [ExpertTool(experts, models)], judge)
    asyncio.run(one.run())
    (figures,) = metrics(tmp_path)
    assert figures["call_share"] == {"m1": 1.0} and figures["alarms"]
