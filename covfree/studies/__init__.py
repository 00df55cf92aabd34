"""Studies: run data sets × federations × methods × seeds, store the runs in a folder, tabulate them."""

from covfree.studies.federation import Federation as Federation
from covfree.studies.federation import LeftOut as LeftOut
from covfree.studies.federation import federations as federations
from covfree.studies.plots.partition import plot_partition as plot_partition
from covfree.studies.predictions import Predictions as Predictions
from covfree.studies.present import illustrate as illustrate
from covfree.studies.result import Result as Result
from covfree.studies.result import Run as Run
from covfree.studies.result import accuracy_table as accuracy_table
from covfree.studies.result import summarise as summarise
from covfree.studies.study import Cell as Cell
from covfree.studies.study import Study as Study
from covfree.studies.table import Table as Table
from covfree.studies.table import as_latex as as_latex
from covfree.studies.table import as_markdown as as_markdown
from covfree.studies.variants import Variant as Variant
from covfree.studies.variants import variants as variants
