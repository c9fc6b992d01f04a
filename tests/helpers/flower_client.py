"""The client of the deployed apps.

It is the library's own client, but misbehaves in the rounds that a file of its node names.
"""

import json
import time
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from fedwmsam.flower import make_client_app, wire

from .task import load_data, make_model

honest = make_client_app(make_model, load_data).client
app = ClientApp()
app.query("whoami")(honest.whoami)


@app.train()
def train(message: Message, context: Context) -> Message:
    path = Path(str(context.node_config["misbehaviour"]))
    fault = read_faults(path).get(str(message.content[wire.CONFIG_KEY]["round"] + 1))
    if fault == "raise":
        raise RuntimeError("the scanner is switched off")
    if fault == "hold":
        path.with_suffix(".reached").touch()
        while read_faults(path):
            time.sleep(0.2)
    return spoil(honest.train(message, context), fault)


def read_faults(path: Path) -> dict[str, str]:
    """Return the faults by round (from 1).

    A fault is one of raise, hold (until the file is gone), NaN, short and stale.
    """
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return {}


def spoil(reply: Message, fault: str | None) -> Message:
    """Return the reply with the fault; raise and hold happen before there is a reply."""
    record = reply.content[wire.CONFIG_KEY]
    vectors = wire.unpack(reply.content[wire.VECTORS])
    if fault == "NaN":
        vectors["delta"][3] = torch.nan
    if fault == "short":
        vectors["delta"] = vectors["delta"][1:].clone()
    if fault == "stale":
        reply.content[wire.CONFIG_KEY] = ConfigRecord({**record, "round": record["round"] - 1})
    reply.content[wire.VECTORS], _ = wire.pack(vectors)
    return reply
