"""No compiled function makes a batched LAPACK call, of which two at once may wait for each other forever.

See `covfree.core.lapack`. That no such call is there is seen in what jax lowers; that nothing else stands
still either is seen by running.
"""

import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stress
from classifiers import ONE_SHOT

import covfree
from covfree import linalg, recursive
from covfree.core import lapack
from covfree.engine.totals import zeros_of
from covfree.methods import registry

ROOT = Path(__file__).resolve().parents[1]
# Methods that between them factorise in every way that there is.
METHODS = "fedcof,fedcof-random,qda"
TIME_LIMIT = 300


def lapack_calls(lowered):
    """The LAPACK calls in lowered code, and those of them on more than one matrix."""
    lines = [line for line in lowered.as_text().splitlines() if "lapack_" in line]
    shapes = [re.findall(r"tensor<([\dx]*?)x?f\d", line) for line in lines]
    return lines, [line for line, of in zip(lines, shapes, strict=True) if any(s.count("x") > 1 for s in of)]


def test_a_batched_call_would_be_seen():
    batched = jax.jit(jax.vmap(jnp.linalg.cholesky)).lower(jnp.ones((2, 3, 3)))
    calls, wrong = lapack_calls(batched)
    assert len(calls) >= 1
    assert wrong


@pytest.mark.slow
def test_no_method_makes_a_batched_call_under_vmap():
    seen, examples = 0, stress.examples(8)
    for name in ONE_SHOT:
        method = registry()[name].make(**stress.FEW_SAMPLES.get(name, {}))
        rows = zeros_of(partial(covfree.summarise, method, key=jax.random.key(0)), *examples)
        # What is batched under one of `stress.ways` is batched under both at once.
        scores = jax.jit(partial(stress.scores, method, rows, over="both"))
        calls, wrong = lapack_calls(scores.lower(examples[0]))
        assert not wrong, name
        seen += len(calls)
    assert seen > 40


@pytest.mark.slow
def test_what_stands_beside_the_methods_makes_none_either():
    rows, _ = stress.federation(covfree.fedcof(), 6)
    factors = jnp.array([1.0, 2.0])
    features, labels = jnp.ones((2, 9, 6)), jnp.zeros((2, 9), int)
    matrices, stacks = jnp.stack([jnp.eye(6)] * 2), jnp.ones((2, 9, 6))

    def over_rows(function):
        # Leaves alone: records of lanes are not what their fields' types say.
        return jax.vmap(lambda factor: jax.tree.leaves(function(replace(rows, mean=rows.mean * factor))))

    def removed(features, labels):
        state = recursive.recursive_ridge(6, 3, 1.0)
        state = recursive.downdate(recursive.update(state, features, labels), features, labels)
        return jax.tree.leaves(recursive.head(state))

    def gradient(function):
        return jax.vmap(jax.grad(lambda x: sum(leaf.sum() for leaf in jax.tree.leaves(function(x)))))

    for function, arguments in (
        (over_rows(partial(covfree.diagnose, num_classes=3)), (factors,)),
        (over_rows(partial(covfree.scatter_spectra, num_classes=3)), (factors,)),
        (jax.vmap(removed), (features, labels)),
        (gradient(lapack.cholesky), (matrices,)),
        (gradient(lapack.eigh), (matrices,)),
        (gradient(lapack.stacked_root), (stacks,)),
        (gradient(lambda x: lapack.triangular_solve(x, x)), (matrices,)),
    ):
        calls, wrong = lapack_calls(jax.jit(function).lower(*arguments))
        assert calls
        assert not wrong


def solved(shift, matrix, right):
    """Of a matrix in full, and of a factor of fewer rows."""
    systems = (
        linalg.Scatter(matrix, shift, factored=False),
        linalg.Scatter(matrix[:3], shift, factored=True),
    )
    return [linalg.solve(linalg.factorise(system), right) for system in systems]


def over_lanes(function):
    """Lanes of lanes: of matrices, and of shifts and right sides."""
    return jax.vmap(jax.vmap(function, (0, None, 0)), (None, 0, None))


@pytest.fixture(scope="module")
def lanes():
    """Shifts, matrices (of which some are singular), right sides, and the traced solution of all lanes."""
    rng = np.random.default_rng(0)
    stacks = rng.normal(size=(2, 5, 5)).astype(np.float32)
    matrices = jnp.asarray(stacks @ stacks.swapaxes(1, 2)).at[1, 0].set(0).at[1, :, 0].set(0)
    shifts, rights = jnp.array([0.5, 0.0, 1.0]), jnp.asarray(rng.normal(size=(3, 5, 2)), jnp.float32)
    return shifts, matrices, rights, jax.jit(over_lanes(solved)).trace(shifts, matrices, rights)


def test_elsewhere_than_on_cpus_all_lanes_are_one_call(lanes):
    *_, looped = lanes
    text = looped.lower(lowering_platforms=("cuda",)).as_text()
    calls = [re.findall(r"tensor<(\w+)x\w\d\d>", line)[0] for line in text.splitlines() if "potrf" in line]
    assert calls == ["6x5x5", "6x3x3"]
    assert "while" not in text


@pytest.mark.slow
def test_one_call_gives_what_a_loop_gives(lanes, monkeypatch):
    """Singular lanes, which have no Cholesky factor, are among them."""
    shifts, matrices, rights, looped = lanes
    expected = looped.lower().compile()(shifts, matrices, rights)
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *arrays, cpu, default: default(*arrays))
    # Another number of lanes, of which no trace is kept.
    found = over_lanes(solved)(shifts, matrices[jnp.array([0, 1, 0])], rights)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one[:2], other, rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(one[2], one[0])


def test_no_other_module_calls_lapack():
    for path in (ROOT / "covfree").rglob("*.py"):
        if path.name != "lapack.py":
            found = re.findall(
                r"(?:jnp|lax_linalg|lax|numpy)\.linalg\.(?!norm)\w+|lax_linalg", path.read_text()
            )
            # A docstring may name NumPy's and SciPy's as equivalents.
            assert [name for name in found if not name.startswith("numpy")] == [], path


@pytest.mark.slow
def test_methods_come_to_an_end():
    """With one thread of LAPACK's, with two, and with as many as there are cores; compiled once."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # OpenBLAS starts no more than there are cores unless it is forced to; each wait for one is long then.
    threads = [str(number) for number in sorted({1, min(2, cores), min(8, cores)})]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=1"
    environment = os.environ | {"OPENBLAS_NUM_THREADS": threads[-1], "XLA_FLAGS": flags}
    script = [str(ROOT / "tests" / "stress.py"), "384", "--methods", METHODS, "--threads", ",".join(threads)]
    done = subprocess.run(
        [sys.executable, *script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=True,
    )
    lines = [f"{number} 384 {name}" for number in threads for name in METHODS.split(",")]
    assert done.stdout.splitlines() == lines


def test_lapack_uses_as_many_threads_as_it_is_told():
    script = """
import covfree, threadpoolctl, numpy, scipy.linalg.cython_lapack
def threads():
    libraries = threadpoolctl.threadpool_info()
    return {library["num_threads"] for library in libraries if library["user_api"] == "blas"}
print(threads())
covfree.limit_lapack_threads(1)
print(threads())
"""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    before, after = done.stdout.splitlines()
    if before == "set()":
        pytest.skip("NumPy and SciPy use no library here whose threads can be set")
    assert (before, after) == ("{2}", "{1}")


@pytest.mark.parametrize(("threads", "error"), [(0, ValueError), (True, TypeError), (1.5, TypeError)])
def test_no_number_of_threads(threads, error):
    with pytest.raises(error, match="threads"):
        covfree.limit_lapack_threads(threads)
