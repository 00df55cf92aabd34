"""Closed-form heads made exact over a few rounds of small messages."""

from covfree.methods.refine.corrected import corrected as corrected
from covfree.methods.refine.refined import refined as refined
