"""Models in folders: loading refuses what cannot work, adapters are plain peft folders, export merges them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from families import write_model
from toolorchestra.chat.local import LocalModel
from toolorchestra.chat.template import ChatTemplate
from toolorchestra.cli.main import main
from toolorchestra.configs import PolicyConfig, TrainConfig
from toolorchestra.errors import ConfigError, RunFolderError
from toolorchestra.models.adapter import adapter_size, add_adapter, load_weights, save_weights
from toolorchestra.models.checkup import examine
from toolorchestra.models.export import export_model
from toolorchestra.models.load import check_trainable, load_model
from toolorchestra.models.memory import available_bytes, check_fits, needed_bytes
from toolorchestra.train.engine import TorchEngine
from toolorchestra.types import Sample

IDS = torch.arange(30)[None]
SAMPLES = [
    Sample((5, 6, 7, 8), (False, False, True, True), (0.0, 0.0, -6.0, -6.0), 1.0, 0),
    Sample((5, 6, 9, 10), (False, False, True, True), (0.0, 0.0, -6.0, -6.0), -1.0, 0),
]


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


def adapted(base: Path, seed: int = 0) -> Any:
    """Load a model with an adapter that has learned something."""
    model, _ = load_model(base)
    add_adapter(model, rank=2, alpha=4.0, seed=seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    return model


def saved(base: Path, folder: Path) -> Any:
    model = adapted(base)
    folder.mkdir()
    save_weights(model, folder)
    load_model(base)[1].save_pretrained(folder)
    return model


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_model(tmp_path / "base", "chatml")


# -- adapters ----------------------------------------------------------------------------------------------------


def test_a_new_adapter_changes_nothing_and_is_all_that_trains(base: Path):
    """Width 8, feed-forward 16, rank 2: q, k, v and o 2 (8 + 8) each, gate, up and down 2 (8 + 16) each: 272."""
    model, _ = load_model(base)
    before, whole = logits(model), adapter_size(model, 2)
    add_adapter(model, rank=2, alpha=4.0, seed=0)
    assert torch.equal(logits(model), before)
    trained = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    assert sum(trained.values()) == whole == 272 and all("lora" in name for name in trained)


def test_beside_coarse_weights_an_adapter_is_trained_in_float32_and_comes_back_to_the_bit(base: Path, tmp_path: Path):
    model, tokenizer = load_model(base, dtype="bfloat16")
    add_adapter(model, rank=2, alpha=4.0, seed=0)
    policy = LocalModel(model, ChatTemplate(tokenizer, "base"), "p")
    before = logits(model)
    assert before.dtype == torch.bfloat16
    assert TorchEngine(policy, TrainConfig(weight_decay=0.0)).update(SAMPLES, lr=1e-3)["skipped"] == 0
    assert {(p.dtype, p.requires_grad) for p in model.parameters()} == {(torch.bfloat16, False), (torch.float32, True)}
    assert not torch.equal(logits(model), before)
    (tmp_path / "a").mkdir()
    save_weights(model, tmp_path / "a")
    tokenizer.save_pretrained(tmp_path / "a")
    again, _ = load_model(tmp_path / "a", dtype="bfloat16")
    assert torch.equal(logits(again), logits(model))


def test_an_adapter_is_a_plain_peft_folder(base: Path, tmp_path: Path):
    model = saved(base, tmp_path / "a")
    assert not torch.equal(logits(model), logits(load_model(base)[0]))
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "a")), logits(model))
    assert torch.equal(logits(load_model(tmp_path / "a")[0]), logits(model))
    targets = json.loads((tmp_path / "a" / "adapter_config.json").read_text())["target_modules"]
    assert targets == sorted(targets) and len(targets) == 7  # sets in another order would be other bytes


def test_export_adds_the_scaled_product_to_the_weights(base: Path, tmp_path: Path):
    """W + alpha / rank * B A, with alpha / rank = 2."""
    saved(base, tmp_path / "a")
    export_model(tmp_path / "a", tmp_path / "whole")
    tensors = load_file(tmp_path / "a" / "adapter_model.safetensors")
    name = "model.layers.0.self_attn.q_proj"
    a, b = (tensors[f"base_model.model.{name}.lora_{x}.weight"] for x in "AB")
    old, new = (load_file(f / "model.safetensors")[f"{name}.weight"] for f in (base, tmp_path / "whole"))
    assert torch.allclose(new, old + 2 * b @ a, atol=1e-6) and not torch.allclose(new, old, atol=1e-3)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    assert torch.allclose(logits(whole), logits(load_model(tmp_path / "a")[0]), atol=1e-5)
    assert not any(f.name.startswith("adapter") for f in (tmp_path / "whole").iterdir())


def test_an_adapter_of_another_shape_is_refused(base: Path, tmp_path: Path):
    saved(base, tmp_path / "a")
    other, _ = load_model(base)
    add_adapter(other, rank=3, alpha=4.0, seed=0)
    with pytest.raises(RunFolderError, match="another adapter"):
        load_weights(other, tmp_path / "a")
    with pytest.raises(RunFolderError, match="no adapter"):
        load_weights(other, base)
    with pytest.raises(RunFolderError, match="no whole model"):
        load_weights(load_model(base)[0], tmp_path / "a")


def engine(base: Path, **knobs: float) -> TorchEngine:
    model, tokenizer = load_model(base)
    add_adapter(model, rank=2, alpha=4.0, seed=0)
    config = TrainConfig(weight_decay=0.0, **knobs)  # type: ignore[arg-type]
    return TorchEngine(LocalModel(model, ChatTemplate(tokenizer, "m"), "m"), config)


def test_an_engine_trains_the_adapter_and_continues_to_the_bit(base: Path, tmp_path: Path):
    first, second = engine(base), engine(base)
    before = {n: p.clone() for n, p in first.policy.model.named_parameters()}
    first.update(SAMPLES, lr=1e-2)
    (tmp_path / "c").mkdir()
    first.save(tmp_path / "c")
    second.load(tmp_path / "c")
    for one in (first, second):
        one.update(SAMPLES, lr=1e-2)
    for (name, a), b in zip(first.policy.model.named_parameters(), second.policy.model.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, before[name]) != a.requires_grad


def test_the_start_model_of_the_kl_term_shares_what_is_not_trained(base: Path, tmp_path: Path):
    one = engine(base, kl=0.1)
    (tmp_path / "c").mkdir()
    one.save(tmp_path / "c")
    start = logits(one.policy.model)
    one.imitate(SAMPLES, lr=1e-1)
    one.hold_to(tmp_path / "c")
    assert torch.equal(logits(one.reference), start) and not torch.equal(logits(one.policy.model), start)
    pairs = list(zip(one.policy.model.parameters(), one.reference.parameters(), strict=True))
    assert all((a is b) != a.requires_grad for a, b in pairs)


# -- refusals ----------------------------------------------------------------------------------------------------


def test_memory_is_counted_in_float32(tmp_path: Path):
    """100 weights: 400 bytes; 10 trained ones: gradient, two moments, and a copy for the KL term: 160."""
    assert needed_bytes(100, 0, reference=False) == 400
    assert needed_bytes(100, 10, reference=False) == 520
    assert needed_bytes(100, 10, reference=True) == 560
    assert needed_bytes(100, 10, reference=False, dtype="bfloat16") == 2 * 90 + 4 * 10 * 4  # what is trained: float32
    check_fits("it", 560, 560)
    with pytest.raises(ConfigError, match=r"it needs about 32\.00 GB .* and 24\.00 GB are free"):
        check_fits("it", 32_000_000_000, 24_000_000_000)
    free = available_bytes(tmp_path)
    (tmp_path / "memory.current").write_text("40\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(tmp_path) == pytest.approx(free, rel=0.5)
    (tmp_path / "memory.max").write_text("100\n")
    assert available_bytes(tmp_path) == 60


def test_a_model_larger_than_memory_is_refused_with_numbers(base: Path, capsys: pytest.CaptureFixture[str]):
    """Its config claims layers that nobody could hold; shapes alone are looked at, so nothing is loaded."""
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"intermediate_size": 10**12}))
    with pytest.raises(ConfigError, match=r"needs about 96000\.00 GB"):  # 3 * 8 * 10^12 weights
        load_model(base)
    with pytest.raises(ConfigError, match=r"training .* needs about 3\d{5}\.\d\d GB"):  # four numbers each
        check_trainable(base, lora_rank=0, reference=False)
    capsys.readouterr()
    assert main(["doctor", str(base)]) == 1
    assert "memory" in capsys.readouterr().err


def test_contradicting_vocabularies_are_refused(tmp_path: Path):
    folder = write_model(tmp_path / "few", "chatml", vocabulary=300)
    with pytest.raises(ConfigError, match=r"vocabulary mismatch: the tokenizer knows \d+ tokens, the model 300"):
        load_model(folder)
    folder = write_model(tmp_path / "other", "chatml")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": config["vocab_size"] + 64}))
    with pytest.raises(ConfigError, match="the weights hold"):
        load_model(folder)


def test_weights_that_are_missing_are_not_drawn_at_random(base: Path):
    tensors = load_file(base / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"1 weights are missing, such as model\.layers\.0\.mlp\.up_proj"):
        load_model(base)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("adapter_config.json", "{", "cannot be read"),
        ("adapter_config.json", "{}", "names no base"),
        ("adapter_config.json", '{"base_model_name_or_path": "/none/here"}', "base model is missing"),
        ("adapter_model.safetensors", None, "whole adapter"),
        ("adapter_model.safetensors", "torn", "does not fit its base"),
    ],
)
def test_half_an_adapter_is_refused(base: Path, tmp_path: Path, name: str, text: str | None, why: str):
    saved(base, tmp_path / "a")
    (tmp_path / "a" / name).unlink()
    if text is not None:
        (tmp_path / "a" / name).write_text(text)
    with pytest.raises(ConfigError, match=why):
        load_model(tmp_path / "a")


def test_an_adapter_can_be_examined(base: Path, tmp_path: Path):
    saved(base, tmp_path / "a")
    assert [f.question for f in examine(tmp_path / "a", PolicyConfig()) if f.failed] == []


def test_the_export_command_says_what_it_wrote(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    saved(base, tmp_path / "a")
    capsys.readouterr()
    assert main(["export", str(tmp_path / "a"), str(tmp_path / "whole")]) == 0
    assert "M weights" in capsys.readouterr().out
    before = {f: f.read_bytes() for f in (tmp_path / "whole").iterdir()}
    assert main(["export", str(tmp_path / "a"), str(tmp_path / "whole")]) == 2
    assert "exists already" in capsys.readouterr().err
    assert {f: f.read_bytes() for f in (tmp_path / "whole").iterdir()} == before
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "x")]) == 2
    assert "no checkpoint yet" in capsys.readouterr().err
    (tmp_path / "many" / "seed-1" / "checkpoints").mkdir(parents=True)
    assert main(["export", str(tmp_path / "many"), str(tmp_path / "x")]) == 2
    assert "seed-1" in capsys.readouterr().err and not (tmp_path / "x").exists()
