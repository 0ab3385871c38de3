"""Access tokens have a form by which a damaged one is seen, and a cluster keeps only their hash."""

from __future__ import annotations

import pytest

from raftlog.cluster.security.tokens import BadToken, digest_of, is_same, make_token, token_id


def test_a_token_names_itself_and_shows_no_secret() -> None:
    """Two tokens differ; the id is in the text; neither the digest nor the representation gives the text away."""
    token, other = make_token(), make_token()
    assert token_id(token.text) == token.identifier
    assert token.text != other.text
    assert token.digest == digest_of(token.text)
    assert token.text[12:] not in repr(token)
    assert is_same(token.text, token.digest)
    assert not is_same(other.text, token.digest)


@pytest.mark.parametrize("form", ["cut", "longer", "changed", "id", "prefix", "case", "space", "empty", "unicode"])
def test_a_damaged_token_is_refused_by_its_form(form: str) -> None:
    """Cut short at any place, one character changed, another id. The message has no part of the token."""
    text = make_token().text
    changed = "A" if text[20] != "A" else "B"
    damaged = {
        "cut": [text[:end] for end in range(len(text))],
        "longer": [text + "A", text + "\n"],
        "changed": [text[:20] + changed + text[21:]],
        "id": [f"rl_{make_token().identifier}{text[11:]}"],
        "prefix": [text[3:], "xx_" + text[3:]],
        "case": [text.swapcase()],
        "space": [f" {text}", f"{text} "],
        "empty": [""],
        "unicode": [text[:-1] + "é", text[:-1] + "١"],
    }[form]
    for each in damaged:
        with pytest.raises(BadToken) as refused:
            token_id(each)
        assert text[15:25] not in str(refused.value)
