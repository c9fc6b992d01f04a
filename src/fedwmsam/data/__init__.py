"""Data sets as compactly stored samples, and their partitions over clients as index lists."""

from fedwmsam.data.base import Dataset, Normalise, Prepare, Split
from fedwmsam.data.datasets import DATASETS, dataset_options, load_dataset
from fedwmsam.data.hub import from_hub
from fedwmsam.data.partitions import Partition, make_partition

__all__ = [
    "DATASETS",
    "Dataset",
    "Normalise",
    "Partition",
    "Prepare",
    "Split",
    "dataset_options",
    "from_hub",
    "load_dataset",
    "make_partition",
]
