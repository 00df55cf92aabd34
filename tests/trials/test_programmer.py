"""A JAX programmer, who runs the README from top to bottom."""

from pages import run_page


def test_readme_runs_in_a_process_of_its_own(folder):
    run_page("README.md", folder)
