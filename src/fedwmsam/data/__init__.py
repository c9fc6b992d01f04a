"""Data sets as tensors, and their partitions over clients as index lists."""

from fedwmsam.data.datasets import DATASETS, Dataset, load_dataset
from fedwmsam.data.partitions import Partition, make_partition, parse_rule

__all__ = [
    "DATASETS",
    "Dataset",
    "Partition",
    "load_dataset",
    "make_partition",
    "parse_rule",
]
