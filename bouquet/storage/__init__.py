"""What is on disk: sealed files, personal state, runs' folders."""
