"""From token ids and pixels to batches of tensors: stores on disk, one class of rows for each task, batches by length."""
