"""The Python client: asynchronous, with a blocking twin. Nothing of the server is imported with it."""

from heddle.client.client import Client
from heddle.client.errors import ServerFailure, Unauthorized
from heddle.client.sync import SyncClient
from heddle.client.transport import RetryPolicy

__all__ = ["Client", "RetryPolicy", "ServerFailure", "SyncClient", "Unauthorized"]
