"""Files of one run take the place of another's in one step, so that a folder always holds those of one run.

A rename is the only step of a file system that is done as a whole or not at all, and it takes one name. So for a
moment every file is reached through one link: ``report.html -> .heatmover-current/report.html``, where
``.heatmover-current`` leads to the old files. To turn that link to the new files is the one step. Before it every file
becomes such a link and after it a file again, by renames that change nothing of what one reads. Whenever the process
is killed, all names read as the old run wrote them, or all as the new one did; `settle` makes files of them again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import final

from heatmover._files import lock_file, replacing, sync, try_lock

__all__ = ["Run", "exchange", "has_runs", "runs_at_work", "settle"]

CURRENT = ".heatmover-current"
RUN = re.compile(r"\.heatmover-run-[0-9a-f]{32}")
# In the folder of a run: the file that is locked, the new files, the old ones, and a note of what is being moved.
OWNER, NEW, OLD, MOVING = "owner.json", "new", "old", "moving.json"
# Bytes of the first that are read; a path has at most 4,096.
LONGEST = 20_000
BOOT = Path("/proc/sys/kernel/random/boot_id")


@final
class Run:
    """A run at work: a hidden folder for its unfinished files, locked until it ends or its process does.

    Parameters
    ----------
    place
        A folder on the disk of the results, guarded meanwhile.
    purpose
        What the run is for; `runs_at_work` tells it to others.
    """

    def __init__(self, place: Path, purpose: str) -> None:
        self.folder = place / f".heatmover-run-{uuid.uuid4().hex}"
        self._lock = -1
        try:
            self.folder.mkdir()
            self._lock = lock_file(self.folder / OWNER)
            try_lock(self._lock)
            os.write(self._lock, json.dumps({"purpose": purpose, "machine": _machine()}).encode())
            self.new.mkdir()
        except BaseException:
            self.end()
            raise

    @property
    def new(self) -> Path:
        """Folder of the new files."""
        return self.folder / NEW

    def enter(self, place: Path) -> None:
        """Move into a folder on the same disk."""
        target = place / self.folder.name
        if target != self.folder:
            self.folder.rename(target)
            self.folder = target

    def end(self) -> None:
        """Remove the folder, unless files in it are reached still, and let go of the lock."""
        if not _is_needed(self.folder):
            shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)


def _is_needed(folder: Path) -> bool:
    return (folder / MOVING).exists() or _leads_to(folder.parent / CURRENT).startswith(f"{folder.name}/")


def has_runs(place: Path) -> bool:
    """Return whether a folder holds runs, at work or killed; not if one cannot look."""
    with suppress(OSError):
        return bool(_runs(place))
    return False


def runs_at_work(place: Path) -> list[str]:
    """Return what the runs in a folder, which is guarded, are for; remove what killed ones left there."""
    found = []
    for folder in _runs(place):
        try:
            lock = lock_file(folder / OWNER, create=False)
        except FileNotFoundError:  # killed before it had one
            _remove(folder, {})
            continue
        except OSError:  # another user's
            continue
        try:
            owner = _owner(lock)
            free = try_lock(lock)
            if free is False:
                found.append(str(owner.get("purpose", "")))
            elif free:
                _remove(folder, owner)
        finally:
            os.close(lock)
    return found


def _remove(folder: Path, owner: dict[str, object]) -> None:
    """Remove the folder of a run whose lock is free."""
    # Some disks of clusters tell each machine of its own locks only: a run of another machine may be alive.
    machine = owner.get("machine")
    ours = not isinstance(machine, list) or any(mine in machine for mine in _machine())
    if ours and not _is_needed(folder):
        shutil.rmtree(folder, ignore_errors=True)


def _owner(lock: int) -> dict[str, object]:
    try:
        owner = json.loads(os.read(lock, LONGEST))
    except (OSError, ValueError):  # killed before it was written
        return {}
    return owner if isinstance(owner, dict) else {}


def _machine() -> list[str]:
    """Return the name of the machine, and that of its present start, which containers on it share."""
    with suppress(OSError):
        return [socket.gethostname(), BOOT.read_text(encoding="ascii").strip()]
    return [socket.gethostname()]


def _runs(place: Path) -> list[Path]:
    with os.scandir(place) as entries:
        return sorted(
            place / entry.name for entry in entries if RUN.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        )


def exchange(run: Run, out: Path, names: Sequence[str]) -> None:
    """Put the new files of a run into a folder that is guarded and settled, in the place of the old ones.

    Parameters
    ----------
    run
        With its files complete.
    out
        The folder. Files of other names stay as they are.
    names
        Of the old files, as far as they are there.

    Raises
    ------
    OSError
        If it could not be done; then the old files are in their place.
    """
    for path in (*run.new.iterdir(), run.new):
        sync(path)
    run.enter(out)
    (run.folder / OLD).mkdir()
    old = [name for name in names if os.path.lexists(out / name)]
    try:
        _by_links(run, out, old) if _has_links(run.folder) else _by_moves(run, out, old)
    except BaseException as error:
        settle(out)
        if not isinstance(error, OSError) or any(run.new.iterdir()):  # else all of them are in their place
            raise


def _by_links(run: Run, out: Path, old: Sequence[str]) -> None:
    link, kept = run.folder / "link", run.folder / OLD
    for name in old:
        _add_name(out / name, kept / name)
    _point(out / CURRENT, f"{run.folder.name}/{OLD}", link)
    for name in sorted({*old, *(path.name for path in run.new.iterdir())}):
        _point(out / name, f"{CURRENT}/{name}", link)
    sync(out)
    _point(out / CURRENT, f"{run.folder.name}/{NEW}", link)
    sync(out)
    # The new files are there, whatever happens now; what cannot be settled the next run will settle.
    with suppress(OSError):
        settle(out)


def _has_links(folder: Path) -> bool:
    """Return whether the disk and the system let us make links."""
    try:
        (folder / "link").symlink_to(NEW)
    except (OSError, NotImplementedError):
        return False
    (folder / "link").unlink()
    return True


def _point(path: Path, target: str, temporary: Path) -> None:
    """Make a path a link to a target, in one step."""
    temporary.symlink_to(target)
    temporary.replace(path)


def _add_name(path: Path, further: Path) -> None:
    """Give a file a further name, or copy it where a file has only one."""
    if path.is_symlink():  # made by the user; it leads to the same from another folder only if it is absolute
        further.symlink_to(path.parent.resolve() / path.readlink())
        return
    try:
        os.link(path, further)
    except OSError:
        shutil.copy2(path, further)
        sync(further)


def _by_moves(run: Run, out: Path, old: Sequence[str]) -> None:
    """Exchange file by file where there are no links: whoever looks meanwhile sees too little, never a mixture."""
    new = sorted(path.name for path in run.new.iterdir())
    with replacing(run.folder / MOVING, encoding="utf-8") as file:
        json.dump(new, file)
    for name in old:
        (out / name).replace(run.folder / OLD / name)
    for name in new:
        (run.new / name).replace(out / name)
    (run.folder / MOVING).unlink()


def settle(out: Path) -> None:
    """End the exchange of a killed process in a folder that is guarded: nothing that one reads changes.

    If it had no links and moved files one by one, those of the old run come back, or those of the new one follow.
    """
    current = out / CURRENT
    for name in _linked(out):
        try:
            (current / name).replace(out / name)
        except FileNotFoundError:  # of one of the two runs only, and not of this one
            (out / name).unlink()
    if current.is_symlink():
        current.unlink()
        sync(out)
    for folder in _runs(out):
        if (folder / MOVING).exists():
            _settle_moves(folder, out)


def _linked(out: Path) -> Iterator[str]:
    """Yield the names in a folder that are reached through the one link."""
    with os.scandir(out) as entries:
        linked = sorted(entry.name for entry in entries if entry.is_symlink())
    yield from (name for name in linked if _leads_to(out / name) == f"{CURRENT}/{name}")


def _leads_to(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:  # no link, or none any more
        return ""


def _settle_moves(folder: Path, out: Path) -> None:
    new = json.loads((folder / MOVING).read_text(encoding="utf-8"))
    left = [name for name in new if (folder / NEW / name).exists()]
    # New files move only after all old ones have.
    source = OLD if left == new else NEW
    for path in sorted((folder / source).iterdir()):
        path.replace(out / path.name)
    (folder / MOVING).unlink()
