"""The global model on the clients' own test data."""

import math

from flwr.app import Message, MetricRecord

from fedwmsam.flower.exchange import reason_of
from fedwmsam.flower.wire import WireError

SIZE = "num-examples"


def read_evaluation(reply: Message) -> dict[str, float]:
    """A client's numbers; WireError unless all of them are finite and they say how many samples they are over."""
    if reply.has_error():
        raise WireError(reason_of(reply))
    record = reply.content.metric_records.get("metrics", MetricRecord())
    values = {name: float(value) for name, value in record.items() if isinstance(value, int | float)}
    if len(values) != len(record) or not all(map(math.isfinite, values.values())) or not values.get(SIZE, 0) > 0:
        raise WireError(f"its numbers cannot be used: {dict(record)}.")
    return values


def mean_evaluation(records: list[dict[str, float]]) -> dict[str, float]:
    """Means over clients, weighted by their numbers of samples, under names that begin with clients_."""
    total = math.fsum(record[SIZE] for record in records)
    names = [name for name in records[0] if name != SIZE and all(name in record for record in records)]
    return {f"clients_{name}": math.fsum(r[name] * r[SIZE] for r in records) / total for name in names}
