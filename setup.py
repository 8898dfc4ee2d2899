"""Knows the one thing setup.cfg cannot say: found packages and mapped folders together make the package."""

from setuptools import find_packages, setup

MAPPED = ["clusterrun.docs", "clusterrun.jobs", "clusterrun.templates"]

setup(packages=find_packages(include=["clusterrun", "clusterrun.*"]) + MAPPED + ["hydra_plugins"])
