"""The files in a tar or ZIP archive, as if it were unpacked: links lead to files, and the last file of a name counts.

They are never written to disk, so their names can do no harm.
"""

from __future__ import annotations

import os
import posixpath
import stat
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
            names = _names_by_member(entries)
            reason = "a link to nothing in the archive, or back to its own folder"
            yield from ((name, b"", reason) for name in names.pop(None, ()))
            # Each content is read once, since a compressed archive would be read from its beginning for another time.
            for member in [each for each in dict.fromkeys(entries.values()) if each in names]:
                content, why = read(archive, member)
                yield from ((name, content, why) for name in names[member])
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, OSError, EOFError) as error:
        raise DataError(f"{source}: damaged archive ({error})") from None


def _tar_entries(archive: Any) -> dict[str, Any]:
    entries = dict[str, Any]()
    for member in archive:
        name, target = posixpath.normpath(member.name), posixpath.normpath(member.linkname)
        # A hard link without its file leads to nothing.
        entry = entries.get(target, f"/{target}") if member.islnk() else member
        entries.pop(name, None)
        if not member.isdir():
            entries[name] = member.linkname if member.issym() else entry
    return entries


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
            is_link = stat.S_ISLNK(member.external_attr >> 16)
            entries[posixpath.normpath(name)] = os.fsdecode(_unzip(archive, member)[0]) if is_link else member
    return entries


def _unzip(archive: Any, member: zipfile.ZipInfo) -> tuple[bytes, str]:
    # Each file is encrypted, compressed and checked for itself.
    try:
        return (archive.read(member), "") if member.file_size <= MAX_FILE_BYTES else (b"", "larger than 1 GiB")
    except (RuntimeError, zipfile.BadZipFile, zlib.error):
        return b"", "encrypted" if member.flag_bits & ZIP_ENCRYPTED else "damaged, or compressed in a rare way"


def _names_by_member(entries: Mapping[str, Any]) -> dict[Any, list[str]]:
    """The names of all files, also through symbolic links, by the members with their contents; None for dead links.

    Args:
        entries: the member of each name, or the target of its symbolic link.
    """
    folders, names = defaultdict[str, dict[str, None]](dict), defaultdict[Any, list[str]](list)
    for name in entries:
        while name != posixpath.dirname(name):
            folders[posixpath.dirname(name)][name] = None
            name = posixpath.dirname(name)

    def real(path: str, links: int = 0) -> str:
        parent, name = posixpath.split(path)
        path = posixpath.join(real(parent, links), name) if name else path
        target = entries.get(path)
        if not isinstance(target, str) or links == MAX_LINKS:
            return path
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        return real(target if target != "." else "", links + 1)

    def search(name: str, path: str, above: frozenset[str]) -> None:
        path = real(path)
        member, is_searched = entries.get(path), path in folders and path not in above
        for child in folders[path] if is_searched else ():
            search(posixpath.join(name, posixpath.basename(child)), child, above | {path})
        if member is not None or not is_searched:
            names[None if isinstance(member, str) else member].append(name)

    for root in [folder for folder in folders if folder == posixpath.dirname(folder)]:
        search(root, root, frozenset())
    return names
