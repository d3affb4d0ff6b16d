"""What all tests share: workers side by side do not fight for the cores, and no machine is too slow."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch and the linear algebra are loaded
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from hypothesis import settings

# The same examples every time, unless another throw of the dice is asked for (see the conftest.py above).
settings.register_profile(
    "any machine", deadline=None, print_blob=True, derandomize="DISCREET_TEST_SALT" not in os.environ
)
settings.load_profile("any machine")

collect_ignore_glob = ["support/footguns_*.py"]  # they register foot-guns when imported, once
