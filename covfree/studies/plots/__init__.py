"""Pictures of studies with Matplotlib: their style, and one module for each kind."""
