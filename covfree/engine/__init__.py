"""Running a method: its phases over rows, then its solve."""

from covfree.engine.batch import RowsReport as RowsReport
from covfree.engine.batch import accumulate as accumulate
from covfree.engine.batch import evaluate as evaluate
from covfree.engine.batch import fit as fit
from covfree.engine.batch import inspect_rows as inspect_rows
from covfree.engine.batch import solve_message as solve_message
from covfree.engine.batch import solve_rows as solve_rows
from covfree.engine.batch import solve_totals as solve_totals
from covfree.engine.batch import summarise as summarise
