"""Choosing a method, or its numbers, by clients' own examples."""

from covfree.methods.selecting.select import select as select
