"""Wheels and source distributions made by hand, honest and hostile, for tests that build Environments."""

import base64
import hashlib
import io
import tarfile
import zipfile


def digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def make(folder, name, version, files, *, requires=(), script=None, entries=()):
    """Writes NAME-VERSION-py3-none-any.whl; `entries` are (ZipInfo, data) pairs that no builder would write."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    content = dict(files)
    content[f"{info}/METADATA"] = metadata + "".join(f"Requires-Dist: {text}\n" for text in requires)
    content[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    if script:
        content[f"{info}/entry_points.txt"] = f"[console_scripts]\n{script}\n"
    record = "".join(f"{path},sha256={digest(text.encode())},{len(text)}\n" for path, text in content.items())
    content[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)
        for entry, data in entries:
            archive.writestr(entry, data)


def make_source(folder, name, version, backend):
    """Writes a source distribution whose build backend is the given code; it needs nothing else to be built."""
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": backend,
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    }
    with tarfile.open(folder / f"{name}-{version}.tar.gz", "w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{path}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
