"""What budgets do to a model's own task."""
