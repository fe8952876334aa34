"""The options of `plan` and `run`, and what they ask for together.

    grouped                                      lets a command take a dataclass of options
    ScopeChoice, PayloadChoice, ReferenceChoice  options that belong together, and are checked together
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from changelog.base.errors import InvalidRequestError
from recovery.cli.audit.engines import EngineName
from recovery.cli.shared import lifetime
from tiered.text import quoted

if TYPE_CHECKING:
    from recovery.audit.manifest import Verify as VerifyChoice

VERIFY_MIB_PER_S = 100.0
PRICE_MAX = 1_000_000.0

Grace = Annotated[str | None, typer.Option(metavar="DURATION", help=(
    "Never call what is younger an orphan: a whole number and s, m, h or d; at least 1h, by default 24h. A run keeps its own."
))]  # fmt: skip
Insist = Annotated[bool, typer.Option("--insist", help="Accept a grace below 1h, or a table without objects.")]
Unowned = Annotated[bool, typer.Option(
    "--unowned", help="No marker says whose the bucket is, such as one of Objectstore: take all of its blobs for this store's."
)]  # fmt: skip
EngineOption = Annotated[EngineName, typer.Option(help="spark, or local: processes of this machine, without Java.")]
To = Annotated[str | None, typer.Option(
    metavar="RUN", help="Where the run is kept, a path, gs://… or the like; one that was interrupted goes on. By default ./audit-TIME."
)]  # fmt: skip
Prefix = Annotated[str | None, typer.Option(metavar="PREFIX", help="Only names that begin with this are looked at.")]
Usecase = Annotated[str | None, typer.Option(metavar="USECASE", help="Only this usecase is looked at.")]
Verify = Annotated[bool, typer.Option(
    "--verify", help="Read the payloads that live tombstones name, too, and check them against their checksums."
)]  # fmt: skip
VerifyShare = Annotated[float | None, typer.Option(
    metavar="SHARE", help="With --verify: read only this share of them, such as 0.1; always the same ones."
)]  # fmt: skip
VerifyRate = Annotated[float | None, typer.Option(
    metavar="MIB", help="With --verify: read so many MiB a second, all workers together; by default 100; 0: no limit."
)]  # fmt: skip
Overdue = Annotated[str | None, typer.Option(
    metavar="DURATION", help="Report a blob that is still there so long after its deadline; by default 7d."
)]  # fmt: skip
Since = Annotated[str | None, typer.Option(
    metavar="RUN", help="The report says what changed since this run; by default since the youngest one beside the new one."
)]  # fmt: skip
Price = Annotated[float | None, typer.Option(min=0, metavar="USD", help="US dollars for a GiB a month, for the report; by default 0.020.")]
Name = Annotated[str | None, typer.Argument(metavar="NAME", help="An object's path, or a blob's name.")]
From = Annotated[str | None, typer.Option("--from", metavar="RUN", help="The directory of a run: what it found is shown, too.")]
ShownGrace = Annotated[
    str | None, typer.Option("--grace", metavar="DURATION", help="Call nothing younger an orphan; by default that of the run, or 24h.")
]
VerifyShown = Annotated[bool, typer.Option("--verify", help="Read payloads of any size; without it, those of up to 64 MiB.")]

References = Annotated[str | None, typer.Option(metavar="rows|feed", help=(
    "Where the references come from: a scan of the rows (the default), or the index of the change feed. A run keeps its own."
))]  # fmt: skip
FeedAgeMax = Annotated[str | None, typer.Option(
    metavar="DURATION", help="With --references feed: how long ago the feed may have been complete; by default 1d."
)]  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScopeChoice:
    """Which names are looked at."""

    prefix: Prefix = None
    usecase: Usecase = None

    def begin(self) -> str | None:
        """Returns how these names begin. None: all names. Raises `InvalidRequestError` if no name begins so."""
        if self.usecase is None:
            if self.prefix is not None and not _begins_names(self.prefix):
                raise InvalidRequestError(
                    f"--prefix {self.prefix!r} begins no name: give the first characters of some names, or leave it out"
                )
            return self.prefix
        if self.prefix is not None:
            raise InvalidRequestError("--usecase and --prefix exclude each other: give --prefix USECASE/… for a part of a usecase")
        if "/" in self.usecase or not self.usecase or not _begins_names(f"{self.usecase}/"):
            raise InvalidRequestError(f"--usecase {self.usecase!r} is no usecase: it is the first segment of a name, such as media")
        return f"{self.usecase}/"


@dataclass(frozen=True, slots=True)
class PayloadChoice:
    """Which payloads are read."""

    verify: Verify = False
    verify_share: VerifyShare = None
    verify_rate: VerifyRate = None

    def chosen(self) -> VerifyChoice | None:
        from recovery.audit.manifest import Verify

        share, mib_per_s = self.verify_share, self.verify_rate
        if not self.verify and share is None:
            if mib_per_s is not None:
                raise InvalidRequestError(f"--verify-rate {mib_per_s:g} is of --verify: add --verify, or leave it out")
            return None
        share = 1.0 if share is None else share
        mib_per_s = VERIFY_MIB_PER_S if mib_per_s is None else mib_per_s
        if not 0 < share <= 1:
            raise InvalidRequestError(f"--verify-share {share:g} is no share: give a number above 0, at most 1, such as 0.1")
        if not math.isfinite(mib_per_s) or mib_per_s < 0:
            raise InvalidRequestError(f"--verify-rate {mib_per_s:g} is no rate: give MiB a second, such as 100, or 0 for no limit")
        return Verify(share=share, bytes_per_s=mib_per_s * 1024 * 1024 or None)


@dataclass(frozen=True, slots=True)
class ReferenceChoice:
    """Where the references come from."""

    references: References = None
    feed_age_max: FeedAgeMax = None

    def options(self) -> dict[str, Any]:
        """Returns the fields of `AuditOptions` that say so."""
        if self.references not in (None, "rows", "feed"):
            raise InvalidRequestError(
                f"--references {quoted(self.references)} is no source of references: give rows, or feed, which is the index that the"
                " writer of the change feed keeps in the changelog; files of a feed are not read"
            )
        if self.feed_age_max is not None and self.references != "feed":
            raise InvalidRequestError(f"--feed-age-max {self.feed_age_max} is of --references feed: add that, or leave it out")
        age_max_s = None if self.feed_age_max is None else lifetime(self.feed_age_max).total_seconds()
        return {"references": self.references, "feed_age_max_s": age_max_s}


def price_of(price: float | None) -> float | None:
    if price is not None and not price <= PRICE_MAX:
        raise InvalidRequestError(f"--price {price} is no price: give US dollars for a GiB a month, such as 0.020")
    return price


def seconds(text: str | None) -> float | None:
    return None if text is None else lifetime(text).total_seconds()


def grouped(call: Callable[..., None]) -> Callable[..., None]:
    """Lets a command take dataclasses of options: each field of one is an option of the command, at that place."""
    parameters, groups = list[inspect.Parameter](), dict[str, type]()
    signature = inspect.signature(call, eval_str=True)
    for parameter in signature.parameters.values():
        if is_dataclass(kind := parameter.annotation) and isinstance(kind, type):
            groups[parameter.name], hints = kind, get_type_hints(kind, include_extras=True)
            parameters += [
                inspect.Parameter(each.name, parameter.POSITIONAL_OR_KEYWORD, default=each.default, annotation=hints[each.name])
                for each in fields(kind)
            ]
        else:
            parameters.append(parameter.replace(kind=parameter.POSITIONAL_OR_KEYWORD))

    @wraps(call)
    def with_groups(**values: Any) -> None:
        chosen = {name: kind(**{each.name: values.pop(each.name) for each in fields(kind)}) for name, kind in groups.items()}
        call(**values, **chosen)

    with_groups.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return with_groups


def _begins_names(text: str) -> bool:
    from recovery.audit.reporting.one_name import NAME_BYTES_MAX

    data = text.encode(errors="replace")
    return 0 < len(data) <= NAME_BYTES_MAX and b"\0" not in data and data.decode() == text
