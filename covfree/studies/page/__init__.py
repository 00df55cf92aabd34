"""The page that ``--report`` writes: one self-contained HTML file."""

from covfree.studies.page.render import write_page as write_page
from covfree.studies.page.study import page_of as page_of
