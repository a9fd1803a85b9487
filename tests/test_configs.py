"""Recipes: the bundled ones load, what is wrong is one sentence, and what is shown is what was read."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolorchestra.configs import (
    EvaluateConfig,
    PolicyConfig,
    Recipe,
    RolloutConfig,
    TrainConfig,
    WarmupConfig,
    WorldConfig,
    load_recipe,
    show_recipe,
)
from toolorchestra.errors import ConfigError
from toolorchestra.preferences import Preference
from toolorchestra.records import from_mapping

RECIPES = sorted((Path(__file__).parent.parent / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_bundled_recipe_loads_and_survives_its_run_folder(path: Path):
    recipe = load_recipe(path)
    assert from_mapping(Recipe, json.loads(json.dumps(show_recipe(recipe))), "config.json") == recipe


def test_there_is_a_quickstart():
    assert "quickstart" in {path.stem for path in RECIPES}


def refusal(tmp_path: Path, text: str) -> str:
    path = tmp_path / "r.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_recipe(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ") and "\n" not in said
    return said


@pytest.mark.parametrize("text", ["stpes = 3", "[train]\nstpes = 3", "[trian]\nsteps = 3", "[preference]\nspeed = 1"])
def test_an_unknown_key_is_named(tmp_path: Path, text: str):
    *table, key = re.findall(r"(?m)^\[?(\w+)", text)
    named = ".".join([*table, key]) if "trian" not in table else "trian"
    assert f"unknown key '{named}'" in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "key", "got"),
    [
        ("[train]\nsteps = 'many'", "train.steps", "many"),
        ("[train]\nsteps = 1.5", "train.steps", "1.5"),
        ("[train]\nsteps = '3'", "train.steps", "3"),
        ("[train]\nsteps = true", "train.steps", "True"),
        ("[train]\nformat_filter = 1", "train.format_filter", "1"),
        ("[train]\nformat_filter = 'perhaps'", "train.format_filter", "perhaps"),
        ("seeds = ['x']", "seeds.0", "x"),
        ("seeds = 0", "seeds", "0"),
        ("train = 3", "train", "3"),
        ("name = 7", "name", "7"),
        ("[world]\nexperts = 3", "world.experts", "3"),
        ("[preference.tools]\nsearch = 'much'", "preference.tools.search", "much"),
    ],
)
def test_a_wrong_type_is_named_with_what_was_found(tmp_path: Path, text: str, key: str, got: str):
    said = refusal(tmp_path, text)
    assert f"'{key}'" in said and got in said


def test_a_file_that_is_missing_a_folder_or_no_toml_is_refused(tmp_path: Path):
    for path, said in ((tmp_path / "none.toml", "no such file"), (tmp_path, "is a folder")):
        with pytest.raises(ConfigError, match=re.escape(f"{path}: {said}")):
            load_recipe(path)
    assert "not valid TOML" in refusal(tmp_path, "name =")
    assert "line 2" in refusal(tmp_path, "seeds = [0]\nname = ?\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[world]\ntrain_tasks = 0", "world.train_tasks = 0"),
        ("[world]\nfacts_share = 1.5", "world.facts_share = 1.5 must lie between 0 and 1"),
        ("[world]\noffer_min = 0", "world.offer_min = 0"),
        ("[world]\noffer_min = 6", "world.offer_min must not be larger than world.offer_max"),
        ("[world]\npassages = 0", "world.passages = 0"),
        ("[policy]\nlatency_s_per_tok = -1.0", "policy.latency_s_per_tok = -1"),
        ("[policy]\ndtype = 'bfloat16'", "needs a policy.lora_rank"),
        ("[rollout]\nturns = 0", "rollout.turns = 0"),
        ("[rollout]\ndeadline_s = 0.0", "rollout.deadline_s = 0"),
        ("[rollout]\ndeadline_s = inf", "rollout.deadline_s = inf"),
        ("[rollout]\ntemperature = nan", "rollout.temperature = nan"),
        ("[rollout]\nrepeated_call_streak = 1", "rollout.repeated_call_streak = 1"),
        ("[warmup]\ndemos = 0", "warmup.demos = 0"),
        ("[train]\nsteps = -1", "train.steps = -1"),
        ("[train]\ngroup = 1", "train.group = 1 must lie between 2 and"),
        ("[train]\nbatch_tasks = 3001", "train.batch_tasks = 3001 must lie between 1 and 3000"),
        ("[train]\nminibatches = 17", "train.minibatches = 17 must lie between 1 and 16"),
        ("[train]\nlr = nan", "train.lr = nan"),
        ("[evaluate]\nresamples = 1", "evaluate.resamples = 1"),
        ("[preference]\ncost = 1.5", "preference weight cost = 1.5 is outside [0, 1]"),
        ("[preference.tools]\nsearch = -1.0", "preference weight search = -1"),
        ("seeds = []", "seeds must hold at least one number"),
        ("[evaluate]\nseeds = []", "seeds must hold at least one number"),
        ("name = ''", "plain folder name"),
        ("name = '..'", "plain folder name"),
        ("name = 'a/b'", "plain folder name"),
    ],
)
def test_a_value_that_no_run_can_use_is_refused(tmp_path: Path, text: str, said: str):
    assert said in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("seeds = [-1]", "seeds"),
        ("seeds = [0, 0]", "seeds"),
        ("[policy]\ninput_usd_per_mtok = -1.0", "policy.input_usd_per_mtok"),
        ("[policy]\noutput_usd_per_mtok = 1e9", "policy.output_usd_per_mtok"),
        ("[policy]\nlayers = 0", "policy.layers"),
        ("[warmup]\nlr = -1.0", "warmup.lr"),
        ("[train]\nclip_high = -1.0", "train.clip_high"),
        ("[train]\nkl = -1.0", "train.kl"),
        ("[train]\ngrad_norm = -1.0", "train.grad_norm"),
        ("[train]\nmin_std = nan", "train.min_std"),
        ("[train]\nadvantage_clip = -1.0", "train.advantage_clip"),
        ("[train]\ndev_every = -1", "train.dev_every"),
        ("[train]\ncollapse_share = 7.0", "train.collapse_share"),
        ("[evaluate]\ntemperature = -1.0", "evaluate.temperature"),
        ("[evaluate]\nknn_neighbours = 0", "evaluate.knn_neighbours"),
    ],
)
def test_a_value_that_only_a_later_stage_would_refuse_is_refused(tmp_path: Path, text: str, key: str):
    assert key in refusal(tmp_path, text)


def knobs(kind: type) -> st.SearchStrategy:
    """Draw a table of a recipe: any value of each knob's type, not only those that a run can use."""
    drawn = {
        "int": st.integers(-(2**53), 2**53),
        "float": st.floats(allow_nan=False),
        "bool": st.booleans(),
        "str": st.text(st.characters(codec="utf-8")),
        "Literal['keep', 'split']": st.sampled_from(["keep", "split"]),
        "Literal['history', 'digest']": st.sampled_from(["history", "digest"]),
        "Dtype": st.sampled_from(["float32", "bfloat16"]),
        "tuple[int, ...]": st.lists(st.integers(-(2**53), 2**53), max_size=4).map(tuple),
    }
    return st.builds(kind, **{f.name: drawn[str(f.type)] for f in fields(kind) if str(f.type) in drawn})


WEIGHTS = st.floats(0, 1)
RECIPE = st.builds(
    Recipe,
    name=st.text(st.characters(codec="utf-8")),
    seeds=st.lists(st.integers(0, 2**53), max_size=3).map(tuple),
    world=knobs(WorldConfig),
    policy=knobs(PolicyConfig),
    preference=st.builds(Preference, WEIGHTS, WEIGHTS, WEIGHTS, st.dictionaries(st.text(max_size=5), WEIGHTS)),
    rollout=knobs(RolloutConfig),
    warmup=knobs(WarmupConfig),
    train=knobs(TrainConfig),
    evaluate=knobs(EvaluateConfig),
)


@given(RECIPE)
def test_any_recipe_survives_its_run_folder(recipe: Recipe):
    assert from_mapping(Recipe, show_recipe(recipe), "memory") == recipe
    assert from_mapping(Recipe, json.loads(json.dumps(show_recipe(recipe))), "config.json") == recipe


def test_the_strategy_draws_every_knob():
    """The law above would be empty if a knob's type were unknown to it."""
    known = {
        "int",
        "float",
        "bool",
        "str",
        "tuple[int, ...]",
        "Literal['keep', 'split']",
        "Literal['history', 'digest']",
        "Dtype",
    }
    kinds = (WorldConfig, PolicyConfig, RolloutConfig, WarmupConfig, TrainConfig, EvaluateConfig)
    assert {str(f.type) for kind in kinds for f in fields(kind)} <= known
