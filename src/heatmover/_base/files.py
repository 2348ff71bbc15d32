"""Write files whole or not at all, lock them for one process, check paths, and make values plain for JSON."""

from __future__ import annotations

import errno
import math
import os
import stat
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from heatmover.errors import InvalidInputError

__all__ = ["check_place", "lock_file", "plain", "replacing", "sync", "try_lock"]

# A lock that is held, and a file system that knows no locks.
HELD = {errno.EWOULDBLOCK, errno.EACCES}
NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF}


@contextmanager
def replacing(path: str | os.PathLike[str], mode: str = "w", **options: Any) -> Iterator[IO[Any]]:
    """Give a file to write; when it is complete and on the disk it takes its place, else nothing is left of it.

    Parameters
    ----------
    path
        Where to; a file that is there already is replaced.
    mode, **options
        As in `open`, ``"w"`` or ``"wb"``.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "numbers.txt"
    >>> with replacing(path, encoding="utf-8") as file:
    ...     _ = file.write("1 2 3")
    ...     path.exists()
    False
    >>> path.read_text(encoding="utf-8")
    '1 2 3'
    """
    target = Path(path)
    if not target.name:
        raise InvalidInputError("the path of a file", repr(os.fspath(path)))
    # In the same folder: only there is a rename one indivisible step.
    temporary = target.with_name(f".heatmover-{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open(mode.replace("w", "x"), **options) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, onto the disk."""
    # Windows opens no folders, and some network disks synchronise none: a rename is then as sure as they make it.
    with suppress(OSError) if path.is_dir() else nullcontext():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def try_lock(descriptor: int) -> bool | None:
    """Lock an open file without waiting: True if that went, False if another holds it, None where there are no locks.

    The system lets go of the lock when the process ends, however it ends.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in HELD:
            return False
        if error.errno in NO_LOCKS:
            return None
        raise
    return True


def lock_file(path: Path, *, create: bool = True) -> int:
    """Open a file to lock, which may be made if it is not there; nothing that stands there is followed or changed."""
    # Neither a link, which could lead to a file of the user's, nor a pipe, which would wait for a reader.
    careful = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0) | careful, 0o666)
    except PermissionError:
        # In a folder that all may write to, another user's: it can be locked without being written.
        descriptor = os.open(path, os.O_RDONLY | careful)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EEXIST, "Not a plain file", str(path))
    return descriptor


def check_place(path: str | os.PathLike[str], what: str) -> Path:
    """Return a path that names a place, or raise: to the system an empty name is the current folder."""
    text = os.fspath(path)
    try:
        unusable = not str(text) or "\0" in str(text) or not os.fsencode(text)
    except UnicodeEncodeError:
        unusable = True
    if unusable:
        raise InvalidInputError(f"the path of {what}", ascii(text), "give the name of a file or folder")
    return Path(os.fsdecode(text))


def plain(value: Any) -> Any:
    """Return a value as JSON knows it: NaN becomes null, infinity becomes text, anything unknown its name.

    Examples
    --------
    >>> plain({"share": np.float64(0.5), "ratio": float("inf"), "names": ("a", None)})
    {'share': 0.5, 'ratio': 'inf', 'names': ['a', None]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    if isinstance(value, np.floating):
        return plain(float(value))  # a longdouble's own tolist is a longdouble
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None if math.isnan(value) else str(value)
    return value if value is None or isinstance(value, str | int) else str(value)
