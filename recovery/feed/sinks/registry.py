"""`SchemaRegistry`: asks a registry with Confluent's REST API for the number of a topic's schema.

    POST /subjects/TOPIC-value            is this schema registered there? 200: its number; 404: no
    POST /subjects/TOPIC-value/versions   then register it: 200; 409: the subject has an incompatible one
    POST /subjects/TOPIC-value            and look again

So a writer whose schema is there needs no right to register. The number is taken from what the registry says together
with the schema, and that is compared with ours: another schema's number would make every reader of the topic fail.
*Failure*: an error; nothing was sent to the topic yet. Everything here may be repeated.
"""

from __future__ import annotations

import json
from typing import Any

import httpx

from changelog.base.errors import ConfigurationError, UnavailableError
from recovery.feed.avro import REFERENCES, SCHEMA_ID_MAX, parse_union
from recovery.feed.errors import FeedError
from recovery.feed.sinks.client import ANSWER_TIMEOUT_S, HttpClient, SinkResponse, shown_location

ANSWER_BYTES_MAX = 1 << 20
TYPE = "application/vnd.schemaregistry.v1+json"
_BODY = json.dumps({"schema": json.dumps(REFERENCES.union)}).encode()
_HEADERS = {"Content-Type": TYPE, "Accept": f"{TYPE}, application/json", "Content-Length": str(len(_BODY))}
_ADVICE = {
    401: "the user and the password in schema.registry.url are wrong or missing", 403: "it does not allow this to the user in its URL",
    404: "there is no such address: check the path of schema.registry.url",
    409: "the subject has a schema that is not compatible with the feed's: give the feed a topic of its own, or remove that schema",
    422: "it does not take the schema",
}  # fmt: skip


class SchemaRegistry:
    """`url`: of the registry, such as https://user:password@host:8081. `transport`: None: the network.

    `timeout_s`: how long an answer may take. `ConfigurationError`: it is no such URL.
    """

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._client = HttpClient(url, "a schema registry", transport, timeout_s)
        self.name = self._client.name

    async def schema_id(self, topic: str) -> int:
        """Returns the number of the schema of this topic's values. Registers the schema if it is not there.

        `UnavailableError`: the registry does not answer, or cannot now. `ConfigurationError`: it refuses, or it is no
        registry.
        """
        subject = f"subjects/{topic}-value"
        if (found := await self._looked_up(subject)) is None:
            await self._post(f"{subject}/versions")
            if (found := await self._looked_up(subject)) is None:
                raise UnavailableError(f"the schema registry {self.name} has taken the schema of {topic}-value, and does not show it yet")
        return found

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _looked_up(self, subject: str) -> int | None:
        answered = await self._post(subject, may_be_missing=True)
        if answered is None:
            return None
        number, text = answered.get("id"), answered.get("schema")
        if type(number) is not int or not 0 <= number <= SCHEMA_ID_MAX or not isinstance(text, str):
            raise self._no_registry(subject, "it names no schema and its id")
        try:
            is_ours = parse_union(text) == REFERENCES
        except FeedError:
            is_ours = False
        if not is_ours:
            raise self._no_registry(subject, f"it was asked for the schema of the feed, and says that {number} is another one")
        return number

    async def _post(self, path: str, *, may_be_missing: bool = False) -> dict[str, Any] | None:
        """Returns the JSON object of a good answer. None: the registry says that the schema is missing."""
        answer = await self._client.request("POST", path, _HEADERS, _BODY, ANSWER_BYTES_MAX)
        try:
            said: Any = json.loads(answer.body)
        except (ValueError, RecursionError):
            said = None
        if answer.status == 404 and may_be_missing and isinstance(said, dict) and "error_code" in said:
            return None
        if not 200 <= answer.status < 300:
            raise self._refusal(path, answer)
        if not isinstance(said, dict):
            raise self._no_registry(path, "it is no JSON object")
        return said

    def _refusal(self, path: str, answer: SinkResponse) -> UnavailableError | ConfigurationError:
        what = f"the schema registry {self.name} answered POST of {path} with {answer.status}"
        if answer.may_pass:
            return UnavailableError(f"{what}{answer.told}").coded(str(answer.status))
        if 300 <= answer.status < 400:
            advice, told = f"a redirection{shown_location(answer.location)}; give the address of the registry itself", ""
        else:
            advice, told = _ADVICE.get(answer.status, "it does not take the request"), answer.told
        return ConfigurationError(f"{what}: {advice}{told}").coded(str(answer.status))

    def _no_registry(self, path: str, why: str) -> ConfigurationError:
        return ConfigurationError(f"{self.name} is no schema registry by its answer to POST of {path}: {why}; check schema.registry.url")
