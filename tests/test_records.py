"""Records on disk: nothing is changed by writing and reading, and nothing is half-written."""

import json
import math
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolorchestra.errors import ConfigError, DataError, RunFolderError
from toolorchestra.preferences import Preference
from toolorchestra.pricing import Price, Usage
from toolorchestra.records import (
    AppendLog,
    RunFolder,
    from_json,
    from_mapping,
    read_jsonl,
    read_toml,
    to_json,
    write_atomic,
)
from toolorchestra.types import (
    Completion,
    Expert,
    Message,
    Observation,
    Outcome,
    Sample,
    Task,
    Tokens,
    ToolCall,
    ToolSpec,
    Trajectory,
    Turn,
)

# --- strategies: every field of a trajectory, filled -----------------------------------------------------------------

text = st.text(max_size=12)
count = st.integers(0, 10**9)
amount = st.floats(0, 1e6)
unit = st.floats(0, 1)
per_mtok = st.just(0.0) | st.floats(0.001, 2_000)
json_leaf = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text
json_value = st.recursive(
    json_leaf, lambda v: st.lists(v, max_size=3) | st.dictionaries(text, v, max_size=3), max_leaves=6
)
json_object = st.dictionaries(text, json_value, max_size=3)


def many(items, most: int = 2):
    return st.lists(items, max_size=most).map(tuple)


usage = st.builds(Usage, count, count, count, amount, amount, st.booleans(), st.booleans())
price = st.builds(Price, per_mtok, per_mtok, st.none() | per_mtok, unit, unit)
expert = st.builds(Expert, text, text, st.none() | price, text, amount, st.booleans())
spec = st.builds(
    ToolSpec, text, text, json_object, many(expert), st.none() | price, amount, st.booleans(), st.booleans()
)
preference = st.builds(Preference, unit, unit, unit, st.dictionaries(text, unit, max_size=2))
call = st.builds(ToolCall, text, text, json_object, text)
role = st.sampled_from(["system", "user", "assistant", "tool"])
message = st.builds(Message, role, text, text, many(call), text)
kind = st.sampled_from(["text", "document", "code", "answer", "user", "error"])
observation = st.builds(Observation, text, kind, text, text, usage, st.booleans())
tokens = st.builds(Tokens, many(count), many(count), many(st.floats(max_value=0, allow_nan=False)))
finish = st.sampled_from(["stop", "length"])
completion = st.builds(Completion, message, finish, usage, text, count, st.none() | tokens, many(text))
turn = st.builds(Turn, completion, many(observation))
task = st.builds(Task, text, text, text, json_object, unit, st.none() | many(spec), preference, st.none() | text)
outcome = st.builds(Outcome, unit, st.dictionaries(text, unit, max_size=2), text, usage)
stop = st.sampled_from(["answered", "submitted", "turn_limit", "no_progress", "deadline", "error"])
trajectory = st.builds(
    Trajectory, text, task, text, many(turn), text, stop, st.none() | outcome, text, count, many(text)
)
sample = st.builds(Sample, many(count), many(st.booleans()), many(amount), st.floats(-3, 3), count)


# --- records ---------------------------------------------------------------------------------------------------------


@given(trajectory)
def test_a_trajectory_round_trips(record: Trajectory):
    line = to_json(record)
    assert "\n" not in line
    again = from_json(Trajectory, line)
    assert again == record
    assert to_json(again) == line


@given(sample)
def test_a_sample_round_trips(record: Sample):
    assert from_json(Sample, to_json(record)) == record


def test_a_read_record_has_the_types_of_the_written_one():
    spec = ToolSpec("ask", "Ask.", {"type": "object"}, (Expert("ada", "m", None, "sums", 1.0),), None)
    task = Task("1", "sums", "?", {}, tools=(spec,), preference=Preference(tools={"ask": 0.5}))
    again = from_json(Task, to_json(task))
    assert again.tools is not None
    assert isinstance(again.tools[0].experts[0], Expert)
    assert again.tools[0].experts[0].price is None
    assert again.preference.tools["ask"] == 0.5


def test_a_read_only_mapping_is_written_as_an_object():
    record = ToolCall("1", "ask", MappingProxyType({"to": MappingProxyType({"name": "ada"})}))
    assert from_json(ToolCall, to_json(record)) == ToolCall("1", "ask", {"to": {"name": "ada"}})


def test_nan_and_infinity_are_not_changed_into_something_else():
    again = from_json(ToolCall, to_json(ToolCall("1", "ask", {"nan": math.nan, "inf": -math.inf})))
    assert math.isnan(again.arguments["nan"])
    assert again.arguments["inf"] == -math.inf
    assert from_json(Usage, to_json(Usage(latency_s=math.inf))).latency_s == math.inf


def nested(levels: int) -> list:
    value = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("value", ["\ud800", object(), nested(400)], ids=["surrogate", "object", "nested"])
def test_what_json_cannot_hold_is_refused_by_name(value: object):
    with pytest.raises(DataError, match="ToolCall cannot be written"):
        to_json(ToolCall("1", "ask", {"value": value}))


@pytest.mark.parametrize(
    ("kind", "line", "said"),
    [
        (Message, '{"role": "user", "contnet": "hi"}', "unknown key 'contnet'"),
        (Message, '{"role": "assistant", "tool_calls": [{"id": "1", "name": "x", "args": {}}]}', "'tool_calls.0.args'"),
        (Message, '{"content": "hi"}', "'role' is missing"),
        (Message, '{"role": "wizard"}', "'role'.*'wizard'"),
        (Message, '{"role": "user"', "Invalid JSON"),
        (Message, "[]", "should be an object"),
        (Usage, '{"input_tok": "many"}', "'input_tok'.*'many'"),
        (Outcome, '{"score": 1.1}', r"must lie in \[0, 1\]"),
        (Outcome, '{"score": NaN}', r"must lie in \[0, 1\]"),
        (Preference, '{"cost": 2}', "preference weight cost"),
        (Price, '{"input_usd_per_mtok": 1.25e-6}', "per million tokens"),
    ],
)
def test_a_wrong_record_is_refused_with_its_place(kind: type, line: str, said: str):
    with pytest.raises(DataError, match=f"not a {kind.__name__}: .*{said}"):
        from_json(kind, line)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"accuracy": 1, "cots": 0.3}, "unknown key 'cots'"),
        ({"accuracy": "high"}, "'accuracy'.*'high'"),
        ({"accuracy": 2}, "weight accuracy"),
        ({"tools": {"ask": "yes"}}, "'tools.ask'"),
    ],
)
def test_a_wrong_setting_is_refused_with_file_and_key(data: dict, said: str):
    with pytest.raises(ConfigError, match=rf"recipe\.toml \[preference\]: .*{said}"):
        from_mapping(Preference, data, "recipe.toml [preference]")


# --- files -----------------------------------------------------------------------------------------------------------


def lines_of(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"".join(lines))
    return path


def test_a_torn_last_line_is_left_out(tmp_path: Path):
    path = lines_of(tmp_path / "log.jsonl", b'{"input_tok":1}\n', b'{"input_tok":2}\n', b'{"input_tok":3}')
    assert [u.input_tok for u in read_jsonl(Usage, path)] == [1, 2]


def test_a_wrong_line_is_named_with_file_and_number(tmp_path: Path):
    path = lines_of(tmp_path / "tasks.jsonl", b'{"input_tok":1}\n', b'{"input_tok":\n', b'{"input_tok":3}\n')
    with pytest.raises(DataError, match=r"tasks\.jsonl:2: "):
        list(read_jsonl(Usage, path))


def test_a_line_of_broken_utf8_is_named(tmp_path: Path):
    path = lines_of(tmp_path / "tasks.jsonl", b'{"role":"user","content":"\xff"}\n')
    with pytest.raises(DataError, match=r"tasks\.jsonl:1: "):
        list(read_jsonl(Message, path))


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"nowhere\.jsonl: no such file"):
        list(read_jsonl(Usage, tmp_path / "nowhere.jsonl"))


@pytest.mark.parametrize(("content", "said"), [(b"a = ", "not valid TOML"), (b'a = "\xff"', "not valid TOML")])
def test_bad_toml_is_named(tmp_path: Path, content: bytes, said: str):
    with pytest.raises(ConfigError, match=rf"recipe\.toml: {said}"):
        read_toml(lines_of(tmp_path / "recipe.toml", content))


def test_toml_that_is_no_file_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="is a folder"):
        read_toml(tmp_path)
    with pytest.raises(ConfigError, match=r"recipe\.toml: no such file"):
        read_toml(tmp_path / "recipe.toml")


def test_a_log_is_cut_back_and_grows_again(tmp_path: Path):
    path = tmp_path / "log.jsonl"
    log = AppendLog(path)
    log.append("one", "two")
    kept = log.length
    log.append("lost", "also lost")
    log.cut(kept)
    assert log.length == kept
    log.append("three")
    log.close()
    assert path.read_text() == "one\ntwo\nthree\n"


def test_a_reopened_log_knows_its_length_and_drops_a_torn_tail(tmp_path: Path):
    path = lines_of(tmp_path / "log.jsonl", b"one\n", b"tw")
    log = AppendLog(path)
    assert log.length == 6
    log.cut(4)
    log.append("two")
    log.close()
    assert path.read_text() == "one\ntwo\n"


def test_what_was_appended_is_in_the_file_at_once(tmp_path: Path):
    log = AppendLog(tmp_path / "log.jsonl")
    log.append("one")
    assert (tmp_path / "log.jsonl").read_text() == "one\n"
    log.close()


def test_a_log_shorter_than_its_checkpoint_says_is_refused(tmp_path: Path):
    log = AppendLog(lines_of(tmp_path / "log.jsonl", b"one\n"))
    with pytest.raises(RunFolderError, match=r"log\.jsonl is shorter"):
        log.cut(5)
    log.close()


def test_an_atomic_write_replaces_the_whole_file(tmp_path: Path):
    path = tmp_path / "report.md"
    write_atomic(path, "a long first version\n")
    write_atomic(path, "second\n")
    assert path.read_text() == "second\n"
    assert [p.name for p in tmp_path.iterdir()] == ["report.md"]


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path):
    path = tmp_path / "report.md"
    write_atomic(path, "old\n")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "new" * 10_000 + "\ud800")
    assert path.read_text() == "old\n"


# --- run folders -----------------------------------------------------------------------------------------------------

ENTER = """
import sys
from pathlib import Path
from toolorchestra.errors import RunFolderError
from toolorchestra.records import RunFolder
try:
    with RunFolder(Path(sys.argv[1])):
        print("entered")
except RunFolderError as error:
    print(error)
"""


def enter_elsewhere(path: Path) -> str:
    """Try to enter the folder in a second process; return what it said."""
    command = [sys.executable, "-c", ENTER, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_a_folder_has_one_writer_at_a_time(tmp_path: Path):
    path = tmp_path / "runs" / "one"
    with RunFolder(path):
        said = enter_elsewhere(path)
        assert str(path) in said
        assert "in use by another process" in said
    assert enter_elsewhere(path) == "entered"


def test_a_folder_is_free_again_when_its_writer_was_killed(tmp_path: Path):
    waits = "import sys\nfrom pathlib import Path\nfrom toolorchestra.records import RunFolder\n"
    waits += "with RunFolder(Path(sys.argv[1])):\n    print('in', flush=True)\n    sys.stdin.read()\n"
    command = [sys.executable, "-c", waits, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "in\n"
        with pytest.raises(RunFolderError, match="in use"), RunFolder(tmp_path):
            pass
        writer.kill()
        writer.wait()
        with RunFolder(tmp_path) as folder:
            assert folder.path == tmp_path


def test_a_folder_writes_its_logs_and_json(tmp_path: Path):
    with RunFolder(tmp_path / "run") as folder:
        log = folder.log("metrics")
        log.append('{"step":1}')
        log.close()
        folder.write_json("config.json", {"b": 1, "a": "é"})
    assert (folder.path / "metrics.jsonl").read_text() == '{"step":1}\n'
    assert json.loads((folder.path / "config.json").read_text()) == {"a": "é", "b": 1}
    assert folder.checkpoints.parent == folder.path
