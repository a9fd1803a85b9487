"""Packed groups compute what each sample alone computes: log-probabilities and gradients."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from toolorchestra.train.engine import micro_batches
from toolorchestra.train.pack import Pack, batch_packs, pack_groups, token_logprobs
from toolorchestra.types import Sample


def tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=128,
        )
    )


def sample(group: int, prompt: list[int], *turns: tuple[list[int], list[int]], advantage: float = 1.0) -> Sample:
    """Lay out a prompt, then (sampled, observed) ids for each turn."""
    ids, mask = list(prompt), [False] * len(prompt)
    for said, seen in turns:
        ids += said + seen
        mask += [True] * len(said) + [False] * len(seen)
    return Sample(tuple(ids), tuple(mask), tuple(-0.5 if m else 0.0 for m in mask), advantage, group)


SAMPLES = [
    sample(0, [1, 2, 3, 4], ([5, 6], [7, 8, 9]), ([10], [])),
    sample(0, [1, 2, 3, 4], ([5, 7], [7]), ([11, 12, 13], [])),
    sample(0, [1, 2, 3, 4], ([14], []), advantage=-1.0),
    sample(1, [20, 21], ([22, 23], [])),
    sample(2, [1, 2, 9, 4], ([5, 6], [])),
    sample(2, [1, 2, 3, 4, 5], ([5, 6], [])),  # prompts of a group that agree only in part
]


def plain_logprobs(model: LlamaForCausalLM, one: Sample) -> torch.Tensor:
    """The reference: one sample alone, full logits at every position."""
    ids = torch.tensor([one.token_ids_T])
    logprobs = torch.log_softmax(model(input_ids=ids).logits[0], dim=-1)
    places = [t for t, sampled in enumerate(one.mask_T) if sampled]
    return torch.stack([logprobs[t - 1, one.token_ids_T[t]] for t in places])


def test_packed_log_probabilities_equal_those_of_each_sample_alone():
    model = tiny_model()
    with torch.no_grad():
        packed = token_logprobs(model, batch_packs(pack_groups(SAMPLES)))
        plain = torch.cat([plain_logprobs(model, s) for s in SAMPLES])
    torch.testing.assert_close(packed, plain, rtol=1e-5, atol=1e-6)


def test_packed_gradients_equal_those_of_the_plain_computation():
    packed_model, plain_model = tiny_model(), tiny_model()
    batch = batch_packs(pack_groups(SAMPLES))
    (token_logprobs(packed_model, batch) * batch.advantages_N).sum().backward()
    sum((plain_logprobs(plain_model, s) * s.advantage).sum() for s in SAMPLES).backward()  # type: ignore[union-attr]
    for (name, packed), plain in zip(packed_model.named_parameters(), plain_model.parameters(), strict=True):
        assert packed.grad is not None and plain.grad is not None
        difference = (packed.grad - plain.grad).norm() / plain.grad.norm()
        assert difference < 1e-5, name


def test_the_shared_prompt_stands_once():
    batch = batch_packs(pack_groups(SAMPLES[:3]))
    assert batch.prefix_UP.tolist() == [[1, 2, 3, 4]]
    assert batch.rest_BR.tolist() == [[5, 6, 7, 8, 9, 10], [5, 7, 7, 11, 12, 13], [14, 0, 0, 0, 0, 0]]
    assert batch.targets_N.tolist() == [5, 6, 10, 5, 7, 11, 12, 13, 14]
    assert batch.places_N.tolist() == [0, 1, 5, 0, 1, 3, 4, 5, 0]


def test_only_sampled_tokens_have_a_loss():
    targets = sum(len(batch_packs([p]).targets_N) for p in pack_groups(SAMPLES))
    assert targets == sum(sum(s.mask_T) for s in SAMPLES)


def test_changing_an_observation_after_the_last_sampled_token_changes_no_loss():
    before = sample(0, [1, 2, 3], ([4, 5], [6, 7]))
    after = sample(0, [1, 2, 3], ([4, 5], [8, 9]))
    model = tiny_model()
    with torch.no_grad():
        values = [token_logprobs(model, batch_packs(pack_groups([s]))) for s in (before, after)]
    assert torch.equal(*values)


@pytest.mark.parametrize("count", [1, 3])
def test_micro_batches_keep_every_group(count: int):
    packs = pack_groups(SAMPLES) * count
    parts = micro_batches(packs)
    assert sorted(p.sampled for part in parts for p in part) == sorted(p.sampled for p in packs)


def test_a_micro_batch_counts_prefixes_rests_and_padding():
    """Three pairs, prefix 900 and rest 100, are 3 x 900 + 6 x 100 = 3300 tokens; with a fourth pair 4400 > 4096."""
    packs = [
        Pack((sample(g, [1] * 900, ([4], [6] * 99)), sample(g, [1] * 900, ([5], [6] * 99))), shared=900)
        for g in range(7)
    ]
    assert [len(part) for part in micro_batches(packs)] == [3, 3, 1]
