"""The puzzles of the embedded world: ten families of short questions with machine-checked answers.

In: a split, a count and a seed. Out: tasks, the same number of each family, in three difficulties by turns; the tasks
of a smaller count are the first of a larger one. A question's split follows from its text alone, so no seed carries a
question from one split into another. Answers are judged by reasoning-gym's own scorers, and only by those that do not
run an answer as code. Draws whose own answer is wrong or doubtful are left out; a comment at each says why.
Source: reasoning-gym (Apache-2.0).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from hashlib import sha256
from itertools import count as count_up
from itertools import cycle, islice
from random import Random
from typing import Any

from toolorchestra.errors import ConfigError, JudgeError, MissingExtraError
from toolorchestra.types import Outcome, Task

MAX_QUESTION_CHARS = 320
"""Longer draws are dropped: a small policy reads every question."""

MAX_ANSWER_CHARS = 2_000
"""A longer answer is wrong without asking the scorer."""

DIFFICULTIES = (0.0, 0.5, 1.0)

WRONG_ANSWERS = 3
"""Plausible wrong answers in each reference."""

_SPLIT_OF_TENTH = ("train",) * 7 + ("dev",) + ("test",) * 2
_CHUNK = 256  # draws from one dataset object, for the sake of those that load files
_MAX_DRAWS = 20_000  # in vain, before a family counts as exhausted

_Entry = Mapping[str, Any]  # reasoning-gym's: question, answer, metadata


def puzzle_tasks(split: str, count: int, seed: int) -> list[Task]:
    """Make tasks for `train`, `dev` or `test`; the families take turns, so each has the same number within one.

    Raises:
        ConfigError: there is no such split, or a family has too few different questions for so many tasks.
        MissingExtraError: reasoning-gym is not installed.
    """
    if split not in _SPLIT_OF_TENTH:
        raise ConfigError(f"there is no split '{split}'; choose train, dev or test")
    families = [_tasks_of(kind, split, seed) for kind in PUZZLE_KINDS]
    return [next(family) for family in islice(cycle(families), count)]


def score_puzzle(task: Task, answer: str) -> Outcome:
    """Judge an answer: solved where the family's scorer gives exactly 1; what it gives is kept as the check `partial`.

    Raises:
        JudgeError: the reference is not one of `puzzle_tasks`, or the scorer failed.
        MissingExtraError: reasoning-gym is not installed.
    """
    text = answer.strip()
    if not text:
        return Outcome(0.0, {"partial": 0.0}, "no answer")
    if len(text) > MAX_ANSWER_CHARS:
        return Outcome(0.0, {"partial": 0.0}, f"longer than {MAX_ANSWER_CHARS} characters")
    try:
        given = _ask_scorer(task.reference["family"], text, {"question": task.instruction, **task.reference["entry"]})
    except MissingExtraError:
        raise
    except Exception as error:  # whatever it is, a scorer's failure is not the answer's
        raise JudgeError(f"the scorer failed on task {task.id}: {type(error).__name__}: {error}") from error
    return Outcome(float(given == 1.0), {"partial": min(given, 1.0)})


def _ask_scorer(dataset: str, answer: str, entry: _Entry) -> float:
    try:
        given = float(_scorer(dataset)(answer, dict(entry)))
    except ArithmeticError:
        return 0.0  # some scorers divide by what was written: a number past all bounds is wrong, not a broken scorer
    if not (math.isfinite(given) and given >= 0):
        raise ValueError(f"the scorer of {dataset} gave {given}")
    return given


@cache
def _scorer(dataset: str) -> Callable[[str, dict[str, Any]], float]:
    if dataset not in {s.dataset for levels in _FAMILIES.values() for level in levels for s in level}:
        raise ValueError(f"'{dataset}' is none of the datasets used here")  # some others would run the answer as code
    return _dataset(dataset, seed=0, size=1).score_answer


def _dataset(name: str, **config: Any) -> Any:
    try:
        from reasoning_gym import create_dataset  # takes half a second
    except ImportError as error:
        raise MissingExtraError("the embedded world's puzzles", "world") from error
    return create_dataset(name, **config)


# From draws to tasks


@dataclass(frozen=True, slots=True)
class _Source:
    """One dataset in one configuration.

    Attributes:
        wrong: makes up one plausible wrong answer; it may hit the right one by chance.
        text: the question as asked here.
        keep: whether a draw is sound.
        needs: what the scorer reads of the metadata.
    """

    dataset: str
    config: Mapping[str, Any]
    wrong: Callable[[_Entry, Random], str]
    text: Callable[[_Entry], str]
    keep: Callable[[_Entry], bool]
    needs: tuple[str, ...]


def _tasks_of(kind: str, split: str, seed: int) -> Iterator[Task]:
    """Yield a family's tasks without end: difficulties by turns, and the sources of a difficulty by turns."""
    levels = [
        [(source, _draws(source, f"{seed}:{kind}:{level}:{place}")) for place, source in enumerate(sources)]
        for level, sources in enumerate(_FAMILIES[kind])
    ]
    seen: set[str] = set()
    for number in count_up():
        turn, level = divmod(number, len(levels))
        source, draws = levels[level][turn % len(levels[level])]
        found = _first_fresh(source, draws, split, seen)
        if found is None:
            raise ConfigError(f"there are only {number} different '{kind}' puzzles for {split}; ask for fewer tasks")
        name = f"{split}-{kind}-{number:05d}"
        yield Task(name, kind, *found, difficulty=DIFFICULTIES[level], domain="embedded")


def _draws(source: _Source, name: str) -> Iterator[_Entry]:
    """Draw without end; what is drawn follows from `name` alone."""
    for chunk in count_up():
        seed = int.from_bytes(sha256(f"{name}:{chunk}".encode()).digest()[:4], "big") >> 1  # some take 31 bits
        yield from _dataset(source.dataset, seed=seed, size=_CHUNK, **source.config)


def _first_fresh(
    source: _Source, draws: Iterator[_Entry], split: str, seen: set[str]
) -> tuple[str, dict[str, Any]] | None:
    """Return question and reference of the next sound draw that belongs to the split and was not seen, or None."""
    for entry in filter(source.keep, islice(draws, _MAX_DRAWS)):
        text = " ".join(source.text(entry).split())
        key = text.lower()
        if len(text) > MAX_QUESTION_CHARS or key in seen or _split_of(key) != split:
            continue
        reference = _reference(source, entry, Random(key))
        if len(reference["wrong"]) == WRONG_ANSWERS:
            seen.add(key)
            return text, reference
    return None


def _split_of(key: str) -> str:
    return _SPLIT_OF_TENTH[int(sha256(key.encode()).hexdigest(), 16) % len(_SPLIT_OF_TENTH)]


def _reference(source: _Source, entry: _Entry, luck: Random) -> dict[str, Any]:
    kept = {"answer": str(entry["answer"]), "metadata": {key: str(entry["metadata"][key]) for key in source.needs}}
    return {
        "family": source.dataset,
        "gold": kept["answer"],
        "entry": kept,
        "wrong": _wrong_answers(source, entry, kept, luck),
    }


def _wrong_answers(source: _Source, entry: _Entry, kept: _Entry, luck: Random) -> list[str]:
    """Collect different answers that do not solve it; fewer than `WRONG_ANSWERS` where it has hardly any."""
    wrong: list[str] = []
    for _ in range(100):
        guess = source.wrong(entry, luck)
        if guess not in wrong and _ask_scorer(source.dataset, guess, kept) < 1:
            wrong.append(guess)
        if len(wrong) == WRONG_ANSWERS:
            break
    return wrong


# Plausible wrong answers, in the form of the right one


def _near(number: int, luck: Random) -> int:
    """Return a number of the same sign nearby; 0 counts as positive."""
    size = abs(number)
    step = luck.choice((1, 2, 3) if size < 50 else (1, 2, 10, size // 10))
    return (-1 if number < 0 else 1) * max(1, size + luck.choice((-1, 1)) * step)


def _near_number(entry: _Entry, luck: Random) -> str:
    number, *unit = entry["answer"].split()  # "17" or "17 days"
    return " ".join((str(_near(int(number), luck)), *unit))


def _near_in_base(entry: _Entry, luck: Random) -> str:
    about = entry["metadata"]
    return _digits(_near(about["decimal_value"], luck), about["target_base"])


def _digits(number: int, base: int) -> str:
    rest, digit = divmod(number, base)
    return (_digits(rest, base) if rest else "") + "0123456789abcdefghijklmnopqrstuvwxyz"[digit]


def _misspelt(entry: _Entry, luck: Random) -> str:
    """Swap two neighbours, leave one letter out, or write one twice."""
    word = entry["answer"]
    at = luck.randrange(len(word) - 1)
    swapped = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return luck.choice((swapped, word[:at] + word[at + 1 :], word[: at + 1] + word[at:]))


def _near_time(entry: _Entry, luck: Random) -> str:
    """Shift a duration, "HH:MM" or "HH:MM:SS", by 1, 10, 60 or 600 of its last unit, within the day."""
    parts = entry["answer"].split(":")
    in_day = 24 * 60 ** (len(parts) - 1)
    rest = sum(int(part) * 60**power for power, part in enumerate(reversed(parts)))
    rest = abs(rest + luck.choice((-1, 1)) * luck.choice((1, 10, 60, 600))) % in_day
    shifted = []
    for _ in parts[1:]:
        rest, part = divmod(rest, 60)
        shifted.insert(0, f"{part:02d}")
    return ":".join((f"{rest:02d}", *shifted))


def _other_weekday(entry: _Entry, luck: Random) -> str:
    return luck.choice(("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"))


_RELATIONS = (
    *("mother", "father", "sister", "brother", "daughter", "son", "wife", "husband"),
    *("grandmother", "grandfather", "aunt", "uncle"),
)


def _other_relation(entry: _Entry, luck: Random) -> str:
    return luck.choice(_RELATIONS)


def _other_roles(entry: _Entry, luck: Random) -> str:
    """Give each islander the other role or not, by chance: "Joseph is a knight, and Zoey is a knave."."""
    terms = entry["metadata"]["knight_knave_terms"]
    other = {terms["a_knight"]: terms["a_knave"], terms["a_knave"]: terms["a_knight"]}
    roles = re.findall(r"(\w+) is (an? \w+)", entry["answer"])
    said = [f"{name} is {other[role] if luck.random() < 0.5 else role}" for name, role in roles]
    return ", ".join(said[:-1]) + f", and {said[-1]}."


# Questions in fewer words


def _as_drawn(entry: _Entry) -> str:
    return entry["question"]


def _ask_base(entry: _Entry) -> str:
    about = entry["metadata"]
    bases = f"the base-{about['source_base']} number {about['source_repr']} to base-{about['target_base']}"
    return f"Convert {bases}. Digits above 9 are lowercase letters."


def _ask_roles(entry: _Entry) -> str:
    said = re.search(r"inhabitants: [^.]*\. (.*) So who is", entry["question"], re.DOTALL)
    words = {key: str(value) for key, value in entry["metadata"]["knight_knave_terms"].items()}
    rule = "Every {knight} always tells the truth, every {knave} always lies."
    asked = "Of each, say who is {a_knight} and who is {a_knave}."
    return f"{rule.format(**words)} {said[1] if said else ''} {asked.format(**words)}"


def _ask_divisor(entry: _Entry) -> str:
    return entry["question"].removesuffix(" Give only the GCD as your final answer.")


def _ask_story(entry: _Entry) -> str:
    return entry["question"].replace("Give the result as your final answer. Do not include units.", "Give the number.")


# Draws to leave out


def _any(entry: _Entry) -> bool:
    return True


def _has_unknown(entry: _Entry) -> bool:
    return any(letter.isalpha() for letter in entry["metadata"]["equation"])  # a few come out as "0 = 0"


def _not_coprime(entry: _Entry) -> bool:
    return entry["answer"] != "1"  # else a constant answer would be right too often


def _is_known_relation(entry: _Entry) -> bool:
    return entry["answer"] in _RELATIONS  # for nieces, nephews and in-laws the dataset takes the other person's sex


def _within_day(entry: _Entry) -> bool:
    return not entry["answer"].startswith("-")  # an interval that ends at midnight is drawn as negative


def _is_named_sibling(entry: _Entry) -> bool:
    """Leave out those that ask about a brother of somebody who was not introduced."""
    asked = re.search(r"does (\w+)'s brother", entry["question"])
    return asked is None or entry["question"].startswith(asked[1])


# These templates round in the middle of the way, so that their answers are wrong for most numbers.
_ROUNDING_STORY = re.compile(r"tubes of|jars of|vending|Dr\. |pen ?pal|from a bin")


def _is_sound_story(entry: _Entry) -> bool:
    return entry["answer"].isdigit() and not _ROUNDING_STORY.search(entry["question"])


def _steps(entry: _Entry) -> int:
    return entry["metadata"]["answer_cot"].count("\n")


def _is_short_story(entry: _Entry) -> bool:
    return _is_sound_story(entry) and _steps(entry) <= 2


def _is_long_story(entry: _Entry) -> bool:
    return _is_sound_story(entry) and _steps(entry) > 2


# The families


def _source(
    dataset: str,
    wrong: Callable[[_Entry, Random], str] = _near_number,
    text: Callable[[_Entry], str] = _as_drawn,
    keep: Callable[[_Entry], bool] = _any,
    needs: tuple[str, ...] = (),
    **config: Any,
) -> _Source:
    """Describe a source; a pair in `config`, such as terms=(2, 3), stands for min_terms=2, max_terms=3."""
    pairs = {key: value for key, value in config.items() if isinstance(value, tuple)}
    bounds = {
        f"{bound}_{key}": value
        for key, pair in pairs.items()
        for bound, value in zip(("min", "max"), pair, strict=True)
    }
    single = {key: value for key, value in config.items() if key not in pairs}
    return _Source(dataset, {**bounds, **single}, wrong, text, keep, needs)


_Level = tuple[_Source, ...]


def _arithmetic(terms: tuple[int, int], digits: tuple[int, int]) -> _Level:
    whole = ["+", "-", "*"]  # its division rounds down without saying so
    return (
        _source("chain_sum", terms=terms, digits=digits),
        _source("basic_arithmetic", terms=terms, digits=digits, operators=whole),
    )


def _algebra(terms: tuple[int, int], value: tuple[int, int]) -> _Level:
    return (_source("simple_equations", keep=_has_unknown, terms=terms, value=value),)


def _divisors(numbers: tuple[int, int], value: tuple[int, int]) -> _Level:
    return (
        _source("gcd", text=_ask_divisor, keep=_not_coprime, numbers=numbers, value=value),
        _source("lcm", numbers=numbers, value=value),
    )


def _letters(words: tuple[int, int], word_len: tuple[int, int]) -> _Level:
    return (_source("letter_counting", words=words), _source("spell_backward", _misspelt, word_len=word_len))


def _bases(base: tuple[int, int], value: tuple[int, int]) -> _Level:
    return (_source("base_conversion", _near_in_base, _ask_base, base=base, value=value),)


def _primes(n: tuple[int, int]) -> _Level:
    return (_source("count_primes", n=n),)


def _logic(people: int) -> _Level:
    return (_source("knights_knaves", _other_roles, _ask_roles, n_people=people),)


def _kinship(family_size: tuple[int, int]) -> _Level:
    return (_source("family_relationships", _other_relation, keep=_is_known_relation, family_size=family_size),)


def _stories(keep: Callable[[_Entry], bool]) -> _Level:
    return (_source("gsm_symbolic", text=_ask_story, keep=keep),)


def _weekdays(*tasks: str) -> _Source:
    return _source("calendar_arithmetic", _other_weekday, needs=("task",), tasks=list(tasks))


def _days(*tasks: str) -> _Source:
    return _source("calendar_arithmetic", needs=("task",), tasks=list(tasks))  # business days run into another year


def _times(task_type: str) -> _Source:
    return _source("time_intervals", _near_time, keep=_within_day, needs=("task_type",), task_types=[task_type])


_FAMILIES: Mapping[str, tuple[_Level, _Level, _Level]] = {
    "arithmetic": (_arithmetic((2, 3), (1, 2)), _arithmetic((3, 4), (2, 3)), _arithmetic((5, 6), (3, 4))),
    "algebra": (_algebra((2, 2), (1, 20)), _algebra((2, 3), (1, 100)), _algebra((3, 4), (10, 1000))),
    "divisors": (_divisors((2, 2), (4, 100)), _divisors((2, 2), (10, 1000)), _divisors((3, 3), (10, 1000))),
    "letters": (_letters((3, 5), (3, 5)), _letters((7, 10), (6, 7)), _letters((14, 20), (8, 10))),
    "bases": (_bases((2, 10), (10, 200)), _bases((2, 16), (100, 5000)), _bases((2, 16), (5000, 1_000_000))),
    "primes": (_primes((1, 100)), _primes((1, 1000)), _primes((1000, 6000))),
    "logic": (_logic(2), _logic(3), _logic(4)),
    "kinship": (_kinship((4, 5)), _kinship((6, 7)), _kinship((8, 10))),
    "stories": (
        (_source("aiw", keep=_is_named_sibling, task_type_weights=[0.5, 0.5, 0.0], max_entities=20),),
        _stories(_is_short_story),
        _stories(_is_long_story),
    ),
    "calendar": (
        (_weekdays("weekday_of_date"), _times("time")),
        (_weekdays("weekday_offset"), _times("time_seconds")),
        (
            _days("count_days", "recurring_event_day"),
            _source(
                "time_intervals",
                needs=("task_type",),
                task_types=["date"],
                date=(date(1950, 1, 1), date(2050, 1, 1)),
                max_date_difference_days=1000,
            ),
        ),
    ),
}

PUZZLE_KINDS: tuple[str, ...] = tuple(_FAMILIES)
"""The families, in the order in which they take turns."""
