"""Packed groups compute what each sample alone computes: log-probabilities and gradients."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MptConfig,
    MptForCausalLM,
)

from toolorchestra.chat.attention import Block, install
from toolorchestra.errors import ModelError
from toolorchestra.train.pack import Prompts, micro_batches, pack_groups, token_logprobs
from toolorchestra.types import Sample

ALL = 10**9
SHAPE: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 256,
}


def tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE))
    install(model)
    return model


def sample(group: int, prompt: list[int], *turns: tuple[list[int], list[int]], advantage: float = 1.0) -> Sample:
    """Lay out a prompt, then (sampled, observed) ids for each turn."""
    ids, mask = list(prompt), [False] * len(prompt)
    for said, seen in turns:
        ids += said + seen
        mask += [True] * len(said) + [False] * len(seen)
    return Sample(tuple(ids), tuple(mask), tuple(-0.5 if m else 0.0 for m in mask), advantage, group)


LONG = list(range(20, 48))
SAMPLES = [
    sample(0, [1, 2, 3, 4], ([5, 6], [7, 8, 9]), ([10], [])),
    sample(0, [1, 2, 3, 4], ([5, 7], [7]), ([11, 12, 13], [])),
    sample(0, [1, 2, 3, 4], ([14], []), advantage=-1.0),
    sample(1, [20, 21], ([22, 23], [])),
    sample(2, [1, 2, 9, 4], ([5, 6], [])),
    sample(2, [1, 2, 3, 4, 5], ([5, 6], [])),  # prompts of a group that agree only in part
    sample(3, [7], ([5], [])),
    sample(3, [8], ([5, 6], [])),  # prompts of a group that agree in nothing
    # A common first turn; then two go on alike, for a while; one ends where the others go on.
    sample(4, [1, 2, 3], (LONG, [1, 2]), ([9, 9], LONG), ([3], [])),
    sample(4, [1, 2, 3], (LONG, [1, 2]), ([9, 9], LONG), ([4, 5], [6]), advantage=-2.0),
    sample(4, [1, 2, 3], (LONG, [1, 2]), ([8], []), advantage=0.5),
    sample(4, [1, 2, 3], (LONG, []), advantage=0.25),
    sample(4, [1, 2, 3], (LONG, []), advantage=3.0),
]


def plain_logprobs(model: Any, one: Sample) -> torch.Tensor:
    """The reference: one sample alone, full logits at every position."""
    ids = torch.tensor([one.token_ids_T])
    logprobs = torch.log_softmax(model(input_ids=ids).logits[0], dim=-1)
    places = [t for t, sampled in enumerate(one.mask_T) if sampled]
    return torch.stack([logprobs[t - 1, one.token_ids_T[t]] for t in places])


def plain_loss(model: Any, samples: Sequence[Sample]) -> torch.Tensor:
    return torch.stack([(plain_logprobs(model, s) * s.advantage).sum() for s in samples]).sum()


def packed_backward(model: Any, samples: Sequence[Sample], most_tok: int) -> tuple[float, int]:
    """Compute the same loss in chunks; returns it and the number of chunks."""
    loss, chunks = 0.0, 0
    for batch in micro_batches(pack_groups(samples), most_tok):
        prompts = Prompts(model, batch.prompts)
        prompts.cut()
        for chunk in batch.chunks:
            part = (token_logprobs(model, prompts, chunk) * chunk.advantages_N).sum()
            part.backward()
            loss, chunks = loss + float(part.detach()), chunks + 1
        prompts.backward()
    return loss, chunks


def check_against_plain(make: Any, samples: Sequence[Sample], most_tok: int = ALL) -> int:
    """Compare loss and gradients; returns the number of chunks."""
    packed, plain = make(), make()
    loss, chunks = packed_backward(packed, samples, most_tok)
    expected = plain_loss(plain, samples)
    expected.backward()
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5, abs=1e-5)
    scale = max(float(p.grad.norm()) for p in plain.parameters() if p.grad is not None)
    for (name, mine), other in zip(packed.named_parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None and other.grad is not None
        size = max(float(other.grad.norm()), 1e-3 * scale)  # a gradient of nearly 0 is all rounding
        assert float((mine.grad - other.grad).norm()) <= 1e-5 * size, name
    return chunks


def test_packed_log_probabilities_equal_those_of_each_sample_alone():
    model = tiny_model()
    with torch.no_grad():
        for one in SAMPLES:
            (batch,) = micro_batches(pack_groups([one]), ALL)
            packed = token_logprobs(model, Prompts(model, batch.prompts), batch.chunks[0])
            torch.testing.assert_close(packed, plain_logprobs(model, one), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("most_tok", [ALL, 60, 20])
def test_packed_gradients_equal_those_of_the_plain_computation(most_tok: int):
    chunks = check_against_plain(tiny_model, SAMPLES, most_tok)
    assert (chunks == 1) == (most_tok == ALL)


def short_window() -> MistralForCausalLM:
    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=7))
    install(model)
    return model


def capped_scores() -> Gemma2ForCausalLM:
    """Windows in every second layer; scores and logits that are capped."""
    torch.manual_seed(0)
    config = Gemma2Config(**SHAPE, sliding_window=9, attn_logit_softcapping=0.5, final_logit_softcapping=0.1)
    model = Gemma2ForCausalLM(config)
    # The model's own attention knows the cap only when it is computed step by step.
    model.set_attn_implementation("eager")
    return model


def test_layers_that_look_back_only_so_far_are_right_too():
    check_against_plain(short_window, SAMPLES)


def test_scores_that_are_capped_are_right_too():
    packed, plain = capped_scores(), capped_scores()
    install(packed)
    loss, _ = packed_backward(packed, SAMPLES, ALL)
    expected = plain_loss(plain, SAMPLES)
    expected.backward()
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    for (name, mine), other in zip(packed.named_parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None and other.grad is not None
        assert float((mine.grad - other.grad).norm()) < 1e-4 * max(1.0, float(other.grad.norm())), name


def test_a_model_that_keeps_its_attention_to_itself_is_refused():
    with pytest.raises(ModelError, match="MptForCausalLM: only models whose every layer"):
        install(MptForCausalLM(MptConfig(d_model=16, n_heads=2, n_layers=1, vocab_size=50)))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_group_computes_what_its_samples_compute_alone(data: st.DataObject):
    """Few different ids and copied beginnings, so that samples agree for stretches of any length."""
    luck = data.draw(st.randoms(use_true_random=False))
    common = [luck.randrange(3) for _ in range(80)]
    samples = []
    for _ in range(data.draw(st.integers(1, 6))):
        alike, more = luck.randrange(80), luck.randrange(30)
        ids = [1, *common[:alike], *(luck.randrange(50) for _ in range(more + 1))]
        mask = [False] + [luck.random() < 0.5 for _ in ids[1:]]
        mask[luck.randrange(1, len(ids))] = True
        samples.append(Sample(tuple(ids), tuple(mask), tuple(-0.5 for _ in ids), luck.uniform(-1, 1), 0))
    check_against_plain(tiny_model, samples, data.draw(st.sampled_from([ALL, 60])))


def test_what_a_group_has_in_common_stands_once():
    first, *_, last = pack_groups(SAMPLES)
    assert first.prompt == (1, 2, 3)  # the 4 predicts the first sampled token
    assert [b.ids for b in first.branches] == [[4, 5, 6, 7, 8, 9], [4, 5, 7, 7, 11, 12], [4]]
    assert [b.targets for b in first.branches] == [[5, 6, 10], [5, 7, 11, 12, 13], [14]]
    assert [b.predicted_at for b in first.branches] == [[0, 1, 5], [0, 1, 3, 4, 5], [0]]
    (branch,) = last.branches  # 28 ids predict the 28 of the first turn, with which two samples end
    alike, alone, other = [47, 1, 2, 9, 9, *LONG], [4], [47, 1, 2]  # three ids are too few to be shared
    assert branch.ids == [3, *LONG[:27], *alike, *alone, *other]
    assert branch.blocks == [
        Block((0, 28), (0, 28), causal=True),
        Block((28, 61), (28, 61), causal=True),
        Block((61, 62), (61, 62), causal=True),
        Block((61, 62), (28, 61)),
        Block((62, 65), (62, 65), causal=True),
        Block((28, 65), (0, 28)),
    ]


def test_nothing_is_computed_that_leads_to_no_sampled_token():
    """Of the last turn all but its last id is read, and no observation after it."""
    (pack,) = pack_groups([sample(0, [1, 2, 3], ([4, 5, 6], [7, 8, 9]))])
    assert pack.tokens == 5 and pack.sampled == 3


def test_changing_an_observation_after_the_last_sampled_token_changes_no_loss():
    before, after = (sample(0, [1, 2, 3], ([4, 5], seen)) for seen in ([6, 7], [8, 9]))
    assert pack_groups([before]) == pack_groups([after])


@pytest.mark.parametrize("most_tok", [1, 10, 50, ALL])
def test_micro_batches_keep_every_sampled_token(most_tok: int):
    batches = micro_batches(pack_groups(SAMPLES), most_tok)
    found = sum(len(chunk.targets_N) for batch in batches for chunk in batch.chunks)
    assert found == sum(sum(s.mask_T) for s in SAMPLES)


def test_micro_batches_hold_as_many_groups_as_have_room():
    """Seven groups of 899 + 2 x 99 tokens, 1097 each: three have room in 4096."""
    samples = [sample(g, [1] * 900, ([said] * 99, [])) for g in range(7) for said in (4, 5)]
    assert [len(b.prompts) for b in micro_batches(pack_groups(samples), 4096)] == [3, 3, 1]


def test_the_branches_of_a_large_group_come_in_chunks():
    """A prompt of 899 leaves room for two branches of 99 in 1100."""
    samples = [sample(0, [1] * 900, ([said] * 99, [])) for said in range(2, 7)]
    (batch,) = micro_batches(pack_groups(samples), 1100)
    assert [len(chunk.ids_R) for chunk in batch.chunks] == [198, 198, 99]
