"""How to install an extra: the one sentence of every message that a package is missing.

No package index has this software. So nothing may tell anybody to install it by its name alone: whoever registers that
name would own them. What is installed comes from the checkout, or from the wheel's file.
"""

from __future__ import annotations


def installing(extra: str) -> str:
    """Returns how to install this extra, to stand after a colon. `extra`: of pyproject.toml, or several with commas."""
    return f"pip install '.[{extra}]' in tiered's checkout (with its wheel: 'FILE.whl[{extra}]')"
