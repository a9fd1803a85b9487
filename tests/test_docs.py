"""The documents name tests and functions that exist."""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TESTS = {path.name: path.read_text() for path in (ROOT / "tests").glob("test_*.py")}
PAPER = (ROOT / "docs" / "paper.md").read_text()


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(test_\w+(?:\.py)?)`", PAPER))))
def test_every_test_that_the_paper_map_names_exists(name: str):
    assert name in TESTS or any(f"def {name}(" in text for text in TESTS.values())


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`((?:\w+\.)+\w+)`", PAPER)) - {f"{t}" for t in TESTS}))
def test_every_function_that_the_paper_map_names_exists(name: str):
    if name.endswith(".py"):
        pytest.fail(f"{name} is named but is no test file")
    words = name.split(".")
    for cut in range(len(words), 0, -1):
        try:
            found = import_module(".".join(["toolorchestra", *words[:cut]]))
        except ModuleNotFoundError:
            continue
        for word in words[cut:]:
            found = getattr(found, word)
        return
    pytest.fail(f"{name} does not exist")


@pytest.mark.parametrize("page", ["README.md", "docs/results/README.md", "docs/architecture.md", "AGENTS.md"])
def test_links_between_pages_lead_somewhere(page: str):
    place = ROOT / page
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", place.read_text()):
        assert (place.parent / target).exists(), target
