"""Limit the number of threads that LAPACK uses on CPUs."""

from __future__ import annotations

import importlib

from covfree.core.checks import check_positive


def limit_lapack_threads(threads: int = 1) -> None:
    """Set how many threads LAPACK's routines use on CPUs, in this process from now on.

    On CPUs jax factorises with the LAPACK in SciPy's OpenBLAS, whose threads wait for each other in a busy
    loop. If another process uses one of their cores, or a container has fewer cores than it sees, each wait
    lasts until the operating system runs the missing thread. On 2 cores next to one busy process, at
    size 1280, two threads took 1.6 s for Cholesky and 11.8 s for ``eigh``; one thread took 0.02 s and 0.26 s.
    On an idle machine two threads took 0.010 s and 0.10 s; one thread took 0.014 s and 0.15 s. So use one
    thread wherever the machine may be shared. More threads may be better for matrices of several thousand
    rows on cores that nobody else uses. Matrix products are XLA's own, and use all cores anyway.

    The command line calls this. In your own program call it once, before or after the first factorisation.
    The limit also holds for NumPy's own copy of OpenBLAS, with which `collect` checks matrices, and so slows
    NumPy's products. It has no effect if NumPy and SciPy use a library other than OpenBLAS, MKL or BLIS.

    Args:
        threads: the number of threads, at least 1.

    Raises:
        TypeError: if ``threads`` is no integer.
        ValueError: if it is below 1.

    >>> import covfree
    >>> covfree.limit_lapack_threads()
    """
    check_positive("threads", threads)
    # Import both here, as `import covfree` needs neither. jax calls LAPACK through the first; importing it
    # loads OpenBLAS.
    importlib.import_module("scipy.linalg.cython_lapack")
    importlib.import_module("threadpoolctl").threadpool_limits(threads, user_api="blas")
