"""Closed-form heads made exact over a few rounds."""

from covfree.refine.refined import Refined as Refined
from covfree.refine.refined import refined as refined
from covfree.refine.registry import registry as registry
