#!/usr/bin/env python3
"""Writes a wheel of the Python package: pip installs it from its file, without a network and without a compiler.

    deploy/wheel.py PACKAGE VERSION FOLDER     writes FOLDER/thermocline-VERSION-py3-none-linux_x86_64.whl

PACKAGE is a folder with the package's modules and libthermocline.so; VERSION is the programs'. Equal files make equal
bytes. The wheel asks for no other package: which PyTorch is there is the user's to decide, and the package says what
it lacks when it is used.
"""

import base64
import hashlib
import os
import sys
import zipfile

TAG = 'py3-none-linux_x86_64'
LIBRARY = 'libthermocline.so'
METADATA = """Metadata-Version: 2.1
Name: thermocline
Version: %s
Summary: Train your own PyTorch model, with its embeddings on parameter servers
Requires-Python: >=3.9
"""
WHEEL = """Wheel-Version: 1.0
Generator: thermocline
Root-Is-Purelib: false
Tag: %s
"""


def files_of(package):
    """{path in the wheel: bytes} of the package."""
    names = sorted(name for name in os.listdir(package) if name.endswith('.py') or name in ('py.typed', LIBRARY))
    files = {}
    for name in names:
        with open(os.path.join(package, name), 'rb') as file:
            files['thermocline/' + name] = file.read()
    return files


def record(files, path):
    """The list of the files with their checksums, which has a line for itself, too."""
    lines = []
    for name, data in files.items():
        checksum = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()
        lines.append('%s,sha256=%s,%d\n' % (name, checksum, len(data)))
    return ''.join(lines + [path + ',,\n']).encode()


def write_wheel(package, version, folder):
    """Writes the wheel; returns its path. Errors: ValueError (the package lacks a file, or has another version)."""
    files = files_of(package)
    for name in '__init__.py', '_library.py', 'py.typed', LIBRARY:
        if 'thermocline/' + name not in files:
            raise ValueError('%s has no %s' % (package, name))
    if ("VERSION = '%s'" % version).encode() not in files['thermocline/_library.py']:
        raise ValueError('%s is not of version %s' % (package, version))
    info = 'thermocline-%s.dist-info/' % version
    files[info + 'METADATA'] = (METADATA % version).encode()
    files[info + 'WHEEL'] = (WHEEL % TAG).encode()
    files[info + 'RECORD'] = record(files, info + 'RECORD')
    path = os.path.join(folder, 'thermocline-%s-%s.whl' % (version, TAG))
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)  # Its time is 1980-01-01.
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix
            entry.external_attr = (0o100755 if name.endswith('.so') else 0o100644) << 16
            wheel.writestr(entry, data)
    return path


def main(arguments):
    if len(arguments) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        print(write_wheel(*arguments))
    except (OSError, ValueError) as error:
        print('wheel.py: %s' % error, file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
