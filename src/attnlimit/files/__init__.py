"""What is read from and written to disk: records, tables, YAML, arrays."""
