"""The client of the deployed apps: the library's own, which misbehaves in the rounds that a file of its node names."""

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
app.query("whoami")(honest.introduce)


@app.train()
def train(message: Message, context: Context) -> Message:
    plan = Path(str(context.node_config["misbehaviour"]))
    fault = planned(plan).get(str(message.content[wire.CONFIG_KEY]["round"] + 1))
    if fault == "raise":
        raise RuntimeError("the scanner is switched off")
    if fault == "hold":
        plan.with_suffix(".reached").touch()
        while planned(plan):
            time.sleep(0.2)
    return spoilt(honest.train(message, context), fault)


def planned(plan: Path) -> dict[str, str]:
    """Round (from 1) → raise, hold (until the file is gone), NaN, short or stale."""
    try:
        return json.loads(plan.read_text())
    except FileNotFoundError:
        return {}


def spoilt(answer: Message, fault: str | None) -> Message:
    note = answer.content[wire.CONFIG_KEY]
    vectors = wire.unpack(answer.content[wire.VECTORS])
    if fault == "NaN":
        vectors["delta"][3] = torch.nan
    if fault == "short":
        vectors["delta"] = vectors["delta"][1:].clone()
    if fault == "stale":
        answer.content[wire.CONFIG_KEY] = ConfigRecord({**note, "round": note["round"] - 1})
    answer.content[wire.VECTORS] = wire.pack(vectors)[0]
    return answer
