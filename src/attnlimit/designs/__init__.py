"""Which n keys a query reads: what is kept, how the rest is drawn, how it is weighed."""
