"""Pickles of torch and Paddle, interpreted without executing them."""
