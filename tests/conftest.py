"""Settings and fixtures that all tests share."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

# Read when the backend starts: sharding is tested on eight CPU devices.
_DEVICES = "--xla_force_host_platform_device_count=8"
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}".strip()
# The tolerances are those of CPU arithmetic; an accelerator is tested where a test asks for it.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Commands that tests start share what they compile, and leave the user's cache alone; workers inherit it.
if "COVFREE_CACHE" not in os.environ:
    os.environ["COVFREE_CACHE"] = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, os.environ["COVFREE_CACHE"], ignore_errors=True)

import hypothesis  # noqa: E402
import jax  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402
from compiling import COMPILED  # noqa: E402
from precision import PRECISIONS  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")

hypothesis.settings.register_profile(
    "covfree",
    derandomize=True,
    max_examples=25,
    deadline=None,  # the first example compiles
    database=None,
    suppress_health_check=[
        hypothesis.HealthCheck.too_slow,
        hypothesis.HealthCheck.function_scoped_fixture,
    ],
)
hypothesis.settings.load_profile("covfree")


# Every compiled function holds a few memory maps, of which Linux allows a process 65,530; then it crashes.
# To let go of them takes seconds, and what is shared compiles anew: as seldom as it can be.
_MOST_MAPS, _MAPS = 45_000, Path("/proc/self/maps")
_looked = 0


@pytest.hookimpl
def pytest_runtest_logfinish():
    """Let go of compiled functions before there are too many; looks after every 250th or so."""
    global _looked
    if len(COMPILED) >= _looked + 250 and _MAPS.exists():
        _looked = len(COMPILED)
        with _MAPS.open("rb") as maps:
            if sum(1 for _ in maps) > _MOST_MAPS:
                jax.clear_caches()


@pytest.fixture(params=list(PRECISIONS))
def precision(request):
    """Runs a test in float32 and, with x64 on, in float64; gives the dtype and the tolerance."""
    chosen = PRECISIONS[request.param]
    with chosen.context():
        yield chosen


@pytest.fixture
def untyped():
    """Switches jaxtyping's run-time checks off, as for users: the library's own errors are then seen."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of test data that lies beside the repository."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"test data not found: {folder} is not there (it is no part of the repository)")
    return folder
