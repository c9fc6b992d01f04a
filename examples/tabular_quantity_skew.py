"""A table whose clients have very different amounts of data: who counts how much in the mean?

    python examples/tabular_quantity_skew.py                      # six kinds of generated rows
    python examples/tabular_quantity_skew.py --file visits.csv    # your table, labels last

`quantity:2` partitions the rows log-normally: a few clients have most of them, and many have a
handful. FedAvg's paper weights clients by their number of rows (`averaging="size"`), so that the
large ones decide; with equal weights each client counts the same, however little data it has. The
table shows both, and the accuracies on the smallest and the largest clients.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import make_classification
from torch import Tensor, nn

import fedwmsam
from fedwmsam.data import Dataset, load_dataset, make_partition

CLIENTS = 20


def main() -> None:
    data = load_table()
    x, y = data.transform_split(data.train)
    split = make_partition(
        "quantity:2", y.numpy(), clients=CLIENTS, seed=0, classes=data.num_classes
    )
    clients = [(x[rows], y[rows]) for rows in map(torch.from_numpy, split.client_indices)]
    clients.sort(key=count_rows)
    counts = ", ".join(str(count_rows(client)) for client in clients)
    print(f"{len(x)} rows on {CLIENTS} clients: {counts}")

    table = Table("method", "weighed", "test accuracy", "ten smallest clients", "ten largest")
    for method in ("fedavg", "fedwmsam"):
        for averaging in ("uniform", "size"):
            hidden = nn.Linear(x.shape[1], 32)
            model = nn.Sequential(hidden, nn.ReLU(), nn.Linear(32, data.num_classes))
            result = fedwmsam.fit(
                model,
                clients,
                method,
                test=data.transform_split(data.test),
                rounds=20,
                averaging=averaging,
                batch_size=10,
            )
            by_client = [result.evaluate(client)["accuracy"] for client in clients]
            accuracies = (
                result.last("accuracy"),
                np.mean(by_client[:10]),
                np.mean(by_client[10:]),
            )
            table.add_row(method, averaging, *(f"{accuracy:.3f}" for accuracy in accuracies))
    Console(width=110).print(table)


def load_table() -> Dataset:
    """Return the file of the command line, or a generated one.

    The generated one has a header, twenty numbers per row, and the kind of the row, one of six.
    """
    parser = argparse.ArgumentParser(description="Quantity skew on a table.")
    parser.add_argument(
        "--file", help="a CSV file with a header, numbers, and the label in the last column"
    )
    file = parser.parse_args().file
    if file is None:
        x, y = make_classification(
            1500, 20, n_informative=10, n_redundant=0, n_classes=6, random_state=0
        )
        names = [f"measurement {k}" for k in range(20)] + ["kind"]
        file = Path(tempfile.mkdtemp(), "measurements.csv")
        rows = np.column_stack([x, y])
        header = ",".join(names)
        np.savetxt(file, rows, fmt="%g", delimiter=",", header=header, comments="")
    return load_dataset(str(file))


def count_rows(client: tuple[Tensor, Tensor]) -> int:
    """Return how many rows a client has."""
    _, labels = client
    return len(labels)


if __name__ == "__main__":
    main()
