"""Methods of several rounds, in each of which clients send a sum over their examples."""

from covfree.staged.deepafl import DeepFeatures as DeepFeatures
from covfree.staged.deepafl import deepafl as deepafl
from covfree.staged.registry import registry as registry
from covfree.staged.safle import safle as safle
