"""The page that ``--report`` writes: one HTML file with everything in it, which loads nothing."""

from covfree.cli.page.compared import compared_page as compared_page
from covfree.cli.page.finetuned import finetuned_page as finetuned_page
from covfree.cli.page.render import write_page as write_page
