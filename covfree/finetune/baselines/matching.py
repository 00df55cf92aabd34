"""PFPT's probabilistic model of clients' prompts, by which the server matches and summarises them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from covfree.core.types import PRNGKey, Scalar

HIDDEN = 128


class Layer(NamedTuple):
    """A dense layer.

    Attributes:
        weight: [inputs, outputs].
        bias: [outputs].
    """

    weight: Array
    bias: Array

    def __call__(self, x: Array) -> Array:
        """Compute x W + b, with W the weight and b the bias."""
        return jnp.matmul(x, self.weight, precision=jax.lax.Precision.HIGHEST) + self.bias[None, :]


class Networks(NamedTuple):
    """Two networks with one hidden ReLU layer, for σ_i and p_i from a centre θ_i (see `MatchedModel`).

    Attributes:
        deviation: network from centre θ_i to the logits of σ_i, the standard deviation of each coordinate.
        chance: network from centre θ_i to the logit of p_i, the probability that a client has a prompt drawn
            from θ_i.
    """

    deviation: tuple[Layer, Layer]
    chance: tuple[Layer, Layer]

    @classmethod
    def draw(cls, dim: int, key: PRNGKey) -> Networks:
        """Draw weights and biases as PyTorch does, uniform in ±1/√inputs."""

        def layer(key: PRNGKey, inputs: int, outputs: int) -> Layer:
            first, second = jax.random.split(key)
            bound = inputs**-0.5
            weight = jax.random.uniform(first, (inputs, outputs), minval=-bound, maxval=bound)
            return Layer(weight, jax.random.uniform(second, (outputs,), minval=-bound, maxval=bound))

        keys = jax.random.split(key, 4)
        deviation = layer(keys[0], dim, HIDDEN), layer(keys[1], HIDDEN, dim)
        return cls(deviation, (layer(keys[2], dim, HIDDEN), layer(keys[3], HIDDEN, 1)))


class MatchedModel(NamedTuple):
    """The probabilistic model from which the clients' sets of prompts are drawn.

    Attributes:
        centres: θ [centres, dim]; a client's prompt is a noisy copy of a centre.
        networks: the networks that compute σ, the noise's standard deviation, and p, the probability that a
            client has a copy.
    """

    centres: Float[Array, "centres dim"]
    networks: Networks


def _logits(layers: tuple[Layer, Layer], x: Array) -> Array:
    first, second = layers
    return second(jax.nn.relu(first(x)))


def _log_deviation(model: MatchedModel, centres: Array) -> Array:
    return jax.nn.log_sigmoid(_logits(model.networks.deviation, centres))


def _logit_chance(model: MatchedModel) -> Array:
    """Compute log(p/(1 − p)) for each centre; p is the probability that a client has a copy of the centre."""
    return _logits(model.networks.chance, model.centres)[:, 0]


def log_likelihood(
    model: MatchedModel,
    prompts: Float[Array, "prompts dim"],
    assigned: Int[Array, " prompts"],
    open_to: Bool[Array, " centres"],
) -> Float[Array, ""]:
    """Compute the log-likelihood of a client's prompts, given the centres from which they come.

    With probability p_i a client has one prompt from centre i, drawn from N(θ_i, diag σ_i²). If prompt w_j
    comes from centre z_j, and no two prompts from the same centre, the log-likelihood is

        Σ_j [log N(w_j; θ_z, σ_z) + log(p_z/(1 − p_z))] + Σ_i log(1 − p_i),    z = z_j.

    The second sum is over all centres ``open_to``, since log p_z = log(p_z/(1 − p_z)) + log(1 − p_z).

    Args:
        model: the centres θ, and the networks that compute σ and p.
        prompts: the prompts w_j.
        assigned: z, the centre of each prompt; below 0 for padding, which adds nothing.
        open_to: mask of the centres from which prompts may come.
    """
    chosen, kept, chance = jnp.maximum(assigned, 0), assigned >= 0, _logit_chance(model)
    centres = model.centres[chosen]
    log_deviation = _log_deviation(model, centres)
    square = jnp.square((prompts - centres) * jnp.exp(-log_deviation)).sum(1)
    normal = -0.5 * (square + prompts.shape[1] * jnp.log(2 * jnp.pi)) - log_deviation.sum(1)
    absent = jnp.where(open_to, jax.nn.log_sigmoid(-chance), 0).sum()
    return jnp.where(kept, normal + chance[chosen], 0).sum() + absent


def gains(model: MatchedModel, prompts: Float[Array, "prompts dim"]) -> Float[Array, "prompts centres"]:
    """Return, for each prompt and centre, what the prompt adds to `log_likelihood` if that is its centre.

    For prompt w and centre i it is log N(w; θ_i, σ_i) + log(p_i/(1 − p_i)), without the constant with log 2π.
    """
    log_deviation = _log_deviation(model, model.centres)
    scale = jnp.exp(-log_deviation)
    # Square the differences of prompts w and centres θ: (w² − 2wθ + θ²)/σ² would lose digits if σ is small.
    apart = (prompts[:, None, :] - model.centres[None, :, :]) * scale[None, :, :]
    of_centre = _logit_chance(model) - log_deviation.sum(1)
    return of_centre[None, :] - 0.5 * jnp.square(apart).sum(2)


def _assigned(matrix: Any, kept: Any, open_to: Any) -> np.ndarray:
    """Solve the problem of `assign` by SciPy, on the host."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = np.flatnonzero(kept), np.flatnonzero(open_to)
    inner = np.asarray(matrix)[np.ix_(rows, columns)]
    # SciPy raises if a number is not finite, and an error in this callback would lose the whole run.
    inner = inner if np.isfinite(inner).all() else np.zeros_like(inner)
    row, column = linear_sum_assignment(inner, maximize=True)
    found = np.full(len(kept), -1, np.int32)
    found[rows[row]] = columns[column]
    return found


def assign(
    matrix: Float[Array, "prompts centres"], kept: Bool[Array, " prompts"], open_to: Bool[Array, " centres"]
) -> Int[Array, " prompts"]:
    """Return a different centre for each prompt, such that the sum of ``matrix`` over these pairs is largest.

    The assignment problem is solved on the host, by SciPy's ``linear_sum_assignment``. If a number of the
    matrix is not finite, the assignment is arbitrary.

    Args:
        matrix: for each pair of a prompt and a centre, what the pair adds to the sum.
        kept: which rows are prompts; padding gets −1. There must be at least as many open centres as prompts.
        open_to: which centres may be assigned.
    """
    shape = jax.ShapeDtypeStruct(kept.shape, jnp.int32)
    return jax.pure_callback(_assigned, shape, matrix, kept, open_to)


def summarise(
    table: Float[Array, "rows dim"],
    size: Int[Array, ""],
    used: Bool[Array, " pool"],
    networks: Networks,
    *,
    sweeps: int | Int[Array, ""],
    learning_rate: Scalar,
) -> tuple[Float[Array, "pool dim"], Int[Array, ""]]:
    """Match the prompts that clients trained, and return a new pool of prompts for all clients.

    Each client trained a copy of the old pool. At first each prompt of each client is a centre, a candidate
    for the new pool. A sweep visits the clients in turn. A client's prompts are assigned to centres optimally
    under the present model; then Adam takes a step in the centres and the model's `Networks` along the
    gradient of the client's `log_likelihood`. The new pool consists of the centres to which prompts were
    assigned in the last sweep, those with most prompts first. Centres beyond the pool's length are dropped.

    Args:
        table: the prompts of the first client, then of the second, …, each in the order of the pool.
        size: the number of prompts in the pool; each client sends this many.
        used: [pool] which prompts of the pool some client trained; the matching leaves out the others. The
            mask's length is the largest size that a pool may have.
        networks: the networks to start from, see `MatchedModel`.
        sweeps: passes over the clients.
        learning_rate: Adam's learning rate.

    Returns:
        The new pool, padded with zeros, and its size. If a pair of a prompt and a centre had no finite
        likelihood, the pool is nan.
    """
    # Compute in one data type, float32 at least.
    given, dtype = table.dtype, jnp.promote_types(table.dtype, jnp.float32)
    table, networks = jax.tree.map(lambda x: x.astype(dtype), (table, networks))
    most, rows = used.shape[0], table.shape[0]
    place = jnp.arange(most)
    kept = used & (place < size)
    clients = rows // jnp.maximum(size, 1)
    open_to = kept[jnp.minimum(jnp.arange(rows) % jnp.maximum(size, 1), most - 1)]
    adam = optax.adam(learning_rate)
    start = MatchedModel(table, networks)

    def step(number: Array, carry: Any) -> Any:
        model, state, count, sound = carry
        client = number % clients
        prompts = table[jnp.minimum(client * size + place, rows - 1)]
        matrix = gains(model, prompts)
        sound &= (jnp.isfinite(matrix) | ~(kept[:, None] & open_to[None, :])).all()
        mine = assign(matrix, kept, open_to)

        def loss(model: MatchedModel) -> Array:
            return -log_likelihood(model, prompts, mine, open_to)

        updates, state = adam.update(jax.grad(loss)(model), state)
        count = jnp.where(client == 0, 0, count).at[jnp.where(mine >= 0, mine, rows)].add(1, mode="drop")
        return optax.apply_updates(model, updates), state, count, sound

    carry = start, adam.init(start), jnp.zeros(rows, jnp.int32), jnp.asarray(True)
    model, _, count, sound = jax.lax.fori_loop(0, sweeps * clients, step, carry)
    order = jnp.argsort(-count, stable=True)[:most]
    found = jnp.minimum((count > 0).sum(dtype=jnp.int32), most)
    pool = jnp.zeros((most, table.shape[1]), table.dtype).at[: order.shape[0]].set(model.centres[order])
    pool = jnp.where(sound, jnp.where((place < found)[:, None], pool, 0), jnp.nan)
    return pool.astype(given), found
