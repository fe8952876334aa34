"""What a user would write with the official clients: all names in one set, all targets in another."""

from __future__ import annotations

import os
import warnings

from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.bigtable.data import BigtableDataClient, ReadRowsQuery
from google.cloud.bigtable.data.row_filters import CellsColumnLimitFilter, ColumnQualifierRegexFilter, RowFilterChain

from benchmarks.audit_side import Found, Ready, SideRequest
from benchmarks.servers import INSTANCE, PROJECT

FIELDS = "items(name,size,generation,timeCreated),nextPageToken"


def find(asked: SideRequest, ready: Ready) -> Found:
    os.environ["BIGTABLE_EMULATOR_HOST"] = asked.host
    warnings.simplefilter("ignore", RuntimeWarning)  # it says that this is an emulator
    client = storage.Client(PROJECT, AnonymousCredentials(), client_options={"api_endpoint": asked.url})  # type: ignore[no-untyped-call]
    with BigtableDataClient(project=PROJECT) as data, data.get_table(INSTANCE, asked.world) as table:
        ready()
        blobs = {blob.name for blob in client.list_blobs(asked.world, fields=FIELDS)}
        query = ReadRowsQuery(row_filter=RowFilterChain([ColumnQualifierRegexFilter(b"r"), CellsColumnLimitFilter(1)]))
        targets = {row.cells[0].value.decode() for row in table.read_rows_stream(query)}
    return len(blobs - targets), len(targets - blobs)
