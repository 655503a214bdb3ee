"""Names only; a transform raises when it is called."""

from collections.abc import Callable
from enum import Enum
from typing import Any, NoReturn


class InterpolationMode(Enum):
    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"torchvision's {name} is not here")

    return missing


from torchvision.transforms import functional  # noqa: E402, F401
