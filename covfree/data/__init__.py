"""Data: the built-in digits, feature files, image and text sets, and the extraction of their features."""

from covfree.data.dataset import FeatureSet as FeatureSet
from covfree.data.dataset import load as load
from covfree.data.dataset import load_digits as load_digits
from covfree.data.dataset import load_npz as load_npz
from covfree.data.extract import encode_texts as encode_texts
from covfree.data.extract import extract_features as extract_features
from covfree.data.feature_file import FeatureFile as FeatureFile
from covfree.data.feature_file import read_feature_file as read_feature_file
from covfree.data.folders import image_folder as image_folder
from covfree.data.from_tfds import tfds as tfds
from covfree.data.image_set import ImageSet as ImageSet
from covfree.data.image_set import image_arrays as image_arrays
from covfree.data.images import federation as federation
from covfree.data.images import image_table as image_table
from covfree.data.images import leaf_images as leaf_images
from covfree.data.images import load_images as load_images
from covfree.data.kept import Extracted as Extracted
from covfree.data.texts import TextSet as TextSet
from covfree.data.texts import load_texts as load_texts
