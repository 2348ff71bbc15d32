"""Nothing here is about power that fails: to bring each file onto a busy disk would take most of the time."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def unsynchronised(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
