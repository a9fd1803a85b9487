"""The embedded world's offers: which tools and experts stand on a task."""

import pytest

from toolorchestra.configs import WorldConfig
from toolorchestra.environments.embedded.world import SPLITS, EmbeddedWorld
from toolorchestra.preferences import Preference
from toolorchestra.tools.sandbox import Sandbox
from toolorchestra.types import Expert, Task


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> EmbeddedWorld:
    config = WorldConfig(train_tasks=200, dev_tasks=60, test_tasks=60)
    return EmbeddedWorld(config, Preference(), Sandbox(), tmp_path_factory.mktemp("cache"))


def experts(task: Task) -> list[Expert]:
    return [e for tool in task.tools or () for e in tool.experts]


def test_every_task_offers_some_experts_and_a_way_to_end(world: EmbeddedWorld):
    for split in SPLITS:
        for task in world.tasks(split):
            assert 3 <= len({e.alias for e in experts(task)}) == len(experts(task)) <= 5
            assert [tool.name for tool in task.tools or () if tool.ends] == ["submit"]


def test_most_tasks_but_not_all_keep_the_interpreter_and_search(world: EmbeddedWorld):
    for name in ("python", "search"):
        keep = [any(tool.name == name for tool in task.tools or ()) for task in world.tasks("train")]
        assert 0.8 < sum(keep) / len(keep) < 1.0


def test_the_full_offer_holds_everybody_at_the_prices_that_the_task_drew(world: EmbeddedWorld):
    for task in world.tasks("dev")[:10]:
        full = experts(world.with_all_experts(task))
        assert len(full) == len(world.pool) and set(experts(task)) < set(full)
