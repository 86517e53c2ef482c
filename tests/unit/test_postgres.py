"""A storage that several hosts can share: .ci/postgres starts the server and names it."""

import os

import pytest

URL = os.environ.get("AUTOSWIZZLE_TEST_POSTGRES", "")

pytestmark = pytest.mark.skipif(
    not URL, reason="AUTOSWIZZLE_TEST_POSTGRES names no server: .ci/postgres starts one"
)


def test_four_processes_do_each_problem_once_and_lose_no_trial_to_a_kill(tmp_path, sharing):
    sharing.four_share(URL, tmp_path)
