"""Messages to people about a run: addresses, texts, delivery. Client and nodes use it."""
