"""Shrinkage that needs no tuning, all of it behind `automatic`."""

from covfree.estimators.automatic.rule import automatic as automatic
from covfree.estimators.automatic.senders import SAMPLE as SAMPLE
from covfree.estimators.automatic.senders import count_keys as count_keys
from covfree.estimators.automatic.senders import fair_numbers as fair_numbers
from covfree.estimators.automatic.senders import mean_keys as mean_keys
from covfree.estimators.automatic.senders import numbered as numbered
from covfree.estimators.automatic.senders import order_of as order_of
