"""How many functions are compiled."""

import jax

COMPILED: list[str] = []


def _listen(event, duration, **_):
    if event == "/jax/core/compile/backend_compile_duration":
        COMPILED.append(event)


jax.monitoring.register_event_duration_secs_listener(_listen)


def compilations(function):
    """How many functions a call compiles."""
    before = len(COMPILED)
    jax.block_until_ready(function())
    return len(COMPILED) - before
