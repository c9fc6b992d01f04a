"""Runs beside the SuperLink. Settings are under [tool.flwr.app.config] in pyproject.toml."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedwmsam.flower import FlowerStrategy, from_run_config

from .task import LOSS, METRICS, load_test, make_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    method, settings = from_run_config(context.run_config)
    strategy = FlowerStrategy(
        method, make_model, test=load_test(), loss=LOSS, metrics=METRICS, **settings
    )
    strategy.start(grid)
