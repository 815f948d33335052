"""Seeing a model's attention: loading, its attention calls, masks, texts."""
