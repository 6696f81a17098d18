from __future__ import annotations

import pytest

from fsm_provider.api.endpoints import CREATE_JOB
from fsm_provider.api.errors import FsmInputError


@pytest.mark.parametrize(
    ("identifier", "segment"),
    [(7, "7"), ("7", "7"), ("a/b", "a%2Fb"), ("a?b#c", "a%3Fb%23c"), ("é%", "%C3%A9%25"), ("...", "...")],
)
def test_an_identifier_stays_one_segment_of_the_path(identifier, segment):
    assert CREATE_JOB.path_for(propertyID=identifier) == f"/properties/{segment}/jobs"


@pytest.mark.parametrize("identifier", [None, "", " ", True, 1.5, ".", "..", " .. ", "None", "a b"])
def test_a_path_is_not_filled_with_what_is_no_identifier(identifier):
    with pytest.raises(FsmInputError, match=r"^propertyID: "):
        CREATE_JOB.path_for(propertyID=identifier)
