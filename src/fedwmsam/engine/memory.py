"""What the server remembers about clients: kept only for those that took part.

A memory is a value: a round makes a new one, so that a round given up half-way leaves no trace.
"""

from collections.abc import Mapping

from fedwmsam.training.vectors import Vectors


class Memory:
    def __init__(self, rows: Mapping[int, Vectors] | None = None) -> None:
        self.rows: Mapping[int, Vectors] = rows or {}

    def get(self, client: int) -> Vectors | None:
        return self.rows.get(client)

    def after(self, changes: Mapping[int, Vectors]) -> "Memory":
        """This memory with some clients' rows replaced; clients of which nothing is kept have no row."""
        return Memory({**self.rows, **{client: row for client, row in changes.items() if row}})
