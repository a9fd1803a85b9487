"""A new nano: what its weights can do before they have learned anything."""

from pathlib import Path

import pytest
import torch

from toolorchestra.tools.submit import SubmitTool
from toolorchestra.train.nano import NanoShape, build_nano

WORDS = ["one two three four five six seven eight nine ten"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory):
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("nano")
    build_nano(folder, NanoShape(400, 128, 3, 4, 512, 256), WORDS, [SubmitTool().spec], seed=0)
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


def twice(rows: int, half: int, vocabulary: int):
    """Random rows without repeats, each followed by itself."""
    luck = torch.Generator().manual_seed(0)
    once = torch.stack([torch.randperm(vocabulary, generator=luck)[:half] for _ in range(rows)])
    return torch.cat([once, once], dim=1)


def test_two_heads_look_one_and_two_tokens_back(model):
    with torch.no_grad():
        seen_BHQK = model(input_ids=twice(4, 20, 300), output_attentions=True).attentions[0]
    for head, back in enumerate((1, 2)):
        looked = seen_BHQK[:, head].argmax(dim=-1)[:, 5:]
        wanted = torch.arange(5, 40) - back
        assert (looked == wanted).float().mean() > 0.95


def test_what_followed_a_token_before_is_likelier_than_chance(model):
    """Compares what was seen to follow a token with what was seen to follow nothing yet."""
    ids = twice(16, 20, 300)
    with torch.no_grad():
        logprobs = model(input_ids=ids).logits.log_softmax(dim=-1)
    copied = logprobs[:, 20:-1].gather(2, ids[:, 21:, None]).exp().mean()
    first = logprobs[:, :18].gather(2, ids[:, 1:19, None]).exp().mean()
    assert copied > 1.5 * first


def test_every_width_that_a_recipe_may_ask_for_can_be_run(tmp_path: Path):
    from transformers import AutoModelForCausalLM

    for hidden in (32, 64, 96):
        build_nano(tmp_path / str(hidden), NanoShape(400, hidden, 2, 4, 64, 128), WORDS, [SubmitTool().spec], seed=0)
        model = AutoModelForCausalLM.from_pretrained(tmp_path / str(hidden))
        assert torch.isfinite(model(input_ids=torch.tensor([[1, 2, 3]])).logits).all()
