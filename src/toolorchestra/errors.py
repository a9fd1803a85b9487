"""The exceptions of this package, one tree.

    ToolOrchestraError          anything this package raises on purpose
    |- UsageError               what the caller typed or wrote is wrong; the command line exits with 2
    |  |- ConfigError           a recipe, a flag, a pool or a price
    |  |- DataError             a task line or another data file
    |  `- RunFolderError        a run folder is in use, taken, or missing
    |- ToolError                a tool could not do what it was asked; becomes an observation for the policy
    |- ModelError               a chat model gave no completion; the rollout records it and ends
    |  `- ContextFullError      the conversation leaves no room for another turn
    |- JudgeError               scoring failed: the trajectory is invalid and has no reward (never a reward of 0)
    `- MissingExtraError        an optional dependency is not installed

Errors have three fates: a ToolError is told to the policy; any other exception inside a rollout is kept on its
trajectory and its siblings go on; outside a rollout it ends the command with a sentence that names the fix.
"""

from __future__ import annotations


class ToolOrchestraError(Exception):
    """Base of every exception that this package raises on purpose."""


class UsageError(ToolOrchestraError):
    """Something the user wrote is wrong. The message is one sentence: the place, then the fix."""


class ConfigError(UsageError):
    """A recipe, a flag, an expert pool or a price is wrong."""


class DataError(UsageError):
    """A data file is wrong; the message names file and line."""


class RunFolderError(UsageError):
    """A run folder is in use by another process, already holds a run, or is missing."""


class ToolError(ToolOrchestraError):
    """A tool refused or failed; its message is written for the policy to act on."""


class ModelError(ToolOrchestraError):
    """A chat model gave no completion."""


class ContextFullError(ModelError):
    """The conversation leaves no room for another turn."""


class JudgeError(ToolOrchestraError):
    """Scoring failed, so the trajectory has no reward."""


class MissingExtraError(UsageError):
    """An optional dependency is missing.

    Args:
        what: the feature that was asked for, as a noun phrase.
        extra: the extra that brings it.
    """

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs the '{extra}' extra: pip install 'toolorchestra[{extra}]'")
