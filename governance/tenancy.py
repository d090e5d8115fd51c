"""Who calls: bearer tokens, the local owner, console sessions; and what the caller's role is here.

One SQL statement answers both questions for an API call, so that authentication costs one round trip
and a revoked token or a lost role counts from the next call on.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.conf import settings
from django.db import connection

from loomsite.ops import Caller, Door, OpError, Role

_BEARER = re.compile(r"loom_([a-z0-9]{12})_([A-Za-z0-9_-]{43})")
_PREFIX_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
LOCAL_ORG = "dev"
LOCAL_NAMESPACE = "local"


@dataclass(frozen=True)
class Credentials:
    """What a door knows about the caller before anyone is asked.

    `is_local` is true when the call passed the guards of single-user mode; `user_id` is a console
    session's user, together with the organisation the page works in.
    """

    bearer: str | None = None
    door: Door = Door.REST
    is_local: bool = False
    user_id: int | None = None
    org: str | None = None


class Standing(NamedTuple):
    """A caller and where it stands in the namespace that the call means."""

    caller: Caller
    namespace: str
    namespace_id: int | None
    role: Role


def new_secret() -> tuple[str, str, bytes]:
    """A fresh token as (prefix, full text to show once, SHA-256 of the secret)."""
    prefix = "".join(secrets.choice(_PREFIX_ALPHABET) for _ in range(12))
    secret = secrets.token_urlsafe(32)
    return prefix, f"loom_{prefix}_{secret}", hashlib.sha256(secret.encode()).digest()


# Role and org-admin of a user `u` on namespace `n` of org `o`; the functions are in migration 0003.
_STANDING = """
  CASE WHEN u.is_superuser THEN 4 ELSE loom_role(u.id, n.id) END AS role,
  u.is_superuser OR loom_org_admin(u.id, o.id) AS org_admin
"""
_STANDING_BY_PREFIX = "SELECT * FROM loom_token_standing(%s, %s)"
_STANDING_BY_USER = f"""
SELECT u.id, u.username, o.id, o.slug, n.id, {_STANDING}
FROM governance_user u
JOIN governance_org o ON o.slug = %(org)s
LEFT JOIN governance_namespace n ON n.org_id = o.id AND n.slug = %(namespace)s
WHERE u.is_active AND CASE WHEN %(user_id)s::bigint IS NULL
  THEN u.id = (SELECT min(id) FROM governance_user WHERE is_superuser AND is_active)
  ELSE u.id = %(user_id)s END
"""  # noqa: S608 - a constant fragment


def standing(credentials: Credentials, org: str | None, namespace: str | None) -> Standing:
    """The caller and its role in `namespace` (the token's own when None).

    Raises OpError 401 for a missing or dead token, 404 for what the caller's token does not cover.
    `namespace_id` is None for a namespace that does not exist and that the caller could have seen.
    """
    if credentials.bearer is not None:
        found = _token_standing(credentials, namespace)
    elif credentials.user_id is not None:
        found = _user_standing(credentials, credentials.org or org or LOCAL_ORG, namespace, Role.ADMIN)
    elif credentials.is_local and settings.LOOM_SINGLE_USER:
        found = _user_standing(credentials, LOCAL_ORG, namespace, Role.WRITER)
    else:
        raise OpError(
            "UNAUTHENTICATED",
            "A token is needed: send the header `Authorization: Bearer loom_…`. "
            "Tokens are made in the console under Tokens.",
        )
    if org is not None and org != found.caller.org:
        raise OpError("NOT_FOUND", "No such organisation for this caller; see ops.whoami.")
    return found


def _token_standing(credentials: Credentials, namespace: str | None) -> Standing:
    match = _BEARER.fullmatch(credentials.bearer or "")
    if not match:
        raise _bad_token()
    prefix, secret = match.groups()
    with connection.cursor() as cursor:
        cursor.execute(_STANDING_BY_PREFIX, [prefix, namespace])
        row = cursor.fetchone()
    digest = hashlib.sha256(secret.encode()).digest()
    # An unknown prefix costs the same comparison as a wrong secret.
    right = hmac.compare_digest(digest, bytes(row[0]) if row else bytes(32))
    if not row or not right or row[1]:
        raise _bad_token()
    (_, _, token_id, namespaces, default, ceiling, agent, user, source, acts_for, may_create) = row[:11]
    (user_id, username, org_id, org_slug, ns_id, _, role, org_admin) = row[11:]
    _touch(token_id)
    caller = Caller(
        principal_id=user_id,
        principal=username,
        org_id=org_id,
        org=org_slug,
        door=credentials.door,
        token_prefix=prefix,
        acts_for=acts_for,
        bound_agent=agent or None,
        bound_user=user or None,
        source_ceiling=source,
        namespaces=None if namespaces is None else frozenset(namespaces),
        ceiling=Role.of(ceiling),
        may_create_namespaces=Role.of(ceiling) >= Role.WRITER and (may_create or org_admin),
        default_namespace=_default(namespaces, default),
        single_user=settings.LOOM_SINGLE_USER,
    )
    return _place(caller, namespace, ns_id, role, org_admin)


def _user_standing(credentials: Credentials, org: str, namespace: str | None, ceiling: Role) -> Standing:
    local = credentials.user_id is None
    default = LOCAL_NAMESPACE if local else ""
    with connection.cursor() as cursor:
        cursor.execute(
            _STANDING_BY_USER, {"org": org, "namespace": namespace or default, "user_id": credentials.user_id}
        )
        row = cursor.fetchone()
    if not row:
        raise OpError("UNAUTHENTICATED", "There is no owner account yet; `make run` makes one.")
    user_id, username, org_id, org_slug, ns_id, role, org_admin = row
    caller = Caller(
        principal_id=user_id,
        principal=username,
        org_id=org_id,
        org=org_slug,
        door=credentials.door,
        acts_for="agent" if local else "person",
        ceiling=ceiling,
        may_create_namespaces=local or org_admin,
        default_namespace=default,
        single_user=settings.LOOM_SINGLE_USER,
    )
    return _place(caller, namespace, ns_id, role, org_admin)


def _default(namespaces: list[str] | None, default: str) -> str:
    """The namespace meant when a call names none; one outside of the token's own list does not count."""
    if default and (namespaces is None or default in namespaces):
        return default
    return namespaces[0] if namespaces and len(namespaces) == 1 else ""


def _place(caller: Caller, asked: str | None, ns_id: int | None, role: int, org_admin: bool) -> Standing:
    """Where the caller stands. A default that it cannot see (any more) is no place; ops.whoami tells."""
    namespace = asked or caller.default_namespace
    if not namespace:
        return Standing(caller, "", None, Role.NONE)
    held = min(Role.ADMIN if org_admin else Role(role), caller.ceiling)
    covered = caller.namespaces is None or namespace in caller.namespaces
    sees_all = org_admin or caller.may_create_namespaces
    if covered and (sees_all if ns_id is None else held > Role.NONE):
        return Standing(caller, namespace, ns_id, held)
    if asked is None:
        return Standing(caller, "", None, Role.NONE)
    raise OpError("NOT_FOUND", "No such namespace for this caller; namespace.list shows yours.")


def _bad_token() -> OpError:
    return OpError(
        "UNAUTHENTICATED",
        "The token is unknown, revoked or expired. Make a new one in the console under Tokens.",
    )


_touched: dict[int, float] = {}
_TOUCHED_AT_MOST = 10_000


def _touch(token_id: int) -> None:
    """Note the token's last use, at most once a minute a process."""
    now = time.monotonic()
    if now - _touched.get(token_id, -60.0) < 60.0:
        return
    if len(_touched) >= _TOUCHED_AT_MOST:
        _touched.clear()
    _touched[token_id] = now
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE governance_token SET last_used_at = clock_timestamp() WHERE id = %s", [token_id]
        )


def usable_tokens() -> int:
    """How many tokens would be let in now."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM governance_token t JOIN governance_user u ON u.id = t.principal_id "
            "WHERE u.is_active AND t.revoked_at IS NULL "
            "AND (t.expires_at IS NULL OR t.expires_at > statement_timestamp())"
        )
        return int(cursor.fetchone()[0])


def administers_org(caller: Caller) -> bool:
    """Whether the caller, in the console, administers every namespace of its organisation."""
    if caller.ceiling < Role.ADMIN or caller.token_prefix:
        return False
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT is_superuser OR loom_org_admin(id, %s) FROM governance_user WHERE id = %s AND is_active",
            [caller.org_id, caller.principal_id],
        )
        row = cursor.fetchone()
    return row is not None and bool(row[0])


def visible_namespaces(caller: Caller) -> list[dict[str, Any]]:
    """The namespaces that this caller may read, with the role it has there, by name."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"""SELECT n.slug, n.created_at, {_STANDING}, n.id
                FROM governance_user u
                JOIN governance_org o ON o.id = %(org_id)s
                JOIN governance_namespace n ON n.org_id = o.id
                WHERE u.id = %(user_id)s AND (%(names)s::text[] IS NULL OR n.slug = ANY(%(names)s))
                ORDER BY n.slug""",  # noqa: S608 - a constant fragment
            {
                "org_id": caller.org_id,
                "user_id": caller.principal_id,
                "names": None if caller.namespaces is None else sorted(caller.namespaces),
            },
        )
        rows = cursor.fetchall()
    result = []
    for slug, created_at, role, org_admin, ns_id in rows:
        held = min(Role.ADMIN if org_admin else Role(role), caller.ceiling)
        if held > Role.NONE:
            result.append({"namespace": slug, "role": held.label, "created_at": created_at, "id": ns_id})
    return result
