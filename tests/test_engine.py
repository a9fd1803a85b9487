"""The torch engine: it learns what it is told, holds to its start model, and continues from what it saved."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from toolorchestra.chat.local import LocalModel
from toolorchestra.chat.template import ChatTemplate
from toolorchestra.configs import TrainConfig
from toolorchestra.errors import RunFolderError
from toolorchestra.models.load import load_model
from toolorchestra.tools.submit import SubmitTool
from toolorchestra.train.engine import TorchEngine
from toolorchestra.train.nano import NanoShape, build_nano
from toolorchestra.train.pack import Prompts, micro_batches, pack_groups, token_logprobs
from toolorchestra.types import Sample

MASK = (False, False, True, True)


def make(folder: Path, hidden: int = 32, **knobs: float) -> TorchEngine:
    if not (folder / "config.json").exists():
        build_nano(folder, NanoShape(400, hidden, 1, 4, 64, 128), ["one two three"], [SubmitTool().spec], seed=0)
    model, tokenizer = load_model(folder)
    policy = LocalModel(model, ChatTemplate(tokenizer, "nano"), "nano")
    return TorchEngine(policy, replace(TrainConfig(weight_decay=0.0), **knobs))  # type: ignore[arg-type]


def logprobs(engine: TorchEngine, samples: list[Sample]) -> torch.Tensor:
    (batch,) = micro_batches(pack_groups(samples), 1000)
    with torch.no_grad():
        return token_logprobs(engine.policy.model, Prompts(engine.policy.model, batch.prompts), batch.chunks[0])


def on_policy(engine: TorchEngine) -> list[Sample]:
    """Make a good and a bad sample whose old log-probabilities are the model's own."""
    bare = [Sample((5, 6, 7, 8), MASK, (0.0,) * 4, 1.0, 0), Sample((5, 6, 9, 10), MASK, (0.0,) * 4, -1.0, 0)]
    old = logprobs(engine, bare).tolist()
    return [replace(s, logprobs_T=(0.0, 0.0, *old[2 * n : 2 * n + 2])) for n, s in enumerate(bare)]


def test_a_step_raises_the_good_and_lowers_the_bad(tmp_path: Path):
    engine = make(tmp_path)
    samples = on_policy(engine)
    before = logprobs(engine, samples)
    figures = engine.update(samples, lr=1e-3)
    change = logprobs(engine, samples) - before
    assert change[:2].sum() > 0 > change[2:].sum()
    assert figures["drift"] < 1e-5 and figures["tokens"] == 4 and figures["loss"] == pytest.approx(0.0, abs=1e-5)


def test_imitation_raises_what_is_marked(tmp_path: Path):
    engine = make(tmp_path)
    samples = [Sample((5, 6, 7, 8), MASK, (0.0,) * 4, 1.0, 0)]
    before = logprobs(engine, samples)
    assert engine.imitate(samples, lr=1e-3)["loss"] == pytest.approx(-float(before.mean()), rel=1e-4)
    assert (logprobs(engine, samples) > before).all()


def test_the_kl_term_pulls_back_to_the_start_model(tmp_path: Path):
    """With no advantage there is only the KL term: 0 at the start model, then (logp - logp_ref)^2 / 2."""
    engine = make(tmp_path / "m", kl=2.0)
    (tmp_path / "start").mkdir()
    engine.save(tmp_path / "start")
    engine.hold_to(tmp_path / "start")
    samples = on_policy(engine)
    start = logprobs(engine, samples)
    engine.imitate(samples, lr=1e-2)
    away = logprobs(engine, samples) - start
    still = [replace(s, advantage=0.0) for s in samples]
    assert engine.update(still, lr=1e-3)["loss"] == pytest.approx(float((away**2).mean()), rel=1e-4)
    assert (logprobs(engine, samples) - start).norm() < away.norm()


def test_a_saved_engine_continues_to_the_bit(tmp_path: Path):
    first, second = make(tmp_path / "m"), make(tmp_path / "m")
    samples = on_policy(first)
    first.update(samples, lr=1e-3)
    (tmp_path / "c").mkdir()
    first.save(tmp_path / "c")
    second.load(tmp_path / "c")
    for engine in (first, second):
        engine.update(samples, lr=1e-3)
    pairs = zip(first.policy.model.parameters(), second.policy.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_step_that_is_no_number_changes_nothing(tmp_path: Path):
    engine = make(tmp_path)
    samples = [replace(s, advantage=float("nan")) for s in on_policy(engine)]
    before = [p.clone() for p in engine.policy.model.parameters()]
    assert engine.update(samples, lr=1e-3)["skipped"] == 1.0
    assert all(torch.equal(a, b) for a, b in zip(before, engine.policy.model.parameters(), strict=True))


def test_another_models_folder_is_refused(tmp_path: Path):
    small, other = make(tmp_path / "a"), make(tmp_path / "b")
    (tmp_path / "c").mkdir()
    other.policy.model.register_parameter("extra", torch.nn.Parameter(torch.zeros(1)))
    other.save(tmp_path / "c")
    with pytest.raises(RunFolderError, match="extra"):
        small.load(tmp_path / "c")
