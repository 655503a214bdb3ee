"""``search``: finding, reading, answering, judging."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from episodes import PlainRunner, Play

from heddle.environments.base import OBSERVATION_CHARACTERS
from heddle.environments.corpus import Corpus, Document
from heddle.environments.search import SearchEnvironment, f1, normalised
from heddle.types import Json, StopReason

DOCUMENTS = (
    Document("d1", "Brolwick", "Brolwick is a town on the river Tamell. Its mayor is Ola Menmont."),
    Document("d2", "Ola Menmont", "Ola Menmont is a weaver. The birthplace of Ola Menmont is Delford."),
    Document("d3", "Tamell", "The Tamell is a river."),
    Document("d4", "Delford", "Delford is a town."),
)
TASK: dict[str, Json] = {
    "question": "Name the trade of the mayor of Brolwick.",
    "answer": "the weaver",
    "gold": ["d1", "d2"],
}


def play() -> Play:
    """An episode over four documents."""
    environment = SearchEnvironment(Corpus(DOCUMENTS))
    return Play(environment, TASK, PlainRunner(environment.backends()))


def test_a_title_is_found_first() -> None:
    """Words of a title weigh more than the same words in a text."""
    found = Corpus(DOCUMENTS).search("delford", 3)

    assert [document.doc_id for document in found] == ["d4", "d2"]


@pytest.mark.parametrize("query", ["", "   ", "zzz", "the of and", "?!", "日本"])
def test_a_query_that_shares_no_word_finds_nothing(query: str) -> None:
    """Neither silence nor unknown words are an error."""
    assert Corpus(DOCUMENTS).search(query, 3) == []


def test_two_documents_of_one_id_are_refused() -> None:
    """An id names one document."""
    with pytest.raises(ValueError, match="same id"):
        Corpus((DOCUMENTS[0], DOCUMENTS[0]))


def test_searching_in_threads_gives_what_searching_alone_gives(capfd: pytest.CaptureFixture[str]) -> None:
    """The index is read-only, and silent."""
    corpus = Corpus(DOCUMENTS)
    queries = [f"{document.title} river town" for document in DOCUMENTS] * 25
    alone = [corpus.search(query, 3) for query in queries]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda query: corpus.search(query, 3), queries))

    assert alone == together
    assert capfd.readouterr() == ("", "")


async def test_search_lists_ids_titles_and_snippets() -> None:
    """One line for each article; a long text is cut."""
    outcome = await play().turn(("search", {"query": "Ola Menmont"}))

    lines = outcome.messages[0].content.splitlines()
    assert lines[0].startswith("d2 Ola Menmont: Ola Menmont is a weaver.")
    assert lines[1].startswith("d1 Brolwick: ")
    assert len(lines) == 2
    assert len(outcome.messages[0].content) <= OBSERVATION_CHARACTERS


async def test_read_gives_the_whole_article() -> None:
    """Case and space around an id do not matter."""
    outcome = await play().turn(("read", {"doc_id": " D3 "}))

    assert outcome.messages[0].content == "Tamell: The Tamell is a river."


@pytest.mark.parametrize(
    ("tool", "arguments", "observation"),
    [
        ("search", {"query": "zzz"}, "Nothing found. Search for a name in the question."),
        ("search", {"query": " "}, "search needs words to look for."),
        ("read", {"doc_id": "d9"}, "No article has this id. Use an id that search shows."),
    ],
)
async def test_a_miss_is_an_observation(tool: str, arguments: dict[str, Json], observation: str) -> None:
    """The model hears what to do instead."""
    outcome = await play().turn((tool, arguments))

    assert observation == outcome.messages[0].content
    assert outcome.stop_reason is None


@pytest.mark.parametrize(
    ("answer", "reward", "overlap"),
    [("Weaver", 1.0, 1.0), ("a weaver.", 1.0, 1.0), ("a good weaver", 0.0, 2 / 3), ("miller", 0.0, 0.0)],
)
async def test_the_submitted_answer_is_judged(answer: str, reward: float, overlap: float) -> None:
    """Exactly equal after normalisation, with f1 beside it."""
    episode = play()
    outcome = await episode.turn(("answer", {"text": answer}))

    assert outcome.stop_reason is StopReason.TOOL_STOPPED
    value, info = await episode.reward(StopReason.TOOL_STOPPED)
    assert reward == value
    assert info["f1"] == pytest.approx(overlap)


async def test_a_final_text_is_an_answer() -> None:
    """A model need not call ``answer``."""
    episode = play()
    await episode.turn(text="The weaver")

    assert (await episode.reward(StopReason.COMPLETED))[0] == 1.0


async def test_the_info_says_which_facts_were_read() -> None:
    """Gold documents count once they are read, not when they are merely found."""
    episode = play()
    await episode.turn(("search", {"query": "Brolwick"}), ("read", {"doc_id": "d1"}))
    _, half = await episode.reward(StopReason.MAX_STEPS)
    await episode.turn(("read", {"doc_id": "D2"}))
    _, whole = await episode.reward(StopReason.MAX_STEPS)

    assert half == {
        "answer": None,
        "f1": 0.0,
        "hops": 2,
        "gold_read": False,
        "gold_read_fraction": 0.5,
    }
    assert (whole["gold_read"], whole["gold_read_fraction"]) == (True, 1.0)


@pytest.mark.parametrize(
    ("text", "form"),
    [("The  Weaver!", "weaver"), ("an  a the", ""), ("Theo Banner", "theo banner"), ("812", "812")],
)
def test_answers_are_normalised(text: str, form: str) -> None:
    """Case, punctuation, articles and space do not count; parts of words do."""
    assert form == normalised(text)


@pytest.mark.parametrize(("answer", "score"), [("a b", 0.5), ("", 0.0), ("b c", 1.0), ("c b", 1.0)])
def test_f1_counts_shared_words(answer: str, score: float) -> None:
    """Order does not matter."""
    assert score == pytest.approx(f1(answer.replace("a", "x"), "b c"))
