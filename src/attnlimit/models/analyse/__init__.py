"""What each head of a model needs, exactly."""
