"""``search``: multi-hop questions about a small made-up world, with BM25 search and read.

Reward 1.0 where the answer equals the expected one after normalisation, else 0.0. Normalisation: lower
case, punctuation dropped, the articles *a, an, the* dropped, runs of space made one. The answer is the
argument of ``answer``, or a final text. ``reward_info``: ``answer``, ``f1`` (of the words, normalised),
``hops``, ``gold_read`` and ``gold_read_fraction`` (were the documents that hold the facts read).
"""

from __future__ import annotations

import re
import string
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from pydantic import Field

from heddle.agent.ports import Episode, Reward, ToolInvoker
from heddle.environments.base import TaskModel, ToolAnswer, ToolContext, ToolEnvironment, parse_task
from heddle.tools.inprocess import InProcessBackend, ToolInputError
from heddle.tools.ports import ToolBackend
from heddle.types import Json, Message, StopReason, ToolCall, ToolSpec

if TYPE_CHECKING:
    from heddle.environments.corpus import Corpus, Document

SYSTEM = """\
First search for a name in the question and read what you find. Answer last. Example:
{"name": "search", "arguments": {"query": "Corlow Mill"}}
{"name": "read", "arguments": {"doc_id": "a012"}}"""

RESULTS = 3
SNIPPET_CHARACTERS = 60

SEARCH_BACKEND = "search.search"
READ_BACKEND = "search.read"


def _text_tool(name: str, description: str, argument: str, max_length: int) -> ToolSpec:
    return ToolSpec(
        name,
        description,
        {
            "type": "object",
            "properties": {argument: {"type": "string", "maxLength": max_length}},
            "required": [argument],
            "additionalProperties": False,
        },
    )


_SEARCH = _text_tool("search", "Find articles by words.", "query", 60)
_READ = _text_tool("read", "Read the article with this id.", "doc_id", 8)
_ANSWER = _text_tool("answer", "Give the final answer.", "text", 40)


class SearchTask(TaskModel):
    """A question, its answer, and the documents that hold the facts, in the order of the hops."""

    question: str
    answer: str
    gold: list[str] = Field(min_length=1)


class SearchEnvironment(ToolEnvironment):
    """Answer questions about a corpus that can be searched and read."""

    def __init__(self, corpus: Corpus | None = None) -> None:
        """Without a corpus, the shipped one."""
        super().__init__("search", (_SEARCH, _READ, _ANSWER))
        self._given = corpus

    @cached_property
    def _corpus(self) -> Corpus:
        """The shipped one is read and indexed for the first call that needs it, in a thread of the tools."""
        from heddle.environments.corpus import shipped_corpus  # with its index, a second to import

        return shipped_corpus() if self._given is None else self._given

    def backends(self) -> Sequence[ToolBackend]:
        return (
            InProcessBackend(SEARCH_BACKEND, self.search_corpus),
            InProcessBackend(READ_BACKEND, self.read_document),
        )

    def opening(self, task: Mapping[str, Json]) -> tuple[Message, ...]:
        question = parse_task(SearchTask, task).question
        return (Message(role="system", content=SYSTEM), Message(role="user", content=question))

    async def run_tool(self, call: ToolCall, context: ToolContext) -> ToolAnswer:
        if call.name == _ANSWER.name:
            return ToolAnswer("Answer taken.", StopReason.TOOL_STOPPED)
        backend = SEARCH_BACKEND if call.name == _SEARCH.name else READ_BACKEND
        result = await context.tools.invoke(call, backend=backend)
        return ToolAnswer(result.output)

    async def reward(self, episode: Episode, tools: ToolInvoker) -> Reward:
        task = parse_task(SearchTask, episode.task)
        submitted = self.submitted(episode, _ANSWER.name)
        answer = self.final_text(episode) if submitted is None else str(submitted["text"])
        right = answer is not None and normalised(answer) == normalised(task.answer)
        read = {_read_id(record.arguments) for record in episode.tool_calls if record.name == _READ.name}
        found = sum(doc_id in read for doc_id in task.gold)
        return Reward(
            float(right),
            {
                "answer": answer,
                "f1": 0.0 if answer is None else f1(answer, task.answer),
                "hops": len(task.gold),
                "gold_read": found == len(task.gold),
                "gold_read_fraction": found / len(task.gold),
            },
        )

    def search_corpus(self, arguments: Mapping[str, Json]) -> str:
        """The handler of ``search``: one line for each article found."""
        query = arguments.get("query")
        if not isinstance(query, str) or not query.strip():
            raise ToolInputError("search needs words to look for.")
        found = self._corpus.search(query, RESULTS)
        return "\n".join(map(_line, found)) or "Nothing found. Search for a name in the question."

    def read_document(self, arguments: Mapping[str, Json]) -> str:
        """The handler of ``read``: the whole article."""
        doc_id = arguments.get("doc_id")
        document = self._corpus.find(doc_id) if isinstance(doc_id, str) else None
        if document is None:
            raise ToolInputError("No article has this id. Use an id that search shows.")
        return f"{document.title}: {document.text}"


def normalised(answer: str) -> str:
    """The form in which answers are compared; see the module's docstring."""
    kept = "".join(" " if letter in string.punctuation else letter for letter in answer.lower())
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def f1(answer: str, expected: str) -> float:
    """Harmonic mean of precision and recall over normalised words, 0 to 1."""
    got, wanted = normalised(answer).split(), normalised(expected).split()
    shared = (Counter(got) & Counter(wanted)).total()
    return 2 * shared / (len(got) + len(wanted)) if shared else 0.0


def _line(document: Document) -> str:
    snippet = textwrap.shorten(document.text, SNIPPET_CHARACTERS, placeholder=" ...")
    return f"{document.doc_id} {document.title}: {snippet}"


def _read_id(arguments: Mapping[str, Json]) -> str:
    return str(arguments.get("doc_id", "")).strip().lower()
