"""Questions with exact answers about the corpus: one hop about countries and elements, and two hops.

In: the corpus's records and documents. Out: tasks, and the scorer of their answers. A `_Fact` says what a relation's
value is for an entity and which document states it; a `_Clue` describes an entity without naming it ("the country
whose capital is Canberra") and names the document that reveals it. A one-hop question asks for a fact of a named
entity; a two-hop question puts a clue where the name would stand. Facts that the corpus does not state, on which its
sources disagree, or whose answer stands in the question are not asked.

Splits: a question belongs to the split that the sha256 of the name in it picks (France, Canberra, Tc, …), 70 % train,
10 % dev, 20 % test. So no question, and no name that a question is about, is shared between splits; the answers are.

Source: project; the shape of two-hop questions follows HotpotQA's bridge questions (arXiv 1809.09600).
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from random import Random
from typing import TypeVar

from toolorchestra.environments.embedded.corpus import (
    City,
    Country,
    Document,
    Element,
    cities,
    countries,
    documents,
    elements,
)
from toolorchestra.errors import ConfigError
from toolorchestra.types import Outcome, Task

SPLITS = ("train", "dev", "test")
KINDS = ("geography", "chemistry", "twohop")

T = TypeVar("T")


def fact_tasks(split: str, count: int, seed: int) -> list[Task]:
    """Draw `count` distinct questions of a split, a third of each kind, in turn.

    A task's id stays with its question whatever the seed; a larger count extends a smaller one.

    Raises:
        ConfigError: there is no such split, or it has fewer questions; the message says how many.
    """
    pools = _pools(split)
    available = min(len(KINDS) * len(pool) + turn for turn, pool in enumerate(pools))
    if not 0 <= count <= available:
        raise ConfigError(f"{count} {split} facts were asked for; there are {available}, so choose 0 to {available}")
    drawn = [_shuffled(pool, f"{seed}:{split}:{kind}") for pool, kind in zip(pools, KINDS, strict=True)]
    return [_task(drawn[n % len(KINDS)][n // len(KINDS)], split) for n in range(count)]


def all_fact_tasks(split: str) -> list[Task]:
    """Return every question of a split, kind by kind, in a fixed order; the kinds differ in number.

    Raises:
        ConfigError: there is no such split.
    """
    return [_task(question, split) for pool in _pools(split) for question in pool]


def score_fact(task: Task, answer: str) -> Outcome:
    """Score an answer: 1 when it is the gold answer or an alias after normalisation, else 0.

    A leading "The answer is" or "Answer:" is dropped, nothing else: a sentence around the answer scores 0.
    """
    said = _LEAD.sub("", answer, count=1)
    accepted = (task.reference["gold"], *task.reference["aliases"])
    exact = float(any(same_answer(said, text) for text in accepted))
    return Outcome(exact, {"exact": exact}, f"{'is' if exact else 'is not'} the gold answer {accepted[0]!r}")


_LEAD = re.compile(r"\s*(?:the answer is\b\s*:?|answer\s*:)", re.IGNORECASE)


def same_answer(said: str, gold: str) -> bool:
    """Compare two answers: a gold number with numbers only, by value; other text by `normalized` equality."""
    number = _number(gold)
    if number is not None:
        return _number(said) == number
    return bool(normalized(said)) and normalized(said) == normalized(gold)


def normalized(text: str) -> str:
    """Fold case, accents, punctuation, articles and spaces; apostrophes and dots join ("St. John's" -> "st johns")."""
    text = text.casefold()
    if not text.isascii():  # most texts are, and this takes time
        text = unicodedata.normalize("NFKD", text).casefold().translate(_PLAIN_LETTERS)
        text = "".join(c for c in text if not unicodedata.combining(c))
    words = re.sub(r"[\W_]+", " ", _JOINING.sub("", text)).split()
    return " ".join([w for w in words if w not in ("a", "an", "the")] or words)


_PLAIN_LETTERS = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "\u0131": "i", "æ": "ae", "œ": "oe", "ð": "d", "þ": "th"})
_JOINING = re.compile(r"['`\u2018\u2019\u02bb\u02bc\u00b4]|\.(?!\d)")  # every kind of apostrophe, and dots
_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d{1,40})(?:\.\d{1,40})?", re.ASCII)


def _number(text: str) -> Decimal | None:
    if len(text) > 100:
        return None
    plain = unicodedata.normalize("NFKC", text).strip(" \t\r\n\"'`*()[]").removesuffix(".")
    return Decimal(plain.replace(",", "")) if _NUMBER.fullmatch(plain) else None


def _pools(split: str) -> list[list[_Question]]:
    if split not in SPLITS:
        raise ConfigError(f"split is '{split}'; use one of {', '.join(SPLITS)}")
    return [_questions()[split, kind] for kind in KINDS]


@dataclass(frozen=True, slots=True)
class _Relation:
    """What is asked: the kind of its one-hop questions, 1 where it is obscure, and the phrasings."""

    kind: str
    obscure: int
    phrasings: tuple[str, ...]


def _geography(obscure: int, *phrasings: str) -> _Relation:
    return _Relation("geography", obscure, phrasings)


def _chemistry(obscure: int, *phrasings: str) -> _Relation:
    return _Relation("chemistry", obscure, phrasings)


_RELATIONS: Mapping[str, _Relation] = {
    "capital": _geography(
        0, "What is the capital of {x}?", "Which city is the capital of {x}?", "Name the capital of {x}."
    ),
    "country of capital": _geography(
        0, "{x} is the capital of which country?", "Which country has {x} as its capital?"
    ),
    "country of city": _geography(
        0, "In which country does the city of {x} lie?", "Which country is the city of {x} in?"
    ),
    "continent": _geography(0, "On which continent is {x}?", "What is the continent of {x}?"),
    "currency": _geography(
        0, "What is the currency of {x}?", "Which currency is used in {x}?", "Name the currency of {x}."
    ),
    "currency code": _geography(1, "What is the code of the currency of {x}?", "Give the currency code of {x}."),
    "calling code": _geography(1, "What is the calling code of {x}?", "Which telephone calling code does {x} have?"),
    "domain": _geography(1, "What is the internet country code of {x}?", "Which internet country code does {x} use?"),
    "country of domain": _geography(
        1, "Which country has the internet country code {x}?", "Whose internet country code is {x}?"
    ),
    "ISO code": _geography(
        1, "What is the three-letter ISO country code of {x}?", "Give the three-letter ISO country code of {x}."
    ),
    "highest point": _geography(1, "What is the highest point of {x}?", "Which point is the highest elevation of {x}?"),
    "adjective": _geography(
        0, "What is the nationality adjective of {x}?", "Which nationality adjective belongs to {x}?"
    ),
    "symbol": _chemistry(0, "What is the chemical symbol of {x}?", "Give the symbol of {x}."),
    "element of symbol": _chemistry(
        0, "Which element has the symbol {x}?", "Name the element with the chemical symbol {x}."
    ),
    "atomic number": _chemistry(0, "What is the atomic number of {x}?", "Give the atomic number of {x}."),
    "element of number": _chemistry(
        0, "Which element has the atomic number {x}?", "Name the element with atomic number {x}."
    ),
    "group": _chemistry(
        1, "What is the group of {x} in the periodic table?", "In which group of the periodic table is {x}?"
    ),
    "period": _chemistry(
        1, "What is the period of {x} in the periodic table?", "In which period of the periodic table is {x}?"
    ),
    "element at": _chemistry(1, "Which element is in {x} of the periodic table?", "Name the element of {x}."),
    "series": _chemistry(0, "To which series of elements does {x} belong?", "What is the series of {x}?"),
    "year": _chemistry(1, "What is the year of the discovery of {x}?", "In which year was {x} discovered?"),
    "surname": _chemistry(
        1, "What is the surname of the person who discovered {x}?", "Who discovered {x}? Surname only."
    ),
    "place": _chemistry(1, "In which country was {x} discovered?", "Which country saw the discovery of {x}?"),
}


@dataclass(frozen=True, slots=True)
class _Fact:
    """`gold` is the value of `relation` for the entity `key`, which a question calls `x`; `evidence` states it."""

    relation: str
    key: str
    x: str
    gold: str
    aliases: tuple[str, ...]
    evidence: str
    obscure: int


@dataclass(frozen=True, slots=True)
class _Clue:
    """`text` describes the entity `key` through `name`; `evidence` links the two. It is asked for `relations` only."""

    key: str
    name: str
    text: str
    evidence: str
    obscure: int
    relations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Question:
    """A question before it becomes a task; `number` is its place among its split's and kind's."""

    number: int
    kind: str
    text: str
    fact: _Fact
    evidence: tuple[str, ...]
    difficulty: float


def _task(question: _Question, split: str) -> Task:
    fact = question.fact
    reference = {
        "gold": fact.gold,
        "aliases": _distinct(fact.aliases, fact.gold),
        "evidence": list(question.evidence),
        "wrong": _wrong_answers(question),
    }
    name = f"{split}-{question.kind}-{question.number:05d}"
    return Task(name, question.kind, question.text, reference, question.difficulty, domain="embedded")


def _wrong_answers(question: _Question) -> list[str]:
    """Pick three other values of the same relation that the scorer would refuse, and that differ from each other."""
    fact = question.fact
    taken = [fact.gold, *_distinct(fact.aliases, fact.gold)]
    wrong: list[str] = []
    for value in _shuffled(_values()[fact.relation], f"wrong:{question.text}"):
        if not any(same_answer(value, text) for text in (*taken, *wrong)):
            wrong.append(value)
        if len(wrong) == 3:
            break
    return wrong


def _distinct(aliases: Iterable[str], gold: str) -> list[str]:
    other = {normalized(a): a for a in reversed(list(aliases)) if a and normalized(a) != normalized(gold)}
    return list(reversed(other.values()))


def _shuffled(items: Iterable[T], name: str) -> list[T]:
    items = list(items)
    Random(name).shuffle(items)
    return items


def _pick(items: tuple[T, ...], name: str) -> T:
    return items[int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) % len(items)]


def _split_of(name: str) -> str:
    share = int.from_bytes(hashlib.sha256(normalized(name).encode()).digest()[:4]) % 100
    return "train" if share < 70 else "dev" if share < 80 else "test"


@cache
def _questions() -> dict[tuple[str, str], list[_Question]]:
    """Make every question once: (split, kind) -> questions in a fixed order."""
    pools: dict[tuple[str, str], list[_Question]] = {(s, k): [] for s in SPLITS for k in KINDS}
    candidates = [*_one_hop(), *_two_hop()]
    texts = Counter(normalized(q[2]) for q in candidates)
    for kind, name, text, fact, evidence, difficulty in candidates:
        if texts[normalized(text)] == 1 and not _contains(text, fact.gold):
            pool = pools[_split_of(name), kind]
            pool.append(_Question(len(pool), kind, text, fact, evidence, difficulty))
    return pools


_Candidate = tuple[str, str, str, _Fact, tuple[str, ...], float]  # kind, name, text, fact, evidence, difficulty


def _one_hop() -> Iterator[_Candidate]:
    for fact in _facts():
        relation = _RELATIONS[fact.relation]
        text = _phrase(fact.relation, fact.x)
        yield relation.kind, fact.x, text, fact, (fact.evidence,), (fact.obscure + relation.obscure) / 2


def _two_hop() -> Iterator[_Candidate]:
    known = {(f.key, f.relation): f for f in _facts()}
    for clue in _clues():
        for name in clue.relations:
            fact = known.get((clue.key, name))
            if fact:
                evidence = (clue.evidence, fact.evidence)
                difficulty = (clue.obscure + _RELATIONS[name].obscure) / 2
                yield "twohop", clue.name, _phrase(name, clue.text), fact, evidence, difficulty


def _phrase(relation: str, x: str) -> str:
    text = _pick(_RELATIONS[relation].phrasings, f"{relation}:{x}").format(x=x)
    return text[0].upper() + text[1:]


@cache
def _values() -> dict[str, list[str]]:
    values: dict[str, dict[str, str]] = defaultdict(dict)
    for fact in _facts():
        values[fact.relation].setdefault(normalized(fact.gold), fact.gold)
    return {relation: list(golds.values()) for relation, golds in values.items()}


def _contains(text: str, part: str) -> bool:
    return f" {normalized(part)} " in f" {normalized(text)} "


@cache
def _library() -> dict[str, list[Document]]:
    library: dict[str, list[Document]] = defaultdict(list)
    for document in documents():
        library[document.title].append(document)
    return library


def _stating(title: str, *parts: str) -> str:
    """Return the id of the one document with this title if it states all `parts`, else ""."""
    found = _library().get(title, [])
    text = f"{found[0].title} {found[0].text}" if len(found) == 1 else ""
    return found[0].id if text and all(_contains(text, part) for part in parts) else ""


@cache
def _facts() -> tuple[_Fact, ...]:
    made = [f for c in _states() for f in _country_facts(c)]
    made += [f for c in _known_cities() for f in _city_facts(c)]
    made += [f for e in elements() for f in _element_facts(e)]
    return tuple(f for f in made if f.evidence)


def _clues() -> Iterator[_Clue]:
    states = {c.name: c for c in _states()}
    for country in states.values():
        yield from (c for c in _country_clues(country) if c.evidence)
    yield from (_city_clue(c) for c in _known_cities())
    for element in elements():
        yield from (c for c in _element_clues(element, states) if c.evidence)


# Countries

_COMMON_PEOPLE = 20_000_000  # a country with this many people is common, a smaller one obscure
_ARTICLE = re.compile(
    r"^(?:United|Netherlands|Philippines|Bahamas|Gambia|Maldives|Comoros|Seychelles|Central African"
    r"|Dominican Republic|Democratic Republic|Republic of)|Islands$"
)
_CONTINENTS: Mapping[str, tuple[str, ...]] = {  # the factbook's map references that agree with GeoNames' continent
    "Africa": ("Africa",),
    "Asia": ("Asia", "Middle East", "Southeast Asia"),
    "Europe": ("Europe",),
    "North America": ("North America", "Central America and the Caribbean"),
    "Oceania": ("Oceania",),
    "South America": ("South America",),
}
_SIMPLE_RELATIONS = ("currency", "currency code", "calling code", "continent", "domain", "ISO code", "adjective")
_ABOUT_COUNTRIES = ("capital", "highest point", *_SIMPLE_RELATIONS)


@cache
def _states() -> tuple[Country, ...]:
    """Countries that the factbook knows, with a capital, and that depend on no other."""
    return tuple(
        c
        for c in countries()
        if c.entry.get("Government", "Capital", "name") and not c.entry.get("Government", "Dependency status")
    )


def _the(name: str) -> str:
    name = name.removeprefix("The ")
    return f"the {name}" if _ARTICLE.search(name) else name


def _country_facts(c: Country) -> Iterator[_Fact]:
    key, x, obscure = f"country:{c.name}", _the(c.name), int(c.population < _COMMON_PEOPLE)

    def fact(relation: str, topic: str, gold: str, *aliases: str) -> _Fact:
        evidence = _stating(f"{c.name}: {topic}", gold) if gold else ""
        return _Fact(relation, key, x, gold, aliases, evidence, obscure)

    yield fact("capital", "capital city", *_capital(c))
    yield fact("continent", "continent", _agreed_continent(c))
    code = c.calling_code
    yield fact("currency", "currency", *_currency(c))
    yield fact("currency code", "currency", c.currency_code)
    yield fact("calling code", "calling code", f"+{code}" if re.fullmatch(r"[\d-]+", code) else "", code, f"00{code}")
    yield fact("ISO code", "ISO country codes", c.iso3)
    yield fact("adjective", "nationality", _adjective(c))
    yield fact("highest point", "elevation", *_highest_point(c))
    domain = _domain(c)
    yield fact("domain", "internet country code", domain)
    for relation, name, topic in (
        ("country of capital", _capital(c)[0], "capital city"),
        ("country of domain", domain, "internet country code"),
    ):
        evidence = _stating(f"{c.name}: {topic}", name) if name else ""
        yield _Fact(relation, f"{relation}:{name}", name, c.name, _other_names(c), evidence, obscure)


def _country_clues(c: Country) -> Iterator[_Clue]:
    key, obscure = f"country:{c.name}", int(c.population < _COMMON_PEOPLE)
    capital, domain = _capital(c)[0], _domain(c)
    if capital and not (_contains(c.name, capital) or _contains(capital, c.name)):
        text, seen = f"the country whose capital is {capital}", _stating(f"{c.name}: capital city", capital)
        yield _Clue(key, capital, text, seen, obscure, ("highest point", *_SIMPLE_RELATIONS))
    if domain:
        text = f"the country with the internet country code {domain}"
        seen = _stating(f"{c.name}: internet country code", domain)
        yield _Clue(key, domain, text, seen, obscure, ("capital", "currency", "calling code", "continent"))
    if re.fullmatch(r"\d{1,3}", c.calling_code):
        text, seen = f"equal to the calling code of {_the(c.name)}", _stating(f"{c.name}: calling code", c.calling_code)
        yield _Clue(f"number:{c.calling_code}", _the(c.name), text, seen, obscure, ("element of number",))


def _capital(c: Country) -> tuple[str, ...]:
    """Return the capital and its other spelling where the sources agree on one, else ("",)."""
    named = c.entry.get("Government", "Capital", "name")
    plain = re.sub(r"\s*\([^)]*\)", "", named)
    one = not re.search(r";|capital|\baka\b| in ", named)
    return (c.capital, plain) if one and c.capital and normalized(plain).startswith(normalized(c.capital)) else ("",)


def _agreed_continent(c: Country) -> str:
    seen = c.entry.get("Geography", "Map references")
    return c.continent if seen in _CONTINENTS.get(c.continent, ()) else ""


def _adjective(c: Country) -> str:
    said = c.entry.get("People and Society", "Nationality", "adjective")
    return said if re.fullmatch(r"[A-Z][A-Za-z -]+", said) and " or " not in said else ""


_CURRENCY_NAMES: Mapping[str, tuple[str, ...]] = {
    "USD": ("US dollar", "United States dollar"),
    "XOF": ("CFA franc", "West African CFA franc"),
    "XAF": ("CFA franc", "Central African CFA franc"),
}


def _currency(c: Country) -> tuple[str, ...]:
    """Return the currency as GeoNames writes it, then its other names, its nationality where it is the country's."""
    if not c.currency:
        return ("",)
    last = c.currency.split()[-1]
    own = f"{_adjective(c)} {last}" if c.currency_code.startswith(c.iso2) and _adjective(c) else ""
    quoted = c.entry.get("Economy", "Exchange rates", "Currency").partition(" (")[0]
    known = _CURRENCY_NAMES.get(c.currency_code, ())
    return c.currency, last, own, quoted, quoted.removesuffix("s"), c.currency_code, *known


def _domain(c: Country) -> str:
    first = re.search(r"\.[a-z]{2}\b", c.entry.get("Communications", "Internet country code"))
    return c.domain if first and first[0] == c.domain else ""


_PEAK = re.compile(r"([A-Z][^\d;:,()]*?)(?: \(([A-Z][^\d;:,()]*)\))? [\d,]+(?: m)?\b")


def _highest_point(c: Country) -> tuple[str, ...]:
    peak = _PEAK.match(c.entry.get("Geography", "Elevation", "highest point"))
    return (peak[1], peak[2] or "") if peak else ("",)


def _other_names(c: Country) -> tuple[str, ...]:
    labels = ("conventional short form", "conventional long form", "local short form", "abbreviation")
    names = (c.entry.get("Government", "Country name", label) for label in labels)
    more = {"US": ("USA",), "GB": ("UK", "Great Britain"), "AE": ("UAE",)}.get(c.iso2, ())
    return (*(n for n in names if n not in ("", "none")), *more)


# Cities

_ASKED_CITY = 300_000  # people of the smallest city in a two-hop question
_ASKED_CITY_ONE_HOP = 700_000
_COMMON_CITY = 2_000_000


@cache
def _known_cities() -> tuple[City, ...]:
    """Cities with enough people, whose name no other city has and does not give their country away."""
    names = Counter(normalized(c.name) for c in cities())
    states = {c.name for c in _states()}
    return tuple(
        c
        for c in cities()
        if c.population >= _ASKED_CITY
        and c.country in states
        and names[normalized(c.name)] == 1
        and not (_contains(c.name, c.country) or _contains(c.country, c.name))
        and _city_evidence(c)
    )


def _city_evidence(c: City) -> str:
    return _stating(f"{c.name}: city in {c.country}", c.name, c.country)


def _city_facts(c: City) -> Iterator[_Fact]:
    if c.population >= _ASKED_CITY_ONE_HOP:
        aliases = _other_names(next(s for s in _states() if s.name == c.country))
        obscure = int(c.population < _COMMON_CITY)
        yield _Fact("country of city", f"city:{c.name}", c.name, c.country, aliases, _city_evidence(c), obscure)


def _city_clue(c: City) -> _Clue:
    """Describe the city's country; of all its relations, the city's name picks one."""
    text, obscure = f"the country in which the city of {c.name} lies", int(c.population < _COMMON_CITY)
    asked = _pick(_ABOUT_COUNTRIES, f"city:{c.name}")
    return _Clue(f"country:{c.country}", c.name, text, _city_evidence(c), obscure, (asked,))


# Elements

_COMMON_SYMBOLS = frozenset(
    {"Ag", "Sn", "I", "W", "Pt", "Au", "Hg", "Pb", "U", "Pu", "Ra"}
)  # beyond the first 36 elements
_SPELLINGS = {"Aluminum": "Aluminium", "Cesium": "Caesium", "Sulfur": "Sulphur"}
_MISSPELT_DISCOVERER = frozenset({"Niobium", "Ruthenium", "Osmium", "Francium"})  # in the source
_WRONG_YEAR = frozenset({"Neodymium"})  # in the source
_BRITAIN = ("United Kingdom", "UK", "Great Britain")
_PLACES = {"England": _BRITAIN, "Scotland": _BRITAIN, "United States": ("USA", "US", "United States of America")}
_PERSON = re.compile(r"(?:Sir )?([A-ZÉÖÜ][\w.]*(?: [\w.-]+)+)")
_INSTITUTE = re.compile(r"Institute|Laborator|Centre|Research| and |ancients")
_ABOUT_ELEMENTS = ("group", "period", "series", "year", "surname", "place")


def _element_facts(e: Element) -> Iterator[_Fact]:
    key, x, obscure = f"element:{e.name}", e.name.lower(), _element_obscure(e)
    names = (_SPELLINGS[e.name],) if e.name in _SPELLINGS else ()
    number, symbol, period = str(e.atomic_number), e.symbol, str(e.period)
    group = "" if e.group is None else str(e.group)

    def fact(relation: str, topic: str, gold: str, *aliases: str) -> _Fact:
        evidence = _stating(f"{e.name}: {topic}", gold) if gold else ""
        return _Fact(relation, key, x, gold, aliases, evidence, obscure)

    def inverse(relation: str, topic: str, own_key: str, called: str, *parts: str) -> _Fact:
        evidence = _stating(f"{e.name}: {topic}", *parts)
        return _Fact(relation, own_key, called, e.name, names, evidence, obscure)

    yield fact("symbol", f"symbol {symbol}", symbol)
    yield fact("atomic number", f"atomic number {number}", number)
    yield inverse("element of symbol", f"symbol {symbol}", f"symbol:{symbol}", symbol, symbol)
    yield inverse("element of number", f"atomic number {number}", f"number:{number}", number, number)
    yield fact("period", "group and period", period, f"period {period}")
    if group:
        place = f"group {group} and period {period}"
        yield fact("group", "group and period", group, f"group {group}")
        yield inverse("element at", "group and period", f"place:{place}", place, f"group {group}", f"period {period}")
    yield fact("series", "series", e.series, e.series.removesuffix("s"))
    year = "" if e.discovery_year is None or e.name in _WRONG_YEAR else str(e.discovery_year)
    yield fact("year", "discovery", year)
    yield fact("surname", "discovery", *_discoverer(e))
    place = e.discovery_place if re.fullmatch(r"[A-Z]\w+(?: [A-Z]\w+)?", e.discovery_place) else ""
    yield fact("place", "discovery", "" if place == "Great Britain" else place, *_PLACES.get(place, ()))


def _element_clues(e: Element, states: Mapping[str, Country]) -> Iterator[_Clue]:
    key, obscure, number = f"element:{e.name}", _element_obscure(e), str(e.atomic_number)
    seen = _stating(f"{e.name}: symbol {e.symbol}", e.symbol)
    yield _Clue(key, e.symbol, f"the element with the symbol {e.symbol}", seen, obscure, _ABOUT_ELEMENTS)
    seen = _stating(f"{e.name}: atomic number {number}", number)
    yield _Clue(key, number, f"the element with atomic number {number}", seen, obscure, ("symbol", *_ABOUT_ELEMENTS))
    if e.discovery_place in states:
        text = f"the country in which {e.name.lower()} was discovered"
        seen = _stating(f"{e.name}: discovery", e.discovery_place)
        relations = ("capital", "currency", "calling code", "domain")
        yield _Clue(f"country:{e.discovery_place}", e.name.lower(), text, seen, obscure, relations)


def _element_obscure(e: Element) -> int:
    return int(e.atomic_number > 36 and e.symbol not in _COMMON_SYMBOLS)


def _discoverer(e: Element) -> tuple[str, ...]:
    """Return the surname of a single discoverer, the surname with its particles, and the full name, else ("",)."""
    person = _PERSON.fullmatch(e.discoverers)
    if not person or _INSTITUTE.search(e.discoverers) or e.name in _MISSPELT_DISCOVERER:
        return ("",)
    words = person[1].split()
    particle = next((i for i, w in enumerate(words) if w.islower()), len(words) - 1)
    return words[-1], " ".join(words[particle:]), person[1]
