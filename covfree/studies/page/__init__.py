"""The page that ``--report`` writes: one HTML file with everything in it, which loads nothing."""

from covfree.studies.page.compared import compared_page as compared_page
from covfree.studies.page.finetuned import finetuned_page as finetuned_page
from covfree.studies.page.render import write_page as write_page
