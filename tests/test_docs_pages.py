"""The pages for newcomers: their scripts do the same on two workers, and every document is on the site."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PHALANX = (sys.executable, "-c", "from phalanx.cli import main; main()")

pytestmark = pytest.mark.slow


def scripts_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)


def public_names(module: str) -> list[str]:
    """Return the ``__all__`` of a module without importing it: what it needs may not be installed."""
    tree = ast.parse((ROOT / "src" / module.replace(".", "/") / "__init__.py").read_text(encoding="utf-8"))
    (names,) = [each.value for each in tree.body if isinstance(each, ast.Assign) and each.targets[0].id == "__all__"]
    return ast.literal_eval(names)


def run(*command: str, folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("number", [0, 1], ids=["ddp", "ours"])
def test_both_scripts_for_those_who_come_from_ddp_learn_the_same_on_two_workers(number, tmp_path):
    (tmp_path / "script.py").write_text(scripts_of("coming-from-ddp.md")[number], encoding="utf-8")

    printed = run(*PHALANX, "run", "-n", "2", "script.py", folder=tmp_path)

    assert re.findall(r"loss (\S+)", printed) == ["0.0000"]
    assert (tmp_path / "model.pt").exists()


def test_the_script_of_the_engine_guide_has_one_digest_for_any_number_of_workers_and_resumes(tmp_path):
    script = scripts_of("engine.md")[0] + "    if group.rank == 0:\n        print('digest', digest.hex())\n"
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    runs = []
    for workers in ("1", "3"):
        folder = tmp_path / workers
        folder.mkdir()
        runs.append(run(*PHALANX, "run", "-n", workers, "../script.py", folder=folder))
    again = run(*PHALANX, "run", "-n", "2", "../script.py", folder=folder)  # it has nothing left to do

    digests = re.findall(r"digest (\w+)", "".join([*runs, again]))
    assert [re.findall(r"step (\d+):", printed) for printed in [*runs, again]] == [["20", "40"], ["20", "40"], []]
    assert len(digests) == 3
    assert len(set(digests)) == 1


def test_the_site_has_every_document_and_the_reference_every_public_name():
    run(str(ROOT / "scripts/docs"), folder=ROOT)

    site = ROOT / "build/site"
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        page = site / document.relative_to(ROOT).with_suffix(".html")
        assert (page if document.name != "README.md" else page.with_name("index.html")).exists()
    reference = {page.stem: page.read_text(encoding="utf-8") for page in (site / "docs/reference").iterdir()}
    assert {"phalanx", "phalanx.checkpoint", "phalanx.data", "phalanx.parallel", "phalanx.testing"} <= reference.keys()
    for module, text in reference.items():
        names = set(public_names(module)) - {"__version__"}
        shown = {identifier.rpartition(".")[2] for identifier in re.findall(r'id="(phalanx\.[^"]+)"', text)}
        assert names - shown == set()
    fetched = [
        found
        for page in site.rglob("*.html")
        for found in re.findall(r'<(?:link|script|img)[^>]+(?:href|src)="(https?://[^"]+)', page.read_text("utf-8"))
    ]
    assert fetched == []
