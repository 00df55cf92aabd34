"""An engineer with message files, who runs the page on servers from top to bottom."""

from pages import run_page


def test_page_on_servers_runs_in_a_process_of_its_own(folder):
    run_page("docs/server.md", folder)
