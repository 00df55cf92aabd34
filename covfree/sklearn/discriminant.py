"""A training-free federated method as a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import jax
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from covfree.core.checks import check
from covfree.core.compiling import jit
from covfree.core.padding import few_sizes
from covfree.core.types import LinearHead
from covfree.engine import aggregate, fit
from covfree.engine.aggregate import layout_of
from covfree.heads import with_finite_scores
from covfree.methods import Method, registry
from covfree.methods.method import check_method

# Missing values of Python, NumPy and pandas, as `str` writes them.
_MISSING = {"None", "nan", "NaT", "<NA>"}
# How many examples are scored at once.
_PART = 4096
_FLOATS = (np.float64, np.float32)
_scores = jit(lambda head, features: head(features))


class FederatedDiscriminant(ClassifierMixin, BaseEstimator):
    """Classify by discriminant analysis, linear or quadratic, from groups' class means or sums.

    A group of examples is a client of a federation. With ``fedcof``, the default, each group sends the mean
    and the count of each of its classes, and the covariance is estimated from how these means vary.
    The estimator computes in float32, unless jax computes in float64.

    Args:
        method: a name of `covfree.methods.registry`, or a method, such as ``covfree.fedcof(0.1)``.
        random_state: the seed of methods that draw at random, as scikit-learn takes it.

    Attributes:
        classes_: [C] the classes, sorted.
        head_: covfree's head, for `save_head` and ``covfree export``.
        total_: what all groups sent, added up by `covfree.aggregate`. For ``fedcof``: class means of groups,
            or without groups the examples themselves. None if the method's messages cannot be added up.
        n_features_in_: d, the number of features.
        feature_names_in_: [d] the names of the columns, if ``X`` has names.

    >>> import numpy as np
    >>> X, y, clients = [[0.0], [1.0], [4.0], [5.0]], ["low", "low", "high", "high"], [0, 1, 0, 1]
    >>> FederatedDiscriminant().fit(X, y, groups=clients).predict([[0.2], [4.2]]).tolist()
    ['low', 'high']
    """

    # Check nothing here: scikit-learn's estimators check their arguments in `fit`.
    def __init__(self, method: Any = "fedcof", *, random_state: Any = None) -> None:
        self.method = method
        self.random_state = random_state

    def fit(self, X: Any, y: Any, groups: Any = None) -> FederatedDiscriminant:
        """Fit to these examples; earlier ones are forgotten.

        Args:
            X: [examples, d] features.
            y: [examples] classes, of any type.
            groups: [examples] the client of each example, of any type. None makes each example a client: the
                default method, ``"fedcof"``, is then linear discriminant analysis with automatic shrinkage.

        Returns:
            The estimator.

        Raises:
            ValueError: if an argument has the wrong shape or is not finite, or ``y`` holds one class.
        """
        self._clear()
        self.classes_ = np.unique(column_or_1d(y))
        if len(self.classes_) < 2:
            raise ValueError(f"y: expected examples of 2 classes or more, got 1 class in {np.size(y)}")
        self._add(X, y, groups, reset=True)
        # Solve now, so that a prediction changes no attribute.
        _ = self.head_
        return self

    def partial_fit(
        self,
        X: Any,
        y: Any,
        classes: Any = None,
        groups: Any = None,
    ) -> FederatedDiscriminant:
        """Add examples to the earlier ones; the head is solved when it is next used.

        Up to rounding, the head is that of ``fit`` on all data, even if a group comes in parts. Memory grows
        with the number of pairs of group and class; if a method's clients send sums, as for ``fed3r``, only
        with the number of groups.

        Args:
            X: [examples, d] features.
            y: [examples] classes.
            classes: all classes that will come; needed at the first call.
            groups: see `fit`; a group has the same name in every call.

        Returns:
            The estimator.

        Raises:
            ValueError: as in `fit`; if a class is not among ``classes``, the method's messages do not add
                up (see `covfree.aggregate.zero`), or the method differs from that of earlier parts.
        """
        method = self._method()
        layout_of(method)
        before = getattr(self, "total_", None)
        first = before is None
        if first and classes is None:
            raise ValueError("classes: expected all classes at the first call of partial_fit, got None")
        known = self.classes_ if classes is None else np.unique(column_or_1d(classes))
        if not first and not np.array_equal(known, self.classes_):
            raise ValueError(f"classes: expected {self.classes_}, as in the first call, got {known}")
        if before is None:
            self._clear()
            self.classes_ = known
        elif not _same(method, before.method):
            raise ValueError(
                f"method: expected that of the parts before, {before.method.name!r} with the same numbers, "
                f"got another, {method.name!r}; fit anew on all examples"
            )
        return self._add(X, y, groups, reset=first)

    def _clear(self) -> None:
        self.total_: aggregate.Aggregate[Any] | None = None
        self._head: Any = None
        self._numbers: dict[Hashable, int] = {}
        self._clients = 0

    def _add(self, X: Any, y: Any, groups: Any, reset: bool) -> FederatedDiscriminant:
        method = self._method()
        X, y = validate_data(self, X, y, dtype=_FLOATS, reset=reset)
        check_classification_targets(y)
        if unknown := np.setdiff1d(y, self.classes_).tolist():
            raise ValueError(f"y: expected classes among {self.classes_.tolist()}, got {unknown}")
        labels = np.searchsorted(self.classes_, y).astype(np.int32)
        clients = self._numbered(groups, len(y))
        check(X, labels, clients)
        num_classes = len(self.classes_)
        try:
            total = self.total_ or aggregate.zero(method, num_classes=num_classes)
        except ValueError:  # messages of this method cannot be added up
            if groups is None and method.summary.name == "LocalHeads":
                raise ValueError(
                    f"groups: expected the client of each example, as {method.name!r} fits a head for each "
                    "client, got None"
                ) from None
            seed = check_random_state(self.random_state).randint(2**31 - 1)
            self._head = fit(method, X, labels, clients, num_classes=num_classes, key=jax.random.key(seed))
            return self
        self.total_ = aggregate.compacted(aggregate.add(total, X, labels, clients))
        self._head = None
        return self

    def _numbered(self, groups: Any, examples: int) -> np.ndarray:
        """Return each example's group as a number from 0; a name keeps its number in later calls."""
        if groups is None:
            self._clients += examples
            return np.arange(self._clients - examples, self._clients, dtype=np.int32)
        groups = column_or_1d(groups)
        check_consistent_length(groups, np.empty(examples))
        for row, name in enumerate(groups.tolist()):
            if not isinstance(name, str) and str(name) in _MISSING:
                raise ValueError(f"groups: expected a name for each example, got {name} at row {row}")
        names, place = np.unique(groups, return_inverse=True)
        for name in names.tolist():
            if name not in self._numbers:
                self._numbers[name] = self._clients
                self._clients += 1
        return np.array([self._numbers[name] for name in names.tolist()], np.int32)[place]

    def _method(self) -> Method[Any]:
        if not isinstance(self.method, str):
            check_method(self.method)
            return self.method
        try:
            return registry()[self.method].make()
        except KeyError as error:
            raise ValueError(f"method: {error.args[0]}") from None

    @property
    def head_(self) -> Any:
        """The head, solved from the sums over all examples so far when it is first accessed."""
        check_is_fitted(self)
        if self._head is None:
            if self.total_ is None:
                raise NotFittedError("head_: expected a call of fit or partial_fit that succeeded")
            self._head = aggregate.finish(self.total_)
        return self._head

    @property
    def coef_(self) -> np.ndarray:
        """[C, d] weights of a `LinearHead`; for two classes [1, d], the second class minus the first."""
        return self._linear()[0]

    @property
    def intercept_(self) -> np.ndarray:
        """[C] biases of a `LinearHead`; for two classes [1], the second class minus the first.

        A class without examples has a bias of magnitude above 10³⁸, with the sign that rules the class out.
        """
        return self._linear()[1]

    def _linear(self) -> tuple[np.ndarray, np.ndarray]:
        if not isinstance(self.head_, LinearHead):
            raise AttributeError(f"coef_: expected a linear head, got {type(self.head_).__name__}")
        # As in `decision_function`, a class without examples must not be predicted.
        head = with_finite_scores(self.head_, float(np.finfo(np.float32).min))
        weight, bias = np.asarray(head.weight).T, np.asarray(head.bias)
        return (weight[1:] - weight[:1], bias[1:] - bias[:1]) if len(weight) == 2 else (weight, bias)

    def _scored(self, X: Any) -> np.ndarray:
        """Return scores [examples, C] in float64; −∞ for a class without examples."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=_FLOATS, reset=False)
        head, found = self.head_, []
        for start in range(0, len(X), _PART):
            part = X[start : start + _PART]
            # Pad to few sizes, as a function is compiled for each size.
            padded = np.zeros((few_sizes(len(part)), X.shape[1]), np.result_type(X, np.float32))
            padded[: len(part)] = part
            found.append(np.asarray(_scores(head, padded))[: len(part)])
        return np.concatenate(found).astype(np.float64)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return scores [examples, C]; for two classes [examples], above 0 for the second.

        A class without examples has the lowest float32, as scikit-learn accepts no infinite scores.
        """
        scores = np.maximum(self._scored(X), np.finfo(np.float32).min)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """Return each example's class, that of the largest score."""
        scores = self._scored(X)
        return self.classes_[scores.argmax(1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return probabilities [examples, C], the softmax of the scores.

        For LDA, QDA and naive Bayes heads they are posteriors under the model. Scores of ridge heads are not
        log-densities: wrap the estimator in scikit-learn's ``CalibratedClassifierCV``.
        """
        scores = self._scored(X)
        shares = np.exp(scores - scores.max(1, keepdims=True))
        return shares / shares.sum(1, keepdims=True)


def _same(method: Method[Any], other: Method[Any]) -> bool:
    """Return whether two methods have the same functions and equal hyperparameters."""
    if jax.tree.structure(method) != jax.tree.structure(other):
        return False
    return all(map(np.array_equal, jax.tree.leaves(method), jax.tree.leaves(other)))
