"""The papers' figures, a file each, and reference methods of theirs."""
