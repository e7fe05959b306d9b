"""The files in a tar or ZIP archive: links of a tar archive lead to its files, and the last file of a name counts.

They are never written to disk, so their names can do no harm.
"""

from __future__ import annotations

import posixpath
import tarfile
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from vitviz.errors.kinds import DataError

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
ZIP_SUFFIX = ".zip"
# Larger files, which may be clips or other archives, are not read.
MAX_FILE_BYTES = 2**30
# Links to links, as many as Linux follows.
MAX_LINKS = 40
# Flags of a ZIP archive's members.
ZIP_ENCRYPTED, ZIP_UTF8 = 0x1, 0x800


def archive_files(source: str) -> Iterator[tuple[str, bytes, str]]:
    """The name and content of each file in an archive, or why it has none, in the order of the archive.

    Raises:
        DataError: the archive is damaged.
    """
    is_zip = source.lower().endswith(ZIP_SUFFIX)
    entries_of, read = (_zip_entries, _unzip) if is_zip else (_tar_entries, _untar)
    try:
        with zipfile.ZipFile(source) if is_zip else tarfile.open(source) as archive:
            entries = entries_of(archive)
            names = defaultdict[Any, list[str]](list)
            for name in entries:
                names[_file_of(name, entries)].append(name)
            yield from ((name, b"", "a link to no file in the archive") for name in names.pop(None, ()))
            # Each content is read once, since a compressed archive would be read from its beginning for another time.
            for member in [each for each in dict.fromkeys(entries.values()) if each in names]:
                content, why = read(archive, member)
                yield from ((name, content, why) for name in names[member])
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, OSError, EOFError) as error:
        raise DataError(f"{source}: damaged archive ({error})") from None


def _tar_entries(archive: Any) -> dict[str, Any]:
    """The member of each name, or the name to which its symbolic link leads; None for a hard link to nothing."""
    entries = dict[str, Any]()
    for member in archive:
        name = posixpath.normpath(member.name)
        entry = entries.get(posixpath.normpath(member.linkname)) if member.islnk() else member
        entries.pop(name, None)
        if member.issym():
            entries[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
        elif not member.isdir():
            entries[name] = entry
    return entries


def _file_of(name: str, entries: Mapping[str, Any]) -> Any:
    """The member that a name leads to, through links; None for none."""
    for _ in range(MAX_LINKS):
        entry = entries.get(name)
        if not isinstance(entry, str):
            return entry
        name = entry
    return None


def _untar(archive: Any, member: tarfile.TarInfo) -> tuple[bytes, str]:
    file = archive.extractfile(member) if member.size <= MAX_FILE_BYTES else None
    return (b"", "a pipe, a device, or larger than 1 GiB") if file is None else (file.read(), "")


def _zip_entries(archive: Any) -> dict[str, Any]:
    entries = dict[str, Any]()
    for member in archive.infolist():
        name = member.filename
        # macOS writes UTF-8 without saying so.
        with suppress(UnicodeError):
            name = name if member.flag_bits & ZIP_UTF8 else name.encode("cp437").decode()
        if not member.is_dir():
            entries[posixpath.normpath(name)] = member
    return entries


def _unzip(archive: Any, member: zipfile.ZipInfo) -> tuple[bytes, str]:
    # Each file is encrypted, compressed and checked for itself.
    try:
        return (archive.read(member), "") if member.file_size <= MAX_FILE_BYTES else (b"", "larger than 1 GiB")
    except (RuntimeError, zipfile.BadZipFile, zlib.error):
        return b"", "encrypted" if member.flag_bits & ZIP_ENCRYPTED else "damaged, or compressed in a rare way"
