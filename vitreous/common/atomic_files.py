"""Writing so that nothing is ever half written: aside first, then synced to the disk, then put into place by renaming.

What is guaranteed, on a file system that keeps its promises (rename is atomic, fsync reaches the disk):

- `atomic_file`: whoever opens `path`, at any moment and after any crash, finds the whole old file or the whole new one.
- `atomic_folder`: the same for a folder, where the system can exchange two folders in one step (Linux, on most file
  systems). Elsewhere the old one is renamed aside and the new one renamed in, and for the moment between the two there
  is nothing at `path`. A crash in that moment loses nothing: `recover`, which every save and every load of a checkpoint
  calls, puts the old one back.
- Files that others have put into a folder survive its replacement where the caller says which files are its own.
- When the body fails, is interrupted, or finds the disk full, what was at `path` stays as it was, and what was written
  aside is removed. What a killed process left aside is removed by the next save to the same path.

Two processes that save to one path at the same time do not mix: each writes aside on its own, and the later one wins.
"""

import contextlib
import ctypes
import errno
import fnmatch
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: what lies aside is then taken for the leftover of a crash
    fcntl = None  # type: ignore[assignment]

FULL = {errno.ENOSPC: "no space left on the disk", errno.EDQUOT: "disk quota exceeded", errno.EFBIG: "file too large"}


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str], needed: int | None = None) -> Iterator[Path]:
    """A path aside to write to, with the same extension; it takes the place of `path` when the body succeeds.

    `needed`: the bytes that will be written, where known, for the message of a full disk.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "numbers.csv"
    >>> with atomic_file(path) as aside:
    ...     _ = aside.write_text("1,2,3")
    >>> path.read_text()
    '1,2,3'
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        raise OSError(f"{path} is not a file, so it is not replaced by one")
    with _aside(path, needed, folder=False) as aside:
        yield aside
        _sync(aside)
        os.replace(aside, path)
    _sync(path.parent)


@contextlib.contextmanager
def atomic_folder(
    path: str | os.PathLike[str], needed: int | None = None, ours: Sequence[str] | None = None
) -> Iterator[Path]:
    """Yield an empty folder to write into, which replaces the folder at `path` if the body succeeds.

    The module's docstring has the guarantees. `needed`: as in `atomic_file`. `ours`: patterns of the files that may be
    lost, relative to `path`; all other files in the old folder are copied into the new one. None: all may be lost.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_dir():
        raise OSError(f"{path} is not a folder, so it is not replaced by one")
    recover(path)
    with _aside(path, needed, folder=True) as aside:
        yield aside
        for name in foreign_files(path, ours) if ours is not None else ():
            (aside / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path / name, aside / name, follow_symlinks=False)
        for folder, _, names in os.walk(aside, topdown=False):
            for name in names:
                if not os.path.islink(os.path.join(folder, name)):
                    _sync(Path(folder, name))
            _sync(Path(folder))
        _put_in_place(aside, path)
    _sync(path.parent)
    for old in (aside, _old(path)):  # where an exchange, or two renames, have left the one before
        shutil.rmtree(old, ignore_errors=True)


def foreign_files(folder: Path, ours: Sequence[str]) -> list[str]:
    """Files below a folder, relative to it, that match none of the patterns of ours."""
    found = []
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in [*names, *links]:
            relative = Path(parent, name).relative_to(folder).as_posix()
            if not any(fnmatch.fnmatchcase(relative, pattern) for pattern in ours):
                found.append(relative)
    return sorted(found)


def recover(path: str | os.PathLike[str]) -> None:
    """After a crash between the two renames: put the folder that was there back. Does nothing where all is well."""
    path = Path(os.path.realpath(path))
    old = _old(path)
    for _ in range(20):
        if path.exists() or not old.exists():
            return
        if not any(_in_use(aside) for aside in _left_aside(path)):
            break
        time.sleep(0.05)  # a live process stands between its two renames, and will be done at once
    with contextlib.suppress(OSError):  # somebody else recovered it first
        old.rename(path)


# ---- Into place ------------------------------------------------------------------------------------------------------


def _put_in_place(aside: Path, path: Path) -> None:
    if not path.exists():
        aside.rename(path)
    elif not _exchange(aside, path):
        shutil.rmtree(_old(path), ignore_errors=True)
        path.rename(_old(path))
        try:
            aside.rename(path)
        except BaseException:
            _old(path).rename(path)
            raise


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step, or False where this system or file system cannot."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(call(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


def _sync(path: Path) -> None:
    """Wait until the disk has it. A folder's own entries need it too, or a rename may be forgotten."""
    if os.name == "nt" and path.is_dir():
        return  # cannot be opened there
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- Aside -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _aside(path: Path, needed: int | None, folder: bool) -> Iterator[Path]:
    """A new file or folder next to `path`: nothing remains of it on failure, and a full disk is said in one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in _left_aside(path):
        with _lock(left) as free:
            if free:
                _remove(left)
    aside, descriptor = _create_locked(path, folder)
    try:
        yield aside
    except BaseException as error:
        _remove(aside)
        if isinstance(error, Exception) and (reason := _reason(error)):
            raise _full_disk(path, reason, needed) from error
        raise
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _create_locked(path: Path, folder: bool) -> tuple[Path, int | None]:
    """The system lets go of the lock when the process ends, however it ends: so others can tell a leftover."""
    while True:
        aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.aside{path.suffix}")
        if folder:
            aside.mkdir()
        else:
            os.close(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666))
        if not fcntl:
            return aside, None
        try:
            descriptor = os.open(aside, os.O_RDONLY)
        except FileNotFoundError:
            continue  # another save took it for a leftover before it was locked
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if aside.exists():
            return aside, descriptor
        os.close(descriptor)


def _left_aside(path: Path) -> list[Path]:
    """What saves to `path`, running now or killed earlier, have put next to it."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.aside{re.escape(path.suffix)}")
    if not path.parent.is_dir():
        return []
    with os.scandir(path.parent) as entries:
        return [Path(entry.path) for entry in entries if pattern.fullmatch(entry.name)]


def _old(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _lock(aside: Path) -> Iterator[bool]:
    """Whether what lies aside belongs to no living process; if so, it is ours for the time of the body."""
    try:
        descriptor = os.open(aside, os.O_RDONLY) if fcntl else None
    except OSError:
        yield False  # gone already
        return
    try:
        if descriptor is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        free = True
    except BlockingIOError:
        free = False
    try:
        yield free
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _in_use(aside: Path) -> bool:
    with _lock(aside) as free:
        return not free and aside.exists()


def _reason(error: BaseException | None) -> int | None:
    """The code of a full disk, also where a library has wrapped the error in one of its own."""
    while error is not None:
        for code in FULL:
            if getattr(error, "errno", None) == code or os.strerror(code) in str(error):
                return code
        error = error.__cause__ or error.__context__
    return None


def _full_disk(path: Path, reason: int, needed: int | None) -> OSError:
    free = shutil.disk_usage(path.parent).free
    wanted = "" if needed is None else f" (about {needed / 1e6:,.1f} MB needed, {free / 1e6:,.1f} MB free)"
    before = "what was there before is intact" if path.exists() else "nothing was there before, and nothing is left"
    failure = OSError(f"could not write {path}: {FULL[reason]}{wanted}; {before}")
    failure.errno = reason  # set afterwards, so that the message stays one plain line
    return failure
