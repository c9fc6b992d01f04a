"""Helpers of several tests: problems, deployments, and files and folders written by hand."""
