"""Data sets as compactly stored samples, and their partitions over clients as index lists."""

from fedwmsam.data.base import BatchTransform, Dataset, Normalise, Split
from fedwmsam.data.datasets import DATASETS, dataset_options, load_dataset
from fedwmsam.data.hub import from_huggingface
from fedwmsam.data.partitions import Partition, make_partition

__all__ = [
    "DATASETS",
    "BatchTransform",
    "Dataset",
    "Normalise",
    "Partition",
    "Split",
    "dataset_options",
    "from_huggingface",
    "load_dataset",
    "make_partition",
]
