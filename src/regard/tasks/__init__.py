"""One module per task: what a run of the task reads, learns, says and is scored by."""
