"""The version, in a module of its own so that a build can read it without importing PyTorch."""

__version__ = "0.2.0"
