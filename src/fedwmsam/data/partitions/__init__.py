"""Partitions: which training samples each client holds.

The paper's rules, `dirichlet` and `pathological`, are those of its released code: equal sizes,
class proportions drawn per client, and samples of a class taken in shuffled order without
replacement until the class is used up, then from the start again. So samples of popular classes
appear several times and some of unpopular classes never; the total stays the same. All other
rules, and `dirichlet` with `exhausted=renormalise`, never assign a sample twice. docs/partitions.md
defines every rule.

`rules.py` has the rules, `registry.py` their names and syntax, and `partition.py` the result.
"""

from fedwmsam.data.partitions.partition import Partition, measure_heterogeneity
from fedwmsam.data.partitions.registry import SYNTAX, make_partition, parse_partition_rule

__all__ = ["SYNTAX", "Partition", "make_partition", "measure_heterogeneity", "parse_partition_rule"]
