"""Heddle orchestrates agentic RL rollouts: batches of prompts in, finished trajectories out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heddle.client import Client, SyncClient

__version__ = "0.1.0"

__all__ = ["Client", "SyncClient", "__version__"]


def __getattr__(name: str) -> object:
    """Import the clients when they are first asked for: the control plane needs no HTTP library."""
    if name == "Client":
        from heddle.client import Client

        return Client
    if name == "SyncClient":
        from heddle.client import SyncClient

        return SyncClient
    raise AttributeError(f"module 'heddle' has no attribute {name!r}")
