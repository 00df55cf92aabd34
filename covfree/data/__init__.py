"""Data: the embedded default, and features as users have them."""

from covfree.data.dataset import FeatureSet as FeatureSet
from covfree.data.dataset import load as load
from covfree.data.dataset import load_digits as load_digits
from covfree.data.dataset import load_npz as load_npz
