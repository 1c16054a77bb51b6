"""Training: one loop for every task, from a folder of pictures to a checkpoint and a report."""
