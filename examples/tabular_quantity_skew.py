"""A table whose clients have very different amounts of data: who counts how much in the mean?

    python examples/tabular_quantity_skew.py                        # six kinds of made-up measurements
    python examples/tabular_quantity_skew.py --file visits.csv      # your table; the last column is the label

`quantity:2` deals rows out log-normally: a few clients have most of them, and many have a handful. FedAvg's paper
weighs clients by their number of rows (`averaging="size"`), so that the large ones decide; weighing alike gives
each client one voice, however little it has seen. The table shows both, and what the smallest and largest clients get.
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
    x, y = data.prepared(data.train)
    split = make_partition("quantity:2", y.numpy(), clients=CLIENTS, seed=0, classes=data.classes)
    clients = sorted(
        ((x[rows], y[rows]) for rows in map(torch.from_numpy, split.clients)), key=rows_of
    )
    print(
        f"{len(x)} rows on {CLIENTS} clients: {', '.join(str(rows_of(client)) for client in clients)}"
    )

    table = Table("method", "weighed", "test accuracy", "ten smallest clients", "ten largest")
    for method in ("fedavg", "fedwmsam"):
        for averaging in ("uniform", "size"):
            result = fedwmsam.fit(
                nn.Sequential(nn.Linear(x.shape[1], 32), nn.ReLU(), nn.Linear(32, data.classes)),
                clients,
                method,
                test=data.prepared(data.test),
                rounds=20,
                averaging=averaging,
                batch_size=10,
            )
            own = [result.evaluate(client)["accuracy"] for client in clients]
            figures = (result.last("accuracy"), np.mean(own[:10]), np.mean(own[10:]))
            table.add_row(method, averaging, *(f"{figure:.3f}" for figure in figures))
    Console(width=110).print(table)


def load_table() -> Dataset:
    """The given file, or one that is made up: twenty numbers a row and which of six kinds it is, below a header."""
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
        np.savetxt(
            file,
            np.column_stack([x, y]),
            fmt="%g",
            delimiter=",",
            header=",".join(names),
            comments="",
        )
    return load_dataset(str(file))


def rows_of(client: tuple[Tensor, Tensor]) -> int:
    return len(client[1])


if __name__ == "__main__":
    main()
