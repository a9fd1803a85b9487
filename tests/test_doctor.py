"""`toolorchestra doctor`: what can be used passes, what cannot is told with what to change, and nonsense is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from families import CHATML, FORGETFUL, tokenizer_of, write_model
from toolorchestra.assemble import build_policy
from toolorchestra.chat.template import History
from toolorchestra.cli.main import main
from toolorchestra.configs import PolicyConfig, Recipe
from toolorchestra.errors import ConfigError
from toolorchestra.models.checkup import Finding, examine

pytestmark = pytest.mark.filterwarnings("error:.*rewrites")  # a finding says it


def said(findings: list[Finding]) -> dict[str, str]:
    assert all(f.fix for f in findings if f.failed)
    return {f.question: f.verdict for f in findings}


def test_nano_passes(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "nano"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    questions = ("chat template", "family", "round trip", "separators", "history", "end of turn", "context", "price")
    assert all(question in shown for question in (*questions, "vocabulary", "2048 tokens", "0.2/0.2"))
    assert "FAIL" not in shown and "note" not in shown


@pytest.mark.parametrize(
    ("family", "form", "notes"),
    [("qwen", "Hermes", {"history"}), ("llama", "bare JSON", {"history"}), ("chatml", "Hermes", set()),
     ("thinking", "Hermes", set())],
)  # fmt: skip
def test_other_families_pass(tmp_path: Path, family: str, form: str, notes: set[str]):
    findings = examine(write_model(tmp_path, family), PolicyConfig())
    verdicts = said(findings)
    assert {question for question, verdict in verdicts.items() if verdict != "ok"} == notes
    assert any(f.question == "family" and form in f.found for f in findings)


def test_a_template_that_opens_thinking_and_drops_it_passes(tmp_path: Path):
    verdicts = said(examine(write_model(tmp_path, "thinking", FORGETFUL), PolicyConfig()))
    assert {question for question, verdict in verdicts.items() if verdict != "ok"} == {"history"}


def test_what_is_rewritten_is_told_with_the_rule_that_is_meant(tmp_path: Path):
    rules: tuple[History, ...] = ("keep", "split")
    for rule, other in zip(rules, rules[::-1], strict=True):
        findings = examine(write_model(tmp_path, "qwen"), PolicyConfig(history=rule))
        (history,) = [f for f in findings if f.question == "history"]
        assert f"'{rule}'" in history.found and f"'{other}'" in history.fix and "thinking" in history.found


def test_all_tokens_that_end_a_turn_are_listed(tmp_path: Path):
    tokenizer = tokenizer_of("llama")
    ends = tokenizer.convert_tokens_to_ids(["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"])
    findings = examine(write_model(tmp_path, "llama", ends=ends), PolicyConfig())
    (finding,) = [f for f in findings if f.question == "end of turn"]
    assert finding.verdict == "ok" and all(f"({i})" in finding.found for i in ends)
    policy = build_policy(Recipe(policy=PolicyConfig(history="split")), tmp_path, "p")
    assert policy.template.end_ids == set(ends) and policy.template.history == "split"


@pytest.mark.parametrize(
    ("changes", "question", "fix"),
    [
        ({"template": CHATML.replace("<|im_end|>", "")}, "chat template", "no special token"),
        (
            {"template": CHATML.replace("m.content", "(m.tool_calls or '') | string + m.content")},
            "chat template",
            "known",
        ),
        ({"context_tok": 256}, "context", "at least 1024 tokens"),
        ({"vocabulary": 300}, "vocabulary", "no embedding"),
    ],
)
def test_a_failure_is_told_with_what_to_change(tmp_path: Path, changes: dict[str, Any], question: str, fix: str):
    findings = examine(write_model(tmp_path, "chatml", **changes), PolicyConfig())
    assert [(f.question, fix in f.fix) for f in findings if f.failed] == [(question, True)]


def test_a_failure_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = write_model(tmp_path / "model", "chatml", context_tok=256)
    capsys.readouterr()  # writing it shows progress
    (tmp_path / "free.toml").write_text("[policy]\ninput_usd_per_mtok = 0.0\n")
    assert main(["doctor", str(folder), "--recipe", str(tmp_path / "free.toml")]) == 1
    shown = capsys.readouterr()
    assert "context, price failed" in shown.err and shown.err.count("\n") == 1
    assert shown.out.count("FAIL") == 2 and "policy.input_usd_per_mtok" in " ".join(shown.out.split())


def test_weights_of_another_model_are_seen(tmp_path: Path):
    write_model(tmp_path, "chatml")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": config["vocab_size"] + 64}))
    assert said(examine(tmp_path, PolicyConfig()))["vocabulary"] == "FAIL"


def empty(folder: Path) -> None:
    folder.mkdir()


def without(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (write_model(folder, "chatml") / name).unlink()

    return make


def torn(folder: Path) -> None:
    (write_model(folder, "chatml") / "model.safetensors").write_bytes(b"torn")


def unreadable(folder: Path) -> None:
    (write_model(folder, "chatml") / "config.json").write_text("{")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda _: None, "there is no model"),
        (empty, "config.json is missing"),
        (without("config.json"), "config.json is missing"),
        (without("model.safetensors"), "no weights here"),
        (without("tokenizer.json"), "cannot be loaded"),
        (lambda folder: write_model(folder, "chatml", template=None), "no chat template"),
        (torn, "cannot be read"),
        (unreadable, "cannot be loaded"),
    ],
)
def test_a_folder_that_is_no_model_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None], why: str
):
    make(tmp_path / "model")
    capsys.readouterr()  # making it shows progress
    assert main(["doctor", str(tmp_path / "model")]) == 2
    shown = capsys.readouterr()
    assert why in shown.err and shown.err.count("\n") == 1 and shown.out == ""


@pytest.mark.parametrize(("words", "why"), [(["new-nano"], "when a run starts"), ([], "POLICY"), (["a", "b"], "b")])
def test_what_cannot_be_examined_is_refused(capsys: pytest.CaptureFixture[str], words: list[str], why: str):
    assert main(["doctor", *words]) == 2
    shown = capsys.readouterr()
    assert why in shown.err and shown.err.count("\n") == 1


def test_nothing_is_swallowed(tmp_path: Path):
    with pytest.raises(ConfigError):
        examine(tmp_path / "none", PolicyConfig())
