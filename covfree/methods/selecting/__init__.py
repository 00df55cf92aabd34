"""Choosing a method, or its hyperparameters, by clients' own examples."""

from covfree.methods.selecting.select import select as select
