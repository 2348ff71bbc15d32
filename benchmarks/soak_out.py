"""Runs into one folder at the same time, and runs that are killed: the folder is always that of one run.

Every run writes all files of a study that was made once, with its own name in each of them and in the record of their
checksums, as `heatmover compare` does. Afterwards the folder must hold files of one run alone, as many as its record
says and with those checksums. Five parts:

- three runs at a time with --force, into a folder that is not there, holds files of the user's, or old results;
- three at a time without --force: exactly one wins, the others are told;
- runs killed after a random time, most of them within the exchange;
- runs killed before every single operation on the file system, in turn;
- real commands at the same time, and real commands killed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from heatmover.errors import InvalidInputError
from heatmover.report.folder import EVERY, FILES, RECORD, result_folder

OWN = {"thesis.tex": "years of work", "notes/a.txt": "mine"}
STARTS = ("absent", "own files", "old results")
OPERATIONS = ("open", "close", "write", "fsync", "mkdir", "rename", "replace", "symlink", "link", "unlink", "rmdir")
REFUSED = 2


def deliver(out: Path, name: str, *, force: bool) -> None:
    """Write the files of a run, with one file more in every other run; the record last."""
    with result_folder(out, force=force) as folder:
        names = [*FILES, *EVERY[len(FILES) :]] if int(name) % 2 else list(FILES)
        names.remove(RECORD)
        for file in names:
            (folder / file).write_text(f"{name} {file}\n" * 200, encoding="utf-8")
        digests = {file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in names}
        (folder / RECORD).write_text(json.dumps({"run": name, "files": digests}), encoding="utf-8")


def state(out: Path) -> str:
    """Return whose files a folder holds: a run's name, nothing, or what is wrong with it."""
    present = {name for name in EVERY if (out / name).exists()}
    if not present:
        return ""
    if RECORD not in present:
        return f"no record, but {sorted(present)}"
    record = json.loads((out / RECORD).read_text(encoding="utf-8"))
    if present - {RECORD} != record["files"].keys():
        return f"{sorted(present)} but the record says {sorted(record['files'])}"
    for name, digest in record["files"].items():
        content = (out / name).read_bytes()
        expected = digest["sha256"] if isinstance(digest, dict) else digest
        if hashlib.sha256(content).hexdigest() != expected:
            return f"{name} is not that of the record"
    return str(record.get("run", record.get("command")))


def prepare(out: Path, start: str) -> str:
    """Make a place as it is before the runs, and return whose files it holds."""
    if start == "absent":
        return ""
    for name, text in OWN.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text, encoding="utf-8")
    if start == "old results":
        deliver(out, "0", force=False)
        return "0"
    return ""


def own_files_stand(out: Path, start: str) -> bool:
    return start == "absent" or all((out / name).read_text(encoding="utf-8") == text for name, text in OWN.items())


def forked(action: Callable[[], None]) -> int:
    child = os.fork()
    if not child:
        code = 1
        try:
            action()
            code = 0
        except InvalidInputError:
            code = REFUSED
        finally:
            os._exit(code)
    return child


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Soak:
    """Counts what was seen, and keeps what must not be."""

    def __init__(self, top: Path) -> None:
        self.top, self.number = top, 0
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []

    def place(self) -> Path:
        self.number += 1
        return self.top / str(self.number) / "out"

    def expect(self, right: bool, what: str) -> None:
        if not right:
            self.wrong.append(what)

    def end(self, out: Path) -> None:
        shutil.rmtree(out.parent, ignore_errors=True)

    def together(self, start: str, *, force: bool) -> None:
        """Three runs at the same time."""
        out = self.place()
        before = prepare(out, start)
        names = ["1", "2", "3"]
        codes = [ended(c) for c in [forked(lambda n=n: deliver(out, n, force=force)) for n in names]]
        found = state(out)
        wanted = [0, 0, 0] if force else [2, 2, 2] if before else [0, 2, 2]
        self.expect(sorted(codes) == wanted, f"exit codes {codes}, force={force}, {start}")
        winners = [name for name, code in zip(names, codes, strict=True) if code == 0] or [before]
        self.expect(found in winners, f"{found!r} of {winners}, {start}")
        self.expect(own_files_stand(out, start), f"own files lost, {start}")
        left = [path.name for path in (*out.iterdir(), *out.parent.iterdir()) if path.name.startswith(".")]
        self.expect(not left, f"left behind: {left}")
        self.seen[
            f"{'with' if force else 'without'} --force, won by {'run ' + found if found != before else 'nobody'}"
        ] += 1
        self.end(out)

    def killed(self, start: str, child: Callable[[Path], int], how: str) -> bool:
        """A run that is killed, then one that goes through; return whether the first was killed."""
        out = self.place()
        out.parent.mkdir(parents=True)
        before = prepare(out, start)
        code = ended(child(out))
        found = state(out)
        self.expect(code in (0, -signal.SIGKILL), f"exit code {code}")
        self.expect(found in (before, "1"), f"{found!r} after a kill {how}, {start}")
        self.expect(code != 0 or found == "1", f"{found!r} after a run that ended, {start}")
        self.seen[f"{how}: {'not killed' if code == 0 else 'the new files' if found == '1' else 'as before'}"] += 1
        deliver(out, "2", force=True)
        self.expect(state(out) == "2", f"{state(out)!r} after the run that followed")
        self.expect(own_files_stand(out, start), f"own files lost, {start}")
        left = [path.name for path in (*out.iterdir(), *out.parent.iterdir()) if path.name.startswith(".")]
        self.expect(not left, f"left behind: {left}")
        self.end(out)
        return code != 0


def kill_after(seconds: float) -> Callable[[Path], int]:
    def child(out: Path) -> int:
        reader, writer = os.pipe()

        def run() -> None:
            os.write(writer, b".")
            deliver(out, "1", force=True)

        process = forked(run)
        os.read(reader, 1)
        time.sleep(seconds)
        os.kill(process, signal.SIGKILL)
        os.close(reader)
        os.close(writer)
        return process

    return child


def kill_at(number: int) -> Callable[[Path], int]:
    def run(out: Path) -> None:
        count = iter(range(1, 100_000))
        for name in OPERATIONS:
            real = getattr(os, name)

            def operation(*arguments: object, real: Callable[..., object] = real, **options: object) -> object:
                if next(count) == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **options)

            setattr(os, name, operation)
        deliver(out, "1", force=True)

    return lambda out: forked(lambda: run(out))


def typical_seconds(top: Path) -> float:
    """How long a run takes from its beginning to the end of the exchange."""
    out = top / "timed" / "out"
    prepare(out, "old results")
    start = time.perf_counter()
    for _ in range(5):
        ended(forked(lambda: deliver(out, "1", force=True)))
    return (time.perf_counter() - start) / 5


def commands(soak: Soak, runs: int, rng: random.Random) -> None:
    """Three demos at the same time, of which every other time one is killed; each has a title by its seed."""
    for number in range(runs):
        out = soak.place()
        force = number % 2 == 0
        line = [sys.executable, "-m", "heatmover", "demo", "--samples", "4", "--cells", "20", "-q", "--threads", "1"]
        line += ["--out", str(out), *(["--force"] if force else [])]
        started = [
            subprocess.Popen([*line, "--seed", str(seed)], stderr=subprocess.PIPE, text=True) for seed in range(3)
        ]
        kill = number % 4 >= 2
        if kill:
            time.sleep(rng.uniform(2, 12))
            started[0].kill()
        errors = [process.communicate()[1] for process in started]
        codes = [process.returncode for process in started]
        soak.expect(not any("Traceback" in error for error in errors), f"traceback: {errors}")
        soak.expect(all(code in (0, 2, -signal.SIGKILL) for code in codes), f"exit codes {codes}: {errors}")
        if not kill:
            soak.expect(codes.count(0) == (3 if force else 1), f"exit codes {codes} with force={force}")
        found = state(out) if out.exists() else ""
        soak.expect(not found or found.startswith("{'name': 'demo'"), f"{found!r} of commands")
        soak.seen[f"commands {'with' if force else 'without'} --force{', one killed' if kill else ''}: one run's"] += 1
        soak.end(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="times three runs at once, and kills at random")
    parser.add_argument("--commands", type=int, default=8, help="times three real commands at once")
    parser.add_argument("--seed", type=int, default=0, help="of the times of the kills")
    arguments = parser.parse_args()
    rng, begun = random.Random(arguments.seed), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder))
        for number in range(arguments.runs):
            soak.together(STARTS[number % 3], force=True)
            soak.together(STARTS[number % 3], force=False)
        seconds = typical_seconds(Path(folder))
        kills = 0
        while kills < arguments.runs:
            kills += soak.killed(STARTS[kills % 3], kill_after(rng.uniform(0, seconds)), "at random")
        for start in STARTS:
            number = 1
            while soak.killed(start, kill_at(number), f"at each step, {start}"):
                number += 1
        commands(soak, arguments.commands, rng)
    for what, count in sorted(soak.seen.items()):
        print(f"{count:6d}  {what}")
    print(f"{len(soak.wrong):6d}  wrong; {time.perf_counter() - begun:.0f} s")
    for sentence in soak.wrong[:20]:
        print(sentence)
    raise SystemExit(bool(soak.wrong))


if __name__ == "__main__":
    main()
