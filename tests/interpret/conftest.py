"""Interpreter tests: triton must be imported with its interpreter on."""

import os

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("set TRITON_INTERPRET=1: make interpret", allow_module_level=True)
