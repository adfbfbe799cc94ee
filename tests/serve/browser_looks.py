"""Looks at a page in Debian's Chromium and prints what it saw as JSON. Run by the environment ``browser``'s Python.

Usage: browser_looks.py URL LOOK... Each look stays until the answer is over, so that tokens are seen as they come.
"""

from __future__ import annotations

import json
import sys

from playwright.sync_api import Page, sync_playwright

CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]
LOOKS = {
    "wide": {"viewport": {"width": 1200, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1200, "height": 900}, "color_scheme": "dark", "reduced_motion": "reduce"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "has_touch": True},
}
TOKENS = """() => [...document.querySelectorAll("#text > span")].map(span => {
  const style = getComputedStyle(span);
  return {text: span.textContent, kind: span.className, color: style.color, line: style.textDecorationLine,
    style: style.textDecorationStyle, weight: style.fontWeight, label: span.getAttribute("aria-label"),
    box: span.getBoundingClientRect().height};
})"""
PAGE = """() => {
  const one = selector => document.querySelector(selector), style = selector => getComputedStyle(one(selector));
  return {
    width: document.documentElement.scrollWidth, inner: innerWidth, address: location.href,
    ink: style("body").color, paper: style("body").backgroundColor, faint: style(".hint").color,
    moves: style(".bar i").transitionDuration, text: document.body.innerText, markup: document.body.innerHTML,
    images: document.images.length, attacked: window.attacked === true,
    requests: [...document.querySelectorAll("#requests tbody tr")].map(row => row.cells[0].textContent),
    gaps: document.querySelectorAll("#kl rect.gap").length,
  };
}"""


def by_keyboard(page: Page) -> list[str]:
    """Walk over the tokens with the arrow keys alone; return what is told of each."""
    page.locator("#text > span").first.focus()
    page.keyboard.press("Home")
    told = []
    for number in range(page.locator("#text > span").count()):
        told.append(page.locator("#detail").inner_text())
        if page.evaluate("[...document.activeElement.parentNode.children].indexOf(document.activeElement)") != number:
            told.append("the focus is elsewhere")
        page.keyboard.press("ArrowRight")
    page.keyboard.press("End")
    return told


def look(page: Page, url: str) -> dict:
    """Open a page, wait for its answers to be over, and return what is seen."""
    counts: list[int] = []
    page.goto(url)
    page.wait_for_selector("#text > span")
    for _ in range(200):
        counts.append(page.locator("#text > span").count())
        if page.locator("#what .state").inner_text().startswith(("finished", "failed", "left")):
            break
        page.wait_for_timeout(50)
    page.wait_for_timeout(200)
    seen = page.evaluate(PAGE) | {"grew": counts, "tokens": page.evaluate(TOKENS)}
    seen["details"] = by_keyboard(page)
    page.locator("#text > span").first.hover()
    seen["hovered"] = page.locator("#detail").inner_text()
    return seen


def main() -> None:
    """Look in every way that is named, and print it all."""
    url, *looks = sys.argv[1:]
    found = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for name in looks:
            context = browser.new_context(**LOOKS[name])
            page = context.new_page()
            errors: list[str] = []
            asked: list[str] = []
            page.on("console", lambda message, errors=errors: errors.append(f"{message.type}: {message.text}"))
            page.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            found[name] = look(page, url) | {"errors": errors, "asked": asked}
            context.close()
        browser.close()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
