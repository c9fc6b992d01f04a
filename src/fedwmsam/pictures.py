"""The formats of pictures, as a command's option; here alone, because --help must not wait for what draws them."""

from enum import Enum


class Picture(Enum):
    PNG = "png"
    SVG = "svg"
    PDF = "pdf"
