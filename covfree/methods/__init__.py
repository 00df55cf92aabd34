"""The named methods, each a few lines that choose parts."""

from covfree.methods.fed3r import fed3r as fed3r
from covfree.methods.fedcof import fedcof as fedcof
from covfree.methods.fedcof import fedcof_oracle as fedcof_oracle
from covfree.methods.fedncm import fedncm as fedncm
from covfree.methods.method import ClassMeans as ClassMeans
from covfree.methods.method import Examples as Examples
from covfree.methods.method import Factor as Factor
from covfree.methods.method import Method as Method
from covfree.methods.registry import Entry as Entry
from covfree.methods.registry import registry as registry
