"""`toolorchestra`: choose a command, run it, turn errors into sentences and exit codes.

Exit codes: 0 done; 1 something failed; 2 what was typed or written is wrong; 130 interrupted.
Source: project.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module

from toolorchestra.errors import ToolOrchestraError, UsageError

COMMANDS = {
    "ask": "answer one question with a trained policy and print the receipt",
    "train": "train a policy as a recipe says; --resume continues a run",
    "model": "list the models that a policy can start from, or get one",
    "export": "write a trained policy as one whole model folder, its adapter merged, for inference servers",
    "doctor": "examine a model: can it be a policy, and what must be changed",
    "evaluate": "judge a run's policy on held-out tasks against every baseline and write the report",
}

_HELP = "usage: toolorchestra COMMAND …\n\nTrain and run small orchestrators.\n\ncommands:\n{}\n\n{}"


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0] in {"-h", "--help"}:
        print(_help())
        return 0 if words else 2
    if words[0] == "--version":
        from toolorchestra import __version__

        print(__version__)
        return 0
    if words[0] not in COMMANDS:
        return _fail(f"unknown command '{words[0]}'; the commands are {', '.join(COMMANDS)}", 2)
    return _run(words[0], words[1:])


def _run(command: str, words: list[str]) -> int:
    warnings.formatwarning = _warning_text
    try:
        import_module(f"toolorchestra.cli.{command}").run(words)
    except UsageError as error:
        return _fail(str(error), 2)
    except ToolOrchestraError as error:
        return _fail(str(error), 1)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "toolorchestra":
            raise
        return _fail(f"'{error.name}' is not installed; pip install 'toolorchestra[train,world]'", 2)
    except KeyboardInterrupt:
        return _fail("interrupted; continue with --resume", 130)
    return 0


def _warning_text(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Write a warning for people, without the place in the code."""
    return f"toolorchestra: warning: {message}\n"


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return _HELP.format("\n".join(lines), "toolorchestra COMMAND --help lists every knob with its unit.")


def _fail(sentence: str, code: int) -> int:
    print(f"toolorchestra: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
