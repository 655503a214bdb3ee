"""Task files: what is read, and how a mistake is told."""

from __future__ import annotations

import pytest

from heddle.cli.batches import BatchOptions, build_request
from heddle.cli.tasks import parse_tasks, read_tasks
from heddle.errors import InvalidRequest

GOOD = (
    b'{"environment": "math", "task": {"question": "1+1"}}\n'
    b"\n"
    b'{"prompt_id": "x", "task": {}, "metadata": {"a": 1}}\n'
)


def make_options(**given: object) -> BatchOptions:
    """Options of which only ``given`` were typed."""
    names = BatchOptions.__dataclass_fields__
    return BatchOptions(**dict.fromkeys(names) | given)


def test_reads_tasks_and_remembers_their_lines() -> None:
    """Blank lines are skipped but counted."""
    tasks = parse_tasks(GOOD, name="t.jsonl")
    assert [prompt.prompt_id for prompt in tasks.prompts] == [None, "x"]
    assert tasks.lines == (1, 3)


@pytest.mark.parametrize(
    ("line", "path"),
    [
        (b'{"task": {}, "extra": 1}', "t.jsonl:2: extra"),
        (b'{"task": 3}', "t.jsonl:2: task"),
        (b'{"environment": "math"}', "t.jsonl:2: task"),
        (b'{"prompt_id": "a b", "task": {}}', "t.jsonl:2: prompt_id"),
        (b"not json", "t.jsonl:2: line"),
        (b"[1]", "t.jsonl:2: line"),
        (b"\xff\xfe", "t.jsonl:2: line"),
        (b'{"task": {"n": 123456789012345678901234567890}}', "t.jsonl:2: task.n"),
        (b'{"task": {"x": NaN}}', "t.jsonl:2: task.x"),
        (b'{"task": {"a": 1, "a": 2}}', "t.jsonl:2: task.a"),
    ],
)
def test_a_bad_line_is_named_by_file_line_and_field(line: bytes, path: str) -> None:
    """Unknown field, wrong type, missing field, bad id, no JSON, no object, no UTF-8, not storable."""
    with pytest.raises(InvalidRequest) as caught:
        parse_tasks(b'{"task": {}}\n' + line, name="t.jsonl")
    assert caught.value.path == path


def test_an_empty_file_is_an_error() -> None:
    """A batch of nothing is a mistake, not a success."""
    with pytest.raises(InvalidRequest, match="no tasks"):
        parse_tasks(b"\n \n", name="t.jsonl")


def test_a_missing_file_is_named() -> None:
    """The reason of the operating system comes along."""
    with pytest.raises(InvalidRequest, match="No such file") as caught:
        read_tasks("absent.jsonl")
    assert caught.value.path == "absent.jsonl"


def test_complaints_about_prompts_are_located_on_their_lines() -> None:
    """What the coordinator says about prompts[1] points at the third line."""
    tasks = parse_tasks(GOOD, name="t.jsonl")
    located = tasks.locate(InvalidRequest("wrong", path="prompts[1].task.question", code="bad"))
    assert (located.path, located.message, located.code) == ("t.jsonl:3: task.question", "wrong", "bad")


def test_complaints_about_anything_else_stay_as_they_are() -> None:
    """A path outside of the prompts has no line."""
    error = InvalidRequest("wrong", path="limits.max_steps")
    assert parse_tasks(GOOD, name="t.jsonl").locate(error) is error


def test_options_become_the_request() -> None:
    """Each option lands in its section; what was not typed keeps its default."""
    tasks = parse_tasks(GOOD, name="t.jsonl")
    options = make_options(
        environment="code",
        samples_per_prompt=4,
        constrained=True,
        seed=7,
        max_steps=3,
        timeout_s=9.0,
        batch_timeout_s=60.0,
    )
    request = build_request(tasks, options)
    assert (request.environment, request.samples_per_prompt, len(request.prompts)) == ("code", 4, 2)
    assert (request.tools.constrained, request.tools.parser) == (True, "hermes")
    assert request.batch_timeout_s == 60.0
    assert (request.sampling.seed, request.sampling.temperature) == (7, 1.0)
    assert (request.limits.max_steps, request.limits.timeout_s, request.limits.max_tokens) == (3, 9.0, 2048)


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"samples_per_prompt": 0}, "--samples"),
        ({"temperature": -1.0}, "--temperature"),
        ({"max_tokens_per_step": 0}, "--max-tokens-per-step"),
        ({"timeout_s": 0.0}, "--timeout"),
        ({"batch_timeout_s": 0.0}, "--batch-timeout"),
        ({"batch_id": "a/b"}, "--batch-id"),
    ],
)
def test_a_bad_option_is_named_as_it_is_typed(given: dict[str, object], option: str) -> None:
    """The person typed --samples, not samples_per_prompt."""
    with pytest.raises(InvalidRequest) as caught:
        build_request(parse_tasks(GOOD, name="t"), make_options(environment="math", **given))
    assert caught.value.path == option


def test_a_task_without_an_environment_is_named() -> None:
    """Neither the line nor the command line says where the task belongs."""
    with pytest.raises(InvalidRequest, match="--environment") as caught:
        build_request(parse_tasks(GOOD, name="t.jsonl"), make_options())
    assert caught.value.path == "t.jsonl:3: environment"
