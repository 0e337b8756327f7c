"""A real browser for tests: Debian's Chromium under Playwright, or the reason why there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def why_not() -> str | None:
    """Why no browser test can run here; None where one can."""
    if CHROMIUM is None:
        return "no Chromium here: `make test-web` says how to install it"
    if find_spec("playwright") is None:
        return "Playwright is not installed: `make test-web` installs it"
    return None


@contextmanager
def browser() -> Iterator[Any]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield found
        finally:
            found.close()


class Watched:
    """A page whose requests are blocked and counted, and whose errors are noted; `until`: as in Playwright's `goto`."""

    def __init__(
        self, browser: Any, address: str, *, width: int = 1280, dark: bool = False, until: str = "load", **options: Any
    ) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        for earlier in browser.contexts:  # its page would go on drawing
            earlier.close()
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", **options
        )
        self.page = self.context.new_page()
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.address = address
        self.context.route("**/*", self._asked)
        self.page.goto(address, wait_until=until)

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def _asked(self, route: Any) -> None:
        # a blob is what the page itself made: the program of its worker
        if route.request.url.startswith("blob:") or route.request.url.split("#")[0] == self.address.split("#")[0]:
            route.continue_()
        else:
            self.requests.append(route.request.url)
            route.abort()

    def go(self, fragment: str) -> None:
        """Change the fragment, as a link does."""
        self.page.evaluate("fragment => { location.hash = fragment }", fragment)
        self.page.wait_for_timeout(100)

    def assert_quiet(self) -> None:
        """No error in the console, and no request."""
        assert self.errors == []
        assert self.requests == []


if __name__ == "__main__":
    reason = why_not()
    print(f"Browser tests: with {CHROMIUM}" if reason is None else f"Browser tests: SKIPPED, {reason}")
