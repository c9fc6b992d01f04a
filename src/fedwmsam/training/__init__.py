"""Training on a client: a model as one flat vector, and the one local-training loop."""
