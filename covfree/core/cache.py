"""The user's cache folder, and the compiled functions that the command line keeps in it."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import warnings
from pathlib import Path

import jax

_MOST_BYTES = 2**29


def cache_folder() -> Path:
    """Return the folder of computed files: ``COVFREE_CACHE``, else ``covfree`` in the user's cache."""
    own, common = os.environ.get("COVFREE_CACHE"), os.environ.get("XDG_CACHE_HOME")
    return Path(own) if own else (Path(common) if common else Path.home() / ".cache") / "covfree"


def keep_compiled() -> None:
    """Let jax keep compiled functions in `cache_folder`, where later processes find them.

    Each kind of processor has a folder of its own, because code for one may crash another. If kept functions
    take more than 512 MiB, all are deleted. jax's own settings (``JAX_COMPILATION_CACHE_DIR``,
    ``JAX_ENABLE_COMPILATION_CACHE``) come first. If there is no folder that can be written, nothing is kept.

    Only AMD's processors under Linux are served: on some of Intel's, jaxlib 0.10 prints an error for each
    function that was kept (https://github.com/jax-ml/jax/issues/38445); others were not tried.
    """
    processor = _processor()
    if "AuthenticAMD" not in processor or jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    try:
        compiled = cache_folder() / "compiled"
        folder = compiled / hashlib.sha256(processor.encode()).hexdigest()[:16]
        kept = list(compiled.glob("*/jit_*-cache"))
        if sum(file.stat().st_size for file in kept) > _MOST_BYTES:
            for file in kept:
                file.unlink(missing_ok=True)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # What lies there is executed: another user's folder is not used.
        if folder.stat().st_uid != os.getuid():
            return
    # RuntimeError: the user has no home folder.
    except (OSError, RuntimeError):
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # By default, jax keeps only what took a second to compile.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # A damaged file or a full disk costs a compilation; nothing else depends on what is kept.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")


def _processor() -> str:
    """Return what Linux says of the processor's maker, model and instructions; elsewhere an empty string."""
    if sys.platform != "linux":
        return ""
    try:
        known = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(sorted(set(re.findall(r"^(?:vendor_id|model name|flags)\s.*$", known, re.MULTILINE))))
