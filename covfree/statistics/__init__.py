"""Compute the statistics that a client sends, from its examples."""

from covfree.statistics.gram import GramStatistics as GramStatistics
from covfree.statistics.gram import gram as gram
from covfree.statistics.kept import kept_aside as kept_aside
from covfree.statistics.means import class_covariances as class_covariances
from covfree.statistics.means import class_means as class_means
from covfree.statistics.rows import client_rows as client_rows
from covfree.statistics.rows import count_rows as count_rows
