"""The command line. Each command does one thing, speaks JSON on request and exits 0, 1 or 2.

``commands`` holds the signatures alone and imports nothing heavy, so that ``heddle --help`` is quick;
the work is in the sibling modules, imported when their command runs.
"""

from __future__ import annotations

import gc


def main() -> None:
    """Entry point of the ``heddle`` command."""
    gc.disable()  # what is imported stays; to look through it for garbage takes a tenth of the time
    from heddle.cli.commands import app  # imported late: importing heddle.cli.<module> needs no typer

    gc.enable()
    app()
