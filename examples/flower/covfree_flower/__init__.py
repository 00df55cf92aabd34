"""A covfree federation over Flower: Flower carries the bytes that `Server` and `Client` give and take."""
