"""Data sets as compactly stored samples, and their partitions over clients as index lists.

Readers of bytes, which trust nothing that a file claims:

- `idx.py`: the IDX files of MNIST.
- `npy.py`: the headers and arrays of `.npy` files.
- `safe_pickle.py`: pickle files of plain data, without Python's unpickler.
- `image_folder.py`, `decode_image`: encoded images, with Pillow.

Loaders, which turn the files of a data set into a `Dataset`; `datasets.py` lists them by name and
by file suffix:

- `mnist.py`: MNIST, Fashion-MNIST and KMNIST.
- `cifar.py`: CIFAR-10 and CIFAR-100.
- `image_folder.py`: folders of images, and the data sets published as such.
- `arrays.py`: `.npz` and `.npy` files.
- `table.py`: CSV files.
- `text.py`: text by speaker, in JSON lines.
- `hub.py`: data sets that the Hugging Face `datasets` package holds in memory.

`paths.py` and `download.py` find the files or fetch them, and `cache.py` keeps what takes long to
decode. `base.py` defines `Dataset`.

`partitions/` divides the samples of a `Dataset` among clients. `adapter.py` adapts what users pass
to `fit` instead of a `Dataset`; `clients.py` has the classes that both ways end in: the samples of
one client, by index.

A sample may carry a *group*: the natural client it comes from, such as its speaker, its device or
its domain. The partition rule `natural` makes one client of each group.
"""

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
