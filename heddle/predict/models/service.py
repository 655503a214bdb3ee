"""The process that serves trained models: ``python -m heddle.predict.models.service FOLDER NAME...``

It says that it is ready, then answers requests in their order, all on its standard streams (see ``wire``).
It ends when its standard input does. Whatever libraries print goes to standard error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from heddle.predict.models.base import LengthModel
from heddle.predict.models.catalogue import load_model
from heddle.predict.models.wire import REQUEST, Answer, Ready, Request, encode


def serve(models: Sequence[LengthModel], source: BinaryIO, sink: BinaryIO) -> None:
    """Until ``source`` ends. A line that is no request ends it, too: the other side is not ours."""
    _say(sink, Ready([model.name for model in models]))
    for line in source:
        _say(sink, answer(models, REQUEST.validate_json(line)))


def answer(models: Sequence[LengthModel], request: Request) -> Answer:
    """What each model says of each example."""
    said = {model.name: model.predict(request.examples).tolist() for model in models}
    return Answer(request.number, said)


def _say(sink: BinaryIO, message: Ready | Answer) -> None:
    sink.write(encode(message))
    sink.flush()


def main() -> None:
    """Load the models that the command line names, and serve them."""
    folder, *names = sys.argv[1:]
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve([load_model(name, Path(folder)) for name in names], sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
