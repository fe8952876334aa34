"""What only the owner can decide, and what is left to type. It is read from the files: nothing is asked twice."""

from __future__ import annotations

from emulators.release.checkout import Checkout, project

NOT_TRUE_ON_AN_INDEX = ("No package index has", "Nothing is released yet", "No licence is chosen yet")
"""Sentences of the README that an upload makes false."""
NO_ADDRESS = "No address is named yet"
"""What SECURITY.md says as long as nobody can be written to."""


def to_decide(of: Checkout) -> list[str]:
    """Returns what is not decided and is part of what is built: each changes the bytes, so a release runs again."""
    table = project(of.root)
    wanted = [
        ("license", "a licence: `license` and `license-files` in pyproject.toml, and the file itself"),
        ("authors", "who wrote it: `authors` in pyproject.toml"),
        ("urls", "where it lives: `urls` in pyproject.toml; then the README's links can lead there on an index, too"),
    ]
    found = [sentence for key, sentence in wanted if not table.get(key)]
    if of.dated is None:
        found.append(f"the day: HISTORY.md says that {of.version} is unreleased")
    security = (of.root / "SECURITY.md").read_text("utf-8")
    if NO_ADDRESS in " ".join(security.split()):
        found.append("who is told of a vulnerability: an address in SECURITY.md")
    readme = " ".join((of.root / "README.md").read_text("utf-8").split())
    found += [f"README.md says {sentence!r}, which an upload makes false" for sentence in NOT_TRUE_ON_AN_INDEX if sentence in readme]
    return found


def to_type(of: Checkout, files: list[str]) -> list[str]:
    """Returns the commands of an upload, in order. `files`: what is uploaded."""
    return [
        f"git tag -s {of.tag} {of.commit} -m 'tiered {of.version}'",
        f"git push REMOTE {of.tag}",
        f"build/release/tools/bin/twine upload {' '.join(files)}",
        f"echo '{of.version} {of.commit}' > .ci/released      # and commit it",
    ]
