"""The options that choose where the work of an audit or of a deletion is carried out."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class EngineName(StrEnum):
    SPARK = "spark"
    LOCAL = "local"


Parallel = Annotated[int | None, typer.Option(
    min=1, max=4096, metavar="N", help="So many ranges at once; by default one for each processor."
)]  # fmt: skip
Master = Annotated[str | None, typer.Option(
    metavar="URL", help="The master of Spark; by default one on this machine, or that of spark-submit."
)]  # fmt: skip
