"""The command line: one sentence and exit code 2 for what is wrong, nothing half-written, receipts with everything."""

from pathlib import Path

import pytest
from rich.console import Console

from toolorchestra.cli.main import COMMANDS, main
from toolorchestra.cli.show import figures_text, receipt
from toolorchestra.pricing import Price, Usage
from toolorchestra.types import Completion, Expert, Message, Observation, Task, ToolSpec, Trajectory, Turn

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
def test_help_exits_with_0(capsys: pytest.CaptureFixture[str], command: str):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert not end.value.code and command in capsys.readouterr().out


def test_help_gives_units(capsys: pytest.CaptureFixture[str]):
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
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
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
