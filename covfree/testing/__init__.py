"""Check that methods, heads, estimators, transforms and algorithms, also your own, obey their laws.

Call a check in a test. If a law is broken, the check raises an AssertionError with the law's name, its
statement, and the leaf that differs. Each check has its own file, with a table of its laws.
"""

from covfree.testing.algorithm import check_algorithm as check_algorithm
from covfree.testing.estimator import check_estimator as check_estimator
from covfree.testing.head import check_head as check_head
from covfree.testing.method import check_method as check_method
from covfree.testing.shifted import ShiftedClients as ShiftedClients
from covfree.testing.shifted import shifted_clients as shifted_clients
from covfree.testing.transform import check_transform as check_transform
