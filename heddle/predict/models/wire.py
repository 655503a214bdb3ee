"""What the process of the models and its client say to each other: one JSON object a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson
from pydantic import TypeAdapter

from heddle.predict.models.base import Example

MOST_BYTES = 16 * 1024 * 1024
"""Of one line."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The models are loaded; said once, before anything else."""

    models: Sequence[str]


@dataclass(frozen=True, slots=True)
class Request:
    """Examples to estimate together."""

    number: int
    examples: Sequence[Example]


@dataclass(frozen=True, slots=True)
class Answer:
    """To the request of the same number: by model, and in the order of the examples, the logarithms of
    1 + tokens at the quantiles 0.1, 0.5 and 0.9."""

    number: int
    quantiles: Mapping[str, Sequence[tuple[float, float, float]]]


READY: TypeAdapter[Ready] = TypeAdapter(Ready)
REQUEST: TypeAdapter[Request] = TypeAdapter(Request)
ANSWER: TypeAdapter[Answer] = TypeAdapter(Answer)


def encode(message: Ready | Request | Answer) -> bytes:
    """The line, its newline included."""
    return orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE)
