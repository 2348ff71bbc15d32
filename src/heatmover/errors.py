"""Errors and warnings, in one grammar: what was expected, what was found, what to do."""

from __future__ import annotations

__all__ = [
    "ConvergenceWarning",
    "EmbeddingWarning",
    "GraphWarning",
    "HeatmoverError",
    "InvalidInputError",
    "MissingExtraError",
]


class HeatmoverError(Exception):
    """Base class of every error that heatmover raises on purpose."""


class InvalidInputError(HeatmoverError, ValueError):
    """An argument is not what the called function can work with.

    Parameters
    ----------
    expected
        What the function needs, e.g. ``"points without NaN"``.
    found
        What it was given, with numbers, e.g. ``"3 NaN in 2 rows (first: row 17)"``.
    advice
        What the caller can do about it; may be empty.

    Examples
    --------
    >>> raise InvalidInputError("alpha in (0, 1]", "alpha=2.0", "use alpha=0.5 if unsure")
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected alpha in (0, 1], found alpha=2.0; use alpha=0.5 if unsure.
    """

    def __init__(self, expected: str, found: str, advice: str = "") -> None:
        self.expected, self.found, self.advice = expected, found, advice
        super().__init__(f"Expected {expected}, found {found}{'; ' + advice if advice else ''}.")

    def __reduce__(self) -> tuple[type[InvalidInputError], tuple[str, str, str]]:
        # The default would call __init__ with the finished sentence; errors cross process borders in joblib.
        return type(self), (self.expected, self.found, self.advice)


class MissingExtraError(HeatmoverError, ImportError):
    """An optional package is needed and not installed; the message names the extra."""

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(f"Expected the package {package!r}, found it missing; pip install 'heatmover[{extra}]'.")

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        return type(self), (self.package, self.extra)


class ConvergenceWarning(UserWarning):
    """An iterative method stopped before it reached the accuracy asked for; the message says how far it is."""


class GraphWarning(UserWarning):
    """The graph is legal but has a property the user should know, such as several components."""


class EmbeddingWarning(UserWarning):
    """The embedding is not what the settings alone would give, for instance because it would be too large."""
