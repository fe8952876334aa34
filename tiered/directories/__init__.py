"""A local directory and the objects below a prefix: copies what differs from one to the other, as `rsync` does.

    report = await upload_directory(storage, Path("photos"), ObjectPrefix.create("photos", "2026/"), delete=True)

    calls.py     begin here: `upload_directory`, `download_directory`, what they have in common, and their report
    transfer.py  one file or object: whether it differs, how it is stored or fetched, how it is deleted
    pairs.py     both sides as one stream in the order of their names; which object belongs to which file
    tree.py      the local side: walks, reads, places and deletes files, and never leaves its directory

Built on the calls of `TieredStorage`. Nothing else of the store knows of it.
"""

from tiered.directories.calls import DirectoryReport, download_directory, upload_directory
from tiered.directories.transfer import FileResult, Kind

__all__ = ["DirectoryReport", "FileResult", "Kind", "download_directory", "upload_directory"]

for _public in (DirectoryReport, FileResult, Kind, download_directory, upload_directory):
    _public.__module__ = __name__  # messages and pickles show them under the names that callers import
