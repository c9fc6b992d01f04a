"""What the server remembers about clients: kept only for those that took part.

A round's changes are collected and take effect together, so that a round given up half-way leaves no trace.
"""

from fedwmsam.training.vectors import Vectors


class Memory:
    def __init__(self, rows: dict[int, Vectors] | None = None) -> None:
        self.rows = dict(rows or {})

    def __len__(self) -> int:
        return len(self.rows)

    def get(self, client: int) -> Vectors | None:
        return self.rows.get(client)

    def commit(self, changes: dict[int, Vectors]) -> None:
        self.rows.update({client: row for client, row in changes.items() if row})
