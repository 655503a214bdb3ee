"""Names only; a function raises when it is called."""

from torchvision.transforms import __getattr__

__all__ = ["ImageReadMode", "__getattr__"]


class ImageReadMode:
    UNCHANGED = "UNCHANGED"
    GRAY = "GRAY"
    RGB = "RGB"
