"""PFPT: clients train prompts from one pool; the server summarises the clients' prompts in a new pool."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from covfree.core.checks import check_positive, check_strength
from covfree.core.sums import Table
from covfree.core.types import LinearHead, PRNGKey, Scalar
from covfree.finetune import averaging
from covfree.finetune.baselines.matching import Networks, summarise
from covfree.finetune.baselines.prompts import without_padding
from covfree.finetune.local import LocalTraining
from covfree.finetune.model import Model, check_model
from covfree.rounds.algorithm import Algorithm, ClientData


class _Numbers(NamedTuple):
    model: Model
    training: LocalTraining
    sweeps: Any
    learning_rate: Any


class PFPTState(NamedTuple):
    """The server's state.

    Attributes:
        head: the classifier.
        pool: [most, features] prompts; all but the first ``size`` are padding.
        size: the number of prompts.
        networks: the networks of `MatchedModel` from which each round's matching starts.
        round: the number of finished rounds.
    """

    head: LinearHead
    pool: jax.Array
    size: jax.Array
    networks: Networks
    round: jax.Array


class PFPTUpload(NamedTuple):
    """A client's upload: arrays that are summed over clients, and a table.

    Attributes:
        change: n_i (x − y_i), with x the head that the server sent and y_i the head that the client trained.
        weight: n_i, the client's number of examples.
        used: 1 for each prompt of the pool that the client's training changed, else 0.
        prompts: the table of the client's prompts. The server gets all clients' tables, concatenated.
    """

    change: LinearHead
    weight: jax.Array
    used: jax.Array
    prompts: Table


def _init(numbers: _Numbers, num_clients: int, key: PRNGKey) -> tuple[PFPTState, tuple[()]]:
    trained, kept = numbers.model.trained, numbers.model.frozen["kept"]
    networks = Networks.draw(trained["prompts"].shape[1], key)
    size = kept.sum(dtype=jnp.int32)
    return PFPTState(trained["head"], trained["prompts"], size, networks, jnp.zeros((), jnp.int32)), ()


def _kept(state: PFPTState) -> jax.Array:
    return jnp.arange(len(state.pool)) < state.size


def _broadcast(numbers: _Numbers, state: PFPTState) -> tuple[LinearHead, Table, jax.Array]:
    return state.head, Table(state.pool, _kept(state)), state.round


def _client(
    numbers: _Numbers, sent: Any, data: ClientData, memory: tuple[()], key: PRNGKey
) -> tuple[PFPTUpload, tuple[()], dict[str, Any]]:
    head, pool, number = sent
    model = replace(numbers.model, frozen={**numbers.model.frozen, "kept": pool.kept})
    trained = {"prompts": pool.items, "head": head}
    own = numbers.training(model, trained, (), data, key, round=number, anchor=trained)
    weight = data.num_examples.astype(jnp.float32)
    change = averaging.scaled(weight, jax.tree.map(jnp.subtract, head, own.trained["head"]))
    prompts, kept = own.trained["prompts"], pool.kept & (weight > 0)
    used = ((prompts != pool.items).any(1) & kept).astype(jnp.int32)
    update = PFPTUpload(change, weight, used, Table(prompts, kept))
    return update, (), own.metrics


def _server(numbers: _Numbers, state: PFPTState, total: PFPTUpload) -> PFPTState:
    state = state._replace(round=state.round + 1)
    table = total.prompts.items
    if not len(table):  # no upload arrived
        return state
    mean = averaging.mean(total.change, total.weight)
    head = jax.tree.map(lambda x, change: x - change.astype(x.dtype), state.head, mean)
    used = (total.used > 0) & _kept(state)
    # `summarise` leaves out prompts that no client changed; if none was changed, leave out none.
    used = jnp.where(used.any(), used, _kept(state))
    pool, size = summarise(
        table, state.size, used, state.networks, sweeps=numbers.sweeps, learning_rate=numbers.learning_rate
    )
    return state._replace(head=head, pool=pool, size=size)


def _result(numbers: _Numbers, state: PFPTState, memory: tuple[()]) -> Model:
    frozen = {**numbers.model.frozen, "kept": _kept(state)}
    return replace(numbers.model, trained={"prompts": state.pool, "head": state.head}, frozen=frozen)


def _report(numbers: _Numbers, state: PFPTState) -> dict[str, Any]:
    return {"prompts": state.size}


def pfpt(
    model: Model,
    client: Any = 0.01,
    *,
    most: int | None = None,
    sweeps: int = 50,
    learning_rate: Scalar = 1e-3,
    **options: Any,
) -> Algorithm:
    """PFPT: probabilistic federated prompt tuning.

    Clients train a pool of prompts (tokens that the network reads beside the image's) and a head. Heads are
    averaged, weighted by examples. Prompts are not averaged, as two clients may train the same prompt of the
    pool in different directions. Instead, prompts are matched: each client's prompts are modelled as noisy
    copies of prompts in a new pool. The server finds the new pool by alternating assignments and gradient
    steps. Prompts that no client of a round changed are left out. The pool's size varies by round; the
    history records it as ``prompts``.

    Each client uploads its prompts as a table, which is not a sum, so PFPT cannot run behind secure
    aggregation.

    The authors' code differs. With p the probability that a client has a prompt, the code's likelihood
    contains log p for prompts that the client has, but not log(1 − p) for the others. When the code assigns
    prompts, it also counts log-probabilities of the client's last assignment. Here likelihood and assignment
    follow `matching.log_likelihood`, so the assignment is the most likely one. The authors' code starts from
    random assignments, and draws in each round new networks, which compute p and the noise's deviation. Here
    matching starts from the most likely assignments, and each round from the same networks.

    Args:
        model: from `prompt_model`.
        client: see `fedavg`.
        most: the largest size of the pool; None for three times the number of the model's prompts (without
            padding, if the model is the result of a run). From a larger pool, the prompts with the fewest
            clients are left out.
        sweeps: passes over the round's clients during matching.
        learning_rate: Adam's learning rate during matching.
        options: ``epochs``, ``steps``, ``batch_size``, ``schedule`` of `fedavg`.

    Returns:
        An algorithm whose result is a `Model`, see `prompt_model`.

    Raises:
        TypeError: if the model has no prompts.
        ValueError: if a number is out of its range.

    Source: Weng et al. (2024), "Probabilistic Federated Prompt-Tuning with Non-IID and Imbalanced Data",
    NeurIPS, section 3.2.
    """
    model = without_padding(check_model(model))
    if not (isinstance(model.trained, dict) and "prompts" in model.trained):
        raise TypeError("model: expected one with prompts, from covfree.finetune.prompt_model")
    check_positive("sweeps", sweeps)
    check_strength("learning_rate", learning_rate)
    prompts, kept = model.trained["prompts"], model.frozen["kept"]
    most = 3 * len(prompts) if most is None else most
    check_positive("most", most)
    if most < len(prompts):
        raise ValueError(f"most: expected at least {len(prompts)}, the prompts of the model, got {most}")
    padding = most - len(prompts)
    model = replace(
        model,
        trained={**model.trained, "prompts": jnp.pad(prompts, ((0, padding), (0, 0)))},
        frozen={**model.frozen, "kept": jnp.pad(kept, (0, padding))},
    )
    numbers = _Numbers(model, LocalTraining.of(client, **options), sweeps, learning_rate)
    functions = _init, _broadcast, _client, _server, _result
    return Algorithm(numbers, "pfpt", *functions, num_classes=model.num_classes, report=_report)
