"""Tokens, defaults and roles: what a caller covers, and what it is told of itself."""

from __future__ import annotations

import hmac
from datetime import timedelta

import pytest
from django.contrib.auth.models import Group
from django.utils import timezone
from guardian.shortcuts import assign_perm

from governance import tenancy
from governance.models import Token
from governance.services import member_set_role, token_revoke
from governance.tenancy import Credentials
from loomsite.ops import Door, OpError, Role
from tests.conftest import Cast


def test_only_a_hash_of_the_secret_is_kept(cast: Cast) -> None:
    prefix, full, digest = tenancy.new_secret()
    secret = full.removeprefix(f"loom_{prefix}_")
    assert len(secret) >= 43 and len(digest) == 32
    for token in Token.objects.values():
        assert not any(text.split("_", 2)[2] in str(token) for text in cast.tokens.values())


def test_a_token_is_compared_in_constant_time_whether_or_not_its_prefix_exists(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[int, int]] = []
    real = hmac.compare_digest

    def spy(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return real(a, b)

    monkeypatch.setattr("governance.tenancy.hmac.compare_digest", spy)
    for bearer in (cast.tokens["mate"][:-1] + "_", "loom_aaaaaaaaaaaa_" + "A" * 43):
        assert cast.run("ops.whoami", {}, by=bearer).status == 401
    assert compared == [(32, 32), (32, 32)]


def test_dead_tokens_are_all_refused_in_the_same_words(cast: Cast) -> None:
    revoked, expired = cast.token("mate"), cast.token("mate", expires_at=timezone.now())
    token_revoke(token=Token.objects.get(prefix=revoked.split("_")[1]))
    replies = [
        cast.run("ops.whoami", {}, by=by, request_id="same")
        for by in (revoked, expired, "loom_aaaaaaaaaaaa_" + "A" * 43, "rubbish", "")
    ]
    assert {reply.status for reply in replies} == {401}
    assert len({str(reply.body) for reply in replies}) == 1


def test_a_revoked_token_and_a_lost_role_count_from_the_next_call_on(cast: Cast) -> None:
    full = cast.token("mate")
    assert cast.run("memory.list", {}, by=full).status == 200
    member_set_role(namespace=cast.team, member=cast.people["mate"], role=Role.VIEWER)
    assert cast.run("memory.set", {"memory_key": "k", "value": 1}, by=full).status == 403
    member_set_role(namespace=cast.team, member=cast.people["mate"], role=Role.NONE)
    assert cast.run("memory.list", {}, by=full).status == 404
    token = Token.objects.get(prefix=full.split("_")[1])
    assert token_revoke(token=token) is True and token_revoke(token=token) is False
    assert cast.run("ops.whoami", {}, by=full).status == 401


def test_roles_come_from_groups_as_well_and_the_highest_counts(cast: Cast) -> None:
    group = Group.objects.create(name="writers")
    member_set_role(namespace=cast.team, member=group, role=Role.WRITER)
    body = {"memory_key": "k", "value": 1}
    assert cast.run("memory.set", body, by="viewer").status == 403
    cast.people["viewer"].groups.add(group)
    assert cast.run("memory.set", body, by="viewer").status == 200
    assert cast.run("ops.whoami", {}, by="viewer")["role"] == "writer"


def test_an_org_admin_by_group_covers_every_namespace_of_that_org_only(cast: Cast) -> None:
    group = Group.objects.create(name="admins")
    assign_perm("admin_org", group, cast.org)
    cast.people["viewer"].groups.add(group)
    cast.namespace("vault")
    assert cast.run("memory.list", {"namespace": "vault"}, by="viewer").status == 200
    assert cast.run("memory.list", {"org": "elsewhere", "namespace": "team"}, by="viewer").status == 404
    listed = cast.run("namespace.list", {}, by="viewer")["namespaces"]
    assert [(row["namespace"], row["role"]) for row in listed] == [("team", "writer"), ("vault", "writer")]


def test_a_superuser_sees_the_tokens_org_and_no_other(cast: Cast) -> None:
    cast.people["mate"].is_superuser = True
    cast.people["mate"].save()
    cast.namespace("vault")
    listed = cast.run("namespace.list", {})["namespaces"]
    assert [row["namespace"] for row in listed] == ["team", "vault"]
    assert cast.run("memory.list", {"org": "elsewhere", "namespace": "team"}).status == 404
    narrowed = cast.token("mate", namespaces=["team"])
    assert [row["namespace"] for row in cast.run("namespace.list", {}, by=narrowed)["namespaces"]] == ["team"]


def test_namespaces_are_listed_with_the_role_that_the_token_allows(cast: Cast) -> None:
    for by, roles in (("owner", ["writer"]), ("mate", ["writer"]), ("viewer", ["viewer"])):
        assert [row["role"] for row in cast.run("namespace.list", {}, by=by)["namespaces"]] == roles
    empty = cast.token("owner", namespaces=[], default_namespace="")
    assert cast.run("namespace.list", {}, by=empty)["namespaces"] == []
    ceiling = cast.token("mate", role=Role.VIEWER)
    assert cast.run("namespace.list", {}, by=ceiling)["namespaces"][0]["role"] == "viewer"


def test_a_token_for_one_namespace_uses_it_by_default(cast: Cast) -> None:
    full = cast.token("mate", namespaces=["team"], default_namespace="")
    assert cast.run("ops.whoami", {}, by=full)["namespace"] == "team"
    assert cast.run("memory.list", {}, by=full).status == 200


def test_a_default_outside_of_the_tokens_list_is_refused_and_where_it_stands_does_not_count(
    cast: Cast,
) -> None:
    with pytest.raises(OpError, match="default_namespace"):
        cast.token("mate", namespaces=["side"], default_namespace="team")
    full = cast.token("mate", namespaces=["team", "side"], default_namespace="team")
    Token.objects.filter(prefix=full.split("_")[1]).update(namespaces=["side", "other"])
    found = cast.run("ops.whoami", {}, by=full)
    assert (found["namespace"], found["role"]) == (None, None)
    assert cast.run("memory.list", {}, by=full).status == 400
    Token.objects.filter(prefix=full.split("_")[1]).update(namespaces=["side"])
    assert cast.run("memory.list", {}, by=full).status == 404


def test_whoami_answers_where_everything_else_is_404(cast: Cast) -> None:
    """It is the op that a 404 leads to."""
    full = cast.token("mate", default_namespace="gone")
    assert cast.run("memory.list", {}, by=full).status == 404
    found = cast.run("ops.whoami", {}, by=full)
    assert (found["namespace"], found["role"], found["principal"]) == (None, None, "mate")
    assert cast.run("ops.whoami", {"namespace": "gone"}, by=full).status == 404


def test_whoami_tells_how_the_token_is_narrowed(cast: Cast) -> None:
    full = cast.token("mate", namespaces=["team"], role=Role.VIEWER, agent="scout", user_id="bob")
    found = cast.run("ops.whoami", {}, by=full)
    assert (found["org"], found["namespace"], found["role"]) == ("acme", "team", "viewer")
    assert (found["role_ceiling"], found["agent"], found["user_id"]) == ("viewer", "scout", "bob")
    assert (found["namespaces"], found["acts_for"]) == (["team"], "agent")
    assert found["token_prefix"] == full.split("_")[1]


def test_a_star_is_for_reads(cast: Cast) -> None:
    assert cast.run("memory.list", {"agent": "*", "user_id": "*", "session_id": "*"}).status == 200
    for name in ("agent", "user_id", "session_id"):
        reply = cast.run("memory.set", {"memory_key": "k", "value": 1, name: "*"})
        assert reply.status == 400 and reply.detail["errors"][0]["path"] == name


def test_a_bound_token_cannot_write_for_another(cast: Cast) -> None:
    full = cast.token("mate", agent="scout", user_id="bob")
    cast.run("memory.set", {"memory_key": "k", "value": 1}, by=full)
    row = cast.run("memory.get", {"memory_key": "k"}, by=full)
    assert (row["agent"], row["user_id"]) == ("scout", "bob")
    for says in ({"agent": "other"}, {"user_id": "alice"}):
        assert cast.run("memory.set", {"memory_key": "k", "value": 2, **says}, by=full).status == 404
        assert cast.run("memory.get", {"memory_key": "k", **says}, by=full).status == 404
    cast.run("memory.set", {"memory_key": "k", "value": 3, "agent": "other"})
    rows = cast.run("memory.list", {"agent": "*"}, by=full)["memories"]
    assert {row["agent"] for row in rows} == {"scout"}


def test_the_last_use_is_noted_once_a_minute(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenancy, "_touched", {})
    token = Token.objects.get(prefix=cast.tokens["mate"].split("_")[1])
    cast.run("ops.whoami", {})
    first = Token.objects.get(pk=token.pk).last_used_at
    assert first is not None
    Token.objects.filter(pk=token.pk).update(last_used_at=None)
    cast.run("ops.whoami", {})
    assert Token.objects.get(pk=token.pk).last_used_at is None


def test_the_memory_of_last_uses_is_bounded(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenancy, "_touched", {-i: 0.0 for i in range(1, tenancy._TOUCHED_AT_MOST + 1)})
    cast.run("ops.whoami", {})
    assert len(tenancy._touched) == 1


def test_usable_tokens_are_counted_without_the_dead_ones(cast: Cast) -> None:
    before = tenancy.usable_tokens()
    cast.token("mate", expires_at=timezone.now() - timedelta(seconds=1))
    assert tenancy.usable_tokens() == before
    cast.people["stranger"].is_active = False
    cast.people["stranger"].save()
    assert tenancy.usable_tokens() == before - 1


def test_a_console_session_acts_as_its_person_without_a_ceiling(cast: Cast) -> None:
    assert cast.console("ops.whoami", {})["role"] == "admin"
    assert cast.console("ops.whoami", {}, by="mate")["role"] == "writer"
    cast.people["mate"].is_active = False
    cast.people["mate"].save()
    assert cast.console("ops.whoami", {}, by="mate").status == 401


def test_a_person_of_the_console_may_not_do_what_the_role_does_not_allow(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1})
    cast.run("memory.lock", {"memory_key": "k", "reason": "r"})
    body = {"memory_key": "k", "reason": "r"}
    refused = cast.console("memory.unlock", body, by="viewer")
    assert refused.status == 403 and refused.detail["has"] == "viewer"
    assert cast.console("memory.unlock", body).status == 200


def test_the_local_owner_needs_single_user_mode() -> None:
    credentials = Credentials(is_local=False, door=Door.REST)
    with pytest.raises(OpError) as refused:
        tenancy.standing(credentials, None, None)
    assert refused.value.code == "UNAUTHENTICATED"
