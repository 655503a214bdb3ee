"""Everything that is generated, by its path in the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from heddle.environments.authoring.guess_tasks import guess_tasks
from heddle.environments.authoring.math_tasks import math_tasks
from heddle.environments.authoring.world import articles_and_questions
from heddle.types import Json


def generated_files() -> dict[str, bytes]:
    """Path below ``heddle/environments`` and content."""
    articles, questions = articles_and_questions()
    return {
        "tasks/math.jsonl": _lines(math_tasks()),
        "tasks/guess.jsonl": _lines(guess_tasks()),
        "tasks/search.jsonl": _lines(questions),
        "corpora/vessary.jsonl": _lines(articles),
    }


def _lines(objects: Sequence[Mapping[str, Json]]) -> bytes:
    return b"".join(orjson.dumps(line) + b"\n" for line in objects)
