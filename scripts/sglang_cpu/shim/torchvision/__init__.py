"""Takes the place of torchvision, which SGLang imports and a server of text never calls."""

from torchvision import io, transforms

__all__ = ["io", "transforms"]
__version__ = "0.0.0+none"
