"""Define the version of the package, for all modules that record or show it."""

__version__ = "0.1.0"
