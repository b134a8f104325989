import pytest

pytest.register_assert_rewrite("tests.stores.contract", "tests.stores.processes")
