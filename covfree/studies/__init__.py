"""Sweeps: data sets × federations × methods × seeds, resumable, in one file and one table."""

from covfree.studies.federation import Federation as Federation
from covfree.studies.federation import LeftOut as LeftOut
from covfree.studies.federation import federations as federations
from covfree.studies.one_run import Run as Run
from covfree.studies.plots.partition import plot_partition as plot_partition
from covfree.studies.predictions import Predictions as Predictions
from covfree.studies.summary import Result as Result
from covfree.studies.summary import accuracy_table as accuracy_table
from covfree.studies.summary import summarise as summarise
from covfree.studies.sweep import Begun as Begun
from covfree.studies.sweep import Job as Job
from covfree.studies.sweep import run as run
from covfree.studies.table import Table as Table
from covfree.studies.table import as_latex as as_latex
from covfree.studies.table import as_markdown as as_markdown
from covfree.studies.variants import Variant as Variant
from covfree.studies.variants import variants as variants
