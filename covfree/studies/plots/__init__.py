"""Pictures of studies with Matplotlib: one module for each kind of picture, and their common style."""
