"""The user's cache folder, and the compiled functions that the command line keeps in it."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
import warnings
from contextlib import suppress
from pathlib import Path

import jax

_MOST_BYTES = 2**29


def cache_folder() -> Path:
    """Return the folder of computed files: ``COVFREE_CACHE``, else ``covfree`` in the user's cache.

    The user's cache is ``XDG_CACHE_HOME``, if that is an absolute path, else ``~/.cache``.

    Raises:
        OSError: if the folder is unknown, because the user has no home folder.
    """
    own, common = os.environ.get("COVFREE_CACHE"), os.environ.get("XDG_CACHE_HOME", "")
    try:
        if own:
            return Path(own).expanduser()
        # The XDG specification says to ignore relative paths.
        return (Path(common) if os.path.isabs(common) else Path.home() / ".cache") / "covfree"
    except RuntimeError as error:
        raise OSError(
            f"no home folder is known for the cache ({error}); set COVFREE_CACHE to a folder that can be "
            "written"
        ) from error


def keep_compiled() -> None:
    """Let jax keep compiled functions in `cache_folder`, where later processes find them.

    Each kind of processor has a folder of its own, because code for one may crash another. If kept functions
    take more than 512 MiB when a process starts, all are deleted. jax's own settings
    (``JAX_COMPILATION_CACHE_DIR``, ``JAX_ENABLE_COMPILATION_CACHE``, …) come first. Nothing is kept if other
    users can change or replace the folder or one above it, or if this user cannot write to the folder.

    Functions are kept only on AMD processors under Linux: on some of Intel's, jaxlib 0.10 prints an error for
    each kept function (https://github.com/jax-ml/jax/issues/38445); others were not tried.
    """
    processor = _processor()
    if "AuthenticAMD" not in processor or jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    try:
        compiled = cache_folder().resolve() / "compiled"
        folder = compiled / hashlib.sha256(processor.encode()).hexdigest()[:16]
        # Files there are executed, and may be deleted: no other user may have put them there.
        for each in reversed((folder, *folder.parents)):
            each.mkdir(mode=0o700, exist_ok=True)
            if not _is_safe(each, above=each not in (compiled, folder)):
                return
        _limit(compiled)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # Keep all compiled functions; by default, jax keeps only those that took a second to compile.
    for name, least in (("compile_time_secs", 0), ("entry_size_bytes", -1)):
        if f"JAX_PERSISTENT_CACHE_MIN_{name.upper()}" not in os.environ:
            jax.config.update(f"jax_persistent_cache_min_{name}", least)
    # Silence the cache's warnings: a damaged file (until it is deleted) or a full disk costs no more than a
    # compilation in each run.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")


def _is_safe(folder: Path, *, above: bool = False) -> bool:
    """Return whether this is a folder, not a link, that belongs to this user and that no other can write.

    A folder ``above`` may also belong to root, or be sticky, such as ``/tmp``: others can write there, but
    not rename what is not theirs.
    """
    status = folder.lstat()
    shared = status.st_mode & 0o022 and not (above and status.st_mode & stat.S_ISVTX)
    owner = status.st_uid == os.getuid() or (above and status.st_uid == 0)
    return stat.S_ISDIR(status.st_mode) and owner and not shared


def _limit(compiled: Path) -> None:
    """Delete empty files of compiled functions, and all if they take more than `_MOST_BYTES`."""
    kept: dict[Path, int] = {}
    for folder in compiled.iterdir():
        if re.fullmatch("[0-9a-f]{16}", folder.name) and _is_safe(folder):
            for file in folder.glob("jit_*-[ca]*"):
                # Another process may have deleted it.
                with suppress(OSError):
                    kept[file] = file.lstat().st_size
    full = sum(kept.values()) > _MOST_BYTES
    for file, size in kept.items():
        # An empty file, such as from a full disk, would be useless forever: jax never writes a file again.
        if full or size == 0:
            with suppress(OSError):
                file.unlink()


def _processor() -> str:
    """Return what Linux says of the processor's maker, model and instructions; elsewhere an empty string."""
    if sys.platform != "linux":
        return ""
    try:
        known = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(sorted(set(re.findall(r"^(?:vendor_id|model name|flags)\s.*$", known, re.MULTILINE))))
