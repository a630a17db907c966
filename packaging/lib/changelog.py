"""The version that a tag, Cargo.toml and CHANGELOG.md name, and its notes."""

import re

DATED = r"^## {} \(\d{{4}}-\d\d-\d\d\)$"


def notes_of(tag, project):
    """The notes of a tag's version: its dated section of CHANGELOG.md, without the title."""
    version = project.version
    if tag != f"v{version}":
        raise SystemExit(f"the tag is {tag!r}, Cargo.toml has version {version}: the tag must be v{version}")
    text = project.text("CHANGELOG.md")
    title = re.search(DATED.format(re.escape(version)), text, re.MULTILINE)
    if not title:
        raise SystemExit(f"CHANGELOG.md has no section '## {version} (YYYY-MM-DD)': date the section Unreleased")
    notes = text[title.end():].split("\n## ", 1)[0].strip()
    if not notes:
        raise SystemExit(f"CHANGELOG.md has no changes in the section of {version}")
    return f"{notes}\n"
