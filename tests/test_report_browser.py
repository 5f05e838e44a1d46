"""The page of kerbs-report in a real browser: Chromium without a window, as Debian packages it."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install selenium")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt install chromium"),
    pytest.mark.skipif(DRIVER is None, reason="there is no chromedriver: apt install chromium-driver"),
]
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars"
)
PHONE, DESKTOP = (390, 800), (1100, 900)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))  # its path: selenium would download one
    yield driver
    driver.quit()


def open_page(browser: Any, folder: Path, size: tuple[int, int] = DESKTOP, scheme: str = "light") -> None:
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get((folder / "index.html").as_uri())


def tabs(browser: Any) -> list[Any]:
    return browser.find_elements("css selector", "[role=tab]")


def texts(browser: Any, selector: str) -> list[str]:
    return [element.text for element in browser.find_elements("css selector", selector)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_every_plot_is_seen_in_its_tab(browser: Any, reported: Path, size: tuple[int, int], scheme: str) -> None:
    open_page(browser, reported, size, scheme)
    assert [tab.text for tab in tabs(browser)] == ["Overview", "Compare", "Training", "Senses", "Widths", "Words"]
    seen = 0
    for tab in tabs(browser):
        tab.click()
        assert texts(browser, "main h2") == [name if name == tab.text else "" for name in texts(browser, "[role=tab]")]
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= size[0], f"{tab.text} is wider than the screen"
        for plot in browser.find_elements("css selector", f"#{tab.get_attribute('aria-controls')} figure svg"):
            assert plot.is_displayed()
            assert plot.size["width"] > 200
            assert plot.size["height"] > 100
            drawn = browser.execute_script("return arguments[0].querySelector('g').getBBox().width", plot)
            assert drawn > 100
            seen += 1
    assert seen == len(list((reported / "figures").glob("*.svg")))
    assert browser.get_log("browser") == []


def test_light_and_dark_have_colours_of_their_own(browser: Any, reported: Path) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        open_page(browser, reported, DESKTOP, scheme)
        text, line = (
            browser.execute_script(f"return getComputedStyle(document.querySelector('{where}')).{what}")
            for where, what in (("#training svg text", "fill"), ("#training svg path[style*=c0]", "stroke"))
        )
        page = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        colours[scheme] = (page, text, line)
    assert all(light != dark for light, dark in zip(colours["light"], colours["dark"]))
    for page, text, line in colours.values():
        assert len({page, text, line}) == 3


def test_a_word_is_searched_and_shown(browser: Any, reported: Path) -> None:
    open_page(browser, reported)
    tabs(browser)[-1].click()
    assert [text.split()[0] for text in texts(browser, "#matches button")] == ["the", "a", "bank"]  # those asked for
    box = browser.find_element("id", "search")
    box.send_keys("BAN")
    assert texts(browser, "#matches button")[0].split()[0] == "bank"
    assert texts(browser, "#detail h3") == ["bank"]
    assert "of its usage" in texts(browser, "#detail .sense")[0]
    assert set(texts(browser, "#detail mark")) <= {"bank"}
    nearest = browser.find_element("css selector", "#detail button.word")
    name = nearest.text
    nearest.click()
    assert texts(browser, "#detail h3") == [name]
    box.clear()
    box.send_keys("bnak")
    assert "No word has “bnak” in it" in browser.find_element("id", "message").text
    assert "bank" in [text.split()[0] for text in texts(browser, "#matches button")]
    assert browser.get_log("browser") == []


def test_tabs_by_keyboard(browser: Any, reported: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    open_page(browser, reported)
    tabs(browser)[0].click()
    browser.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    assert [tab.get_attribute("aria-selected") for tab in tabs(browser)] == ["false"] * 5 + ["true"]
    assert browser.find_element("id", "words").is_displayed()
