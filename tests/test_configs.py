"""Recipes: the bundled ones load, and what is shown is what was read."""

import json
from pathlib import Path

import pytest

from toolorchestra.configs import Recipe, load_recipe, show_recipe
from toolorchestra.records import from_mapping

RECIPES = sorted((Path(__file__).parent.parent / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_bundled_recipe_loads_and_survives_its_run_folder(path: Path):
    recipe = load_recipe(path)
    assert from_mapping(Recipe, json.loads(json.dumps(show_recipe(recipe))), "config.json") == recipe


def test_there_is_a_quickstart():
    assert "quickstart" in {path.stem for path in RECIPES}
