"""Writes files and folders atomically: to a temporary path that is synced to disk and then renamed into place.

On a file system with atomic renames:

- After a crash, `path` is either the complete old or the complete new file or folder. On systems that cannot swap two
  folders in one step (Linux can), `recover` restores the old folder after a crash between two renames.
- If the `with` block fails or the disk is full, `path` is unchanged and the temporary files are removed. The next save
  to the same path removes temporary files left by a killed process.
- If two processes save to the same path, the last save wins, and the files of the two saves are never mixed.
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
except ImportError:  # Windows: all temporary paths are treated as abandoned
    fcntl = None  # type: ignore[assignment]

FULL = {errno.ENOSPC: "no space left on device", errno.EDQUOT: "disk quota exceeded", errno.EFBIG: "file too large"}


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str], needed: int | None = None) -> Iterator[Path]:
    """Yield a temporary path with the suffix of `path`. The file written there replaces `path` if the block succeeds.

    `needed`: Number of bytes to write, if known. It is reported if the disk is full.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        raise OSError(f"{path} is not a file and cannot be replaced")
    with _aside(path, needed, folder=False) as aside:
        yield aside
        _sync(aside)
        os.replace(aside, path)
    _sync(path.parent)


@contextlib.contextmanager
def atomic_folder(
    path: str | os.PathLike[str], needed: int | None = None, ours: Sequence[str] | None = None
) -> Iterator[Path]:
    """Yield an empty temporary folder that replaces the folder at `path` if the block succeeds.

    `ours`: Patterns of files to replace; other files are copied from the old folder. If None, all files are replaced.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_dir():
        raise OSError(f"{path} is not a folder and cannot be replaced")
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
    for old in (aside, _old(path)):  # the old folder after a swap or after two renames
        shutil.rmtree(old, ignore_errors=True)


def foreign_files(folder: Path, ours: Sequence[str]) -> list[str]:
    """Return the relative paths of the files, including those in subfolders, that match none of the `ours` patterns."""
    found = []
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in [*names, *links]:
            relative = Path(parent, name).relative_to(folder).as_posix()
            if not any(fnmatch.fnmatchcase(relative, pattern) for pattern in ours):
                found.append(relative)
    return sorted(found)


def recover(path: str | os.PathLike[str]) -> None:
    """Restore the old folder at `path` if a save to `path` crashed between two renames. Otherwise do nothing."""
    path = Path(os.path.realpath(path))
    old = _old(path)
    for _ in range(20):
        if path.exists() or not old.exists():
            return
        if not any(_in_use(aside) for aside in _left_aside(path)):
            break
        time.sleep(0.05)  # another process is between its two renames
    with contextlib.suppress(OSError):  # another process recovered it first
        old.rename(path)


# ---- Renaming --------------------------------------------------------------------------------------------------------


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


def _exchange(first: Path, second: Path) -> bool:
    """Swap two folders in one step. Return False if the system does not support such a swap."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(call(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0)


def _sync(path: Path) -> None:
    """Flush a file or folder to disk. Syncing the folder makes a rename durable."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open folders
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- Temporary paths -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _aside(path: Path, needed: int | None, folder: bool) -> Iterator[Path]:
    """Yield a temporary file or folder beside `path`, and remove it on failure. Raise OSError if the disk is full."""
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
            room = shutil.disk_usage(path.parent).free
            space = "" if needed is None else f" (about {needed / 1e6:,.1f} MB needed, {room / 1e6:,.1f} MB free)"
            before = "the previous version is unchanged" if path.exists() else "nothing was written"
            failure = OSError(f"could not write {path}: {FULL[reason]}{space}; {before}")
            failure.errno = reason  # set afterwards, because the constructor would change the message
            raise failure from error
        raise
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _create_locked(path: Path, folder: bool) -> tuple[Path, int | None]:
    """Create and lock a temporary path. The system releases the lock when the process ends."""
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
            continue  # another process removed the path before it was locked
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if aside.exists():
            return aside, descriptor
        os.close(descriptor)


def _left_aside(path: Path) -> list[Path]:
    """List the temporary paths of running and aborted saves to `path`."""
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
    """Lock a temporary path and yield True. Yield False if another process uses the path or it was removed."""
    try:
        descriptor = os.open(aside, os.O_RDONLY) if fcntl else None
    except OSError:
        yield False  # already removed
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
    """Return the errno if a full disk caused the error, otherwise None."""
    while error is not None:
        for code in FULL:
            if getattr(error, "errno", None) == code or os.strerror(code) in str(error):
                return code
        error = error.__cause__ or error.__context__
    return None
