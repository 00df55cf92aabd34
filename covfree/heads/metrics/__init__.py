"""Metrics of a head's scores: accuracy overall, by class and by client, calibration, likelihood.

All functions take the scores ``[examples, classes]`` of a head, and the labels ``[examples]``, and follow
these rules:

- An example with a label below 0 is padding: it is ignored.
- With C classes, a label of C or above is an error; if it is traced, it is padding.
- A score of −∞ marks a class that the head does not know: it is never predicted and has probability 0.
- An example whose scores are all −∞, or include NaN, has no prediction. It counts as wrong.
- A mean without examples, such as the accuracy of a class or a client that has none, is NaN.

No intermediate array is larger than the scores, except for the C × C counts of a confusion matrix.
"""

from covfree.heads.metrics.figures import CLIENT_NAMES as CLIENT_NAMES
from covfree.heads.metrics.figures import NAMES as NAMES
from covfree.heads.metrics.figures import accuracy as accuracy
from covfree.heads.metrics.figures import balanced_accuracy as balanced_accuracy
from covfree.heads.metrics.figures import calibration_error as calibration_error
from covfree.heads.metrics.figures import class_precision as class_precision
from covfree.heads.metrics.figures import class_recall as class_recall
from covfree.heads.metrics.figures import client_accuracy as client_accuracy
from covfree.heads.metrics.figures import confusion_matrix as confusion_matrix
from covfree.heads.metrics.figures import measure as measure
from covfree.heads.metrics.figures import nll as nll
