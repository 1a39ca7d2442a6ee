"""Pages of the site that are not files: the order of the documents, and the reference made from docstrings."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

MODULES = (  # a line for each module whose public names are in the reference
    "phalanx",
    "phalanx.checkpoint",
    "phalanx.data",
    "phalanx.parallel",
    "phalanx.ray",
    "phalanx.testing",
    "phalanx.torch",
)

SHADOWED = {  # functions with the name of their module, for which the module would be taken
    "phalanx": "phalanx.launch.connect.connect",
    "phalanx.testing": "phalanx.testing.simulate.simulate",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the pages and their order from the README, and add the reference and the decisions."""
    pages = Path(config.docs_dir)
    decisions = [str(each.relative_to(pages)) for each in sorted((pages / "docs/decisions").glob("*.md"))]
    config.nav = [
        {"Phalanx": "README.md"},
        *list_documents((pages / "README.md").read_text(encoding="utf-8")),
        {"Decisions": decisions},
        {"Reference": [{module: reference_page(module)} for module in MODULES]},
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each module of the reference."""
    for module in MODULES:
        files.append(File.generated(config, reference_page(module), content=write_reference(module)))
    return files


def list_documents(readme: str) -> list[dict[str, list[str]]]:
    """Return the documents that the README lists: for each of its bold headings, the pages below it."""
    listed: list[dict[str, list[str]]] = []
    _, _, section = readme.partition("\n## Documentation\n")
    for heading, page in re.findall(r"^\|? ?\*\*(.+?)\*\*|^\| \[[^]]+\]\(([^)]+\.md)\)", section, re.MULTILINE):
        if heading:
            listed.append({heading: []})
        else:
            next(iter(listed[-1].values())).append(page)
    return listed


def write_reference(module: str) -> str:
    """Return the page of a module."""
    written = f"# {module}\n\n::: {module}\n"
    if module in SHADOWED:
        options = "show_root_heading: true, show_root_toc_entry: true, show_root_full_path: false"
        written += f"\n::: {SHADOWED[module]}\n    options: {{{options}}}\n"
    return written


def reference_page(module: str) -> str:
    """Return the path of a module's page."""
    return f"docs/reference/{module}.md"
