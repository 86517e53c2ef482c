"""Interpreter tests: only collected with triton's interpreter on (make interpret)."""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["*"]
