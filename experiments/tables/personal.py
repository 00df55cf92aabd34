"""Personalised training of a whole network, as ``experiments/personalisation.py`` does it on features."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.tree_util import Partial
from personalised import Part, Start, personalised

import covfree
from covfree import finetune
from experiments.tables.data import Data
from experiments.tables.settings import federation_of


def _descent(rate: Any, momentum: Any, decay: Any) -> optax.GradientTransformation:
    return optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate, momentum=momentum))


def run(own: Mapping[str, Any], data: Data, seed: int, folder: Path) -> dict[str, Any]:
    """Mean accuracy of the clients, each on examples of its own that it holds back.

    Training and test examples of the data are dealt to clients together. A run of several rounds goes on from
    its last checkpoint if the folder has one.
    """
    pixels, features = data.pixels(seed), data.load(seed)
    images, means = (np.concatenate([each.train_features, each.test_features]) for each in (pixels, features))
    labels = np.concatenate([pixels.train_labels, pixels.test_labels])
    whole = pixels._replace(train_labels=labels, clients=None)
    # Places among the examples in place of features.
    dealt = Part(np.arange(len(labels)), labels, federation_of(own).assign(whole, seed))
    train, test = dealt.split(own["test_share"], np.random.default_rng([1, seed]))
    network = data.network(seed)
    classes, dim = pixels.num_classes, network.backbone.num_features
    key = jax.random.key(seed)

    def model(params: Any, head: Any) -> finetune.Model:
        return finetune.network_model(
            network.backbone, params, head, norms=own["norms"], preprocessing=network.preprocessing
        )

    start = Start(
        model(network.params, finetune.random_head(dim, classes, key=key)),
        lambda result: model(result.feature_map.params, result.head),
        finetune.Prototypes(*covfree.class_means(means[train.features], train.labels, classes)),
    )
    accuracy, diverged = personalised(
        own["algorithm"],
        start,
        train._replace(features=images[train.features]),
        test._replace(features=images[test.features]),
        client=Partial(_descent, own["client_lr"], own["momentum"], own["weight_decay"]),
        epochs=own["epochs"],
        strength=own["strength"],
        key=key,
        checkpoint=folder,
        tuned=own["epochs"] // 5,
        batch_size=own["batch_size"],
    )
    return {"value": 100 * float(np.nanmean(accuracy)), "diverged": diverged}
