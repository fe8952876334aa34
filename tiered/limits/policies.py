"""What the settings allow to each usecase: how long objects live, how large they are, and how much is done a second.

    lifetime, size, closed   judged when an object is written, whichever way, by `Policies.new_object`:
                             `InvalidRequestError`, nothing was stored
    requests, bytes          token buckets of this process: `RateLimitedError`, nothing was begun; bulk work waits

A usecase has the policy of its name, or `usecases.*`, which is shared and whose rates are not: each usecase has buckets
of its own, and so has each value of a scope that `per_scope` names. A call counts once for each object, or prefix, that
it names, when it begins; a request to the app of `tiered.asgi` is up to three calls. A payload's bytes count once its
size is known, whether they are all moved then or not: of a read when the object is open, of a put before anything is
sent. Those of a payload of unknown length count as they come. What has begun is never slowed down: it leaves its bucket
in debt.

What moves no payload, such as a look, a listing, a copy or a deletion, is refused for no bytes. To give up an upload,
to ask for an outcome, and what the store does by itself (touches, clean-up, recovery, audits) are no calls. Nothing
here is stored, and no two processes know of one another: N of them allow N times as much. What goes to the long-term
tier by a link that it signed itself does not pass here: only the size is judged, when the upload is completed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from changelog.base.errors import InvalidRequestError
from changelog.base.observe import SILENT, Event, Observer
from changelog.base.runtime import Runtime
from tiered.errors import RateLimitedError
from tiered.limits.rate import TokenBucket
from tiered.metadata import NS_PER_S, Metadata, TimeToIdle, TimeToLive
from tiered.object_id import ObjectId, ObjectPrefix
from tiered.payload.chunks import Chunks
from tiered.settings.sections import OTHER_USECASES, RateSettings, UsecaseSettings

BUCKETS_MAX = 50_000
"""Of so many usecases and values of scopes a process knows the rates. Then it forgets whoever was idle for longest."""

IN_BULK: ContextVar[bool] = ContextVar("tiered.policies.in_bulk", default=False)
"""Whether what is called here is part of bulk work, and waits for its turn: set while a directory is copied."""

PAUSE_MIN_S = 0.001
"""A clock may be too coarse to see a shorter one pass."""


@dataclass(frozen=True, slots=True)
class _Budget:
    """What a usecase, or one value of a scope in it, has left. `policy`: the name of its policy. Empty: no scope."""

    policy: str
    usecase: str
    scope: str
    value: str
    requests: TokenBucket | None
    bytes: TokenBucket | None

    def refusal(self, *, moves: bool) -> RateLimitedError | None:
        """Why nothing may begin now. None: something may."""
        waits = {
            limit: wait_s
            for limit, bucket in (("requests_per_s", self.requests), ("bytes_per_s", self.bytes if moves else None))
            if bucket is not None and (wait_s := bucket.wait_s())
        }
        if not waits:
            return None
        limit = max(waits, key=lambda each: waits[each])
        setting = ".".join(("usecases", self.policy, *(("per_scope", self.scope) if self.scope else ()), limit))
        whose = f"{self.scope}.{self.value} of usecase {self.usecase!r}" if self.scope else f"usecase {self.usecase!r}"
        return RateLimitedError(
            f"{whose} has used up its rate ({setting}) in this process: try again in {waits[limit]:.2g} s, or send less",
            waits[limit], self.usecase, setting,
        )


class Policies:
    """Judges and counts what is done with the objects of a store. `usecases`: of the settings."""

    def __init__(
        self, usecases: Mapping[str, UsecaseSettings], runtime: Runtime, observer: Observer = SILENT, budgets_max: int = BUCKETS_MAX
    ) -> None:
        self._usecases = dict(usecases)
        self._runtime = runtime
        self._observer = observer
        self._budgets_max = budgets_max
        self._budgets: OrderedDict[tuple[str, str, str], _Budget] = OrderedDict()

    # --- rates -----------------------------------------------------------------------------------

    async def admit(self, addresses: Sequence[ObjectId | ObjectPrefix], *, moves: bool, waits: bool) -> None:
        """Counts one call that names these. `moves`: payloads, too, so it must find some bytes left.

        `RateLimitedError`: a rate is used up, and nothing was counted. With `waits`, it waits until none is.
        """
        while True:
            budgets = [budget for address in addresses for budget in self._budgets_of(address)]
            refusals = [refusal for budget in budgets if (refusal := budget.refusal(moves=moves)) is not None]
            if not refusals:
                break
            last = max(refusals, key=lambda refusal: refusal.retry_after_s or 0.0)
            if not (waits or IN_BULK.get()):
                self._observer.count(Event.REFUSED, self._name_of(last.usecase))
                raise last
            await self._runtime.sleep(max(PAUSE_MIN_S, last.retry_after_s or 0.0))
        for budget in budgets:
            if budget.requests is not None:
                budget.requests.spend(1)

    def spend(self, object_id: ObjectId, size: int) -> None:
        """Counts so many bytes of payload."""
        for budget in self._budgets_of(object_id):
            if budget.bytes is not None:
                budget.bytes.spend(size)

    def _budgets_of(self, address: ObjectId | ObjectPrefix) -> Iterator[_Budget]:
        usecase = address.usecase
        policy = None if usecase is None else self._policy(usecase)
        if usecase is None or policy is None:
            return
        if policy.requests_per_s is not None or policy.bytes_per_s is not None:
            yield self._budget(usecase, "", "", policy)
        for scope, value in dict.fromkeys(address.scopes):
            if (rates := policy.per_scope.get(scope)) is not None:
                yield self._budget(usecase, scope, value, rates)

    def _budget(self, usecase: str, scope: str, value: str, rates: RateSettings) -> _Budget:
        name = (usecase, scope, value)
        budget = self._budgets.get(name)
        if budget is not None:
            self._budgets.move_to_end(name)
            return budget
        requests, moved = (
            None if rate is None else TokenBucket(self._runtime, rate, rate * rates.burst_s)
            for rate in (rates.requests_per_s, rates.bytes_per_s)
        )
        budget = self._budgets[name] = _Budget(self._name_of(usecase), *name, requests, moved)
        if len(self._budgets) > self._budgets_max:
            self._budgets.popitem(last=False)
        return budget

    # --- what is written -------------------------------------------------------------------------

    def new_object(self, object_id: ObjectId, metadata: Metadata, size: int | None = None, *, keeps: bool = False) -> Metadata:
        """Whatever becomes an object passes here. Returns its metadata: with the default lifetime, if they tell none.

        `size`: how many bytes it has, or will have at least; None: `receive` is told. `keeps`: the metadata are decided
        already, those of a copy or of an upload that was begun, so their deadline counts, and no default is given.

        `InvalidRequestError`: the usecase is closed, or the object is too large or lives for too long.
        """
        policy = self._policy(object_id.usecase)
        if policy is None:
            return metadata
        if policy.closed:
            raise self._refusal(object_id, "closed", "no new objects are taken")
        if not keeps and metadata.expiration is None and metadata.time_expires_ns is None:
            metadata = metadata.with_facts(expiration=_default_of(policy))
        told = None if metadata.expiration is None else metadata.expiration.ns
        self._check_lifetime(object_id, policy, self._lifetime_ns(metadata) if keeps else told)
        if size is not None:
            self.check_size(object_id, size)
        return metadata

    def check_change(self, object_id: ObjectId, before: Metadata, after: Metadata) -> None:
        """Raises `InvalidRequestError` if the object would live for too long, unless its lifetime is as it was.

        Of a life that is shortened, only what is left counts, however long ago the object was created.
        """
        policy = self._policy(object_id.usecase)
        is_same = after.expiration == before.expiration and (
            after.time_expires_ns == before.time_expires_ns or isinstance(after.expiration, TimeToIdle)
        )
        if policy is None or is_same:
            return
        ends_ns, ended_ns = after.time_expires_ns, before.time_expires_ns
        is_shorter = isinstance(after.expiration, TimeToLive) and ends_ns is not None and (ended_ns is None or ends_ns < ended_ns)
        self._check_lifetime(object_id, policy, self._lifetime_ns(after.with_facts(expiration=None) if is_shorter else after))

    def receive(self, object_id: ObjectId, size: int, rest: Chunks | None = None, declared: int | None = None, kept: int = 0) -> None:
        """Judges and counts a payload of which `size` bytes are in hand. `rest`: what follows them; None: nothing.

        `declared`: how many the caller says there are. `kept`: how many an open upload has already.

        `InvalidRequestError`: the payload is too large. If nobody knows that yet, the chunk that is too much raises it.
        """
        policy = self._policy(object_id.usecase)
        if policy is None:
            return
        known = size if rest is None else rest.size
        self.check_size(object_id, kept + (max(size, declared or 0) if known is None else known))
        self.spend(object_id, size if known is None else known)
        if rest is None or known is not None:
            return
        total = kept + size

        def meter(more: int) -> None:
            nonlocal total
            total += more
            self.check_size(object_id, total)
            self.spend(object_id, more)

        rest.meter = meter

    def check_size(self, object_id: ObjectId, size: int) -> None:
        """Raises `InvalidRequestError` if an object of so many bytes is too large for its usecase."""
        policy = self._policy(object_id.usecase)
        if policy is not None and policy.object_bytes_max is not None and size > policy.object_bytes_max:
            raise self._refusal(
                object_id, "object_bytes_max", f"objects have at most {policy.object_bytes_max} bytes, and it has {size} or more"
            )

    def bytes_max(self, object_id: ObjectId, asked: int | None) -> int | None:
        """How many bytes may come by a link, if `asked` were allowed. None: as many as a part may have."""
        policy = self._policy(object_id.usecase)
        limits = [limit for limit in (asked, None if policy is None else policy.object_bytes_max) if limit is not None]
        return min(limits, default=None)

    def _lifetime_ns(self, metadata: Metadata) -> int | None:
        """How long an object lives that is there already. Its deadline counts, too: it may be any."""
        told = None if metadata.expiration is None else metadata.expiration.ns
        left = None if metadata.time_expires_ns is None else metadata.time_expires_ns - self._runtime.wall_ns()
        return max((ns for ns in (told, left) if ns is not None), default=None)

    def _check_lifetime(self, object_id: ObjectId, policy: UsecaseSettings, lifetime_ns: int | None) -> None:
        if policy.lifetime_max_s is None:
            return
        if lifetime_ns is None or lifetime_ns > round(policy.lifetime_max_s * NS_PER_S):
            lives = "it would stay until it is deleted" if lifetime_ns is None else f"it would live for {lifetime_ns / NS_PER_S:g} s"
            longest = f"objects live for at most {policy.lifetime_max_s:g} s"
            raise self._refusal(object_id, "lifetime_max_s", f"{longest}, and {lives}: give it a shorter expiration")

    def _refusal(self, object_id: ObjectId, limit: str, why: str) -> InvalidRequestError:
        name = self._name_of(object_id.usecase)
        self._observer.count(Event.REFUSED, name)
        return InvalidRequestError(f"{object_id} was not stored: in usecase {object_id.usecase!r} {why} (usecases.{name}.{limit})")

    # --- whose -----------------------------------------------------------------------------------

    def _policy(self, usecase: str) -> UsecaseSettings | None:
        return self._usecases.get(usecase) or self._usecases.get(OTHER_USECASES)

    def _name_of(self, usecase: str) -> str:
        """The name of its policy in the settings."""
        return usecase if usecase in self._usecases else OTHER_USECASES


def _default_of(policy: UsecaseSettings) -> TimeToLive | TimeToIdle | None:
    if policy.lifetime_default_s is None:
        return None
    kind = TimeToIdle if policy.time_to_live_default_s is None else TimeToLive
    return kind(ns=max(1, round(policy.lifetime_default_s * NS_PER_S)))
