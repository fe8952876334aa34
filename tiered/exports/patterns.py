"""`NamePattern`: how the names of files, or of foreign objects, become ids of objects with scopes. Pure.

    NamePattern("users/{user}/{rest}", "photos/user.{user}/objects/{rest}")

    users/17/2026/cat.jpg           ->   photos/user.17/objects/2026/cat.jpg
    users/anna@example.com/cat.jpg  ->   photos/user.anna+40example+2Ecom/objects/cat.jpg

What becomes the value of a scope is spelt (`escape_scope`), so it may be any text. A word in braces stands for one part
of a name or more characters of it, without `/`; at the very end, for all that is left. Everything that was taken from a
name is in its id, and apart, so no two names become one object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from changelog.base.errors import InvalidRequestError
from tiered.object_id import ObjectId, escape_scope
from tiered.text import quoted

_WORD = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_BESIDE = re.compile(r"\}[^/{]*\{")


class NamePattern:
    """`names`: what is taken from a name, from the source on. `ids`: USECASE/[NAME.VALUE/…]objects/KEY, made of it; in
    values of scopes it is spelt, by `escape_scope`.

    `InvalidRequestError` says why no id could be made, or why two names could become one.
    """

    def __init__(self, names: str, ids: str) -> None:
        if not isinstance(names, str) or not isinstance(ids, str):
            raise InvalidRequestError(f"a pattern is two texts, not {quoted(names)} and {quoted(ids)}")
        words = [_words(text) for text in (names, ids)]
        if sorted(words[0]) != sorted(words[1]):
            raise InvalidRequestError(
                f"{quoted(names)} and {quoted(ids)} do not have the same words in braces: what is left out would make two names one object"
            )
        head, between, self._key = ids.partition("/objects/")
        self._usecase, *scopes = head.split("/")
        self._scopes = [each.partition(".") for each in scopes]
        if not between or not self._key or any(not dot for _, dot, _ in self._scopes):
            raise InvalidRequestError(f"{quoted(ids)} is no pattern of ids: write USECASE/[NAME.VALUE/…]objects/KEY, such as {_EXAMPLE}")
        self._names = names
        self._taken = re.compile(_expression(names), re.DOTALL)
        self._of(dict.fromkeys(words[0], "w"))  # says what is wrong with the other texts before anything is done

    def id_of(self, name: str) -> ObjectId:
        """The object of a name. `InvalidRequestError`: the name does not match, or there can be no such object."""
        found = self._taken.fullmatch(name)
        if found is None:
            raise InvalidRequestError(f"{quoted(name)} does not match {quoted(self._names)}")
        return self._of(found.groupdict())

    def _of(self, taken: Mapping[str, str]) -> ObjectId:
        spelt = {word: escape_scope(text) for word, text in taken.items()}
        usecase, key = (_WORD.sub(lambda word: taken[word[1]], text) for text in (self._usecase, self._key))
        return ObjectId.create(usecase, key, [(name, _WORD.sub(lambda word: spelt[word[1]], text)) for name, _, text in self._scopes])


_EXAMPLE = "photos/user.{user}/objects/{rest}"


def _words(text: str) -> list[str]:
    words = _WORD.findall(text)
    left = _WORD.sub("", text)
    if not words or len(set(words)) < len(words) or "{" in left or "}" in left:
        raise InvalidRequestError(f"{quoted(text)} is no pattern: it has a word in braces, each once, such as {_EXAMPLE}")
    if _BESIDE.search(text):
        raise InvalidRequestError(f"{quoted(text)} has two words in braces without a / between them, so nobody can tell them apart")
    return words


def _expression(names: str) -> str:
    texts = _WORD.split(names)  # text, word, text, …
    parts = [re.escape(texts[0])]
    for word, text in zip(texts[1::2], texts[2::2], strict=True):
        parts.append(f"(?P<{word}>{'[^/]+'}){re.escape(text)}")
    if not texts[-1]:
        parts[-1] = f"(?P<{texts[-2]}>.+)"
    return "".join(parts)
