"""The programs of Thermocline, which the package starts."""
from __future__ import annotations

import os

from thermocline._library import Error

VARIABLE = 'THERMOCLINE_PROGRAMS'


def find_launcher() -> str:
    """The path of the program `thermocline`: in $THERMOCLINE_PROGRAMS alone, where it is set; else in the folder bin
    beside the package's own, python, which the programs' package has, or on PATH.
    """
    variable = os.environ.get(VARIABLE)
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'bin')
    search_path = os.environ.get('PATH', os.defpath)
    folders = [variable] if variable else [beside, *search_path.split(os.pathsep)]
    for folder in folders:
        program = os.path.join(folder, 'thermocline')
        if os.path.isfile(program) and os.access(program, os.X_OK):
            return os.path.abspath(program)
    where = 'in %s or on PATH (%s)' % (os.path.abspath(beside), search_path)
    if variable:
        where = 'in %s, which $%s names' % (variable, VARIABLE)
    raise Error("There is no program 'thermocline' %s. Unpack the programs' package, "
                'thermocline-VERSION-x86_64.tar.gz, and put its folder bin on PATH, or into $%s.' % (where, VARIABLE))
