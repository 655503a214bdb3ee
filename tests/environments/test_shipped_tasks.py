"""The task files: every line opens an episode, and every task can be solved."""

from __future__ import annotations

import asyncio
import inspect
import math
import re
from collections import Counter
from importlib.resources import files
from pathlib import Path

import code_solutions
import pytest
from episodes import PlainRunner, Play

from heddle.api.schemas import ID_PATTERN
from heddle.environments.authoring.files import generated_files
from heddle.environments.code import CodeEnvironment, CodeTask
from heddle.environments.corpus import shipped_corpus
from heddle.environments.registry import build_registry
from heddle.environments.search import RESULTS, SearchEnvironment
from heddle.environments.taskfiles import TaskEntry, load_tasks
from heddle.errors import NotFound
from heddle.tools.manager import ToolManager
from heddle.tools.sandbox import (
    Isolation,
    PythonSandbox,
    SandboxDirectories,
    SandboxLimits,
    detect_isolation,
)
from heddle.types import StopReason

FEWEST = {"math": 60, "code": 60, "search": 60, "guess": 40}
PROMPT_CHARACTERS = 300
"""System and task together; about 90 tokens."""


@pytest.mark.parametrize("name", FEWEST)
def test_every_task_opens_an_episode_with_a_short_prompt(name: str) -> None:
    """Ids are unique and fit the wire; no opening gives the expected answer away."""
    environment = build_registry({}, installed=()).get(name)
    entries = load_tasks(name)

    assert len(entries) >= FEWEST[name]
    assert len({entry.prompt_id for entry in entries}) == len(entries)
    assert len({str(entry.task) for entry in entries}) == len(entries)
    for entry in entries:
        messages = environment.reset(entry.task).messages
        assert re.fullmatch(ID_PATTERN, entry.prompt_id)
        assert sum(len(message.content) for message in messages) <= PROMPT_CHARACTERS


def test_the_files_are_what_their_generators_give() -> None:
    """Whoever changes a generator runs ``python -m heddle.environments.authoring``."""
    package = files("heddle.environments")
    for path, content in generated_files().items():
        assert content == (package / path).read_bytes(), (
            f"run python -m heddle.environments.authoring: {path}"
        )


def test_a_seed_shuffles_and_a_limit_cuts() -> None:
    """The same seed gives the same order of the same tasks."""
    whole = load_tasks("math")
    shuffled = load_tasks("math", seed=3)

    assert whole[:5] == load_tasks("math", limit=5)
    assert shuffled[:7] == load_tasks("math", limit=7, seed=3)
    assert whole != shuffled
    assert {entry.prompt_id for entry in whole} == {entry.prompt_id for entry in shuffled}


def test_unknown_tasks_are_not_found() -> None:
    """The message lists what there is."""
    with pytest.raises(NotFound, match="code, guess, math, search"):
        load_tasks("chess")


def test_an_entry_is_a_line_of_a_mixed_file() -> None:
    """With its environment named, a task can stand among others."""
    entry = load_tasks("guess", limit=1)[0]

    assert entry.as_prompt() == {"prompt_id": "guess-001", "environment": "guess", "task": entry.task}


def test_math_answers_are_finite_and_mostly_whole() -> None:
    """No task asks for a number that cannot be written exactly in a few digits."""
    for entry in load_tasks("math"):
        answer = entry.task["answer"]
        assert isinstance(answer, int | float)
        assert math.isfinite(answer)
        assert answer == round(answer, 3)


@pytest.fixture(scope="module")
def isolation() -> Isolation:
    """The strongest sandbox that works here."""
    return detect_isolation()


async def test_every_code_solution_passes_its_tests_in_the_sandbox(
    isolation: Isolation, tmp_path: Path
) -> None:
    """Really run, in one program for each task; and no solution is longer than the tool allows."""
    sandbox = PythonSandbox(
        limits=SandboxLimits(), isolation=isolation, directories=SandboxDirectories(tmp_path / "sandboxes")
    )
    manager = ToolManager({"python": sandbox}, concurrency=2, default_timeout_s=60.0)

    async def solve(entry: TaskEntry) -> str:
        solution = inspect.getsource(vars(code_solutions)[str(entry.task["entry_point"])])
        outcome = await Play(CodeEnvironment(), entry.task, manager).turn(("run_tests", {"code": solution}))
        return f"{entry.prompt_id}: {outcome.messages[0].content} {outcome.stop_reason}"

    entries = load_tasks("code")
    try:
        said = await asyncio.gather(*map(solve, entries))
    finally:
        await manager.close()

    expected = [
        f"{entry.prompt_id}: Passed {count} of {count}. tool_stopped"
        for entry in entries
        for count in [len(CodeTask.model_validate(entry.task).tests)]
    ]
    assert expected == said


def test_code_tasks_have_three_to_six_tests_and_show_no_solution() -> None:
    """Few enough to read, enough to mean something."""
    for entry in load_tasks("code"):
        tests = entry.task["tests"]
        assert isinstance(tests, list)
        assert 3 <= len(tests) <= 6
        assert set(entry.task) == {"prompt", "entry_point", "tests"}


def test_the_corpus_is_small_and_its_names_are_unambiguous() -> None:
    """Every title is one article's own, and searching for it finds that article."""
    corpus = shipped_corpus()
    titles = Counter(document.title for document in corpus.documents)

    assert 150 <= len(corpus.documents) <= 300
    assert set(titles.values()) == {1}
    for document in corpus.documents:
        assert len(document.text) <= 240
        assert document in corpus.search(document.title, RESULTS)


def test_every_search_question_is_answered_by_reading_its_gold_documents() -> None:
    """The first is named by the question, each names the next, and the last one holds the answer."""
    corpus = shipped_corpus()
    for entry in load_tasks("search"):
        question, answer, gold = (entry.task[key] for key in ("question", "answer", "gold"))
        assert isinstance(gold, list)
        chain = [corpus.find(str(doc_id)) for doc_id in gold]
        texts = [str(question)]
        for document in chain:
            assert document is not None
            assert document.title in texts[-1]
            texts.append(document.text)
        assert str(answer) in texts[-1]
        assert str(answer) not in str(question)


def test_questions_have_one_two_and_three_hops() -> None:
    """More hops, more steps: lengths vary."""
    hops = Counter(
        len(entry.task["gold"]) for entry in load_tasks("search") if isinstance(entry.task["gold"], list)
    )

    assert set(hops) == {1, 2, 3}
    assert min(hops.values()) >= 20


async def test_following_the_gold_documents_earns_the_reward() -> None:
    """Search, read what leads on, answer: an episode as a good model plays it."""
    environment = SearchEnvironment()
    for entry in load_tasks("search", limit=10, seed=1):
        gold = entry.task["gold"]
        assert isinstance(gold, list)
        episode = Play(environment, entry.task, PlainRunner(environment.backends()))
        await episode.turn(("search", {"query": str(entry.task["question"])[-60:]}))
        for doc_id in gold:
            await episode.turn(("read", {"doc_id": doc_id}))
        await episode.turn(("answer", {"text": entry.task["answer"]}))

        value, info = await episode.reward(StopReason.TOOL_STOPPED)
        assert (value, info["gold_read"]) == (1.0, True)
