"""Which devices a worker gets: GPUs, or on a CPU the cores of its ranks. Pure.

Neighbours talk fastest, so a worker gets a block of neighbours, aligned to its size and cut out of the
smallest free block that holds it, as a buddy allocator does: as long as nothing is given back, degrees that
are powers of two fit in any order until every device is taken.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from heddle.errors import ConfigError


def choose_devices(degree: int, order: Sequence[int], taken: Collection[int]) -> tuple[int, ...] | None:
    """``degree`` devices of ``order`` that are not ``taken``; ``None`` where too few are free.

    ``order`` lists devices so that neighbours stand next to each other. An aligned block is preferred,
    then any run of neighbours, then what is there. Raises ``ConfigError`` where it could never be.
    """
    if not 1 <= degree <= len(order):
        raise ConfigError(f"a worker of degree {degree} does not fit on {len(order)} devices")
    free = [device not in taken for device in order]
    if sum(free) < degree:
        return None
    starts = _aligned_starts(degree, free) or _run_starts(degree, free)
    if starts:
        start = min(starts, key=lambda place: (_free_around(place, degree, free), place))
        return tuple(order[start : start + degree])
    return tuple(device for device, is_free in zip(order, free, strict=True) if is_free)[:degree]


def parse_devices(text: str) -> tuple[int, ...]:
    """``0-3`` or ``0,2,5-7`` as indices, ascending, each once. Raises ``ConfigError``."""
    indices: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise ConfigError(f"engine.sglang.gpus: {text!r} is neither 'auto' nor a list such as 0-3,6")
        indices.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(indices))


def _block_size(degree: int) -> int:
    """The smallest power of two that holds ``degree``."""
    return 1 << (degree - 1).bit_length()


def _aligned_starts(degree: int, free: Sequence[bool]) -> list[int]:
    starts = range(0, len(free) - degree + 1, _block_size(degree))
    return [start for start in starts if all(free[start : start + degree])]


def _run_starts(degree: int, free: Sequence[bool]) -> list[int]:
    return [start for start in range(len(free) - degree + 1) if all(free[start : start + degree])]


def _free_around(start: int, degree: int, free: Sequence[bool]) -> int:
    """Size of the largest aligned block around ``start`` that is free: what taking it would break up."""
    size = _block_size(degree)
    while size < len(free):
        block = start // (2 * size) * 2 * size
        if not all(free[block : block + 2 * size]):
            break
        size *= 2
    return size
