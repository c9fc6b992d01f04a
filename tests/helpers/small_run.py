"""The flags of a run that takes a second."""

SMALL_RUN = [
    "--model",
    "linear",
    "--clients",
    "5",
    "--participation",
    "0.4",
    "--local-epochs",
    "1",
    "--rounds",
    "3",
]
