"""Laws that a method keeps."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import covfree
from covfree.testing.federations import CLASSES, Federation, degenerate, federation, generated
from covfree.testing.laws import (
    SINGLE,
    STEP,
    assert_close,
    assert_derivative,
    assert_numbers,
    assert_same,
    double,
    hold,
    on_examples,
)
from covfree.testing.subject import BATCH, Reference, Subject, Task, plain
from covfree.types import PRNGKey, Rows


def pytree(subject: Subject) -> None:
    """The method and its head are pytrees of finite numbers; a copy of the method has the same structure."""
    method = subject.method
    assert_numbers(method, "the method")
    leaves, structure = jax.tree.flatten(method)
    assert isinstance(hash(structure), int)
    for copied in (jax.tree.unflatten(structure, leaves), copy.deepcopy(method)):
        assert jax.tree.structure(copied) == structure, (
            "a copy has another structure, so that all would be compiled anew for it; make its records "
            f"frozen dataclasses: {structure} and {jax.tree.structure(copied)}"
        )
    assert_numbers(subject.head, "the head")


def scores(subject: Subject) -> None:
    """A head gives a score for each class to features [*batch, dim], in their precision."""
    features = subject.probes.astype(np.float32)
    together = subject.head(features)
    assert together.shape == (len(features), CLASSES), f"scores have shape {together.shape}"
    assert together.dtype == np.float32, f"scores of float32 features are {together.dtype}"
    for shape in ((2, 8), ()):
        scores = jax.eval_shape(subject.head, np.zeros((*shape, features.shape[1]), np.float32))
        assert scores.shape == (*shape, CLASSES), f"scores of a batch {shape} have shape {scores.shape}"


def pure(subject: Subject) -> None:
    """The same arguments give the same head, to the bit, and are not changed."""
    given = subject.example.clean
    before = copy.deepcopy((subject.method, given))
    assert_same(subject.direct(given), subject.head, "the second head, and the first")
    assert_same((subject.method, given), before, "the arguments after the call, and before")


def jit(subject: Subject) -> None:
    """Called directly in float32 it gives what it gives compiled and batched (jit of vmap) in float64."""
    (compiled,) = subject.compiled(Task(subject.example))
    try:
        assert_close(subject.scores(subject.head), compiled.scores, subject.single, "scores")
    except AssertionError:
        # Of examples without padding, where the compiled function has some: that is another law.
        padded = subject.scores(subject.direct(subject.example))
        assert_close(padded, compiled.scores, subject.single, "scores")


def padding(subject: Subject) -> None:
    """Examples with a label or client below 0 change nothing, whatever their features hold."""

    def check(federation: Federation) -> None:
        features = np.where(federation.kept[:, None], federation.features, 1e30)
        junk = federation._replace(features=features)
        (with_nan,), (with_junk,) = subject.compiled(Task(federation)), subject.compiled(Task(junk))
        assert_same(with_junk.scores, with_nan.scores, "scores with 1e30 in padding, and with NaN")

    on_examples(check, federation=generated(subject.dim))
    (padded,) = subject.compiled(Task(subject.example))
    assert_close(subject.scores(subject.head), padded.scores, subject.single, "scores without padding")


def trace(subject: Subject) -> None:
    """Another federation of the same shape, other numbers and a copy of the method trace nothing anew."""
    other = federation(subject.dim, seed=1)
    leaves, structure = jax.tree.flatten(copy.deepcopy(subject.method))
    subject.compiled(Task(other), method=jax.tree.unflatten(structure, leaves))
    subject.compiled(Task(other, step=0.5))


def order(subject: Subject) -> None:
    """The order of the examples does not matter."""

    def check(federation: Federation) -> None:
        other = federation.ordered(np.random.default_rng(0).permutation(len(federation.labels)))
        first, second = subject.compiled(Task(federation), Task(other))
        assert_close(second.scores, first.scores, subject.tolerance, "scores of examples in another order")

    on_examples(check, federation=generated(subject.dim))


def clients(subject: Subject) -> None:
    """Clients are names: other numbers, in another order and with gaps, change nothing."""

    def check(federation: Federation) -> None:
        names = np.random.default_rng(0).permutation(1000).astype(np.int32)
        renamed = np.where(federation.clients >= 0, names[federation.clients], -1).astype(np.int32)
        first, second = subject.compiled(Task(federation), Task(federation._replace(clients=renamed)))
        assert_close(second.scores, first.scores, subject.tolerance, "scores with clients renamed")

    on_examples(check, federation=generated(subject.dim))


def classes(subject: Subject) -> None:
    """Classes are names: where they are numbered otherwise, so are the scores."""

    def check(federation: Federation) -> None:
        place = np.random.default_rng(0).permutation(CLASSES).astype(np.int32)  # class c becomes place[c]
        renamed = np.where(federation.labels >= 0, place[federation.labels], -1).astype(np.int32)
        first, second = subject.compiled(Task(federation), Task(federation._replace(labels=renamed)))
        assert_close(second.scores[:, place], first.scores, subject.tolerance, "scores with classes renamed")

    on_examples(check, federation=generated(subject.dim))


def finite(subject: Subject) -> None:
    """Scores are −∞ of classes without an example and finite of all others, however odd the federation."""
    cases = degenerate(subject.dim) | {"an absent class": subject.example}
    names = list(cases)
    for start in range(0, len(names), BATCH):
        chosen = names[start : start + BATCH]
        for name, fitted in zip(chosen, subject.compiled(*(Task(cases[n]) for n in chosen)), strict=True):
            held = np.broadcast_to(cases[name].held, fitted.scores.shape)
            expected = np.where(held, 0, -np.inf)
            assert_same(np.where(np.isfinite(fitted.scores), 0, fitted.scores), expected, f"{name}: scores")


def scaling(subject: Subject) -> None:
    """The unit of the features does not matter: predictions of scaled features are the same."""

    def check(federation: Federation) -> None:
        tasks = [
            Task(federation._replace(features=s * federation.features), probes=s * subject.probes)
            for s in (1.0, 2.0**-12, 2.0**12)
        ]
        first, *others = (fitted.scores.argmax(-1) for fitted in subject.compiled(*tasks))
        for other in others:
            assert_same(other, first, "classes predicted with features scaled by 2^±12, and without")

    on_examples(check, federation=generated(subject.dim))


def splitting(subject: Subject) -> None:
    """Phases are sums over rows: totals over several devices, or else over parts, are those of all rows."""
    method, rows = subject.method, subject.rows
    if jax.device_count() > 1:
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))
        rows = covfree.shard_rows(rows, mesh, whole_clients=method.whole_clients)
        totals = covfree.accumulate_sharded(method, rows, num_classes=CLASSES, mesh=mesh)
    elif any(map(_is_rows, jax.tree.leaves(subject.totals, is_leaf=_is_rows))):
        return  # the rows themselves are the total, which has no fixed size
    else:
        owner = jnp.arange(len(rows.label)) if rows.client is None else rows.client
        part = jax.tree_util.Partial(_part, rows, owner)
        totals = covfree.accumulate_parts(method, part, 3, num_classes=CLASSES)
    assert_close(plain(totals), plain(subject.totals), SINGLE, "totals that were added up")


def messages(subject: Subject) -> None:
    """What clients send, collected, solves to the head of the simulation."""
    features, labels, clients = subject.example.clean
    sent = {}
    for client in np.unique(clients):
        mine = clients == client
        short = len(labels) - mine.sum()  # one shape for all clients
        sent[client] = covfree.client_message(
            subject.method,
            np.pad(features[mine], [(0, short), (0, 0)]).astype(np.float32),
            np.pad(labels[mine], (0, short), constant_values=-1),
            num_classes=CLASSES,
            key=subject.key,
        )
    collected = covfree.collect(sent, num_classes=CLASSES)
    assert not collected.rejected, f"messages that were set aside: {collected.rejected}"
    head = covfree.solve_message(subject.method, collected.message, num_classes=CLASSES)
    assert_close(subject.scores(head), subject.scores(subject.head), subject.single, "scores from messages")


def gradients(subject: Subject) -> None:
    """Derivatives by numbers and features are finite, those of differences, and 0 for padding."""

    def check(federation: Federation) -> None:
        kept, zero = federation.kept[:, None], np.zeros_like(federation.features)
        way = np.where(kept, np.random.default_rng(0).normal(size=zero.shape), zero)
        moved = federation._replace(features=federation.features + STEP * way)
        first, numbers, features = subject.compiled(Task(federation), Task(federation, STEP), Task(moved))
        assert_numbers((first.slope, first.gradient), "derivatives")
        assert_same(np.where(kept, zero, first.gradient), zero, "derivatives by the features of padding")
        assert_derivative("numbers", first.slope, numbers.slope, first.value, numbers.value)
        slopes = [(way * fitted.gradient).sum() for fitted in (first, features)]
        assert_derivative("features", slopes[0], slopes[1], first.value, features.value)

    on_examples(check, federation=generated(subject.dim))


def reference(subject: Subject) -> None:
    """Scores are those of the reference formula, where one is given."""
    if subject.reference is None:
        return
    formula = subject.reference

    def check(federation: Federation) -> None:
        (fitted,) = subject.compiled(Task(federation.padded_last))
        with double():
            expected = np.asarray(formula(*federation.padded_last.clean, CLASSES)(subject.probes))
        assert_close(fitted.scores, expected, subject.tolerance, "scores")

    on_examples(check, federation=generated(subject.dim))


def _part(rows: Rows, owner: Any, index: Any) -> Rows:
    return replace(rows, count=jnp.where(owner % 3 == index, rows.count, 0))


def _is_rows(node: Any) -> bool:
    return isinstance(node, Rows)


METHOD_LAWS = (
    pytree,
    scores,
    pure,
    jit,
    padding,
    trace,
    order,
    clients,
    classes,
    finite,
    scaling,
    splitting,
    messages,
    gradients,
    reference,
)


def check_method(
    method: Any,
    *,
    dim: int = 5,
    key: PRNGKey | None = None,
    reference: Reference | None = None,
    tolerance: float = 1e-6,
    exclude: Mapping[str, str] | None = None,
) -> None:
    """Hold a method to the laws that every method keeps, on small federations that Hypothesis draws.

    Args:
        method: e.g. one of your own, as in docs/your-own.md.
        dim: size of the features that it is given, where it needs a certain one.
        key: PRNG key for methods that draw at random; by default ``jax.random.key(0)``.
        reference: the method's formula in float64 NumPy, where you have it: takes features, labels, clients
            (without padding) and the number of classes, and gives a function from features to scores, −∞ for
            a class without an example.
        tolerance: how far two results of one computation may differ in float64, relative to the largest
            number; what is computed in float32 may differ by 1e-4 at least.
        exclude: laws that are none for this method, each with the reason. ``scaling`` is none where a number
            is in the features' unit; ``order``, ``clients`` and ``messages`` where clients draw at random
            what they send; ``gradients`` where there is no reverse derivative.

    Raises:
        AssertionError: if a law is broken: its name, what it says, and the numbers.
        ImportError: if the ``testing`` extra is not installed.
        ValueError: if ``exclude`` names no law, or a reason is missing.

    >>> import covfree
    >>> check_method(covfree.fedncm())
    """
    key = jax.random.key(0) if key is None else key
    differentiable = "gradients" not in (exclude or {})
    subject = Subject(method, key, dim, tolerance, reference, differentiable)
    hold(METHOD_LAWS, f"method {method.name!r}", subject, exclude)
