"""All objects of a store with all that is known of them, in a directory or a bucket, for any program; and back.

    report = await export_objects(storage, "gs://my-bucket/leaving")
    report = await import_objects(storage, "gs://my-bucket/leaving")

    exporting.py    begin here: `export_objects`: lists, fetches part by part, goes on after a kill
    manifest.py     the format: a row for each object in Parquet, `begun.json` and `manifest.json`
    pages.py        how many bytes a part becomes, before it is decompressed
    payloads.py     where a payload lies, and its checksums
    places.py       a directory or a bucket: whole files, written and read
    verifying.py    `verify_export`: reads an export again and compares, without a store
    importing.py    `import_objects`: stores what a source has, and overwrites nothing unasked
    patterns.py     `NamePattern`: ids with scopes, made of names
    sources.py      what can be imported: an export, the files of a directory, the objects of a bucket

Built on the calls of `TieredStorage`. Nothing else of the store knows of it.
"""

from tiered.exports.exporting import ExportReport, export_objects
from tiered.exports.importing import Existing, import_objects
from tiered.exports.patterns import NamePattern
from tiered.exports.verifying import VerifyReport, verify_export

__all__ = [
    "Existing", "ExportReport", "NamePattern", "VerifyReport", "export_objects", "import_objects", "verify_export",
]  # fmt: skip

for _public in (Existing, ExportReport, NamePattern, VerifyReport, export_objects, import_objects, verify_export):
    _public.__module__ = __name__  # messages and pickles show them under the names that callers import
