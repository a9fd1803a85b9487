"""Sampling in this process: exact tokens over turns, the same draw alone and in a batch, batches that wait for all."""

import asyncio
import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    PretrainedConfig,
    Qwen3Config,
)

from families import tokenizer_of
from toolorchestra.chat.local import LocalModel, end_ids_of
from toolorchestra.chat.sampler import Sampler
from toolorchestra.chat.samples import samples_of
from toolorchestra.chat.template import ChatTemplate
from toolorchestra.chat.transcript import Transcript
from toolorchestra.configs import RolloutConfig, TrainConfig
from toolorchestra.environments.qa import QuestionEnvironment
from toolorchestra.errors import ConfigError, ContextFullError
from toolorchestra.models.load import load_model
from toolorchestra.orchestrator import Job, rollout_many
from toolorchestra.pricing import Price
from toolorchestra.protocols import Sampling
from toolorchestra.tools.submit import SubmitTool
from toolorchestra.train.engine import TorchEngine
from toolorchestra.train.nano import NanoShape, build_nano
from toolorchestra.types import Message, Outcome, Sample, Task, Tokens, Trajectory

SUBMIT = SubmitTool()
SHAPE: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 4096,
}
OPENING = (Message("system", "Solve it."), Message("user", "What is 2 + 2? Answer with a number."))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nano")
    texts = ["What is 2 + 2? Answer with a number.", "Call another tool first, or give the answer yourself."] * 20
    build_nano(path, NanoShape(512, 32, 2, 4, 64, 400), texts, [SUBMIT.spec], seed=0)
    return path


@pytest.fixture
def policy(folder: Path) -> LocalModel:
    model, tokenizer = load_model(folder)
    return LocalModel(model, ChatTemplate(tokenizer, "nano"), "nano", Price(0.2, 0.8), 0.01)


def sampling(seed: int = 0, **knobs: float | int | str) -> Sampling:
    return Sampling(**({"max_tokens": 12, "seed": seed} | knobs))  # type: ignore[arg-type]


async def talk(policy: LocalModel, name: str, seed: int, turns: int) -> Trajectory:
    """Hold a conversation in which a user says something after every turn."""
    from toolorchestra.types import Turn

    messages, done = list(OPENING), []
    for number in range(turns):
        completion = await policy.complete(messages, [SUBMIT.spec], sampling(seed, conversation=name))
        messages += [completion.message, Message("tool", f"result {number} 42", tool_call_id="call_0")]
        done.append(Turn(completion))
    return Trajectory(name, Task("t", "k", "?", {}), "nano", tuple(done), "", "answered")


async def talk_together(policy: LocalModel, *turns: int) -> list[Trajectory]:
    """Hold conversations of so many turns each, seated together; each leaves when it is done."""

    async def one(name: str, seed: int, turns: int, seat: AbstractContextManager[None]) -> Trajectory:
        with seat:
            return await talk(policy, name, seed, turns)

    names = "abcdefgh"[: len(turns)]
    seats = [policy.seat(name) for name in names]
    return await asyncio.gather(
        *(one(name, seed, n, seat) for seed, (name, n, seat) in enumerate(zip(names, turns, seats, strict=True), 1))
    )


def plain_logprobs(policy: LocalModel, trajectory: Trajectory) -> torch.Tensor:
    """The reference: one forward pass over the whole conversation, no cache, no batch."""
    (sample,) = samples_of(trajectory, 1.0, 0)
    return sampled_logprobs(policy, sample)


def sampled_logprobs(policy: LocalModel, sample: Sample) -> torch.Tensor:
    ids = torch.tensor([sample.token_ids_T])
    with torch.no_grad():
        logprobs = torch.log_softmax(policy.model(input_ids=ids).logits[0], dim=-1)
    return torch.stack([logprobs[t - 1, ids[0, t]] for t, sampled in enumerate(sample.mask_T) if sampled])


def recorded(trajectory: Trajectory) -> torch.Tensor:
    return torch.tensor([p for t in trajectory.turns if t.completion.tokens for p in t.completion.tokens.logprobs])


def test_recorded_log_probabilities_are_those_of_the_whole_conversation(policy: LocalModel):
    for trajectory in asyncio.run(talk_together(policy, 3, 3)):
        torch.testing.assert_close(recorded(trajectory), plain_logprobs(policy, trajectory), rtol=1e-4, atol=1e-4)


def test_a_conversation_is_sampled_the_same_alone_and_in_a_batch(policy: LocalModel):
    (first,), (second, *_) = (asyncio.run(talk_together(policy, *turns)) for turns in ((3,), (3, 1, 2, 1)))
    assert [t.completion.tokens.sampled_ids for t in first.turns if t.completion.tokens] == [
        t.completion.tokens.sampled_ids for t in second.turns if t.completion.tokens
    ]
    torch.testing.assert_close(recorded(first), recorded(second), rtol=1e-4, atol=1e-4)


def test_every_token_is_read_once_and_a_shared_opening_once_for_all(policy: LocalModel):
    """Four conversations with one opening; nothing is padded, so tokens can be counted."""
    read: list[int] = []
    policy.model.register_forward_pre_hook(
        lambda _, __, inputs: read.append(inputs["input_ids"].numel()), with_kwargs=True
    )
    done = asyncio.run(talk_together(policy, 1, 2, 3, 2))
    turns = [[t.completion.tokens for t in trajectory.turns if t.completion.tokens] for trajectory in done]
    opening = len(turns[0][0].context_ids)
    assert read[0] == opening
    # What is drawn last in a conversation is never read.
    later = sum(len(t.context_ids) + len(t.sampled_ids) for talk in turns for t in talk) - 4 * opening - 4
    assert sum(read) == opening + later
    assert len(read) == max(sum(len(t.sampled_ids) for t in talk) for talk in turns)  # a step is a token for everybody


def test_long_readings_come_in_parts(policy: LocalModel):
    whole = asyncio.run(talk_together(policy, 2, 2, 1))
    policy._sampler = Sampler(policy.model, policy.template.end_ids, step_tok=10)
    for one, other in zip(whole, asyncio.run(talk_together(policy, 2, 2, 1)), strict=True):
        torch.testing.assert_close(recorded(one), recorded(other), rtol=1e-4, atol=1e-4)


def test_nobody_waits_where_a_run_need_not_repeat(folder: Path):
    model, tokenizer = load_model(folder)
    policy = LocalModel(model, ChatTemplate(tokenizer, "nano"), "nano", repeatable=False)

    async def run() -> Trajectory:
        with policy.seat("idle"), policy.seat("a"):
            async with asyncio.timeout(30):
                return await talk(policy, "a", 1, 2)

    assert len(asyncio.run(run()).turns) == 2


def test_a_cancelled_turn_leaves_no_trace(policy: LocalModel):
    async def run() -> tuple[Trajectory, Trajectory]:
        (alone,) = await talk_together(policy, 2)
        seats = policy.seat("a"), policy.seat("b")
        with seats[0]:
            cancelled = asyncio.create_task(talk(policy, "b", 2, 2))
            going = asyncio.create_task(talk(policy, "a", 1, 2))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.sleep(0)
            seats[1].__exit__()
            return alone, await going

    alone, other = asyncio.run(run())
    torch.testing.assert_close(recorded(alone), recorded(other), rtol=1e-4, atol=1e-4)


def test_a_failure_is_told_to_everybody_and_sampling_goes_on_after_it(policy: LocalModel):
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    handle = policy.model.register_forward_pre_hook(fail)

    async def one(name: str) -> None:
        with policy.seat(name):
            await policy.complete(OPENING, [SUBMIT.spec], sampling(conversation=name))

    async def both() -> Sequence[BaseException | None]:
        return await asyncio.gather(one("a"), one("b"), return_exceptions=True)

    assert [str(e) for e in asyncio.run(both())] == ["nano: sampling failed: out of memory"] * 2
    handle.remove()
    assert list(asyncio.run(both())) == [None, None]


def built(policy: LocalModel, said: Message, after: list[Message], ended: bool = True) -> list[int]:
    """Grow a conversation by a turn and what followed it; returns all its ids."""
    transcript = Transcript(policy.template)
    transcript.begin(transcript.prompt(OPENING, [SUBMIT.spec]))
    ids = policy.template.encode_turn(said)
    transcript.end(said, ids if ended else ids[:-1])
    transcript.begin(transcript.prompt([*OPENING, said, *after], [SUBMIT.spec]))
    return transcript.ids


def test_turns_by_extension_equal_the_full_render(policy: LocalModel):
    said = Message("assistant", "Hello there.")
    after = [Message("tool", "42", tool_call_id="call_0"), Message("tool", "43", tool_call_id="call_1")]
    assert built(policy, said, after) == policy.template.opening([*OPENING, said, *after], [SUBMIT.spec])


def test_a_turn_cut_by_the_limit_is_closed_in_the_context(policy: LocalModel):
    said, after = Message("assistant", "Hello"), [Message("user", "go on")]
    assert built(policy, said, after, ended=False) == built(policy, said, after)


def test_temperature_zero_takes_the_likeliest_token_whatever_the_seed(policy: LocalModel):
    async def draw(seed: int) -> tuple[int, ...]:
        completion = await policy.complete(OPENING, [], sampling(seed, temperature=0.0))
        assert completion.tokens is not None
        return completion.tokens.sampled_ids

    assert asyncio.run(draw(1)) == asyncio.run(draw(2))


def test_a_tiny_nucleus_is_the_likeliest_token(policy: LocalModel):
    async def draw(**knobs: float) -> tuple[int, ...]:
        completion = await policy.complete(OPENING, [], sampling(5, **knobs))
        assert completion.tokens is not None
        return completion.tokens.sampled_ids

    assert asyncio.run(draw(top_p=1e-6)) == asyncio.run(draw(temperature=0.0))


def test_usage_bills_the_policys_own_tokens(policy: LocalModel):
    completion = asyncio.run(policy.complete(OPENING, [], sampling()))
    tokens = completion.tokens
    assert tokens is not None
    used = completion.usage
    assert (used.input_tok, used.output_tok) == (len(tokens.context_ids), len(tokens.sampled_ids))
    assert used.cost_usd == pytest.approx((used.input_tok * 0.2 + used.output_tok * 0.8) / 1e6)
    assert used.latency_s == pytest.approx(0.01 * used.output_tok)


def test_a_full_context_is_refused_by_name(policy: LocalModel):
    long = (Message("user", "number " * 500),)
    with pytest.raises(ContextFullError, match="400 tokens"):
        asyncio.run(policy.complete(long, [], sampling()))


def test_a_batch_waits_for_every_seat_and_no_longer(policy: LocalModel):
    async def run() -> tuple[bool, bool]:
        late = policy.seat("late")
        with policy.seat("early"):
            request = asyncio.create_task(policy.complete(OPENING, [], sampling(conversation="early")))
            await asyncio.sleep(0.01)
            waited = not request.done()
            with late:
                pass  # leaves without asking
            await request
            return waited, request.done()

    assert asyncio.run(run()) == (True, True)


def test_rollouts_are_repeated_to_the_byte(policy: LocalModel):
    def environments(task: Task) -> QuestionEnvironment:
        return QuestionEnvironment(task, [SUBMIT], lambda _, answer: Outcome(float("4" in answer)))

    async def run() -> list[Trajectory]:
        jobs = [Job(f"j{i}", Task(f"t{i}", "k", f"What is {i} + 2?", {}), seed=i) for i in range(6)]
        return await rollout_many(jobs, policy, environments, RolloutConfig(turns=3, turn_tok=12))

    assert asyncio.run(run()) == asyncio.run(run())


def test_a_folder_without_a_model_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"config\.json is missing"):
        load_model(tmp_path)


def test_ten_turns_longer_than_the_limit_of_one_are_cut_nowhere():
    policy = other_policy("chatml", "keep")

    async def ten() -> Trajectory:
        with policy.seat("a"):
            return await talk(policy, "a", 1, 10)

    done = asyncio.run(ten())
    (sample,) = samples_of(done, 1.0, 0)
    tokens = [t.completion.tokens for t in done.turns]
    assert sample.token_ids_T == tuple(i for t in tokens if t for i in (*t.context_ids, *t.sampled_ids))
    assert sum(sample.mask_T) == done.usage.output_tok == sum(len(t.sampled_ids) for t in tokens if t) > 12


# -- other families --------------------------------------------------------------------------------


def other_policy(family: str, history: Literal["keep", "split"], end_ids: Sequence[int] = ()) -> LocalModel:
    """Make a model of random weights that speaks as a family does."""
    tokenizer = tokenizer_of(family)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=4096,
    )
    model = LlamaForCausalLM(config)
    return LocalModel(model.eval(), ChatTemplate(tokenizer, family, history, end_ids), family)


@pytest.mark.filterwarnings("ignore:.*rewrites")
@pytest.mark.parametrize("family", ["qwen", "llama", "chatml"])
@pytest.mark.parametrize("history", ["keep", "split"])
def test_recorded_log_probabilities_are_those_of_each_context(family: str, history: Literal["keep", "split"]):
    policy = other_policy(family, history)

    for trajectory in asyncio.run(talk_together(policy, 3, 3)):
        samples = samples_of(trajectory, 1.0, 0)
        found = torch.cat([sampled_logprobs(policy, sample) for sample in samples])
        torch.testing.assert_close(recorded(trajectory), found, rtol=1e-4, atol=1e-4)
        assert sum(sum(s.mask_T) for s in samples) == len(recorded(trajectory))


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(**SHAPE, sliding_window=7),
        Gemma2Config(**SHAPE, sliding_window=9, attn_logit_softcapping=0.5, final_logit_softcapping=0.1),
        Qwen3Config(**SHAPE),
    ],
    ids=lambda config: config.model_type,
)
def test_windows_and_caps_of_a_model_hold_while_it_is_sampled(config: PretrainedConfig):
    torch.manual_seed(0)
    tokenizer = tokenizer_of("chatml")
    config.vocab_size = len(tokenizer)
    model = AutoModelForCausalLM.from_config(config).eval()
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("eager")  # it alone knows of caps
    policy = LocalModel(model, ChatTemplate(tokenizer, "chatml", "keep"), "p")
    for trajectory in asyncio.run(talk_together(policy, 2, 3, 2)):
        (sample,) = samples_of(trajectory, 1.0, 0)
        policy.model = plain
        torch.testing.assert_close(recorded(trajectory), sampled_logprobs(policy, sample), rtol=1e-4, atol=1e-4)


def test_a_context_that_begins_anew_is_drawn_with_other_luck_and_billed_whole():
    policy = other_policy("qwen", "split")

    async def twice() -> list[Tokens]:
        done = []
        with policy.seat("a"):
            for _ in range(2):
                completion = await policy.complete(OPENING, (), sampling(1, conversation="a"))
                assert completion.tokens is not None and completion.usage.cached_tok == 0
                assert completion.usage.input_tok == len(completion.tokens.context_ids)
                done.append(completion.tokens)
        return done

    first, second = asyncio.run(twice())
    assert (first.fresh, second.fresh) == (False, True) and first.context_ids == second.context_ids
    assert first.sampled_ids != second.sampled_ids


def test_samples_of_one_trajectory_are_learned_from_as_they_were_drawn():
    policy = other_policy("llama", "split")

    talks = asyncio.run(talk_together(policy, 3, 3))
    samples = [s for t, a in zip(talks, (1.0, -1.0), strict=True) for s in samples_of(t, a, 0)]
    figures = TorchEngine(policy, TrainConfig()).update(samples, 0.0)
    assert len(samples) > 2 and figures["drift"] < 1e-4 and figures["skipped"] == 0


def test_a_rollout_with_digests_is_a_sample_a_turn():
    policy = other_policy("chatml", "keep")
    task = Task("t", "k", "What is 2 + 2?", {})
    limits = RolloutConfig(turns=3, turn_tok=12, context="digest")

    def environments(task: Task) -> QuestionEnvironment:
        return QuestionEnvironment(task, [SUBMIT], lambda *_: Outcome(0.0))

    jobs = [Job(f"j{i}", task, seed=i) for i in range(2)]
    for done in asyncio.run(rollout_many(jobs, policy, environments, limits)):
        samples = samples_of(done, 1.0, 0)
        assert len(samples) == len(done.turns) == 3
        found = torch.cat([sampled_logprobs(policy, sample) for sample in samples])
        torch.testing.assert_close(recorded(done), found, rtol=1e-4, atol=1e-4)
        assert "Be shorter" in policy.template.decode(samples[1].token_ids_T)  # what failed is told


def test_any_of_several_tokens_ends_a_turn():
    ends = list(range(0, 400, 3))  # so many that random weights draw one soon
    policy = other_policy("qwen", "split", ends)
    reasons = set()
    for seed in range(8):
        completion = asyncio.run(policy.complete(OPENING, (), sampling(seed)))
        assert completion.tokens is not None
        drawn = completion.tokens.sampled_ids
        assert not set(drawn[:-1]) & policy.template.end_ids
        assert (drawn[-1] in policy.template.end_ids) == (completion.finish_reason == "stop")
        reasons.add((completion.finish_reason, drawn[-1] == policy.template.closing_id))
    assert ("stop", False) in reasons


def test_the_models_own_settings_name_the_tokens_that_end_a_turn(folder: Path):
    model, _ = load_model(folder)
    for ids, found in ((None, set()), (2, {2}), ([2, 5], {2, 5})):
        model.generation_config.eos_token_id = ids
        assert end_ids_of(model.generation_config) == found
