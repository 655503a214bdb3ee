"""Takes the place of SGLang's kernels, which have no build for a plain CPU.

SGLang imports their names whatever the device. One of them is called on the CPU engine and is written here in
torch; all others raise when they are called.
"""

from collections.abc import Callable
from typing import Any, NoReturn

from torch import Tensor

__version__ = "0.0.0+none"


def assign_req_to_token_pool_cpu(
    rows: Tensor, table: Tensor, starts: Tensor, ends: Tensor, slots: Tensor, pool_length: int
) -> None:
    """Write each request's new KV slots into its row of the table; ``slots`` holds them one after another."""
    taken = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        count = end - start
        table[row, start:end] = slots[taken : taken + count].to(table.dtype)
        taken += count


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} has no implementation on this CPU")

    return missing
