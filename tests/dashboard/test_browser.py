"""The page of a run that is going on, in a real browser."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

pytest.importorskip("uvicorn", reason="pip install 'phalanx-train[dashboard]' for the page")
webdriver = pytest.importorskip("selenium.webdriver", reason="scripts/check --all installs selenium")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1300,1900"
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.serial,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="apt-get install chromium chromium-driver for these tests"),
]


@pytest.fixture
def browser(tmp_path):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*QUIET.split(), f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@contextmanager
def training(folder, *options):
    command = [sys.executable, "-m", "phalanx", "train", "--workers", "3", "--steps", "100000", "--dashboard"]
    command += ["--run-dir", str(folder), "--set", "model.width=32", "--set", "model.layers=1", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"})
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        process.wait()
        process.stdout.close()


def read_link(process):
    return next(line.split()[1] for line in process.stdout if line.startswith("page "))


def text(browser, name):
    return browser.find_element(By.ID, name).text


def wait_for(browser, condition):
    return WebDriverWait(browser, 120, poll_frequency=0.1).until(lambda _: condition())


def show(browser, link):
    browser.get(link)
    wait_for(browser, lambda: browser.find_elements(By.ID, "step") and text(browser, "step")[0].isdigit())


def requested(browser):
    messages = (json.loads(each["message"])["message"] for each in browser.get_log("performance"))
    urls = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    return [url for url in urls if not url.startswith("chrome")]  # its own first page


def test_the_page_of_a_run_shows_a_killed_worker_as_lost_and_then_as_recovered(browser, tmp_path):
    with training(tmp_path / "run") as process:
        link = read_link(process)
        show(browser, link)
        before = text(browser, "step")
        wait_for(browser, lambda: text(browser, "step") != before)
        wait_for(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "#crew tr")) == 3)
        assert text(browser, "pill") == "running"

        victim = browser.find_element(By.CSS_SELECTOR, "#crew tr:last-child td:nth-child(2)").text.split()[0]
        os.kill(int(victim), signal.SIGKILL)

        wait_for(
            browser, lambda: "was lost" in text(browser, "feed")
        )  # the pill may be back before the page looks again
        wait_for(browser, lambda: "joined" in text(browser, "feed"))
        wait_for(browser, lambda: text(browser, "pill") == "running")
        assert f"process {victim}" in text(browser, "feed")
        assert text(browser, "recoveries").startswith("1")
        assert browser.get_log("browser") == []
        base = link.partition("/enter")[0]
        assert {url for url in requested(browser) if not url.startswith((f"{base}/", "data:"))} == set()


def test_the_keyboard_alone_reaches_everything(browser, tmp_path):
    with training(tmp_path / "run") as process:
        show(browser, read_link(process))
        wait_for(browser, lambda: "in a cell" in text(browser, "strip-words"))
        press(browser, Keys.TAB)
        assert focused(browser) == "Skip to the ranks"

        tab_to(browser, "Strip of every rank")
        press(browser, "+")
        wait_for(browser, lambda: " from " in text(browser, "strip-words"))
        press(browser, "l")
        wait_for(browser, lambda: "until the last record" in text(browser, "strip-words"))
        tab_to(browser, "Stacks of rank 1")
        press(browser, Keys.ENTER)
        wait_for(browser, lambda: "MainThread" in text(browser, "dialog-text"))
        press(browser, Keys.ESCAPE)

        wait_for(browser, lambda: not browser.find_element(By.ID, "dialog").is_displayed())
        assert browser.get_log("browser") == []


def press(browser, key):
    webdriver.ActionChains(browser).send_keys(key).perform()


def focused(browser):
    element = browser.switch_to.active_element
    return element.get_attribute("aria-label") or element.text


def tab_to(browser, label):
    for _ in range(60):
        if focused(browser).startswith(label):
            return
        press(browser, Keys.TAB)
    pytest.fail(f"the Tab key does not reach {label!r}")
