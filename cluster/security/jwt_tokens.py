"""Decides whether a token of an identity provider (JWT) counts, and what it says of its holder: pure.

The HTTP gate calls it with the provider's keys (`raftlog.cluster.security.provider`) and the time. Only RS256 and ES256
count, and the key decides which of both: a token that names another algorithm than its key has is refused. Keys that a
token brings along or points to (`jwk`, `jku`, `x5u`) are never used. The cryptography is that of PyJWT (RFC 7519).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import jwt

from raftlog.cluster.security.jwt_names import BadJwt, JwtHolder

ALGORITHMS: Final = ("RS256", "ES256")
TOKEN_BYTES_MAX: Final = 8 << 10
"""Longest token, in characters. A token of an identity provider has one or two thousand."""
KEYS_MAX: Final = 64
"""Most keys of one provider. Providers have two or three: the key in use, the one before and the next one."""
LEEWAY_S: Final = 30.0
"""Seconds by which the clocks of the provider and of this machine may differ."""
RSA_BITS_MIN: Final = 2_048
ROLES_MAX: Final = 100
NAME_PREFIX: Final = "jwt:"
"""How the names of holders begin, so that a provider cannot name a user of the cluster itself."""


_NAME: Final = re.compile(r"[!-~](?:[ -~]{0,198}[!-~])?")


class BadKeys(ValueError):
    """A key set cannot be used. The message says why."""


class ProviderKey(NamedTuple):
    """One public key of the provider, with the one algorithm that it may verify."""

    algorithm: str
    key: jwt.PyJWK


class JwtPolicy(NamedTuple):
    issuer: str
    audience: str
    roles_claim: str = "roles"  # a list of names, or one text with spaces between them
    name_claim: str = "sub"


def parse_keys(text: bytes) -> dict[str, ProviderKey]:
    """The keys of a JWKS document (RFC 7517), by key id. Keys for other purposes are left out. Raises BadKeys."""
    try:
        listed = json.loads(text)["keys"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadKeys('it is no key set: it must be JSON like {"keys": [...]} (JWKS)') from error
    if not isinstance(listed, list) or len(listed) > KEYS_MAX:
        raise BadKeys(f"its keys must be a list of {KEYS_MAX} at most")
    keys: dict[str, ProviderKey] = {}
    for each in listed:
        if not isinstance(each, dict) or each.get("use", "sig") != "sig":
            continue
        algorithm = {"RSA": "RS256", "EC": "ES256"}.get(str(each.get("kty")))
        if algorithm is None or each.get("alg", algorithm) != algorithm or each.get("crv", "P-256") != "P-256":
            continue
        identifier = str(each.get("kid", ""))
        if identifier in keys:
            raise BadKeys(f"two of its keys have the id {identifier[:64]!r}")
        public = {name: value for name, value in each.items() if name in ("kty", "n", "e", "crv", "x", "y", "kid")}
        try:
            key = jwt.PyJWK(public, algorithm=algorithm)
        except jwt.PyJWTError as error:
            raise BadKeys(f"its key {identifier[:64]!r} cannot be read: {error}") from error
        if algorithm == "RS256" and key.key.key_size < RSA_BITS_MIN:
            raise BadKeys(f"its key {identifier[:64]!r} has {key.key.key_size} bits: {RSA_BITS_MIN} are the least")
        keys[identifier] = ProviderKey(algorithm, key)
    if not keys:
        raise BadKeys(f"it has no key for {' or '.join(ALGORITHMS)}")
    return keys


def decide(text: str, keys: Mapping[str, ProviderKey], policy: JwtPolicy, now_s: float) -> JwtHolder:
    """The holder of a token that counts at this Unix time. Raises BadJwt."""
    if len(text) > TOKEN_BYTES_MAX:
        raise BadJwt(f"it has more than {TOKEN_BYTES_MAX} characters")
    try:
        header = jwt.get_unverified_header(text)
    except jwt.PyJWTError as error:
        raise BadJwt(f"it is no JWT that counts: {str(error)[:100].lower()}") from error
    key = _key(header, keys)
    try:
        checked = jwt.api_jws.decode(text, key.key.key, algorithms=[key.algorithm])
        claims = json.loads(checked)
    except (jwt.PyJWTError, ValueError, RecursionError) as error:
        raise BadJwt("its signature is not that of the identity provider") from error
    if not isinstance(claims, dict):
        raise BadJwt("its claims are no JSON object")
    return _holder(claims, policy, now_s)


def _key(header: Mapping[str, Any], keys: Mapping[str, ProviderKey]) -> ProviderKey:
    """The key that must have signed a token with that header."""
    algorithm = header.get("alg")
    if algorithm not in ALGORITHMS:
        raise BadJwt(f"its algorithm is {str(algorithm)[:20]!r}: only {' and '.join(ALGORITHMS)} count")
    identifier = header.get("kid", "")
    key = keys.get(identifier) if isinstance(identifier, str) else None
    if key is None and not identifier and len(keys) == 1:
        key = next(iter(keys.values()))
    if key is None:
        raise BadJwt(f"the identity provider has no key {str(identifier)[:64]!r}", is_key_unknown=True)
    if key.algorithm != algorithm:
        raise BadJwt(f"its algorithm is {algorithm}, and its key is one for {key.algorithm}")
    return key


def _holder(claims: Mapping[str, Any], policy: JwtPolicy, now_s: float) -> JwtHolder:
    issuer, audience = claims.get("iss"), claims.get("aud")
    if issuer != policy.issuer:
        raise BadJwt(f"its issuer is {str(issuer)[:100]!r}: it must be {policy.issuer!r}")
    if audience != policy.audience and not (isinstance(audience, list) and policy.audience in audience):
        raise BadJwt(f"its audience is {str(audience)[:100]!r}: it must be {policy.audience!r}")
    expires = _time(claims, "exp")
    if expires is None:
        raise BadJwt("it never expires: it must have the claim exp")
    if now_s >= expires + LEEWAY_S:
        raise BadJwt("it has expired: get a new one")
    for name in ("nbf", "iat"):
        begins = _time(claims, name)
        if begins is not None and now_s < begins - LEEWAY_S:
            raise BadJwt(f"it does not count yet (claim {name})")
    holder = claims.get(policy.name_claim)
    if not isinstance(holder, str) or not _NAME.fullmatch(holder):
        raise BadJwt(f"its claim {policy.name_claim} names no holder: it must be 1 to 200 printable ASCII characters")
    roles = claims.get(policy.roles_claim, [])
    if isinstance(roles, str):
        roles = roles.split()
    if not isinstance(roles, list) or len(roles) > ROLES_MAX or not all(isinstance(role, str) for role in roles):
        raise BadJwt(f"its claim {policy.roles_claim} must be a list of at most {ROLES_MAX} role names, or one text")
    return JwtHolder(NAME_PREFIX + holder, tuple(dict.fromkeys(roles)), expires)


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise BadJwt(f"its claim {name} is no time")
    return float(value)
