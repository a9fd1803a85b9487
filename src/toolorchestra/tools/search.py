"""Local search: an index file over short documents, and the tool that asks it.

In: documents with id, title and text; any query text at all. Out: the best `k` by BM25 over title and text, words
stemmed and accents dropped. The index is one SQLite file, made whole or not at all, read-only afterwards, and made
again only when the documents change. A query costs a few milliseconds, so that it is called directly from asyncio.

Source: SQLite FTS5 (https://www.sqlite.org/fts5.html); Robertson and Zaragoza, "The Probabilistic Relevance
Framework: BM25 and Beyond" (2009).
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import tempfile
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from toolorchestra.errors import DataError
from toolorchestra.pricing import Price, bill
from toolorchestra.protocols import View
from toolorchestra.types import Observation, ToolSpec

NOTHING_FOUND = "no passage found"

SHOWN_CHARS = 300
"""Most characters of a passage's text that the tool shows."""

_TITLE_WEIGHT = 3.0  # a title names entity and topic, a text mentions much else
_MAX_WORDS = 64  # distinct words of a query; what follows is left out
_MAX_WORD_CHARS = 64
_MAX_HITS = 1000
_FORMAT = "1"  # part of the fingerprint; raise it when the table changes

_SHOWN_ID = re.compile(r"^\[(\S+)\] ", re.MULTILINE)
_WORD = re.compile(r"\.?([^\W_]+)")
_DULL = """
a an and are as at be by can could did do does for from give had has have how i in into is it its lie lies me my name of
on or please tell that the their there these this those to was were what when where which who whom whose why will with
would you your
"""
_STOP_WORDS = frozenset(_DULL.split())


class Indexable(Protocol):
    """What can be indexed."""

    @property
    def id(self) -> str:
        """A short name, unique among the documents."""
        ...

    @property
    def title(self) -> str:
        """What it is about."""
        ...

    @property
    def text(self) -> str:
        """What it says."""
        ...


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that was found; a higher score is a better match, comparable within one query only."""

    id: str
    title: str
    text: str
    score: float


class SearchIndex:
    """A read-only full-text index. Make one with `build` or `open`."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    @classmethod
    def build(cls, documents: Iterable[Indexable], path: Path) -> SearchIndex:
        """Index `documents` in the file `path`, or open it where it already holds just these documents.

        Other processes see the old file or the new one, never a part. A file that is not such an index is replaced.
        """
        rows = [(_storable(d.id), _storable(d.title), _storable(d.text)) for d in documents]
        fingerprint = _fingerprint(rows)
        if not _holds(path, fingerprint):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=path.name, suffix=".part", dir=path.parent)
            os.close(handle)
            try:
                _write(Path(name), rows, fingerprint)
                os.replace(name, path)
            finally:
                Path(name).unlink(missing_ok=True)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> SearchIndex:
        """Open an index that `build` made.

        Raises:
            DataError: there is no such file, or it is not an index.
        """
        if not path.is_file():
            raise DataError(f"{path}: no such search index; make it with SearchIndex.build")
        try:
            database = _connect(path)
        except sqlite3.Error as error:
            raise DataError(f"{path}: not a search index ({error}); remove it to have it made again") from None
        return cls(database)

    def search(self, query: str, k: int) -> list[Hit]:
        """Return at most `k` documents that share a word with `query`, the best first; ties in index order.

        Any text is a valid query: it is only read for its words. Without one, nothing is found.
        """
        words = _words(query)
        if not words or k < 1:
            return []
        match = " OR ".join(f'"{word}"' for word in words)
        rows = self._database.execute(_SEARCH_SQL, (_TITLE_WEIGHT, match, min(k, _MAX_HITS)))
        return [Hit(id, title, text, -rank) for id, title, text, rank in rows]

    def get(self, id: str) -> Hit | None:
        """Return the document with this id, with a score of 0, or None; ids are scanned, in some milliseconds."""
        row = self._database.execute("select title, text from passages where id = ?", (id,)).fetchone()
        return Hit(id, row[0], row[1], 0.0) if row else None

    def close(self) -> None:
        """Close the file."""
        self._database.close()


class SearchTool:
    """Search as a tool; see `toolorchestra.protocols.Tool`.

    Args:
        index: where to look.
        k: passages to return.
        price: what a call costs; free unless said otherwise.
        typical_latency_s: seconds of a call, as shown to the policy.
        virtual: charge `typical_latency_s`, the same in every run; else the seconds that the search took.
    """

    def __init__(
        self,
        index: SearchIndex,
        *,
        k: int = 3,
        price: Price = Price(),
        typical_latency_s: float = 0.05,
        virtual: bool = True,
    ) -> None:
        self._index = index
        self._k = k
        self._virtual = virtual
        self._spec = ToolSpec(
            name="search",
            description=f"Find the {k} best matching passages of the local library.",
            parameters=_PARAMETERS,
            price=price,
            typical_latency_s=typical_latency_s,
        )

    @property
    def spec(self) -> ToolSpec:
        """What the policy sees."""
        return self._spec

    async def __call__(self, arguments: Mapping[str, Any], view: View) -> Observation:
        """Search for `query`. Where it is left out, search for the task's own text, and later go on from there.

        To go on is to look for what the task asks and the best passage of the latest search did not say, about what
        that passage is about, among passages that were not shown: a second hop, found without writing a query.
        """
        started_s = time.perf_counter()
        query = str(arguments.get("query") or "").strip()
        if query:
            hits = self._index.search(query, self._k)
        else:
            shown = [_SHOWN_ID.findall(o.content) for o in view.observations if o.source == self._spec.name]
            seen = {id for ids in shown for id in ids}
            query = self._next_query(view.task.instruction, shown[-1] if shown else ())
            found = self._index.search(query, self._k + len(seen))
            hits = [hit for hit in found if hit.id not in seen][: self._k]
        measured_s = time.perf_counter() - started_s
        latency_s = self._spec.typical_latency_s if self._virtual else measured_s
        content = "\n".join(map(show_hit, hits)) or NOTHING_FOUND
        usage = bill(self._spec.price, latency_s=latency_s)
        return Observation(self._spec.name, "document", content, usage=usage)

    def _next_query(self, question: str, shown: Sequence[str]) -> str:
        best = self._index.get(shown[0]) if shown else None
        if best is None:
            return question
        said = {*_words(best.title), *_words(best.text)}
        return " ".join([*(word for word in _words(question) if word not in said), best.title])


_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "query": {
            "type": "string",
            "description": "what to look for; when left out, the task's text, and later what is still missing",
        },
    },
    "additionalProperties": False,
}


def show_hit(hit: Hit) -> str:
    """Write a hit on one line: `[id] title: text`, the text cut to `SHOWN_CHARS` characters."""
    return f"[{hit.id}] {' '.join(hit.title.split())}: {shorten(' '.join(hit.text.split()), SHOWN_CHARS)}"


def shorten(text: str, limit: int) -> str:
    """Cut a text to at most `limit` characters, an ellipsis included; an accent is not parted from its letter."""
    if len(text) <= limit:
        return text
    end = limit - 1
    while end > 0 and unicodedata.combining(text[end]):
        end -= 1
    return text[:end].rstrip() + "…"


_SEARCH_SQL = """
select id, title, text, bm25(passages, 0, ?, 1.0) as score from passages where passages match ?
order by score, rowid limit ?
"""


def _words(query: str) -> list[str]:
    """Read a query's distinct words, without stop words.

    A stop word is kept where its spelling says that it is a name: a dot before it ("the domain .in"), or a capital
    inside the query ("the symbol In"), except "I".
    """
    found: dict[str, None] = {}
    for position, match in enumerate(_WORD.finditer(query)):
        word = match[1][:_MAX_WORD_CHARS]
        is_name = match[0][0] == "." or (position > 0 and word[0].isupper() and word != "I")
        if is_name or word.lower() not in _STOP_WORDS:
            found[word.lower()] = None
        if len(found) == _MAX_WORDS:
            break
    return list(found)


def _storable(text: str) -> str:
    """Drop lone surrogates, which no file can hold, and NUL, at which SQLite's text functions stop."""
    return text.encode(errors="ignore").decode().replace("\0", "")


def _fingerprint(rows: Iterable[tuple[str, str, str]]) -> str:
    digest = hashlib.sha256(_FORMAT.encode())
    for row in rows:
        digest.update("\0".join(row).encode() + b"\0\0")
    return digest.hexdigest()


def _connect(path: Path) -> sqlite3.Connection:
    """Open read-only and make sure that it is an index. The file never changes in place, hence `immutable`."""
    uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    database = sqlite3.connect(uri, uri=True, check_same_thread=False)
    try:
        database.execute("select rowid, id, title, text from passages limit 1").fetchall()
        database.execute("select fingerprint from about").fetchall()
    except sqlite3.Error:
        database.close()
        raise
    return database


def _holds(path: Path, fingerprint: str) -> bool:
    if not path.is_file():
        return False
    try:
        with closing(_connect(path)) as database:
            return database.execute("select fingerprint from about").fetchall() == [(fingerprint,)]
    except sqlite3.Error:
        return False


def _write(path: Path, rows: Iterable[tuple[str, str, str]], fingerprint: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("pragma journal_mode = off")  # the file is thrown away when anything fails
        database.execute(
            "create virtual table passages using fts5"
            "(id unindexed, title, text, tokenize = 'porter unicode61 remove_diacritics 2')"
        )
        database.executemany("insert into passages values (?, ?, ?)", rows)
        database.execute("insert into passages (passages) values ('optimize')")
        database.execute("create table about (fingerprint text)")
        database.execute("insert into about values (?)", (fingerprint,))
        database.commit()
    with path.open("rb") as file:
        os.fsync(file.fileno())
