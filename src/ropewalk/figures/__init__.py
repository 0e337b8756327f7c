"""Numbers to pictures: every function takes numbers, returns a matplotlib figure, and computes nothing."""
