"""Naming the field that is wrong: one notation for paths, whoever found the fault.

A path reads like the expression that would reach the field: ``prompts[3].task``, ``query.limit``,
``prompts[0].task["odd key"]``. No web framework here: the client uses it too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from pydantic import BaseModel, ValidationError

from heddle.validation import MISSING, UNKNOWN, faults, field_names

MAX_FIELD_ERRORS = 20
"""Errors reported for one request: enough to mend it, and no echo of a hostile one."""

MAX_KEY_CHARS = 64
"""Characters of a foreign key that a path repeats."""

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")

_CODES = {UNKNOWN: "unknown_field", MISSING: "missing_field"}


@dataclass(frozen=True, slots=True)
class FieldError:
    """What is wrong with one field of a request."""

    code: str
    message: str
    path: str


def path_of(location: Sequence[str | int], *, root: str = "body") -> str:
    """Write a location as a path; the empty location is ``root``."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif len(part) <= MAX_KEY_CHARS and _PLAIN_KEY.fullmatch(part):
            path += f".{part}" if path else part
        else:
            path += f"[{json.dumps(part[:MAX_KEY_CHARS])}]"
    return path or root


def field_errors(
    exc: ValidationError, schema: type[BaseModel], *, prefix: Sequence[str | int] = ()
) -> list[FieldError]:
    """The errors of a failed validation by ``schema``, without the values that failed."""
    return [
        FieldError(
            _CODES.get(fault.kind, "invalid_value"), fault.message, path_of([*prefix, *fault.location])
        )
        for fault in islice(faults(exc, field_names(schema)), MAX_FIELD_ERRORS)
    ]
