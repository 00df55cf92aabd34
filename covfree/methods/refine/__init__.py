"""Improve closed-form heads in more rounds: `refined` with the exact covariance, `corrected` by the loss."""

from covfree.methods.refine.corrected import corrected as corrected
from covfree.methods.refine.refined import refined as refined
