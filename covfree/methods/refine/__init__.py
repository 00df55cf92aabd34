"""Improve closed-form heads in more rounds: `refined` makes them exact, `corrected` lowers their loss."""

from covfree.methods.refine.corrected import corrected as corrected
from covfree.methods.refine.refined import refined as refined
