"""Methods as scikit-learn estimators, for scikit-learn's pipelines, searches and cross-validation."""

from covfree.core.optional import optional as _optional

_optional("sklearn", "sklearn")

from covfree.sklearn.discriminant import FederatedDiscriminant as FederatedDiscriminant
