"""Tokens of an identity provider count only as its keys, its name and the time say; known tricks are refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from raftlog.cluster.runtime import clock
from raftlog.cluster.security import provider
from raftlog.cluster.security.jwt_names import BadJwt, source_refusal
from raftlog.cluster.security.jwt_tokens import BadKeys, JwtPolicy, decide, parse_keys
from raftlog.cluster.security.provider import Provider
from tests.support import wait_until_async

NOW = 1_800_000_000
RSA_KEY = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
OTHER_KEY = ec.generate_private_key(ec.SECP256R1())
POLICY = JwtPolicy("https://issuer", "raftlog")
CLAIMS = {"iss": "https://issuer", "aud": "raftlog", "sub": "alice", "exp": NOW + 60, "roles": ["reader"]}


def jwk(key: Any, identifier: str, **more: str) -> dict[str, Any]:
    """The public key as a provider lists it."""
    algorithm = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": identifier, "use": "sig", **more}


JWKS = json.dumps({"keys": [jwk(RSA_KEY, "r"), jwk(EC_KEY, "e"), {"kty": "oct", "k": "AAAA", "kid": "o"}]}).encode()
KEYS = parse_keys(JWKS)


def sign(claims: Mapping[str, Any], key: Any = EC_KEY, algorithm: str = "ES256", **header: Any) -> str:
    """A token of the provider."""
    return jwt.encode({**CLAIMS, **claims}, key, algorithm=algorithm, headers={"kid": "e", **header})


def by_hand(header: Mapping[str, Any], signature: bytes = b"", secret: bytes | None = None) -> str:
    """A token with any header, unsigned or with an HMAC."""
    parts = [json.dumps(each).encode() for each in (header, CLAIMS)]
    body = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    if secret is not None:
        signature = hmac.digest(secret, body, hashlib.sha256)
    return (body + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


def pem(key: Any) -> bytes:
    """The public key as a file has it."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    encoded: bytes = key.public_key().public_bytes(serialization.Encoding.PEM, form)
    return encoded


@pytest.mark.parametrize(
    ("text", "roles"),
    [
        (sign({}), ("reader",)),
        (sign({}, RSA_KEY, "RS256", kid="r"), ("reader",)),
        (sign({"aud": ["other", "raftlog"], "roles": "a b a"}), ("a", "b")),
        (sign({"exp": NOW - 29, "nbf": NOW + 29, "roles": []}), ()),
    ],
)
def test_a_token_of_the_provider_counts(text: str, roles: tuple[str, ...]) -> None:
    """With both algorithms; clocks may differ a little. The name cannot be that of the cluster's own users."""
    holder = decide(text, KEYS, POLICY, NOW)
    assert (holder.name, holder.roles) == ("jwt:alice", roles)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no JWT"),
        ("a.b", "no JWT"),
        ("x" * 9_000, "characters"),
        (by_hand({"alg": "none", "kid": "e"}), "algorithm is 'none'"),
        (by_hand({"alg": "NONE", "kid": "e"}), "algorithm is 'NONE'"),
        (by_hand({"alg": "HS256", "kid": "r"}, secret=pem(RSA_KEY)), "algorithm is 'HS256'"),
        (by_hand({"alg": ["RS256"], "kid": "r"}), "no JWT|algorithm"),
        (by_hand({"kid": "r"}), "algorithm is 'None'|no JWT"),
        (by_hand({"alg": "ES256", "kid": "e"}), "signature"),
        (by_hand({"alg": "ES256", "kid": "e"}, bytes(64)), "signature"),
        (by_hand({"alg": "RS256", "kid": "e"}, bytes(256)), "one for ES256"),
        (sign({}, b"k" * 32, "HS256"), "algorithm is 'HS256'"),
        (sign({}, RSA_KEY, "RS512", kid="r"), "algorithm is 'RS512'"),
        (sign({}, OTHER_KEY), "signature"),
        (sign({}, OTHER_KEY, jwk=jwk(OTHER_KEY, "e")), "signature"),
        (sign({}, OTHER_KEY, jku="http://127.0.0.1:1/keys", x5u="http://127.0.0.1:1/"), "signature"),
        (sign({}, kid="../../../dev/null"), "has no key"),
        (sign({}, kid="e' OR '1'='1"), "has no key"),
        (sign({}, kid=""), "has no key"),
        (sign({}, kid="o"), "has no key"),
        (sign({}, crit=["exp"], exp=1), "critical"),
        (sign({"iss": "https://issuer/"}), "issuer"),
        (sign({"aud": "raftlog2"}), "audience"),
        (sign({"aud": ["raftlo"]}), "audience"),
        (sign({"exp": NOW - 31}), "expired"),
        (sign({"exp": None}), "never expires"),
        (by_hand({"alg": "ES256", "kid": "e"}, b"\xff" * 64), "signature"),
        (sign({"exp": NOW + 60, "nbf": True}), "nbf is no time"),
        (sign({"nbf": str(NOW)}), "nbf is no time"),
        (sign({"exp": 1e12}), "exp is no time"),
        (sign({"nbf": NOW + 31}), "not count yet"),
        (sign({"iat": NOW + 31}), "not count yet"),
        (sign({"sub": ""}), "names no holder"),
        (sign({"sub": "a\nb"}), "names no holder"),
        (sign({"sub": "аlice"}), "names no holder"),
        (sign({"roles": {"admin": True}}), "list"),
        (sign({"roles": [1]}), "list"),
        (sign({"roles": ["r"] * 101}), "list"),
    ],
)
def test_any_other_token_is_refused_with_the_reason(text: str, reason: str) -> None:
    """Wrong algorithms, keys, names and times. The keys that a token brings along or points to are not used."""
    with pytest.raises(BadJwt, match=reason):
        decide(text, KEYS, POLICY, NOW)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "no key set"),
        (b"[]", "no key set"),
        (b'{"keys": {}}', "list"),
        (b'{"keys": []}', "no key for"),
        (json.dumps({"keys": [jwk(EC_KEY, "e"), jwk(RSA_KEY, "e")]}).encode(), "two of its keys"),
        (json.dumps({"keys": [jwk(EC_KEY, "e", use="enc"), jwk(RSA_KEY, "r", alg="RS512")]}).encode(), "no key for"),
        (json.dumps({"keys": [{"kty": "EC", "crv": "P-256", "kid": "e", "x": "AA", "y": "AA"}]}).encode(), "read"),
        (json.dumps({"keys": [jwk(rsa.generate_private_key(65_537, 1_024), "r")]}).encode(), "1024 bits"),
    ],
)
def test_a_key_set_that_cannot_serve_is_refused(text: bytes, reason: str) -> None:
    """No JSON, no usable key, two with one id, a weak one."""
    with pytest.raises(BadKeys, match=reason):
        parse_keys(text)


async def test_keys_of_a_file_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rotated key counts soon, a token of the old one no longer, even one that was checked before. A bad file leaves
    the keys in use, with one report."""
    monkeypatch.setattr(provider, "LOOK_S", 0.0)
    monkeypatch.setattr(clock, "wall_ms", lambda: NOW * 1_000)
    told: list[str] = []
    file = tmp_path / "keys.json"
    with pytest.raises(BadKeys, match="No such file"):
        Provider(POLICY, str(file))
    file.write_bytes(JWKS)
    own = Provider(POLICY, str(file), told.append)
    old, new = sign({}), sign({}, OTHER_KEY, kid="n")
    assert own.holder(old).name == own.holder(old).name == "jwt:alice"
    before = own.generation()
    file.write_bytes(b"{")
    assert own.holder(old).name == "jwt:alice"
    assert own.generation() == before
    file.write_bytes(json.dumps({"keys": [jwk(OTHER_KEY, "n")]}).encode())
    assert own.generation() == before + 1
    assert own.holder(new).name == "jwt:alice"
    with pytest.raises(BadJwt, match="no key 'e'"):
        own.holder(old)
    assert [bool(each) for each in told] == [True, False]
    monkeypatch.setattr(clock, "wall_ms", lambda: (NOW + 91) * 1_000)
    with pytest.raises(BadJwt, match="expired"):
        own.holder(new)


async def test_keys_of_a_url_are_fetched_again_for_an_unknown_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most once in a while, without a redirection, and never more than the limit of bytes."""
    monkeypatch.setattr(clock, "wall_ms", lambda: NOW * 1_000)
    served: list[Any] = [
        web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}),
        b"x" * (provider.KEYS_BYTES_MAX + 1),
        JWKS,
    ]
    asked = 0

    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        next_one = served.pop(0)
        return next_one if isinstance(next_one, web.StreamResponse) else web.Response(body=next_one)

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    told: list[str] = []
    own = Provider(POLICY, f"http://127.0.0.1:{port}/keys", told.append)
    try:
        await wait_until_async(lambda: len(told) == 1, what="the refused redirection")
        with pytest.raises(BadJwt, match="302"):
            own.holder(sign({}))
        for count in (2, 3):
            own._asked_at -= provider.UNKNOWN_KEY_S
            own._looked_at -= provider.LOOK_S
            own._taken_at -= provider.REFRESH_S
            with pytest.raises(BadJwt):
                own.holder(sign({}))
            await wait_until_async(partial(lambda wanted: len(told) == wanted, count), what="a fetch")
        assert "bytes" in told[1]
        assert own.holder(sign({})).name == "jwt:alice"
        for _ in range(3):
            with pytest.raises(BadJwt, match="no key 'new'"):
                own.holder(sign({}, kid="new"))
        assert asked == 3, "an unknown key soon after a fetch starts no other one"
    finally:
        own.close()
        await runner.cleanup()


@pytest.mark.parametrize("source", ["http://issuer/keys", "ftp://issuer/keys", "file:///etc/keys", "https:///keys"])
def test_keys_come_by_https_or_from_a_file(source: str) -> None:
    """Plain HTTP only on this machine."""
    assert source_refusal(source) is not None
    assert source_refusal("https://issuer/keys") is source_refusal("tls/keys.json") is None
