"""Choose shrinkage without tuning: the rule `automatic`, and the sample of clients that it uses."""

from covfree.estimators.automatic.rule import as_matrix_shrinkage as as_matrix_shrinkage
from covfree.estimators.automatic.rule import as_shrinkage as as_shrinkage
from covfree.estimators.automatic.rule import automatic as automatic
from covfree.estimators.automatic.rule import is_automatic as is_automatic
from covfree.estimators.automatic.senders import BITS as BITS
from covfree.estimators.automatic.senders import SAMPLE as SAMPLE
from covfree.estimators.automatic.senders import count_keys as count_keys
from covfree.estimators.automatic.senders import numbered as numbered
from covfree.estimators.automatic.senders import projections as projections
from covfree.estimators.automatic.senders import sample_numbers as sample_numbers
