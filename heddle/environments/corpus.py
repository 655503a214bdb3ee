"""A small corpus of documents and its BM25 index, read-only after construction and so safe in threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import orjson


@dataclass(frozen=True, slots=True)
class Document:
    """One article. ``doc_id`` is how a model asks for it."""

    doc_id: str
    title: str
    text: str


class Corpus:
    """Documents by id, and a ranking of them by BM25 over title and text."""

    def __init__(self, documents: Sequence[Document]) -> None:
        """``documents`` must not be empty and their ids must differ."""
        self._documents = tuple(documents)
        self._by_id = {document.doc_id: document for document in documents}
        if len(self._by_id) != len(self._documents):
            raise ValueError("two documents have the same id")
        import bm25s  # imported late, as numpy below: not every coordinator searches

        self._index = bm25s.BM25(backend="numpy", auto_compile=False)
        self._index.index([_tokens(f"{d.title} {d.title} {d.text}") for d in documents], show_progress=False)

    @property
    def documents(self) -> Sequence[Document]:
        return self._documents

    def find(self, doc_id: str) -> Document | None:
        """The document of this id; case and surrounding space do not matter."""
        return self._by_id.get(doc_id.strip().lower())

    def search(self, query: str, count: int) -> list[Document]:
        """The best ``count`` documents, best first; only those that share a word with the query."""
        known = [token for token in _tokens(query) if token in self._index.vocab_dict]
        if not known:
            return []
        import numpy as np

        scores = self._index.get_scores(known)
        best = np.argsort(-scores, kind="stable")[:count]
        return [self._documents[i] for i in best if scores[i] > 0]


def shipped_corpus() -> Corpus:
    """The articles about the made-up Vessary Isles."""
    lines = (files("heddle.environments") / "corpora" / "vessary.jsonl").read_bytes().splitlines()
    return Corpus([Document(**orjson.loads(line)) for line in lines])


def _tokens(text: str) -> list[str]:
    import bm25s

    tokens: list[str] = bm25s.tokenize([text], stopwords="en", return_ids=False, show_progress=False)[0]
    return tokens
