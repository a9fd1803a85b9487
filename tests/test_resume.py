"""A run that is killed, several times and in the middle of work, ends with the bytes of an undisturbed run.

Real processes are killed with SIGKILL when their run folder shows that they have come to a certain point.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

RECIPE = """
name = "tiny"
seeds = [3]
[world]
train_tasks = 39
dev_tasks = 4
test_tasks = 4
[policy]
model = "new-nano"
hidden = 32
layers = 1
vocab_tok = 1024
[rollout]
turns = 3
turn_tok = 12
[warmup]
echo_steps = 2
drill_steps = 3
drill_batch = 8
tasks = 8
demos = 2
[train]
steps = 5
batch_tasks = 3
group = 3
checkpoint_every = 2
dev_every = 3
min_std = 0.0
threads = 2
"""


def start(recipe: Path, run: Path, *flags: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "toolorchestra.cli.main", "train", str(recipe), "--run", str(run), *flags]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOOLORCHESTRA_CACHE": str(recipe.parent / "cache")}
    return subprocess.Popen(words, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(process: subprocess.Popen[str]) -> str:
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 0, text
    return text


def kill_when(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not reached():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "the run never came to the point where it was to be killed"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def bytes_of(run: Path) -> dict[str, bytes]:
    wanted = [run / "trajectories.jsonl", run / "metrics.jsonl", *sorted((run / "checkpoints").rglob("*.safetensors"))]
    return {str(path.relative_to(run)): path.read_bytes() for path in wanted}


def test_killed_at_several_points_and_resumed_a_run_has_the_bytes_of_an_undisturbed_one(tmp_path: Path):
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(RECIPE)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start(recipe, whole))

    kill_when(start(recipe, killed), (killed / "start").is_dir)  # before or within warm-up
    kill_when(start(recipe, killed, "--resume"), lambda: lines(killed / "metrics.jsonl") == 1)  # before a checkpoint
    kill_when(start(recipe, killed, "--resume"), lambda: lines(killed / "metrics.jsonl") == 3)  # after one
    with (killed / "trajectories.jsonl").open("ab") as log:
        log.write(b'{"id": "torn')  # a line that never was finished
    finish(start(recipe, killed, "--resume"))

    assert lines(whole / "metrics.jsonl") == 5
    assert bytes_of(killed) == bytes_of(whole)

    again = start(recipe, killed)
    text, _ = again.communicate(timeout=120)
    assert again.returncode == 2 and "--resume" in text  # an existing run is not overwritten
    other = start(recipe, killed, "--resume", "--train.steps", "9")
    text, _ = other.communicate(timeout=120)
    assert other.returncode == 2 and "train.steps" in text  # nor continued as another


def test_a_killed_run_of_an_adapter_ends_with_the_bytes_of_an_undisturbed_one(tmp_path: Path):
    recipe = tmp_path / "adapter.toml"
    new_nano = RECIPE[RECIPE.index("[policy]") : RECIPE.index("[rollout]")]
    recipe.write_text(RECIPE.replace(new_nano, '[policy]\nmodel = "nano"\nlora_rank = 2\n'))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start(recipe, whole))

    kill_when(start(recipe, killed), lambda: lines(killed / "metrics.jsonl") == 3)
    finish(start(recipe, killed, "--resume"))

    assert bytes_of(killed) == bytes_of(whole)
    weights = {path.name for path in (killed / "checkpoints").rglob("*.safetensors")}
    assert weights == {"adapter_model.safetensors", "optimizer.safetensors"}
