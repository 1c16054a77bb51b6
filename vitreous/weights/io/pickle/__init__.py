"""Reader for torch and Paddle pickles that executes no code in them."""
