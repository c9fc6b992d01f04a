"""Runs beside the SuperLink. Settings are under [tool.flwr.app.config] in pyproject.toml."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedwmsam.flower import FlowerStrategy, from_run_config

from .task import load_test, make_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    method, settings = from_run_config(context.run_config)
    FlowerStrategy(method, make_model, test=load_test(), **settings).start(grid)
