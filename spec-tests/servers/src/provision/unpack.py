"""unpack.py ARCHIVE TARGET PREFIX [--json] ENTRY...

Copies files of a .zip or .tar.gz archive into the existing folder TARGET, under their paths below PREFIX: the files ENTRY,
or with --json all .json files in the folders ENTRY. Ignores entries that are absent.
"""

import pathlib
import shutil
import sys
import tarfile
import zipfile


def copy(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    with source, open(target, "wb") as sink:
        shutil.copyfileobj(source, sink)


def below(name, prefix):
    """The parts of the path below the prefix, or nothing if it is outside of it."""
    if not name.startswith(prefix):
        return ()
    parts = pathlib.PurePosixPath(name[len(prefix):]).parts
    return () if ".." in parts or "/" in parts else parts


def main(archive, target, prefix, *entries):
    is_json = entries[0] == "--json"
    wanted = [pathlib.PurePosixPath(entry).parts for entry in entries[is_json:]]

    def is_wanted(parts):
        if is_json:
            inside = any(parts[: len(folder)] == folder and len(parts) > len(folder) for folder in wanted)
            return inside and parts[-1].endswith(".json")
        return parts in wanted

    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            for name in opened.namelist():
                parts = below(name, prefix)
                if parts and is_wanted(parts):
                    copy(opened.open(name), pathlib.Path(target, *parts))
        return
    with tarfile.open(archive, "r|gz") as opened:
        for member in opened:
            parts = below(member.name, prefix)
            if member.isfile() and parts and is_wanted(parts):
                copy(opened.extractfile(member), pathlib.Path(target, *parts))


main(*sys.argv[1:])
