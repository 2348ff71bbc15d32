"""One writer at a time: a lock on a folder that ends with the process that holds it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heatmover._files import lock_file, try_lock
from heatmover._words import quoted_path
from heatmover.errors import InvalidInputError

__all__ = ["explained", "writing"]

# It stays in the folder, locked or not: a file that comes and goes could be locked by two at once.
LOCK = ".lock"
FULL = {errno.ENOSPC, errno.EDQUOT}
REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Be the only writer of a folder, or raise at once if there is another.

    The system lets go of the lock when its process ends, however it ends: a killed writer stops nobody. On file systems
    that know no locks nothing is held; writers there notice each other by the generation of the manifest.

    Parameters
    ----------
    folder
        That is there.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with writing(folder), writing(folder):
    ...     pass
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected one writer at a time, found that another is writing to ...
    """
    with explained(folder):
        descriptor = lock_file(folder / LOCK)
    try:
        if try_lock(descriptor) is False:
            raise InvalidInputError(
                "one writer at a time",
                f"that another is writing to {quoted_path(str(folder))}",
                "wait until it has finished, and try again",
            )
        yield
    finally:
        os.close(descriptor)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Say in one sentence why something could not be written: no space, no permission, no such folder."""
    try:
        yield
    except OSError as error:
        place = quoted_path(str(path))
        if error.errno in FULL:
            raise InvalidInputError(
                f"space to write to {place}",
                "no space left on the device",
                "free some and try again: what was committed before is kept",
            ) from error
        if error.errno in REFUSED:
            raise InvalidInputError(
                f"{place} to be a folder that can be written",
                f"that writing is not allowed ({error.strerror})",
                "copy it to a folder of your own, or ask for permission",
            ) from error
        raise InvalidInputError(f"to write to {place}", f"that this failed ({error.strerror or error})") from error
