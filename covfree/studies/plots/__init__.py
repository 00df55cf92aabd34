"""Pictures of studies, with Matplotlib: how they look, and one file for each kind."""
