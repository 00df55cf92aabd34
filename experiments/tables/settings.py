"""What settings of a cell mean: its data, its federation, its method, and which run it is of."""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import Any

from covfree.methods import Method
from covfree.studies import Federation, variants
from covfree.studies.variants import with_noise

# Settings that say which features a cell is of.
OF_DATA = ("data", "backbone", "weights", "pixels", "top_classes", "target", "clients_per_domain")
_PLACE = ("clients", "partition", "alpha")
_CLIENTS = ("algorithm", "epochs", "batch_size", "client_lr")
# Settings that say how often a cell is run, and what of its runs it shows.
_OF_RESULTS = ("seeds", "round", "reaches", "result")
# What tells one run from another, beside data and federation.
_OF_RUN: Mapping[str, tuple[str, ...]] = {
    "accuracy": ("method", "noise"),
    "measured": ("measure", "method"),
    "arrivals": ("method", "participation", "rounds", "reaches"),
    "trained": (
        *(*_CLIENTS, "init", "train", "rounds", "participation", "server_lr", "mu", "norms", "refit"),
        *("momentum", "weight_decay", "temperature", "augment"),
    ),
    "prompts": (*_CLIENTS, "rounds", "participation", "mu", "pool", "top"),
    "one-shot": (*_CLIENTS, "distillation_epochs", "generator_steps", "generator_width"),
    "personal": (*_CLIENTS, "momentum", "weight_decay", "norms", "strength", "test_share"),
}


def own_settings(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that tell a run of a kind from others of it, those left out that are not there."""
    names = (*OF_DATA, *_PLACE, *_OF_RUN[kind])
    return {name: settings[name] for name in names if settings.get(name) is not None}


def settings_read(kind: str, settings: Mapping[str, Any]) -> frozenset[str]:
    """The settings that a cell of a kind may depend on, with those that its texts name in braces."""
    names = (*OF_DATA, *_PLACE, *_OF_RUN[kind], *_OF_RESULTS)
    texts = [value for name in names if isinstance(value := settings.get(name), str)]
    named = {field for text in texts for _, field, _, _ in Formatter().parse(text) if field}
    return frozenset({*names, *named})


def data_name(settings: Mapping[str, Any]) -> str:
    """What results call the data: all that their features depend on but the file of weights."""
    return ", ".join(
        str(settings[key]) if key in ("data", "backbone") else f"{key}={settings[key]}"
        for key in OF_DATA
        if settings.get(key) is not None
    )


def federation_of(settings: Mapping[str, Any]) -> Federation:
    """How examples are spread, unless the data says so."""
    return Federation(*(settings[name] for name in _PLACE))


def method_name(settings: Mapping[str, Any]) -> str:
    """What results call the method."""
    noise = settings.get("noise")
    return settings["method"] if noise is None else f"{settings['method']}, noise={noise}"


def method_of(settings: Mapping[str, Any]) -> Method:
    """A method in closed form: ``method``, with ``noise`` on the counts that clients send, if it is there."""
    made = variants([settings["method"]])
    if settings.get("noise") is not None:
        made = with_noise(made, settings["noise"])
    return next(iter(made.values())).method
