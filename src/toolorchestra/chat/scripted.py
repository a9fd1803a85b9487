"""A chat model that says what it is told to: for tests, baselines and dry runs.

In: prepared messages or a function. Out: completions without cost.
Source: project.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from toolorchestra.chat.parse import parse_message
from toolorchestra.errors import ModelError
from toolorchestra.pricing import Usage
from toolorchestra.protocols import Sampling
from toolorchestra.types import Completion, Message, ToolSpec

Script = Callable[[Sequence[Message], Sequence[ToolSpec], Sampling], Message | str]


class Scripted:
    """Answers from a list, in order, or by a function.

    Args:
        script: messages (or raw texts, which are parsed as a policy's would be), or a function that makes one.
        name: what reports call it.
        usage: charged for each completion.
        repeat: say the last one again when the list is used up, instead of failing.
    """

    def __init__(
        self,
        script: Script | Sequence[Message | str],
        name: str = "scripted",
        usage: Usage = Usage(),
        repeat: bool = False,
    ) -> None:
        self.name = name
        self._script = script
        self._usage = usage
        self._repeat = repeat
        self._said = 0

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        """Say the next thing.

        Raises:
            ModelError: the list is used up.
        """
        said = self._script(messages, tools, sampling) if callable(self._script) else self._next(self._script)
        message, warnings = parse_message(said) if isinstance(said, str) else (said, ())
        return Completion(message, "stop", self._usage, self.name, warnings=warnings)

    def _next(self, script: Sequence[Message | str]) -> Message | str:
        place = min(self._said, len(script) - 1) if self._repeat else self._said
        if not script or place >= len(script):
            raise ModelError(f"{self.name} has nothing left to say after {len(script)} messages")
        self._said += 1
        return script[place]
