"""Hands the native part to CMakeLists.txt; everything that can be declared is in pyproject.toml.

Where nvcc is missing CMake would say so too, but above fifty lines of traceback, so that here it is asked first.
"""

import subprocess
import sys

from setuptools import setup

if {"bdist_wheel", "editable_wheel"} & set(sys.argv):
    status = subprocess.call([sys.executable, "cmake/find_nvcc.py"], stdout=subprocess.DEVNULL)
    if status:
        sys.exit(status)

setup(cmake_source_dir=".")
