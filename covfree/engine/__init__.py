"""Run a method: in each round add up what clients compute from their rows; then solve for the head."""

from covfree.engine import aggregate as aggregate
from covfree.engine import distributed as distributed
from covfree.engine.arrivals import arrived as arrived
from covfree.engine.batch import accumulate as accumulate
from covfree.engine.batch import fit as fit
from covfree.engine.batch import solve_message as solve_message
from covfree.engine.batch import solve_rows as solve_rows
from covfree.engine.certificate import Certificate as Certificate
from covfree.engine.certificate import certify as certify
from covfree.engine.diagnosis import Diagnosis as Diagnosis
from covfree.engine.diagnosis import diagnose as diagnose
from covfree.engine.evaluation import evaluate as evaluate
from covfree.engine.examples import summarise as summarise
from covfree.engine.generated import Generated as Generated
from covfree.engine.sharded import shard_rows as shard_rows
from covfree.engine.solving import solve_totals as solve_totals
from covfree.engine.stream import Stream as Stream
