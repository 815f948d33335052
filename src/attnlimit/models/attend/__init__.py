"""A model that attends to its budgets' keys only."""
