"""Runs on every client. The method and all settings come from the server."""

from fedwmsam.flower import make_client_app

from .task import LOSS, METRICS, load_data, make_model

app = make_client_app(make_model, load_data, loss=LOSS, metrics=METRICS)
