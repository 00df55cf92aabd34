"""Backbones: pure functions that take a pytree of parameters and images, and return features."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from covfree.backbones.table import BACKBONES, Spec
from covfree.backbones.weights import Params, packaged_weights, read_weights, tensor_shapes, to_params
from covfree.core.checks import check_choice
from covfree.core.optional import optional
from covfree.core.types import AnyArray, PRNGKey

_DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Backbone:
    """A network that turns images into features; `backbone` makes one. `apply` takes its parameters.

    Parameters are Linen's variables: ``{"params": …}`` and, for a network with batch norms, the running
    statistics ``{"batch_stats": …}``, which ``train=True`` does not use. Parameters are float32, whatever the
    data type of the computation.

    Attributes:
        spec: the backbone's entry in `BACKBONES`, or a `Spec` of your own.
        dtype: the data type in which the network computes: ``"float32"`` or ``"bfloat16"``.
    """

    spec: Spec
    dtype: str

    @property
    def name(self) -> str:
        """The network's name, from ``spec``."""
        return self.spec.name

    @property
    def num_features(self) -> int:
        """d, the number of features."""
        return self.spec.num_features

    @property
    def takes_prompts(self) -> bool:
        """Whether `apply` takes prompts: whether the network is a vision transformer."""
        return self.spec.module == "vit"

    @property
    def module(self) -> Any:
        """The network as a Flax Linen module."""
        return self._architecture.build(jnp.dtype(self.dtype), **self.spec.settings)

    @property
    def _architecture(self) -> Any:
        # Importing Flax takes half a second, so do it only when a network is built.
        optional("flax", "backbones")
        return importlib.import_module(f"covfree.backbones.{self.spec.module}")

    @property
    def _renamings(self) -> tuple[Callable[[str], str], ...]:
        """Functions from a parameter's name to its tensor's name in a file, one for each library's files."""
        others = getattr(self._architecture, "renamings", lambda **_: ())
        return (str, *others(**self.spec.settings))

    def init(self, key: PRNGKey) -> Params:
        """Draw parameters at random.

        Args:
            key: the PRNG key of the draw.
        """
        return _drawn(self, key)

    def apply(
        self,
        params: Params,
        images: Float[AnyArray, "batch height width 3"],
        *,
        train: bool = False,
        key: PRNGKey | None = None,
        prompts: Float[AnyArray, "batch prompts features"] | None = None,
        kept: Bool[AnyArray, "batch prompts"] | None = None,
    ) -> Float[Array, "batch features"]:
        """Compute the features of images.

        Args:
            params: from `init` or `load`.
            images: the output of `preprocess`. Sizes other than the spec's need ``spec.any_size``.
            train: whether to normalise by the batch's statistics. If not, an image's features do not depend
                on other images.
            key: the PRNG key of dropout and stochastic depth; None turns both off.
            prompts: additional tokens for a vision transformer's first layer, between class token and
                patches.
            kept: True for prompts that are attended to; other prompts are padding. None attends to all.

        Returns:
            Features in the backbone's dtype.

        Raises:
            ValueError: if images or prompts have another shape, or the network takes no prompts.
        """
        more = None if prompts is None else self._prompts(images, prompts, kept)
        return self._run(params, images, train, key, more)[0]

    def apply_and_update(
        self,
        params: Params,
        images: Float[AnyArray, "batch height width 3"],
        *,
        key: PRNGKey | None = None,
    ) -> tuple[Float[Array, "batch features"], Params]:
        """Compute features as ``apply(..., train=True)`` does, and update the running statistics.

        Args:
            params: see `apply`.
            images: see `apply`.
            key: see `apply`.

        Returns:
            Features, and parameters with the batch norms' running statistics moved towards the batch's. A
            network without batch norms returns its parameters unchanged.
        """
        return self._run(params, images, True, key)

    def load(self, path: str | PathLike[str] | None = None) -> Params:
        """Read parameters from a file with the tensor names of any library in ``spec.names``.

        A classifier in the file is ignored.

        Args:
            path: a ``.safetensors`` or ``.pth`` file, see `read_weights`; None for the weights that the
                ``pretrained`` extra installs (``spec.package``).

        Raises:
            ValueError: if the file is damaged, or a tensor is missing, superfluous, of another shape or not
                finite; the message names the tensors.
            ImportError: if the package of weights is not installed.
            FileNotFoundError: if there is no such file.
        """
        if path is None:
            if self.spec.package is None:
                raise ValueError(f"path: no package ships weights of {self.name}; expected a file")
            path = packaged_weights(self.spec.package)
        return self.from_tensors(read_weights(path), source=f"path: {path}: {self.name}")

    def from_tensors(self, tensors: dict[str, np.ndarray], *, source: str = "tensors") -> Params:
        """Convert tensors, with the names of any library in ``spec.names``, to parameters.

        Args:
            tensors: as `read_weights` returns them.
            source: the tensors' origin, for errors.

        Raises:
            ValueError: see `load`.
        """
        names = set(tensor_shapes(self.shapes))
        # A file of weights may hold a classifier, which the network lacks; its tensors are ignored.
        unused = {f"{self._architecture.CLASSIFIER}.{leaf}" for leaf in ("weight", "bias")}
        namings = [{name: rename(name) for name in names | unused} for rename in self._renamings]
        return to_params(tensors, self.shapes, namings=namings, unused=unused, source=source)

    @functools.cached_property
    def shapes(self) -> Params:
        """Shapes and data types of the parameters, without values."""
        size = self.spec.input_size
        images = jax.ShapeDtypeStruct((1, size, size, 3), jnp.float32)
        return jax.eval_shape(self.module.init, jax.random.key(0), images)

    def _run(
        self,
        params: Params,
        images: Any,
        train: bool,
        key: PRNGKey | None,
        more: Any = None,
    ) -> tuple[Any, Params]:
        shape, size = images.shape, self.spec.input_size
        wanted = ("height", "width") if self.spec.any_size else (size, size)
        right = len(shape) == 4 and shape[3] == 3 and (self.spec.any_size or shape[1:3] == wanted)
        if not right:
            raise ValueError(
                f"images: expected [batch, {wanted[0]}, {wanted[1]}, 3] for {self.name}, got {list(shape)}"
            )
        images = jnp.asarray(images, jnp.dtype(self.dtype))
        keys = None if key is None else {"dropout": key}
        if not (train and "batch_stats" in params):
            out = self.module.apply(params, images, train=train, rngs=keys, **(more or {}))
            return out, params
        out, changed = self.module.apply(params, images, train=True, rngs=keys, mutable=["batch_stats"])
        return out, {**params, **changed}

    def _prompts(self, images: Any, prompts: Any, kept: Any) -> dict[str, Any]:
        wanted, shape = (len(images), self.num_features), jnp.shape(prompts)
        if not self.takes_prompts:
            raise ValueError(f"prompts: expected None, as {self.name} is no vision transformer")
        if len(shape) != 3 or shape[::2] != wanted:
            raise ValueError(f"prompts: expected [{wanted[0]}, prompts, {wanted[1]}], got {list(shape)}")
        if kept is not None and jnp.shape(kept) != shape[:2]:
            raise ValueError(f"kept: expected {list(shape[:2])}, got {list(jnp.shape(kept))}")
        return {"prompts": jnp.asarray(prompts), "kept": None if kept is None else jnp.asarray(kept)}


# Compiled, so that XLA does not compute the network's output, which is not used.
@functools.partial(jax.jit, static_argnums=0)
def _drawn(network: Backbone, key: PRNGKey) -> Params:
    """Draw the parameters of a network at random."""
    size = network.spec.input_size
    return network.module.init(key, jnp.zeros((1, size, size, 3), jnp.float32))


def backbone(name: str | Spec, *, dtype: Any = "float32") -> Backbone:
    """Return the network of this name, which turns images into features.

    Args:
        name: a name in `BACKBONES`, with - or _ between its words, or a `Spec` of your own.
        dtype: the data type in which the network computes: float32 or bfloat16.

    Raises:
        ValueError: if there is no such backbone or data type.

    >>> resnet = backbone("resnet18")
    >>> resnet.num_features, resnet.spec.input_size
    (512, 224)
    """
    if isinstance(name, Spec):
        spec = name
    elif isinstance(name, str) and name.replace("-", "_") in BACKBONES:
        spec = BACKBONES[name.replace("-", "_")]
    else:
        raise ValueError(f"name: expected one of {', '.join(BACKBONES)}, or a Spec, got {name!r}")
    chosen = jnp.dtype(dtype).name
    check_choice("dtype", chosen, _DTYPES)
    return Backbone(spec, chosen)
