"""Feature extractors: networks in Flax with published weights, and networks of other libraries."""

from covfree.backbones.convolution import convolve as convolve
from covfree.backbones.convolution import max_pool as max_pool
from covfree.backbones.extractor import Backbone as Backbone
from covfree.backbones.extractor import backbone as backbone
from covfree.backbones.extractors import Extractor as Extractor
from covfree.backbones.extractors import Prepared as Prepared
from covfree.backbones.extractors import from_function as from_function
from covfree.backbones.hub import Weights as Weights
from covfree.backbones.hub import hub_weights as hub_weights
from covfree.backbones.onnx_file import from_onnx as from_onnx
from covfree.backbones.preprocess import preprocess as preprocess
from covfree.backbones.sentence import SentenceEncoder as SentenceEncoder
from covfree.backbones.sentence import sentence_encoder as sentence_encoder
from covfree.backbones.table import BACKBONES as BACKBONES
from covfree.backbones.table import Preprocessing as Preprocessing
from covfree.backbones.table import Spec as Spec
from covfree.backbones.torch_module import from_torch as from_torch
from covfree.backbones.weights import read_weights as read_weights
