"""How many keys each head gets."""
