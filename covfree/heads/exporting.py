"""Register heads, feature maps, rows and messages, so that `jax.export` can serialise functions of them.

``exported.serialize()`` and ``jax.export.deserialize`` need the package ``flatbuffers``, which jax does not
install.
"""

from __future__ import annotations

import json
from typing import Any

from jax import export

from covfree.core.products import Scatter
from covfree.core.types import LinearHead, Message, Moments, Rows
from covfree.estimators.streaming import CovarianceState
from covfree.heads import CorrectedHead, EnsembleHead, GaussianHead, MappedHead, StudentHead
from covfree.heads.composed import SelectedHead
from covfree.statistics.buckets import BucketFeatures
from covfree.statistics.deep_features import DeepFeatures
from covfree.statistics.feature_maps import Adapter, FourierFeatures, ReluFeatures


def _to_bytes(static: Any) -> bytes:
    return json.dumps(static).encode()


def _from_bytes(static: bytes) -> Any:
    return tuple(json.loads(static))


export.register_namedtuple_serialization(CovarianceState, serialized_name="covfree.CovarianceState")
for _kind in (
    *(Adapter, BucketFeatures, DeepFeatures, FourierFeatures, ReluFeatures),
    *(CorrectedHead, EnsembleHead, GaussianHead, LinearHead, MappedHead, SelectedHead, StudentHead),
    *(Message, Moments, Rows, Scatter),
):
    export.register_pytree_node_serialization(
        _kind,
        serialized_name=f"covfree.{_kind.__name__}",
        serialize_auxdata=_to_bytes,
        deserialize_auxdata=_from_bytes,
    )
