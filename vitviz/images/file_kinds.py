"""Kinds of files by their first bytes: the pictures that are opened, and what any other file is called."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from PIL import AvifImagePlugin

from vitviz.errors.messages import legible, several
from vitviz.system.paths import REQUEST_FILE

HAS_AVIF = AvifImagePlugin.SUPPORTED
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM", *(["AVIF"] if HAS_AVIF else []))
# The format of the extra heif.
HEIF = "HEIF"
FILE_SUFFIXES = (
    ".jpg", ".jpeg", ".jfif", ".jpe", ".mpo", ".png", ".apng", ".webp", ".gif", ".tif", ".tiff", ".bmp", ".avif",
    ".heic", ".heif", ".hif", ".ppm", ".pgm", ".pbm", ".pnm",
)  # fmt: skip
EXPECTED = f"expected a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file"
START_BYTES = 1024
# Larger pictures are reduced; those of strangers are refused.
MAX_PIXELS = 64_000_000
RAW = "a camera's raw file: develop it in a photo program, and save it as JPEG or TIFF"
THUMBNAIL = (
    "a TIFF file whose first page is a smaller copy of another, as of a camera's raw file: save the page that you mean "
    "as a file, or pass that page, as PIL.Image.open and seek give it"
)
AS_ARRAY = (
    "expected a copy saved with 8 bits a colour, or an array and its values of black and white: "
    "vitviz.analyze(tifffile.imread(path), model, value_range=(0, 65535))"
)
HEIC = "a HEIC photo"
UNREAD = "of a kind that Pillow does not read (its compression, numbers or colours)"
TIFF = f"a TIFF file {UNREAD}, or without a whole header; {AS_ARRAY}"
AVIF = "an AVIF file with a damaged header" if "AVIF" in FORMATS else "an AVIF image, which this Pillow cannot read"
PLAIN = "a QOI, SGI or PCX image: save it as PNG"
# Endings of camera files that may look like a TIFF file.
RAW_SUFFIXES = (
    ".3fr", ".arw", ".cr2", ".dcr", ".dng", ".erf", ".fff", ".iiq", ".k25", ".kdc", ".mef", ".mos", ".nef", ".nrw",
    ".pef", ".raw", ".rwl", ".sr2", ".srf", ".srw",
)  # fmt: skip
# What a file that Pillow cannot open is, by its first bytes; the first match counts.
OTHER_KINDS = {
    rb"\s*$": "an empty file",
    rb"(?i)(\xef\xbb\xbf)?\s*<(!doctype html|html|head|body)": "an HTML page",
    rb"(?is)(\xef\xbb\xbf)?\s*<(.*<)?svg": "an SVG drawing, which has no pixels",
    rb"(?s).{4}ftypcrx |II\*\x00.{4}CR|IIR[OS]|MMOR|IIU\x00|FUJIFILMCCD-RAW|\x00MRM|FOVb|IIII|II.{4}HEAPCCDR": RAW,
    rb"(?s).{4}ftypavi[fs]|.{4}ftyp(mif1|msf1).{,64}avi[fs]": AVIF,
    rb"(?s).{4}ftyp(he[iv]|mif1|msf1|MiHB)": HEIC,
    rb"(?s).{4}ftyp|\x1aE\xdf\xa3|RIFF.{4}AVI ": "a video: vitviz.film, or the command vitviz video, maps its frames",
    rb"\xff\x0a|\x00\x00\x00\x0cJXL ": "a JPEG XL image: save it as JPEG or PNG",
    rb"\xff\x4f\xff\x51|\x00\x00\x00\x0cjP  ": "a JPEG 2000 image: save it as JPEG, PNG or TIFF",
    rb"(?s).{128}DICM": "a DICOM file: read it by pydicom, and pass its pixel_array and value_range",
    rb"(?s)\x5c\x01\x00\x00.{340}n[+i]1\x00": "a NIfTI volume: read it by nibabel, and pass a slice and value_range",
    rb"8BPS": "a Photoshop document (PSD): save it as PNG or TIFF",
    rb"v/1\x01": "an OpenEXR image: save it as PNG, or pass an array and value_range",
    rb"#\?RADIANCE": "a Radiance HDR image: save it as PNG, or pass an array and value_range",
    rb"II\xbc": "a JPEG XR image, such as an HDR screenshot of Windows: save it as JPEG or PNG",
    rb"gimp xcf": "a GIMP document (XCF): save it as PNG",
    rb"DDS |\xabKTX|\x00\x00[\x02\x0a]\x00{5}": "a texture (DDS, KTX or TGA): save it as PNG",
    rb"qoif|\x01\xda[\x00\x01][\x01\x02]|\n[\x00-\x05]\x01[\x01\x02\x04\x08]": PLAIN,
    rb"\x00\x00\x01\x00|icns": "an icon (ICO or ICNS): save it as PNG",
    rb"SIMPLE  =": "a FITS file: read it by astropy, and pass an array and value_range",
    rb"\x89HDF\r\n": "an HDF5 or NetCDF file: read it by h5py, and pass an array and value_range",
    rb"ZISRAWFILE|\xda\xce\xbe\n": "a microscope's file (CZI or ND2): save it as TIFF, or pass an array",
    rb"%!PS|\xc5\xd0\xd3\xc6": "a PostScript document",
    rb"\x93NUMPY": "an array of NumPy: pass what numpy.load gives, and value_range",
    rb"%PDF": "a PDF document",
    rb"PK\x03\x04": "a ZIP archive",
    rb"\x1f\x8b": "a gzip archive",
    rb"\xff\xd8\xff\xf7": "a JPEG-LS image: save it as JPEG or PNG, or pass an array and value_range",
    rb"\xff\xd8": "a JPEG file with a damaged header, or of more than 8 bits a colour: save it with 8",
    rb"\x89PNG": "a PNG file with a damaged header",
    rb"(?s)RIFF.{4}WEBP": "a WEBP file with a damaged header",
    rb"GIF8": "a GIF file with a damaged header",
    rb"BM": "a BMP file with a damaged header",
    rb"II[*+]\x00|MM\x00[*+]": TIFF,
    rb"P7\s|PF\s": "a PAM file, or a PFM file of colours: save it as PNG, or pass an array and value_range",
    rb"P[1-6f]\s": "a PPM file with a damaged header",
    rb"[\t\n\r\x20-\x7e]+$": "a text file",
}
# The beginnings of pictures: of the formats that are opened, and of those whose refusal says what to do.
PICTURE = re.compile(
    rb"(?s)\xff\xd8\xff|\x89PNG\r\n\x1a\n|RIFF.{4}WEBP|GIF8[79]a|II[*+]\x00|MM\x00[*+]|BM.{4}\x00{4}|P[1-6]\s+[#\d]"
    rb"|.{4}ftyp(avi[fs]|he[iv]|mif1|msf1|MiHB|crx )|IIR[OS]|MMOR|IIU\x00|FUJIFILMCCD-RAW|\x00MRM|FOVb"
)
# Files of file managers, beside those whose names begin with a dot: thumbnails, settings and copies of attributes.
MANAGER_NAMES = {"thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx", "@eadir"}
# Why files are left out, and how many of a reason a sentence names.
HIDDEN, NO_PICTURE, MAX_NAMES = "hidden", "not a picture", 8


def kind_of(start: bytes) -> str:
    """What a file is that cannot be opened, by its first bytes."""
    return next((kind for pattern, kind in OTHER_KINDS.items() if re.match(pattern, start)), "not an image")


def is_hidden(path: Path) -> bool:
    """Whether a relative path is hidden, or of a file manager."""
    return any((part[0] == "." and part != "..") or part.lower() in MANAGER_NAMES for part in path.parts)


def is_picture(name: str, start: bytes) -> bool:
    """Whether a file is opened as a picture: by its ending, so that a damaged one is reported, or its first bytes."""
    return Path(name).suffix.lower() in FILE_SUFFIXES or PICTURE.match(start) is not None


def picture_files(paths: Iterable[Path], root: Path) -> tuple[list[Path], list[Path]]:
    """The pictures among the paths in a folder, sorted, and the others, such as pipes and folders.

    Of hidden files, those with the ending of a picture are the last of the others, and the rest are in neither.
    """
    pictures, others, hidden = list[Path](), list[Path](), list[Path]()
    for path in sorted(paths):
        has_suffix = path.suffix.lower() in FILE_SUFFIXES
        if is_hidden(path.relative_to(root)):
            hidden += [path] * (has_suffix and os.path.isfile(path))
        else:
            is_picture_file = os.path.isfile(path) and is_picture(path.name, b"" if has_suffix else start_of(path))
            (pictures if is_picture_file else others).append(path)
    return pictures, others + hidden


def why_left_out(path: Path) -> str:
    """Why a file or folder that is no picture, or a hidden one, is left out."""
    kinds = {
        # Other files with the ending of a picture are not left out.
        HIDDEN: os.path.isfile(path) and path.suffix.lower() in FILE_SUFFIXES,
        NO_PICTURE: os.path.isfile(path),
        "results of vitviz batch": os.path.isfile(path / REQUEST_FILE),
        "a link to a folder that leads to it": os.path.isdir(path) and os.access(path, os.R_OK | os.X_OK),
        "a folder that cannot be read": os.path.isdir(path),
        "a link to nothing": path.is_symlink(),
    }
    return next((kind for kind, is_it in kinds.items() if is_it), "a pipe, a socket or a device")


def left_out(others: Sequence[tuple[str, str]]) -> str:
    """A sentence on what is left out, by names and reasons: how much, and for each reason the first names; or empty."""
    names = {
        why: [legible(name) for name, each in others if each == why]
        # What may be a picture comes first.
        for why in dict.fromkeys(sorted((each for _, each in others), key=NO_PICTURE.__eq__))
    }
    reasons = "; ".join(f"{several(each, MAX_NAMES)} ({why})" for why, each in names.items())
    return f"{len(others):,} {'file' if len(others) == 1 else 'files'} left out: {reasons}" if others else ""


def start_of(path: str | os.PathLike[str]) -> bytes:
    """The first bytes of a file; none if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(START_BYTES)
    # The second: a name with a null character.
    except (OSError, ValueError):
        return b""
