"""The embedded world: tasks with exact answers, real tools, simulated experts; everything from a seed, offline.

Each task draws its own subset of tools, its own aliases and prices. The specs stand on the task; the live tools are
made from those specs, so what the policy is shown is what runs and what is billed.
In: a `WorldConfig`. Out: tasks, and an environment for each.
Source: arXiv 2511.21689, sec. 3.3 (training diversity); project.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

from toolorchestra.chat.simulated import SimulatedExpert
from toolorchestra.configs import WorldConfig
from toolorchestra.environments.embedded.corpus import documents
from toolorchestra.environments.embedded.facts import KINDS as FACT_KINDS
from toolorchestra.environments.embedded.facts import fact_tasks, score_fact
from toolorchestra.environments.embedded.pool import draw_offer, load_pool, require_subjects
from toolorchestra.environments.embedded.programs import PROGRAMS
from toolorchestra.environments.embedded.puzzles import PUZZLE_KINDS, puzzle_tasks, score_puzzle
from toolorchestra.environments.qa import QuestionEnvironment
from toolorchestra.preferences import Preference
from toolorchestra.protocols import Environment, Tool
from toolorchestra.tools.arguments import require_supported
from toolorchestra.tools.expert import ExpertTool, expert_spec
from toolorchestra.tools.python import PythonTool
from toolorchestra.tools.sandbox import Sandbox
from toolorchestra.tools.search import SearchIndex, SearchTool
from toolorchestra.tools.submit import SubmitTool
from toolorchestra.types import Outcome, Task, ToolSpec

KEEP_BASIC_TOOL = 0.9
"""How often a task keeps the interpreter, and likewise local search."""

SPLITS = ("train", "dev", "test")


class EmbeddedWorld:
    """Tasks and environments of the embedded world.

    Args:
        config: sizes and seed.
        preference: what the users of all tasks want.
        sandbox: runs the policy's programs.
        cache: folder for the search index, which is built once.
    """

    def __init__(self, config: WorldConfig, preference: Preference, sandbox: Sandbox, cache: Path) -> None:
        self._config = config
        self._preference = preference
        self.pool = load_pool(Path(config.experts) if config.experts else None)
        require_subjects(self.pool, self.kinds)
        self._python = PythonTool(sandbox, examples=tuple(PROGRAMS.values()))
        cache.mkdir(parents=True, exist_ok=True)
        index = SearchIndex.build(documents(), cache / "passages.sqlite")
        self._search = SearchTool(index, k=config.passages)
        self._submit = SubmitTool()
        for tool in (self._python, self._search, self._submit):
            require_supported(tool.spec.parameters, tool.spec.name)
        self._tasks = {split: self._make_tasks(split) for split in SPLITS}
        self._answer_key = {task.instruction: task for tasks in self._tasks.values() for task in tasks}

    def tasks(self, split: str) -> tuple[Task, ...]:
        """Return the tasks of `train`, `dev` or `test`, each with its own offer of tools."""
        return self._tasks[split]

    def with_all_experts(self, task: Task) -> Task:
        """Return the task with every tool and expert on offer, at the prices that the task drew."""
        return replace(task, tools=self._offer(task.id, full=True))

    def open_task(self, question: str) -> Task:
        """Make a task of a user's question, with an offer like those of training; it has no reference answer.

        A question that stands in the world is that task: its simulated experts can answer it.
        """
        known = self._answer_key.get(question)
        return known or Task("ask", "open", question, {}, tools=self._offer("ask"), preference=self._preference)

    def environments(self, luck: int = 0) -> Callable[[Task], Environment]:
        """Return the maker of environments.

        Args:
            luck: another number draws the simulated experts' successes anew.
        """
        seed = self._config.seed * 1_000_003 + luck
        models = {p.model: SimulatedExpert(p, self._answer_key, seed) for p in self.pool}

        def make(task: Task) -> Environment:
            tools = [self._live(spec, models) for spec in task.tools or ()]
            return QuestionEnvironment(task, tools, score if task.reference else None)

        return make

    def _live(self, spec: ToolSpec, models: dict[str, SimulatedExpert]) -> Tool:
        if spec.experts:
            return ExpertTool(spec.experts, models)
        basic: dict[str, Tool] = {t.spec.name: t for t in (self._python, self._search, self._submit)}
        return basic[spec.name]

    def _make_tasks(self, split: str) -> tuple[Task, ...]:
        config = self._config
        count = {"train": config.train_tasks, "dev": config.dev_tasks, "test": config.test_tasks}[split]
        facts = round(count * config.facts_share)
        tasks = puzzle_tasks(split, count - facts, config.seed) + fact_tasks(split, facts, config.seed)
        Random(f"{config.seed}:{split}:order").shuffle(tasks)
        return tuple(replace(t, tools=self._offer(t.id), preference=self._preference) for t in tasks)

    def _offer(self, task_id: str, full: bool = False) -> tuple[ToolSpec, ...]:
        config = self._config
        luck = Random(f"{config.seed}:{task_id}:tools")
        basic = [t.spec for t in (self._python, self._search) if full or luck.random() < KEEP_BASIC_TOOL]
        size = (config.offer_min, config.offer_max)
        experts = draw_offer(self.pool, task_id, config.seed, kinds=self.kinds, size=size, full=full)
        offered = [*basic, expert_spec(experts)]
        luck.shuffle(offered)
        return (*offered, self._submit.spec)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The families of tasks, in the order in which skills are described."""
        return (*PUZZLE_KINDS, *FACT_KINDS)


def score(task: Task, answer: str) -> Outcome:
    """Judge an answer by its family's own scorer."""
    return score_puzzle(task, answer) if "family" in task.reference else score_fact(task, answer)
