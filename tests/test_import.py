"""The public surface: every name is there, and importing it costs nothing heavy."""

import json
import subprocess
import sys
import time

import pytest

import toolorchestra
from toolorchestra import types

HEAVY = {"torch", "pydantic", "numpy", "transformers", "rich", "tyro", "matplotlib", "sklearn", "importlib.metadata"}


def run(code: str) -> tuple[str, float]:
    """Run `code` in a fresh interpreter; return what it printed and the seconds it took."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout, time.perf_counter() - began


def test_importing_the_package_loads_nothing_heavy():
    _, bare_s = run("pass")
    loaded, import_s = run("import json, sys, toolorchestra; print(json.dumps(list(sys.modules)))")
    print(f"bare interpreter {bare_s:.3f} s, with toolorchestra {import_s:.3f} s")  # shown by pytest -rP
    assert "toolorchestra" in json.loads(loaded)
    assert not HEAVY & set(json.loads(loaded))


def test_a_name_is_imported_from_its_room_alone():
    loaded, _ = run("import json, sys; from toolorchestra import Price; print(json.dumps(list(sys.modules)))")
    ours = {name for name in json.loads(loaded) if name.startswith("toolorchestra")}
    assert ours == {"toolorchestra", "toolorchestra.pricing", "toolorchestra.errors"}


def test_plain_nouns_and_rewards_need_no_optional_dependency():
    code = "import json, sys; from toolorchestra import Trajectory, group_rewards; print(json.dumps(list(sys.modules)))"
    assert not {"torch", "numpy", "transformers", "sklearn"} & set(json.loads(run(code)[0]))


@pytest.mark.parametrize("name", toolorchestra.__all__)
def test_every_public_name_resolves(name: str):
    assert getattr(toolorchestra, name) is not None
    assert name in dir(toolorchestra)


def test_the_table_of_rooms_names_the_public_surface_and_no_more():
    assert {*toolorchestra._ROOM_OF, "__version__"} == set(toolorchestra.__all__)


def test_a_public_name_is_the_rooms_own_object():
    assert toolorchestra.Trajectory is types.Trajectory


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Trajektory"):
        toolorchestra.Trajektory  # noqa: B018
