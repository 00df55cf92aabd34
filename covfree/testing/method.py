"""Laws that every method must satisfy; `check_method` tests them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

import covfree
from covfree.core.linalg import Scatter
from covfree.core.types import PRNGKey, Rows
from covfree.methods.method import check_method as check_is_method
from covfree.testing.case import (
    Case,
    assert_copied,
    gradients,
    jit,
    moved,
    padding,
    pure,
    reference,
    relation,
    single,
    trace,
)
from covfree.testing.federations import CLASSES, SmallFederation, corners, degenerate, federation
from covfree.testing.head import finite, scaling, scores
from covfree.testing.laws import (
    DOUBLE,
    SINGLE,
    Law,
    assert_close,
    assert_numbers,
    assert_same,
    centred,
    hold,
)

# Function from (features, labels, clients, num_classes) of examples without padding to a function from
# features to scores, in float64 NumPy.
Reference: TypeAlias = Callable[[np.ndarray, np.ndarray, np.ndarray, int], Callable[[np.ndarray], Any]]


class MethodTask(NamedTuple):
    """Data on which a check runs a method: a head is fitted to examples of clients, and scores ``probes``.

    Attributes:
        features: [examples, dim] the examples.
        labels: their classes.
        clients: their clients.
        probes: [probes, dim] further features, whose scores are compared.
    """

    features: Any
    labels: Any
    clients: Any
    probes: Any

    @property
    def federation(self) -> SmallFederation:
        """The examples as a `SmallFederation`."""
        return SmallFederation(self.features, self.labels, self.clients)

    @property
    def held(self) -> np.ndarray:
        """Mask [classes] of the classes that have an example."""
        return self.federation.held

    def times(self, matrix: np.ndarray) -> MethodTask:
        """Return the task with all features multiplied by a matrix."""
        return self._replace(features=self.features @ matrix, probes=self.probes @ matrix)

    def of(self, federation: SmallFederation) -> MethodTask:
        """Return this task with the examples of ``federation`` in place of its own."""
        return MethodTask(*federation, self.probes)


def _clean(task: MethodTask) -> MethodTask:
    return task.of(task.federation.clean)


def pytree(case: Case) -> None:
    """The method and its head are pytrees of finite numbers; a copy of the method has the same structure."""
    assert_copied(case.shared, "the method")
    assert_numbers(case.made, "the head")


def vmap(case: Case) -> None:
    """`fit` can be traced under ``vmap`` over features and float hyperparameters; each input gets scores."""
    task = single(case.plain)

    def scores(features: Any, step: Any) -> Any:
        own = task._replace(features=features)
        return case.see(case.make(case.move(case.shared, step), own), own)

    # Only trace the function: compiling it would take as long as all other laws.
    swept = jax.eval_shape(jax.vmap(scores), np.stack([task.features] * 2), np.zeros(2, np.float32))
    expected = (2, len(task.probes), CLASSES)
    assert swept.shape == expected, f"scores of two have shape {swept.shape}, expected {expected}"


def learns(case: Case) -> None:
    """Well separated classes are told apart, even at different distances from 0."""
    features, labels, clients = case.example.federation
    centres = corners(features.shape[1])
    noise = 0.3 * np.random.default_rng(0).normal(size=features.shape)
    kept = case.example.federation.kept
    apart = np.where(kept[:, None], centres[labels] + noise, np.nan)
    probes = np.zeros_like(case.example.probes)
    probes[:CLASSES] = centres
    (found,) = case.compiled(MethodTask(apart, labels, clients, probes))
    held = np.flatnonzero(case.example.federation.held)
    assert_same(found.seen[held].argmax(-1), held, "classes predicted at their centres")


def splitting(case: Case) -> None:
    """If the rows are split among devices or into parts, the sums of the parts add up to the sum of all."""
    method, clean = case.shared, single(case.plain)
    if method.rounds_over_rows < len(method.rounds):
        return  # rounds over examples have no rows to split
    rows = covfree.summarise(method, *clean[:3], key=case.about)
    whole = covfree.accumulate(method, rows, num_classes=CLASSES)
    if jax.device_count() > 1:
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))
        sharded = covfree.shard_rows(rows, mesh, whole_clients=method.whole_clients)
        totals = covfree.accumulate(method, sharded, num_classes=CLASSES, mesh=mesh)
    elif any(isinstance(x, Rows) for x in jax.tree.leaves(whole, is_leaf=lambda x: isinstance(x, Rows))):
        return  # the total is the rows themselves, and has no fixed size
    else:
        owner = jnp.arange(len(rows.label)) if rows.client is None else jnp.asarray(rows.client)
        part = jax.tree_util.Partial(_part, rows, owner)
        totals = covfree.accumulate(method, covfree.Generated(part, 3), num_classes=CLASSES)
    # Some totals are rounding errors, so compare relative to the largest total.
    largest = max(np.abs(np.asarray(x, np.float64)).max(initial=0) for x in jax.tree.leaves(_plain(whole)))
    assert_close(_plain(totals), _plain(whole), SINGLE, "totals that were added up", 1e-3 * largest)


def messages(case: Case) -> None:
    """The head from clients' collected messages equals the head that ``fit`` gives for all clients."""
    if case.shared.message_rounds < len(case.shared.rounds):
        return  # clients send sums in rounds
    features, labels, clients, probes = single(case.plain)
    sent = {}
    for client in np.unique(clients):
        mine = clients == client
        short = len(labels) - mine.sum()  # one shape for all clients
        sent[client] = covfree.client_message(
            case.shared,
            np.pad(features[mine], [(0, short), (0, 0)]),
            np.pad(labels[mine], (0, short), constant_values=-1),
            num_classes=CLASSES,
            key=case.about,
        )
    collected = covfree.collect(sent, num_classes=CLASSES)
    assert not collected.rejected, f"messages that were set aside: {collected.rejected}"
    head = covfree.solve_message(case.shared, collected.message, num_classes=CLASSES)
    assert_close(np.asarray(head(probes)), case.seen(case.plain), case.single, "scores from messages")


def _part(rows: Rows, owner: Any, index: Any) -> Rows:
    return replace(rows, count=jnp.where(owner % 3 == index, rows.count, 0))


def _plain(totals: Any) -> Any:
    """Convert a round's sums for comparing: a `Scatter` to a matrix, `Rows` to a sorted table."""

    def one(total: Any) -> Any:
        if isinstance(total, Scatter):
            return total.dense()
        if not isinstance(total, Rows):
            return total
        columns = [np.asarray(x, np.float64).reshape(len(total.label), -1) for x in jax.tree.leaves(total)]
        table = np.concatenate(columns, axis=1)[np.asarray(total.count) > 0]
        return table[np.lexsort(table.T)]

    return jax.tree.map(one, totals, is_leaf=lambda node: isinstance(node, Scatter | Rows))


def _ordered(task: MethodTask) -> MethodTask:
    return task.of(task.federation.ordered(np.random.default_rng(0).permutation(len(task.labels))))


def _renamed(numbers: np.ndarray, names: np.ndarray) -> np.ndarray:
    return np.where(numbers >= 0, names[numbers], -1).astype(np.int32)


# Class c becomes _PLACE[c].
_PLACE, _NAMES = np.array([4, 0, 5, 2, 1, 3]), np.random.default_rng(0).permutation(1000)

METHOD_LAWS: tuple[Law, ...] = (
    pytree,
    scores,
    pure,
    jit,
    padding,
    trace,
    vmap,
    relation("order", "The order of the examples does not matter.", _ordered),
    relation(
        "clients",
        "Renumbering the clients, in another order and with gaps, changes nothing.",
        lambda task: task._replace(clients=_renamed(task.clients, _NAMES)),
    ),
    relation(
        "classes",
        "If the classes are renumbered, the scores change their order likewise, and nothing else.",
        lambda task: task._replace(labels=_renamed(task.labels, _PLACE)),
        lambda scores: scores[:, np.argsort(_PLACE)],
    ),
    finite,
    learns,
    scaling,
    splitting,
    messages,
    reference,
    gradients,
)


def check_method(
    method: Any,
    *,
    dim: int = 5,
    key: PRNGKey | None = None,
    reference: Reference | None = None,
    tolerance: float = DOUBLE,
    exclude: Mapping[str, str] | None = None,
) -> None:
    """Check the laws that every method must satisfy, on small federations.

    The laws: ``pytree``, ``scores``, ``pure``, ``jit``, ``padding``, ``trace``, ``vmap``, ``order``,
    ``clients``, ``classes``, ``finite``, ``learns``, ``scaling``, ``splitting``, ``messages``, ``reference``,
    ``gradients``.

    Args:
        method: e.g. one of your own, as in docs/your-own.md.
        dim: size of the features, at least 3; some methods need a certain size.
        key: PRNG key for methods that draw at random; by default ``jax.random.key(0)``.
        reference: the method's formula in float64 NumPy, if you have it: function of features, labels,
            clients (without padding) and the number of classes that returns a function from features to
            scores, −∞ for a class without an example. Scores may differ by a constant in each row.
        tolerance: how far two results of the same computation may differ in float64, relative to the largest
            number. Results in float32 may always differ by 1e-4, or by ``tolerance`` if it is larger.
        exclude: laws that do not apply to this method, each with the reason. Exclude ``scaling`` if a
            parameter has the features' unit; ``order``, ``clients`` and ``messages`` if clients draw at
            random what they send; ``gradients`` if there is no reverse-mode derivative, or if derivatives
            treat something as constant. With `automatic` shrinkage, whose choice is constant for derivatives,
            ``gradients`` is excluded automatically.

    Raises:
        AssertionError: if laws are broken, with the name and statement of each, and the numbers.
        TypeError: if it is no method.
        ValueError: if ``exclude`` contains an unknown law, or a reason is missing.

    >>> import covfree
    >>> check_method(covfree.fedncm())
    """
    check_is_method(method)
    # Use numbers that float32 represents exactly.
    probes = 2 * np.random.default_rng(1).normal(size=(16, dim)).astype(np.float32).astype(np.float64)
    exclude = dict(exclude or {})
    # Use float64 only for derivatives and references, as random draws differ between float32 and float64.
    exact = "gradients" not in exclude or reference is not None
    rules = jax.tree.leaves(method, is_leaf=lambda node: isinstance(node, covfree.Shrinkage))
    if any(isinstance(rule, covfree.Shrinkage) and rule.rule is covfree.automatic().rule for rule in rules):
        exclude.setdefault("gradients", "derivatives take what the rule chose as given")
    differentiable = "gradients" not in exclude

    def draw(seed: int = 0, absent: int = 3) -> MethodTask:
        examples = federation(dim, seed, absent, offset=(0.0, 1.0, -3.0, 0.0)[seed])
        # A reference that draws random numbers must draw the same ones as the method. It gets no padding, so
        # the method's padding must come last, after all examples.
        return MethodTask(*(examples if seed == 2 and reference is None else examples.padded_last), probes)

    def fit(method: Any, task: MethodTask) -> Any:
        return covfree.fit(method, *task[:3], num_classes=CLASSES, key=key)

    def formula(reference: Reference, task: MethodTask) -> Any:
        return reference(*_clean(task)[:3], CLASSES)(task.probes)

    key, example = jax.random.key(0) if key is None else key, draw()
    odd = degenerate(dim) | {"an absent class": example.federation}
    case = Case(
        shared=method,
        make=fit,
        see=lambda head, task: head(task.probes),
        draw=draw,
        moving=("features",),
        move=lambda method, step: replace(method, params=moved(method.params, step)),
        clean=_clean,
        reference=reference,
        formula=formula,
        to=centred,
        tolerance=tolerance,
        single=max(tolerance, SINGLE),
        exact=exact,
        batched=False,
        differentiable=differentiable,
        odd={name: example.of(examples) for name, examples in odd.items()},
        about=key,
    )
    hold(METHOD_LAWS, f"method {method.name!r}", case, exclude)
