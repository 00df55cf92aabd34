"""How many threads LAPACK may use on CPUs."""

from __future__ import annotations

import importlib

from covfree.core.checks import check_positive


def limit_lapack_threads(threads: int = 1) -> None:
    """Set how many threads LAPACK's routines use on CPUs: in this process, from now on.

    On CPUs jax factorises with the LAPACK of SciPy's OpenBLAS, whose threads wait for one another in a busy
    loop. If another process takes one of their cores, or a container may use less than its cores, each wait
    lasts until the operating system lets the missing thread run. On 2 cores beside one busy process, Cholesky
    of size 1280 took 1.6 s with two threads and 0.02 s with one, ``eigh`` 11.8 s and 0.26 s; on an idle
    machine 0.010 and 0.014 s, 0.10 and 0.15 s. So one thread is right wherever the machine may be shared.
    More may be, for matrices of several thousand rows on cores that nobody else uses. Products of matrices
    are XLA's own, and keep all cores.

    The command line calls this. In your own program call it once, before or after the first factorisation.
    It also limits NumPy's own copy of OpenBLAS, with which `collect` checks matrices, and so NumPy's
    products. It has no effect if NumPy and SciPy use another library than OpenBLAS, MKL or BLIS.

    Args:
        threads: at least 1.

    Raises:
        TypeError: if the number is no integer.
        ValueError: if it is below 1.

    >>> import covfree
    >>> covfree.limit_lapack_threads()
    """
    check_positive("threads", threads)
    # Imported late: `import covfree` needs neither. The first is what jax calls, which loads the library.
    importlib.import_module("scipy.linalg.cython_lapack")
    importlib.import_module("threadpoolctl").threadpool_limits(threads, user_api="blas")
