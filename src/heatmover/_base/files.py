"""Write files whole or not at all, lock them, explain broken ones, check paths, make values JSON; for any package."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import stat
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from heatmover._base.words import article, quoted_path
from heatmover.errors import HeatmoverError, InvalidInputError

Arrays = dict[str, npt.NDArray[Any]]

# Error numbers if another process holds a lock, and error numbers if the file system has no locks.
HELD = {errno.EWOULDBLOCK, errno.EACCES}
NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF}


@contextmanager
def replacing(path: str | os.PathLike[str], mode: str = "w", **options: Any) -> Iterator[IO[Any]]:
    """Yield a temporary file that replaces the target at the end of the block; an error removes the temporary file.

    Parameters
    ----------
    path
        Path of the target; an existing file is replaced.
    mode, **options
        Arguments of `open`; the mode is ``"w"`` or ``"wb"``.

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
    # Use the same folder, because a rename is atomic only within one file system.
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


def save_arrays(path: Path, seal: str, arrays: Arrays) -> None:
    """Write arrays to a ``.npz`` file, completely or not at all, with a checksum of the arrays and of ``seal``.

    Parameters
    ----------
    path
        Path of the file; an existing file is replaced.
    seal
        Description of everything on which the arrays depend.
    arrays
        Arrays by name.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "counts.npz"
    >>> save_arrays(path, "seed 0", {"counts": np.arange(3)})
    >>> load_arrays(path, "seed 0"), load_arrays(path, "seed 1")
    ({'counts': array([0, 1, 2])}, None)
    """
    with replacing(path, "wb") as file:
        np.savez(file, checksum=np.array(_checksum(seal, arrays)), **arrays)  # type: ignore[arg-type]


def load_arrays(path: Path, seal: str) -> Arrays | None:
    """Read arrays that `save_arrays` wrote; return None if the file is missing, damaged or has a different ``seal``."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays: Arrays = {key: file[key] for key in file.files}
        return arrays if str(arrays.pop("checksum")) == _checksum(seal, arrays) else None
    # The errors that libraries raise for damaged files have no common base class.
    except Exception:
        return None


def _checksum(seal: str, arrays: Arrays) -> str:
    described = {key: [array.dtype.str, *array.shape] for key, array in sorted(arrays.items())}
    digest = hashlib.sha256(json.dumps([seal, described]).encode())
    for _, array in sorted(arrays.items()):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Write a file, or the entries of a folder, from the system's buffers to the disk."""
    # Windows cannot open folders, and some network disks cannot sync folders. On such a system, a crash may undo a
    # rename.
    with suppress(OSError) if path.is_dir() else nullcontext():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def try_lock(descriptor: int) -> bool | None:
    """Lock an open file without waiting.

    Return True if the file is now locked, False if another process holds the lock, and None if the file system has no
    locks. The system releases the lock when the process ends, even if the process is killed.
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


def lock_file(path: Path) -> int:
    """Open a file for locking, or create it; never follow a link or change the content."""
    # Reject links, which could point to any file of the user, and do not wait if the path is a pipe without a reader.
    careful = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | careful, 0o666)
    except PermissionError:
        # The file may belong to another user of a shared folder; a lock needs no permission to write.
        descriptor = os.open(path, os.O_RDONLY | careful)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EEXIST, "Not a plain file", str(path))
    return descriptor


def check_place(path: str | os.PathLike[str], what: str) -> Path:
    """Return a path; raise an error for invalid characters or an empty path, which would mean the current folder."""
    text = os.fspath(path)
    try:
        unusable = not str(text) or "\0" in str(text) or not os.fsencode(text)
    except UnicodeEncodeError:
        unusable = True
    if unusable:
        raise InvalidInputError(f"the path of {what}", ascii(text), "give the name of a file or folder")
    return Path(os.fsdecode(text))


@contextmanager
def readable(path: str, kind: str) -> Iterator[None]:
    """Convert a library's error about a broken file into one sentence that names the file."""
    try:
        yield
    except HeatmoverError:
        raise
    except MemoryError as error:
        # Files are read in blocks of a few megabytes, so a file that needs more memory is damaged.
        raise InvalidInputError(
            f"{article(kind)} that can be read in blocks",
            f"that {quoted_path(path)} needs more memory than is available{_reason(error, ' (', ')')}",
            "it may be damaged",
        ) from error
    except PermissionError as error:
        raise InvalidInputError(f"a readable {kind}", f"no permission to read {quoted_path(path)}") from error
    except FileNotFoundError as error:
        raise InvalidInputError(f"a readable {kind}", f"that {quoted_path(path)} does not exist") from error
    except Exception as error:
        # Parsers raise errors of many types; struct.error, csv.Error and re.error have no common base class.
        raise broken(path, kind, error) from error


def broken(path: str, kind: str, error: BaseException) -> InvalidInputError:
    """Return the error for a file that cannot be read; the message quotes one line of the library's reason."""
    text = isinstance(error, UnicodeDecodeError) and kind in ("table of text", "sample sheet")
    return InvalidInputError(
        f"a {kind} in UTF-8" if text else f"a complete {kind}",
        f"that {quoted_path(path)} cannot be read ({_reason(error) or type(error).__name__})",
        "save it with that encoding" if text else "it may be truncated or damaged",
    )


def _reason(error: BaseException, before: str = "", after: str = "") -> str:
    lines = str(error).strip().splitlines()
    # A library's message may contain bytes of a damaged file.
    shown = "".join(letter if letter.isprintable() else "?" for letter in lines[0][:200]).rstrip(" .") if lines else ""
    return f"{before}{shown}{after}" if shown else ""


def plain(value: Any) -> Any:
    """Convert a value to one that JSON can hold: NaN becomes null; infinity and unknown objects become text.

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
        return plain(float(value))  # tolist of a longdouble returns a longdouble
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None if math.isnan(value) else str(value)
    return value if value is None or isinstance(value, str | int) else str(value)
