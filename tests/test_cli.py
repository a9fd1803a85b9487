"""The command line: one sentence and exit code 2 for what is wrong, nothing half-written, receipts with everything."""

import io
import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from rich.console import Console

from toolorchestra.cli.main import COMMANDS, main
from toolorchestra.cli.show import STOP_TEXT, figures_text, receipt
from toolorchestra.cli.train import claim
from toolorchestra.configs import PolicyConfig, Recipe, TrainConfig, show_recipe
from toolorchestra.errors import RunFolderError
from toolorchestra.pricing import Price, Usage
from toolorchestra.records import RunFolder
from toolorchestra.types import (
    Completion,
    Expert,
    Message,
    Observation,
    StopReason,
    Task,
    ToolSpec,
    Trajectory,
    Turn,
)

GOOD = 'name = "r"\n'


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run a command that must fail; returns its one line of complaint."""
    assert main(list(words)) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    return said.err


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "r.toml"
    path.write_text(GOOD)
    return path


def test_an_unknown_command_names_the_commands(capsys: pytest.CaptureFixture[str]):
    assert "train" in fails(capsys, "trian")


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_a_warning_is_a_sentence_without_a_place_in_the_code(capsys: pytest.CaptureFixture[str], command: str):
    fails(capsys, command)
    assert warnings.formatwarning("beware", UserWarning, "x.py", 3) == "toolorchestra: warning: beware\n"


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_a_missing_recipe_is_asked_for(capsys: pytest.CaptureFixture[str], command: str):
    assert "RECIPE.toml" in fails(capsys, command)


def test_a_recipe_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert "no such file" in fails(capsys, "train", str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[train]\nstpes = 3\n", "train.stpes"),
        ("[train]\nsteps = 'many'\n", "train.steps"),
        ("[train]\nsteps = -1\n", "train.steps"),
        ("[preference]\ncost = 7\n", "cost"),
        ("name = 'a/b'\n", "folder name"),
        ("name =\n", "TOML"),
    ],
)
def test_a_bad_recipe_names_the_key_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, said: str
):
    path = tmp_path / "r.toml"
    path.write_text(text)
    assert said in fails(capsys, "train", str(path), "--run", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_bad_flag_is_one_sentence(capsys: pytest.CaptureFixture[str], recipe: Path):
    assert "--train.stpes" in fails(capsys, "train", str(recipe), "--train.stpes", "3")


def test_evaluating_and_asking_need_a_trained_run(capsys: pytest.CaptureFixture[str], recipe: Path, tmp_path: Path):
    run = str(tmp_path / "run")
    assert "no checkpoint" in fails(capsys, "evaluate", str(recipe), "--run", run)
    assert "no run" in fails(capsys, "ask", "Why?", "--run", run)
    assert "empty" in fails(capsys, "ask", " ", "--run", run)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_exits_with_0_and_gives_units_where_there_are_any(capsys: pytest.CaptureFixture[str], command: str):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert not end.value.code and f"toolorchestra {command}" in text
    units = {"export": ("float32",), "model": ("hub id",)}.get(command, ("seconds", "US dollars", "tokens"))
    assert all(unit in text for unit in units)


def test_the_help_of_a_recipes_knobs_gives_their_units(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert all(unit in text for unit in ("US dollars per million", "wall-clock seconds", "most tokens", "0 to 1"))


def trajectory(stop: str = "submitted") -> Trajectory:
    expert = Expert("amber", "sim-x", Price(1, 2), "strong: sums", 9.0, simulated=True)
    task = Task("t", "sums", "?", {"gold": "4"}, tools=(ToolSpec("ask", "", {}, experts=(expert,)),))
    turn = Turn(
        Completion(Message("assistant", "hm"), "stop", Usage(120, 0, 12, 0.000026, 0.12), "nano"),
        (Observation("ask:amber", "answer", "4", "call_0", Usage(50, 0, 300, 0.00065, 9.5), simulated=True),),
    )
    return Trajectory("r", task, "nano", (turn,), "4", stop)  # type: ignore[arg-type]


def shown(one: Trajectory) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(receipt(one))
    return console.export_text()


def test_a_receipt_shows_every_call_the_total_and_why_it_stopped():
    text = shown(trajectory())
    for part in ("policy nano", "sim-x, simulated", "120", "300", "0.000650", "9.50", "0.000676", "9.62", "submitted"):
        assert part in text
    assert "simulated" in text and "virtual clock" in text


def test_progress_shows_the_figures_that_matter():
    figures = {"reward": 0.5, "accuracy": 0.25, "cost_usd": 0.01, "latency_s": 3.0, "call_share": {"sim-a": 0.75}}
    assert figures_text(figures) == "reward 0.500  accuracy 25.0 %  cost 1.000 ¢  latency 3.0 s  a 75%"


@pytest.mark.parametrize(("words", "code"), [([], 2), (["--help"], 0), (["-h"], 0)])
def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str], words: list[str], code: int):
    assert main(words) == code
    text = capsys.readouterr().out
    assert all(f"  {command}  " in text for command in COMMANDS)


def test_the_help_of_ask_names_its_options(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["ask", "--help"])
    text = capsys.readouterr().out
    assert all(option in text for option in ("--run", "--seed", "--json", "simulated"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ask",), "Missing"),
        (("ask", "Why?", "--seed", "first"), "--seed"),
        (("ask", "Why?", "--colour", "red"), "--colour"),
        (("train", "RECIPE", "--train.lr", "high"), "--train.lr"),
        (("train", "RECIPE", "--train.lr", "7"), "train.lr = 7"),
        (("train", "RECIPE", "--name", "a/b"), "folder name"),
        (("evaluate", "RECIPE", "--evaluate.resamples", "0"), "evaluate.resamples = 0"),
    ],
)
def test_a_bad_word_is_one_sentence_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], recipe: Path, tmp_path: Path, words: tuple[str, ...], said: str
):
    run = tmp_path / "run"
    assert said in fails(capsys, *(str(recipe) if w == "RECIPE" else w for w in words), "--run", str(run))
    assert not run.exists()


def test_a_flag_overrides_the_file_and_mends_it_not(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    path = tmp_path / "r.toml"
    path.write_text("[train]\nsteps = -1\n")
    assert str(path) in fails(capsys, "train", str(path), "--train.steps", "3", "--run", str(tmp_path / "run"))


def test_a_run_folder_in_use_is_left_alone(capsys: pytest.CaptureFixture[str], recipe: Path, tmp_path: Path):
    with RunFolder(tmp_path / "run"):
        assert "in use" in fails(capsys, "train", str(recipe), "--run", str(tmp_path / "run"))
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with a recipe and no checkpoint."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"recipe": show_recipe(Recipe(seeds=(3,))), "threads": 1}))
    return folder


def test_asking_a_run_that_has_not_come_far_enough(capsys: pytest.CaptureFixture[str], run: Path):
    assert "holds no checkpoint" in fails(capsys, "ask", "Why?", "--run", str(run))
    (run / "checkpoints" / "step-000000").mkdir(parents=True)
    assert "the run has seeds 3" in fails(capsys, "ask", "Why?", "--run", str(run), "--seed", "0")


def test_a_run_of_an_older_recipe_names_the_key_it_knows_no_more(capsys: pytest.CaptureFixture[str], run: Path):
    (run / "config.json").write_text(json.dumps({"recipe": {"train": {"stpes": 3}}}))
    said = fails(capsys, "ask", "Why?", "--run", str(run))
    assert "config.json" in said and "train.stpes" in said


def test_a_knob_that_is_younger_than_the_run_had_its_default(tmp_path: Path):
    pytest.importorskip("torch")
    recipe = Recipe(train=TrainConfig(threads=1))
    config: dict[str, Any] = {"recipe": show_recipe(recipe), "threads": 1}
    del config["recipe"]["policy"]["dtype"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with RunFolder(tmp_path) as folder:
        claim(folder, recipe, resume=True)
        other = replace(recipe, policy=PolicyConfig(lora_rank=4, dtype="bfloat16"))
        with pytest.raises(RunFolderError, match=r"another recipe\.policy\.lora_rank, recipe\.policy\.dtype;"):
            claim(folder, other, resume=True)


@pytest.mark.parametrize("text", ["{oops", "{}"])
def test_a_torn_config_is_one_sentence(capsys: pytest.CaptureFixture[str], run: Path, text: str):
    (run / "config.json").write_text(text)
    assert "config.json" in fails(capsys, "ask", "Why?", "--run", str(run))


def test_a_run_folder_that_is_a_file_is_one_sentence(capsys: pytest.CaptureFixture[str], recipe: Path, tmp_path: Path):
    (tmp_path / "run").write_text("mine")
    assert "run" in fails(capsys, "train", str(recipe), "--run", str(tmp_path / "run"))


def test_a_pool_before_the_recipe_is_not_taken_for_it(capsys: pytest.CaptureFixture[str], recipe: Path, tmp_path: Path):
    pool = tmp_path / "pool.toml"
    pool.write_text("expert = []\n")
    said = fails(capsys, "evaluate", "--world.experts", str(pool), str(recipe), "--run", str(tmp_path / "run"))
    assert "no checkpoint" in said


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """`train` from a policy's folder that is not there, as a process; also returns its run folder."""
    place = tmp_path_factory.mktemp("stranger")
    sizes = "[world]\ntrain_tasks = 16\ndev_tasks = 1\ntest_tasks = 1\n"
    (place / "r.toml").write_text(f'[policy]\nmodel = "{place}/nobody"\n{sizes}')
    words = [sys.executable, "-m", "toolorchestra.cli.main", "train", "r.toml", "--run", "run", "--quiet"]
    environment = os.environ | {"TOOLORCHESTRA_CACHE": str(place / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(words, cwd=place, env=environment, text=True, capture_output=True, timeout=60)
    return done, place / "run"


Stranger = tuple[subprocess.CompletedProcess[str], Path]


def test_a_policy_that_is_not_there_is_one_sentence(stranger: Stranger):
    done, _ = stranger
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "nobody'; give nano, new-nano" in done.stderr


def test_a_policy_that_is_not_there_leaves_no_half_begun_run(stranger: Stranger):
    _, folder = stranger
    assert not folder.exists() or {path.name for path in folder.iterdir()} <= {".lock"}


def test_every_stop_reason_is_told_in_words():
    assert set(STOP_TEXT) == set(get_args(StopReason))
    for reason, words in STOP_TEXT.items():
        assert f"stopped: {words}" in shown(trajectory(reason))


def row(text: str, label: str) -> list[str]:
    """The cells of the receipt's one row with this label: turn, call, tokens in, tokens out, USD, seconds."""
    (line,) = [line for line in text.splitlines() if label in line]
    return [cell.strip() for cell in line.strip("│┃ ").split("│")]


def test_a_receipt_has_a_row_for_every_call_and_they_add_up():
    one = trajectory()
    python = Observation("python", "code", "4", "call_1", Usage(0, 0, 0, 0.0, 0.5))
    refused = Observation("nosuch", "error", "no such tool", "call_2")
    one = replace(one, turns=(*one.turns, replace(one.turns[0], observations=(python, refused))))
    text = shown(one)
    assert row(text, "ask:amber") == ["1", "ask:amber (sim-x, simulated)", "50", "300", "0.000650", "9.50"]
    assert row(text, "python") == ["2", "python", "0", "0", "0.000000", "0.50"]
    assert row(text, "nosuch") == ["2", "nosuch: error", "0", "0", "0.000000", "0.00"]
    assert row(text, "total")[-5:] == ["total", "290", "324", "0.000702", "10.24"]
    assert text.count("policy nano") == 2


def test_what_is_estimated_or_unpriced_is_marked():
    one = trajectory()
    unsure = replace(one.turns[0].observations[0], usage=Usage(50, 0, 300, 0.0, 9.5, estimated=True, unpriced=True))
    text = shown(replace(one, turns=(replace(one.turns[0], observations=(unsure,)),)))
    assert row(text, "ask:amber")[2:5] == ["~50", "~300", "at least 0.000000"]
    assert row(text, "total")[-2] == "at least 0.000026"


def test_a_receipt_without_experts_says_nothing_of_simulation():
    one = trajectory()
    text = shown(replace(one, turns=(replace(one.turns[0], observations=()),)))
    assert "simulated" not in text


def test_brackets_in_names_errors_and_notices_are_shown_as_they_are():
    """A policy writes tool names as it likes; `[/b]` is markup to the terminal library."""
    one = trajectory("error")
    odd = Observation("[/b]", "error", "no such tool", "call_0")
    turns = (replace(one.turns[0], observations=(odd,)),)
    text = shown(replace(one, turns=turns, error="KeyError: '[/i]'", notices=("[red] ignored",)))
    assert "[/b]: error" in text and "KeyError: '[/i]'" in text and "notice: [red] ignored" in text


def test_an_open_question_without_a_score_is_no_error():
    one = replace(trajectory("answered"), error="not scored: the task has no reference answer")
    assert "not scored" in shown(one)
    assert "not scored" not in shown(replace(one, task=replace(one.task, reference={})))
