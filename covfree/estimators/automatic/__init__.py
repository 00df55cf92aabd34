"""Shrinkage that needs no tuning, all of it behind `automatic`."""

from covfree.estimators.automatic.rule import automatic as automatic
from covfree.estimators.automatic.senders import fair_numbers as fair_numbers
from covfree.estimators.automatic.senders import numbered as numbered
