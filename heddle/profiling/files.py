"""Profiles are read from files, as ``heddle profile`` writes them."""

from __future__ import annotations

from pathlib import Path

from heddle.errors import InvalidRequest
from heddle.planning.profile_csv import ProfileTable, parse_profiles


def read_profiles(path: Path) -> ProfileTable:
    """A table from a CSV file.

    Raises ``InvalidRequest`` where the file cannot be read, and ``ConfigError`` where it holds no profile.
    """
    try:
        return parse_profiles(path.read_text("utf-8-sig"), source=str(path))
    except OSError as exc:
        raise InvalidRequest(f"cannot be read: {exc.strerror}", path=str(path)) from exc
    except UnicodeDecodeError as exc:
        raise InvalidRequest("is not UTF-8 text", path=str(path)) from exc
