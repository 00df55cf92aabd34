"""Rounds of sums: what passes between clients and a server in any federated algorithm, and who runs it."""

from covfree.rounds.algorithm import Algorithm as Algorithm
from covfree.rounds.algorithm import ClientData as ClientData
from covfree.rounds.from_method import as_algorithm as as_algorithm
from covfree.rounds.run import Run as Run
from covfree.rounds.run import run as run
from covfree.rounds.uploads import Table as Table
from covfree.rounds.uploads import add as add
