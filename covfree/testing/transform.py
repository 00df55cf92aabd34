"""Laws that every transform of a client's rows must satisfy; `check_transform` tests them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.types import Rows
from covfree.protocol.messages import select_rows
from covfree.testing.case import Case, assert_copied, jit, pure, single, trace
from covfree.testing.federations import table, used
from covfree.testing.laws import Law, assert_close, assert_numbers, assert_same, hold

# Function from rows without padding to the rows that are sent, in float64 NumPy.
Reference: TypeAlias = Callable[[Rows], Rows]

# The number of draws in an average, and the number of standard errors by which it may be off.
_DRAWS, _ERRORS = 4096, 6


class GivenRows(NamedTuple):
    """The input of a check: rows that the transform gets, and the seed of its PRNG key."""

    rows: Rows
    seed: Any = np.int32(0)


def _make(transform: Any, given: GivenRows) -> Rows:
    rows = jax.tree.map(jnp.asarray, single(given.rows))
    return transform(rows, key=jax.random.key(given.seed))


def pytree(case: Case) -> None:
    """The transform is a pytree of finite numbers; a copy of it has the same pytree structure."""
    assert_copied(case.shared, "the transform")


def rows(case: Case) -> None:
    """Each row gives one row, with its label and its client, a finite mean, and a finite count ≥ 0."""
    for given in case.drawn:
        before, sent = given.rows, case.direct(given)
        assert isinstance(sent, Rows), f"expected Rows, got {type(sent).__name__}"
        assert jnp.shape(sent.mean) == jnp.shape(before.mean), f"means have shape {jnp.shape(sent.mean)}"
        assert jnp.shape(sent.count) == jnp.shape(before.count), f"counts have shape {jnp.shape(sent.count)}"
        old, new = (select_rows(each, used(before)) for each in (before, sent))
        assert_same((new.label, new.client), (old.label, old.client), "labels and clients")
        assert_numbers((new.mean, new.count), "means and counts that are sent")
        assert (new.count >= 0).all(), f"the least count is {new.count.min()}"


def padding(case: Case) -> None:
    """Rows of padding stay padding, and the other rows do not depend on the numbers in padding."""
    for given in case.drawn:
        before, kept = given.rows, used(given.rows)
        junk = replace(before, mean=np.where(np.isnan(before.mean), 1e30, before.mean))
        sent, other = case.direct(given), case.direct(given._replace(rows=junk))
        revived = used(sent) & ~kept
        rows = np.flatnonzero(revived).tolist()
        assert not revived.any(), f"padding: expected it to stay padding, but rows {rows} now hold examples"
        assert_same(
            select_rows(other, kept), select_rows(sent, kept), "rows beside padding of 1e30, and of NaN"
        )


def splitting(case: Case) -> None:
    """Each row is transformed by itself: its result does not depend on the other rows."""
    for given in case.drawn:
        before = given.rows
        mine = np.arange(len(before.label)) % 2 == 0
        mean = np.where(mine[:, None], before.mean, 3 * before.mean - 1)
        count = np.where(mine, before.count, 2 * before.count).astype(np.int32)
        others = given._replace(rows=replace(before, mean=mean, count=count))
        sent, beside = case.direct(given), case.direct(others)
        assert_same(select_rows(beside, mine), select_rows(sent, mine), "the same rows among other rows")


def independent(case: Case) -> None:
    """Random draws for different rows are independent."""
    before = select_rows(case.example.rows, np.zeros(len(case.example.rows.label), int))
    sent = [case.direct(GivenRows(before, np.int32(seed))) for seed in (1, 2)]
    for name in ("mean", "count"):
        one, other = (np.asarray(getattr(each, name)) for each in sent)
        drawn = (one != other).any()
        assert not drawn or (one != one[:1]).any(), f"{name}: the draw of one row is that of all rows"


def order(case: Case) -> None:
    """Reordered rows give the same means and counts, reordered likewise, unless the transform draws them."""
    before = select_rows(case.example.rows, used(case.example.rows))
    back = np.arange(len(before.label))[::-1]
    one, other = (case.direct(GivenRows(before, np.int32(seed))) for seed in (1, 2))
    turned = case.direct(GivenRows(select_rows(before, back), np.int32(1)))
    for name in ("mean", "count"):
        sent, drawn, moved = (np.asarray(getattr(each, name)) for each in (one, other, turned))
        if (sent == drawn).all():
            assert_same(moved, sent[back], f"the {name} of rows in another order")


def unbiased(case: Case) -> None:
    """Averaged over random keys, means and counts are those that ``unbiased_for`` returns, if it is given."""
    if case.about is None:
        return
    before = select_rows(case.example.rows, used(case.example.rows))

    def one(seed: Any) -> Any:
        sent = _make(case.shared, GivenRows(before, seed))
        return jnp.concatenate([sent.mean, sent.count[:, None].astype(sent.mean.dtype)], axis=1)

    found = np.asarray(jax.jit(jax.vmap(one))(jnp.arange(_DRAWS)), np.float64)
    goal = case.about(before)
    expected = np.concatenate([goal.mean, np.asarray(goal.count)[:, None]], axis=1)
    error = found.std(0) / np.sqrt(_DRAWS) + 1e-6 * np.abs(expected)
    away = np.abs(found.mean(0) - expected) / error
    row, column = np.unravel_index(away.argmax(), away.shape)
    name = "count" if column == expected.shape[1] - 1 else f"mean[{column}]"
    assert away.max() <= _ERRORS, (
        f"{name} of row {row}: expected {expected[row, column]:.6g} on average, got "
        f"{found.mean(0)[row, column]:.6g}, {away.max():.3g} standard errors away"
    )


def reference(case: Case) -> None:
    """If a formula ``reference`` is given, the transform's means and counts are those of this formula."""
    if case.reference is None:
        return
    for given in case.drawn:
        before = select_rows(given.rows, used(given.rows))
        expected, sent = case.reference(before), select_rows(case.direct(given), used(given.rows))
        assert_close(sent.mean, np.asarray(expected.mean), case.single, "means")
        assert_close(sent.count, np.asarray(expected.count), case.single, "counts")


def gradients(case: Case) -> None:
    """Derivatives with respect to the transform's hyperparameters are finite."""
    assert_numbers(case.compiled(case.example)[0].slopes, "derivatives by the ")


TRANSFORM_LAWS: tuple[Law, ...] = (
    pytree,
    pure,
    rows,
    padding,
    splitting,
    independent,
    order,
    jit,
    trace,
    unbiased,
    reference,
    gradients,
)


def check_transform(
    transform: Any,
    *,
    dim: int = 5,
    unbiased_for: Reference | None = None,
    reference: Reference | None = None,
    exclude: Mapping[str, str] | None = None,
) -> None:
    """Check the laws of a transform, which may be called on one client's rows or on all clients' rows.

    The laws: ``pytree``, ``pure``, ``rows``, ``padding``, ``splitting``, ``independent``, ``order``, ``jit``,
    ``trace``, ``unbiased``, ``reference``, ``gradients``.

    Args:
        transform: e.g. ``covfree.count_noise("laplace", 0.5)``.
        dim: size of the features.
        unbiased_for: the expected rows on average over keys, as a function of the rows without padding;
            ``lambda rows: rows`` for noise without bias. The average of 4,096 draws must be within six
            standard errors.
        reference: for a transform without random draws, the formula in float64 NumPy: function from rows
            without padding to rows.
        exclude: laws that do not apply to this transform, each with the reason.

    Raises:
        AssertionError: if laws are broken, with the name and statement of each, and the numbers.
        ValueError: if ``exclude`` contains an unknown law, or a reason is missing.

    >>> import covfree
    >>> check_transform(covfree.count_noise("laplace", 0.5))
    """

    def draw(seed: int = 0, absent: int = 3) -> GivenRows:
        return GivenRows(table(dim, seed, absent), np.int32(seed))

    def see(sent: Rows, given: GivenRows) -> Any:
        kept = (given.rows.count > 0) & (given.rows.label >= 0)
        # Set padding to 0, so that its contents are not compared.
        return replace(
            sent, mean=jnp.where(kept[:, None], sent.mean, 0), count=jnp.where(kept, sent.count, 0)
        )

    case = Case(
        shared=transform,
        make=_make,
        see=see,
        draw=draw,
        exact=False,  # random draws in float64 differ from those in float32
        reference=reference,
        about=unbiased_for,
    )
    name = getattr(getattr(transform, "apply", transform), "__name__", repr(transform))
    hold(TRANSFORM_LAWS, f"transform {name!r}", case, exclude)
