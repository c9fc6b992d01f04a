"""Measurements of finished runs: flatness, landscapes, embeddings, dynamics and the theorem.

Each module computes results from run folders and turns them into tables and plots.
"""
