"""What several tests share: problems, deployments, files and folders made by hand."""
