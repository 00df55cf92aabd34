"""Running a method: its rounds over rows, then its head."""

from covfree.engine.arrivals import arrived as arrived
from covfree.engine.batch import fit as fit
from covfree.engine.batch import solve_message as solve_message
from covfree.engine.batch import solve_rows as solve_rows
from covfree.engine.batch import solve_totals as solve_totals
from covfree.engine.diagnosis import Diagnosis as Diagnosis
from covfree.engine.diagnosis import diagnose as diagnose
from covfree.engine.evaluation import evaluate as evaluate
from covfree.engine.examples import summarise as summarise
from covfree.engine.made import accumulate_parts as accumulate_parts
from covfree.engine.sharded import accumulate_sharded as accumulate_sharded
from covfree.engine.sharded import shard_rows as shard_rows
from covfree.engine.stream import accumulate_stream as accumulate_stream
from covfree.engine.stream import solve_stream as solve_stream
from covfree.engine.totals import accumulate as accumulate
