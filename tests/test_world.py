"""The embedded world's offers: which tools and experts stand on a task."""

from pathlib import Path

import pytest

from toolorchestra.configs import WorldConfig
from toolorchestra.environments.embedded.programs import PROGRAMS
from toolorchestra.environments.embedded.world import EmbeddedWorld
from toolorchestra.preferences import Preference
from toolorchestra.tools.sandbox import Sandbox
from toolorchestra.types import Expert, Task


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def world(cache: Path, share: float) -> EmbeddedWorld:
    config = WorldConfig(train_tasks=200, dev_tasks=60, test_tasks=60, no_experts_share=share)
    return EmbeddedWorld(config, Preference(), Sandbox(), cache)


def experts(task: Task) -> list[Expert]:
    return [e for tool in task.tools or () for e in tool.experts]


def test_nobody_is_offered_where_a_program_is_to_be_practised(cache: Path):
    for task in world(cache, share=1.0).tasks("train"):
        if task.kind in PROGRAMS:
            assert {tool.name for tool in task.tools or ()} == {"python", "search", "submit"}
        else:
            assert 3 <= len(experts(task)) <= 5


def test_dev_and_test_tasks_are_the_same_whatever_is_practised(cache: Path):
    much, none = world(cache, share=1.0), world(cache, share=0.0)
    for split in ("dev", "test"):
        assert much.tasks(split) == none.tasks(split)
        assert all(experts(task) for task in much.tasks(split))
    changed = [a != b for a, b in zip(much.tasks("train"), none.tasks("train"), strict=True)]
    assert 0.35 < sum(changed) / len(changed) < 0.5  # the six of ten families of puzzles
