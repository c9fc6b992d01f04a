"""Which training samples each client holds.

The paper's rules, `dirichlet` and `pathological`, are those of its released code: equal sizes, class proportions drawn
per client, and samples of a class taken in shuffled order without replacement until the class is used up, then from the
start again. So samples of popular classes appear several times and some of unpopular classes never; the total stays the
same. All other rules, and `dirichlet` with `exhausted=renormalise`, never deal a sample twice. docs/partitions.md
defines every rule.
"""

from fedwmsam.data.partitions.parse import SYNTAX, make_partition, parse_rule
from fedwmsam.data.partitions.partition import Partition, heterogeneity

__all__ = ["SYNTAX", "Partition", "heterogeneity", "make_partition", "parse_rule"]
