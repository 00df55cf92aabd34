"""Rounds of small messages that make closed-form heads exact, or correct them."""

from covfree.methods.refine.corrected import corrected as corrected
from covfree.methods.refine.refined import refined as refined
