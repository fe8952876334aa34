"""`plan_of`: what a run would do, before anything is done: its parts, their bounds, and the rights it needs.

The bounds are those that a run keeps (`Sizes`, `PARTS`). Nothing is asked of a service for it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from recovery.prove.prices import PRICES, usd_max
from recovery.prove.probes.bench import Sizes
from recovery.prove.report import VERSION, shown_kind
from recovery.prove.run import LOOKS_S, PARTS
from recovery.prove.trial import REMOVAL_S, trial_kinds
from tiered.settings import Settings


def plan_of(settings: Settings, sizes: Sizes, parts: Collection[str]) -> dict[str, Any]:
    """As JSON. `ConfigurationError`: a kind cannot hold a trial."""
    chosen = {name: part for name, part in PARTS.items() if name in parts}
    price = PRICES.get(settings.blobs_kind)
    calls = sum(part.calls(sizes) for part in chosen.values())
    needs = [kind.trial_needs(settings) for kind in trial_kinds(settings)]
    return {
        "v": VERSION,
        "plan": {
            "parts": {
                name: {
                    "tries": part.tries, "minutes_max": _minutes(part.seconds(sizes)), "calls_max": part.calls(sizes),
                    "mib_max": part.mib(sizes),
                }
                for name, part in chosen.items()
            },
            "minutes_max": _minutes(sum(part.seconds(sizes) for part in chosen.values()) + LOOKS_S + REMOVAL_S),
            "usd_max": usd_max(settings.blobs_kind, calls),
            "prices": None if price is None else {"of": price.source, "at": price.at},
            "makes": [each.makes for each in needs], "rights": [each.rights for each in needs],
            "services": [shown_kind(settings.rows_kind), shown_kind(settings.blobs_kind)],
        },
    }  # fmt: skip


def text_of(plan: dict[str, Any]) -> Sequence[str]:
    """The lines of a plan, as the command prints them."""
    said = plan["plan"]
    rows, blobs = said["services"]
    lines = [f"This would try rows in {rows} and blobs in {blobs}, in a store of its own beside yours:", ""]
    for name, part in said["parts"].items():
        lines.append(f"{name:11}{part['tries']}")
        lines.append(f"{'':11}at most {part['minutes_max']} min, {part['calls_max']:,} calls, {part['mib_max']:,} MiB")
    lines += ["", f"time       at most {said['minutes_max']} min, with looks before and the removal"]
    if said["prices"] is None:
        lines.append("cost       none by the call: what bills by the hour, bills on")
    else:
        lines.append(f"cost       at most {said['usd_max']:.2f} US$ of calls, by {said['prices']['of']} (noted {said['prices']['at']})")
    for what, makes, rights in zip(("rows", "blobs"), said["makes"], said["rights"], strict=True):
        lines += [f"{what:11}it makes {makes}", f"{'':11}rights: {rights}"]
    return [*lines, "", "All of it is removed at the end; after a kill, a run two hours later removes it."]


def _minutes(seconds: float) -> int:
    return math.ceil(seconds / 60)
