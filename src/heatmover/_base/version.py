"""The version, for every module that writes it down."""

__version__ = "0.1.0"
