"""A page in Chromium, without a window."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest


def chromium() -> Any:
    """A driver for the Chromium of this machine; skips where there is none."""
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        pytest.skip("no Chromium on this machine: install the packages chromium and chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = str(programs[0])
    # Chromium has no sandbox for root, whom containers run as.
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=Service(str(programs[1])))
    # On a busy machine a page's script has not always run when the page counts as loaded.
    driver.implicitly_wait(30)
    return driver


def show(driver: Any, page: Path, width: int = 1280, *, script: bool = True, until: str = "true") -> None:
    """Open a page as wide as this, with or without its script; wait for it and for a condition."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not script})
    for last in (False, False, True):
        driver.get(page.as_uri())
        if not script:
            return
        for _ in range(100):
            if driver.execute_script(f"return document.body?.children.length > 0 && {until}"):
                return
            time.sleep(0.2)
        # Rarely the browser of a busy machine shows a page without its text, or does not run its script.
        assert not last, f"{page}: not {until}"


def cells(driver: Any, table: str = "table.sortable") -> list[list[str]]:
    """The text of a table's cells, as the browser shows them."""
    return driver.execute_script(
        "return Array.from(document.querySelector(arguments[0]).tBodies[0].rows,"
        " row => Array.from(row.cells, cell => cell.innerText.trim()))",
        table,
    )
