"""The choice among methods, and among their numbers, by clients' own examples."""

from covfree.methods.selecting.select import select as select
