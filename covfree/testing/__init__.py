"""Contracts for methods, heads, estimators, transforms and algorithms: covfree's keep them, and yours may.

A check is called in a test and raises an AssertionError that names the law that is broken, what it says and
the leaf that differs. There is one file for each check, with a table of its laws.
"""

from covfree.testing.algorithm import check_algorithm as check_algorithm
from covfree.testing.estimator import check_estimator as check_estimator
from covfree.testing.head import check_head as check_head
from covfree.testing.method import check_method as check_method
from covfree.testing.transform import check_transform as check_transform
