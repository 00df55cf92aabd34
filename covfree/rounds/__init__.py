"""Federated algorithms in rounds (clients upload, the server sums), and their simulation on one machine."""

from covfree.core.sums import Table as Table
from covfree.rounds.adding import add as add
from covfree.rounds.algorithm import Algorithm as Algorithm
from covfree.rounds.algorithm import ClientData as ClientData
from covfree.rounds.book import Checkpoint as Checkpoint
from covfree.rounds.book import Evaluation as Evaluation
from covfree.rounds.from_method import as_algorithm as as_algorithm
from covfree.rounds.memory import Placement as Placement
from covfree.rounds.run import Run as Run
from covfree.rounds.run import run as run
from covfree.rounds.schedule import as_schedule as as_schedule
from covfree.rounds.schedule import first_rounds as first_rounds
from covfree.rounds.schedule import participation as participation
from covfree.rounds.schedule import rounds_to_meet as rounds_to_meet
