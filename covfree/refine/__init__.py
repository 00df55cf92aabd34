"""Closed-form heads made exact over a few rounds of small messages."""

from covfree.refine.refined import refined as refined
from covfree.refine.registry import registry as registry
