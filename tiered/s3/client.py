"""`S3Client`: calls to a bucket of an S3 service through aiobotocore, each sent once. The only module that knows it.

    call          one request -> its answer by name, or the `Refusal` of a code that the caller expects
    open_body     the same for an answer whose body is read chunk by chunk
    sign          the address of a request that anybody may send for a while

Repeating is for the callers, who know what may be repeated. So the retries of the libraries below are off. Credentials
are found by the library's usual chain (environment, files, the machine's role) and never seen here. A call waits for
one of `connections_max` places, and is `AtCapacityError` if it gets none: the library would count that wait as the
answer's.
Bytes that are sent carry a crc32c, which the service verifies, and are not hashed for the signature as well.

*Failure*: what is not shaped like an answer of S3 (`answers.py`) proves nothing. It is `UnconfirmedError` after a
request that may have an effect, else `UnavailableError`; and so is a connection that breaks, unless the request never
left. Each answer goes through `_judge` before it is read. `errors.py` translates the service's refusals.
"""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self, TypeAlias

from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession, get_session
from aiohttp import ClientConnectorError
from aiohttp import ClientError as AiohttpError
from anyio import Semaphore, move_on_after
from botocore import xform_name
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    SSLError,
)
from botocore.parsers import ResponseParserError

from changelog.base.connections import unspoilt
from changelog.base.errors import ConfigurationError, InvalidRequestError, TieredError, UnavailableError, UnconfirmedError
from tiered.errors import AtCapacityError
from tiered.payload.chunks import Chunk
from tiered.s3.answers import ANSWERS, STATUS_OF, is_signed, lacking, oddity
from tiered.s3.errors import Refusal, error_of, odd

Answer = Mapping[str, Any]
SharedSession: TypeAlias = AioSession

CONNECTIONS_MAX = 256
ANSWER_TIMEOUT_S = 10.0
SLOWEST_BYTES_PER_S = 128 * 1024
"""A request that brings bytes may take as long as this many of them a second would take, besides the time for its
answer."""
CHUNK_BYTES = 256 * 1024
_REGION_IF_NONE = "us-east-1"
_AWS = re.compile(r"https://[a-z0-9.-]+\.amazonaws\.com(\.cn)?/?")
_UNREADABLE = (ValueError, LookupError, TypeError, ArithmeticError)
"""What the library raises where it reads an answer whose fields are nonsense."""


_NOT_HAD = {
    "CredentialRetrievalError": False, "MetadataRetrievalError": False, "TokenRetrievalError": False,
    "UnauthorizedSSOTokenError": True, "SSOTokenLoadError": True,
}  # fmt: skip
"""The library's errors where credentials cannot be had, and whether that lasts until somebody logs in."""


class _OddError(Exception):
    """An answer is not the service's own. The text says what of it is odd."""


class _SendsOnce(AIOHTTPSession):  # type: ignore[misc]  # the package has no types
    """aiohttp sends a request again if its connection breaks before the answer: such a PUT could land late. And it
    follows redirects, also those of a portal.
    """

    async def _create_connector(self, proxy_url: str | None) -> Any:
        return unspoilt(await super()._create_connector(proxy_url))

    async def _get_session(self, proxy_url: str | None) -> Any:
        session = await super()._get_session(proxy_url)
        session._retry_connection = False
        return _FollowsNothing(session)


class _FollowsNothing:
    """All of a session that the library uses."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def request(self, method: str, **named: Any) -> Any:
        return self._session.request(method, allow_redirects=False, **named)


def _judge(operation_model: Any, response_dict: Mapping[str, Any], **_: Any) -> None:
    """Raises `_OddError` unless the answer is shaped like the service's. Every answer comes here before it is read."""
    body = response_dict["body"]
    is_whole = isinstance(body, bytes)
    odd = oddity(xform_name(operation_model.name), response_dict["status_code"], response_dict["headers"], body if is_whole else b"")
    if odd is not None:
        if not is_whole:
            body.close()
        raise _OddError(odd)


class S3Client:
    """Open it with `async with S3Client.connect(…)`. `endpoint`: how messages name the service."""

    def __init__(self, client: Any, bucket: str, endpoint: str, connections_max: int, answer_timeout_s: float) -> None:
        self.bucket = bucket
        self.endpoint = endpoint
        self.answer_timeout_s = answer_timeout_s
        self._client = client
        self._connections_max = connections_max
        self._places = Semaphore(connections_max)

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, bucket: str, *, endpoint: str | None = None, region: str | None = None, addressing_style: str = "auto",
        connections_max: int = CONNECTIONS_MAX, answer_timeout_s: float = ANSWER_TIMEOUT_S, session: SharedSession | None = None,
    ) -> AsyncIterator[Self]:  # fmt: skip
        """Sends nothing yet. `endpoint` None: AWS, or what its variables and files name. `region` None: what they
        say. `session`: to share: the library's description of the service takes it long to read.

        `ConfigurationError`: there are no credentials, or the settings make no client.
        """
        config = AioConfig(
            connect_timeout=answer_timeout_s, read_timeout=answer_timeout_s, max_pool_connections=connections_max,
            retries={"total_max_attempts": 1, "mode": "standard"}, signature_version="s3v4",
            s3={"addressing_style": addressing_style, "payload_signing_enabled": False},
            http_session_cls=_SendsOnce, request_checksum_calculation="when_required", response_checksum_validation="when_required",
        )  # fmt: skip
        try:
            session = session or get_session()
            region = region or session.get_config_variable("region") or _REGION_IF_NONE
            opened = session.create_client("s3", region_name=region, endpoint_url=endpoint, config=config)
        except (ProfileNotFound, PartialCredentialsError, NoCredentialsError) as error:
            raise _no_credentials(error) from error
        except (BotoCoreError, ValueError) as error:
            raise ConfigurationError(f"the settings s3 make no client: {error}") from error
        async with opened as client:
            client.meta.events.register_last("before-parse.s3", _judge)
            found = str(endpoint or client.meta.endpoint_url)  # AWS's variables and files may name one, too
            yield cls(client, bucket, "AWS" if _AWS.fullmatch(found) else found, connections_max, answer_timeout_s)

    async def call(
        self, operation: str, doing: str, *, effect: bool = False, accept: Collection[str] = (), answers: int = 1,
        body: bytes | Sequence[Chunk] | None = None, **named: Any,
    ) -> Answer | Refusal:  # fmt: skip
        """One request. `effect`: it may change something. `accept`: error codes that are returned (a status, where the
        answer has no body). `answers`: it may take as long as so many answers. `body`: what to send.
        """
        _refuse_without_row(operation)
        named["Bucket"] = self.bucket
        limit_s = answers * self.answer_timeout_s
        if body is not None:
            named["Body"] = sent = _SentBody([body] if isinstance(body, bytes) else body)
            limit_s += sent.size / SLOWEST_BYTES_PER_S
        async with self._place(doing):
            with _translated(doing, effect=effect, endpoint=self.endpoint) as refused, move_on_after(limit_s) as scope:
                answer: Answer = await getattr(self._client, operation)(**named)
                if (what := lacking(operation, named, answer)) is not None:
                    raise _OddError(what)
        if scope.cancelled_caught:
            raise self._silent(doing, limit_s, effect=effect)
        if refused:
            return await self._expected(refused[0], doing, accept, named, effect=effect)
        await self._confirm(operation, answer, named, doing, effect=effect)
        return answer

    async def headers(self) -> Mapping[str, str]:
        """The headers of an answer, by their names in lower case."""
        answer = await self.call("list_objects_v2", "asking which server this is", MaxKeys=1)
        assert not isinstance(answer, Refusal), "no code is accepted"
        found: Mapping[str, str] = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        return {name.lower(): value for name, value in found.items()}

    async def open_body(self, doing: str, *, accept: Collection[str] = (), **named: Any) -> tuple[Answer, AnswerBody] | Refusal:
        """GetObject. The caller closes the body, which holds one of the places until then."""
        place = self._place(doing)
        await place.__aenter__()
        body: AnswerBody | None = None
        try:
            with _translated(doing, effect=False, endpoint=self.endpoint) as refused, move_on_after(self.answer_timeout_s) as scope:
                answer: Answer = await self._client.get_object(Bucket=self.bucket, **named)
                body = AnswerBody(answer["Body"], self._places, doing, self)
        finally:
            if body is None:
                self._places.release()
        if scope.cancelled_caught:
            raise self._silent(doing, self.answer_timeout_s, effect=False)
        if body is None:
            return await self._expected(refused[0], doing, accept, named, effect=False)
        try:
            await self._confirm("get_object", answer, named, doing, effect=False)
        except BaseException:
            body.close()
            raise
        return answer, body

    async def sign(self, operation: str, expires_in_s: int, doing: str, **named: Any) -> str:
        """The address of a request. Nothing is sent; credentials may be fetched."""
        with _translated(doing, effect=False, endpoint=self.endpoint) as refused, move_on_after(self.answer_timeout_s) as scope:
            address: str = await self._client.generate_presigned_url(
                operation, Params={"Bucket": self.bucket, **named}, ExpiresIn=expires_in_s
            )
            return address
        if scope.cancelled_caught:
            raise UnavailableError(f"{doing} failed: there were no credentials for {self.answer_timeout_s:g} s; try again")
        raise error_of(refused[0], doing, effect=False)

    def _place(self, doing: str) -> _ClientPlace:
        return _ClientPlace(self._places, doing, self.answer_timeout_s, self.endpoint, self._connections_max)

    def _silent(self, doing: str, limit_s: float, *, effect: bool) -> TieredError:
        kind = UnconfirmedError if effect else UnavailableError
        return kind(f"{doing} failed: no answer from {self.endpoint} within {limit_s:g} s")

    async def _expected(self, refusal: Refusal, doing: str, accept: Collection[str], named: Mapping[str, Any], *, effect: bool) -> Refusal:
        key = named.get("Key", "")
        if refusal.status != STATUS_OF.get(refusal.code, refusal.status):
            raise odd(doing, effect=effect, what=f"with {refusal.status} {refusal.code}")
        if refusal.code == "NoSuchKey" and refusal.key not in ("", key) and "CopySource" not in named and await self._listed(key):
            raise odd(doing, effect=effect, what=f"of {refusal.key!r} instead of {key!r}")
        if refusal.code in accept:
            return refusal
        raise error_of(refusal, doing, effect=effect)

    async def _confirm(self, operation: str, answer: Answer, named: Mapping[str, Any], doing: str, *, effect: bool) -> None:
        """Raises that it is odd if an answer without any header of S3 is not confirmed. Most have some."""
        if is_signed(answer):
            return
        try:
            is_so = await self._is_so(operation, answer, named, doing)
        except UnavailableError as error:
            raise odd(doing, effect=effect, what="without a header of S3, and nobody told whether it is so") from error
        if not is_so:
            raise odd(doing, effect=effect, what="without a header of S3, and it is not so")

    async def _is_so(self, operation: str, answer: Answer, named: Mapping[str, Any], doing: str) -> bool:
        if operation in ("head_object", "get_object", "put_object"):
            found = await self._listed(named["Key"])
            return found is not None and bool(found["ETag"].strip('"') == answer["ETag"].strip('"'))
        if operation == "delete_object" and "VersionId" not in named:
            return await self._listed(named["Key"]) is None
        if operation == "abort_multipart_upload":
            upload = {key: named[key] for key in ("Key", "UploadId")}
            return isinstance(await self.call("list_parts", doing, accept=("NoSuchUpload",), **upload), Refusal)
        return True

    async def _listed(self, key: str) -> Answer | None:
        page = await self.call("list_objects_v2", f"looking for {key!r}", Prefix=key, MaxKeys=1)
        assert not isinstance(page, Refusal), "no code is accepted"
        return next((each for each in page.get("Contents", ()) if each["Key"] == key), None)


class _ClientPlace:
    """One of the places of a client, for the length of a block."""

    def __init__(self, places: Semaphore, doing: str, timeout_s: float, endpoint: str, connections_max: int) -> None:
        self._places, self._doing, self._timeout_s = places, doing, timeout_s
        self._endpoint, self._connections_max = endpoint, connections_max

    async def __aenter__(self) -> None:
        with move_on_after(self._timeout_s) as waiting:
            await self._places.acquire()
        if waiting.cancelled_caught:
            raise AtCapacityError(
                f"{self._doing} was not sent: all {self._connections_max} connections to {self._endpoint} were taken for"
                f" {self._timeout_s:g} s; close objects that are open for reading, or raise s3.connections_max"
            )

    async def __aexit__(self, *_: object) -> None:
        self._places.release()


class _SentBody:
    """The body of a request, of chunks that are not joined. The library below reads it where it must hash it, and the
    one below that sends it, chunk by chunk: a file would cost a copy, and a thread for each piece of it.
    """

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = [memoryview(chunk).cast("B") for chunk in chunks]
        self._at = 0
        self.size = sum(map(len, self._chunks))

    async def __aiter__(self) -> AsyncIterator[memoryview]:
        for chunk in self._chunks:
            for start in range(0, len(chunk), CHUNK_BYTES):
                yield chunk[start : start + CHUNK_BYTES]

    def read(self, size: int = -1) -> bytes:
        stop, at, found = self.size if size < 0 else self._at + size, 0, list[memoryview]()
        for chunk in self._chunks:
            found.append(chunk[max(0, self._at - at) : max(0, stop - at)])
            at += len(chunk)
        read = b"".join(found)
        self._at += len(read)
        return read

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self.size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at


class AnswerBody:
    """The body of an answer that is still coming. It holds a place until it is closed."""

    def __init__(self, stream: Any, places: Semaphore, doing: str, client: S3Client) -> None:
        self._stream = stream
        self._places: Semaphore | None = places
        self._doing = doing
        self._client = client

    async def read(self) -> bytes:
        """The next bytes, at most 256 KiB. Empty: the body has ended. `UnavailableError`: it broke off."""
        try:
            with move_on_after(self._client.answer_timeout_s) as scope:
                chunk: bytes = await self._stream.read(CHUNK_BYTES)
                return chunk
        except (BotoCoreError, AiohttpError, OSError) as error:
            lost = type(error).__name__
        else:
            lost = f"{self._client.endpoint} sent no more bytes for {self._client.answer_timeout_s:g} s" if scope.cancelled_caught else ""
        raise UnavailableError(f"{self._doing} failed: the connection broke off ({lost})")

    def close(self) -> None:
        """Drops the connection, unless the body was read to its end. Safe to repeat."""
        places, self._places = self._places, None
        if places is not None:
            self._stream.close()
            places.release()


@contextmanager
def _translated(doing: str, *, effect: bool, endpoint: str) -> Iterator[list[Refusal]]:
    """Yields a list that gets the `Refusal` of an answer that is no success. Raises our errors for all else."""
    refused: list[Refusal] = []
    fault: TieredError | None = None
    try:
        yield refused
    except ClientError as error:
        refused.append(_refusal(error))
    except (NoCredentialsError, PartialCredentialsError) as error:
        fault = _no_credentials(error)
    except ParamValidationError as error:
        fault = InvalidRequestError(f"{doing} was not sent: {' '.join(str(error).split())}")
    except _OddError as error:
        fault = odd(doing, effect=effect, what=str(error))
    except (ConnectTimeoutError, EndpointConnectionError) as error:
        kind = type(error).__name__
        fault = UnavailableError(f"{doing} failed: nothing could be reached at {endpoint} ({kind}); check the endpoint and the network")
        if not _never_left(error):
            fault = _lost(doing, effect=effect, endpoint=endpoint, kind=kind)
    except SSLError as error:  # of a connection that was never made
        why = _why_no_tls(error.kwargs.get("error"))
        fault = UnavailableError(
            f"{doing} failed: {endpoint} and this machine agree on no TLS: {why}; check the endpoint, its certificate, and whom"
            " this machine trusts (AWS_CA_BUNDLE)"
        )
    except (ResponseParserError, *_UNREADABLE) as error:
        fault = odd(doing, effect=effect, what=f"with what nobody can read ({type(error).__name__})")
    except (BotoCoreError, AiohttpError, OSError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "closed" not in str(error).lower():
            raise
        kind = type(error).__name__
        if kind in _NOT_HAD:
            fault = UnavailableError(f"{doing} was not sent: the credentials could not be had ({error})").telling(heard=False)
            fault.refused = _NOT_HAD[kind]
        else:
            fault = _lost(doing, effect=effect, endpoint=endpoint, kind=kind)
    if fault is not None:
        raise fault


def _lost(doing: str, *, effect: bool, endpoint: str, kind: str) -> TieredError:
    why = f"the connection to {endpoint} broke off ({kind})"
    return UnconfirmedError(f"{doing} was never confirmed: {why}") if effect else UnavailableError(f"{doing} failed: {why}")


def _why_no_tls(error: object) -> str:
    """Returns what the library of TLS says, without the words of the libraries around it."""
    cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    return getattr(cause, "verify_message", None) or getattr(cause, "reason", None) or type(cause).__name__


def _never_left(error: BotoCoreError) -> bool:
    """The library calls it the same if a connection that there was is reset."""
    cause = error.kwargs.get("error")
    return isinstance(error, ConnectTimeoutError) or isinstance(cause, ClientConnectorError | socket.gaierror)


def _refuse_without_row(operation: str) -> None:
    if operation not in ANSWERS:
        raise NotImplementedError(f"nobody knows the answers to {operation}: give it a row in tiered/s3/answers.py")


def _refusal(error: ClientError) -> Refusal:
    said = error.response.get("Error", {})
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return Refusal(
        status, str(said.get("Code") or status), " ".join(str(said.get("Message", "")).split())[:300], str(said.get("Key") or "")
    )


def _no_credentials(error: Exception) -> ConfigurationError:
    return ConfigurationError(
        "there are no credentials for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, or give this machine a role"
        f" ({' '.join(str(error).split())})"
    )
