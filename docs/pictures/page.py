"""Takes the pictures of the page of `heed serve runs/demo`: python docs/pictures/page.py http://127.0.0.1:8080"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

SENTENCE = "The animal didn't cross the street because it was too tired."
HERE = Path(__file__).parent


def take(browser: Browser, address: str) -> None:
    """Screenshots: on a desktop in light mode while an alternative is chosen; on a phone in dark mode after it was."""
    screen = browser.new_page(color_scheme="light", viewport={"width": 1280, "height": 810})
    phone = browser.new_page(color_scheme="dark", viewport={"width": 390, "height": 760})
    for page, name in ((screen, "serve"), (phone, "serve-phone")):
        page.goto(address)
        page.fill("#text", SENTENCE)
        page.click("summary")
        page.click(".word:text-is('il')")
        page.wait_for_selector("#alternatives:popover-open")
        page.keyboard.press("ArrowDown")
        if page is phone:
            page.keyboard.press("Enter")
        page.wait_for_timeout(300)
        page.screenshot(path=HERE / f"{name}.png")


if __name__ == "__main__":
    with sync_playwright() as playwright:
        take(
            playwright.chromium.launch(
                executable_path=shutil.which("chromium"),
                args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
            ),
            sys.argv[1],
        )
