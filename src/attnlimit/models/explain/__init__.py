"""What each head of a model reads, and how far that can be trusted."""
