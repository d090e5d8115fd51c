"""Accounts, organisations, roles and tokens: what the console and the commands change.

None of it is an op, so no token can do it. Each function judges whether `by` may, changes what it is
about, and writes the audit row, in one transaction; refusals are OpErrors. `by` is the person in the
console; None is whoever runs a management command on the server, audited as `operator`.

An account belongs to no single organisation, so what happens to it stands in the chain of every
organisation that knows it (of the oldest one while none does).
"""

from __future__ import annotations

import secrets
import unicodedata
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from django.contrib.auth.models import Group
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from guardian.shortcuts import assign_perm, remove_perm
from pydantic import TypeAdapter
from pydantic import ValidationError as SchemaError

from governance import audit, services
from governance.console import sight_of
from governance.directory import ADMIN, MEMBER, accounts_of, groups_of, orgs_of, orgs_of_group
from governance.models import Namespace, Org, Token, User
from loomsite.ops import AuditEntry, Context, Door, OpError, Role, invalid
from loomsite.ops.schema import Identity

OPERATOR = "operator"
# What the audit calls those who are no account.
RESERVED = frozenset({OPERATOR, "system"})
_IDENTITY: TypeAdapter[str] = TypeAdapter(Identity)
NOBODY = (
    "No account or group of that name belongs to the organisation; a superuser brings it in under People."
)


def identity(path: str, value: str) -> str:
    """`value` in NFC, held to the rule of every identity field; "-" and "*" mean none and any, so no name."""
    value = unicodedata.normalize("NFC", value)
    try:
        _IDENTITY.validate_python(value)
    except SchemaError as error:
        raise invalid(path, error.errors()[0]["msg"].removeprefix("Value error, ")) from error
    if value in ("-", "*"):
        raise invalid(path, f'"{value}" means {"none" if value == "-" else "any"} and is no name.')
    return value


def org_create(*, by: User | None = None, slug: str) -> tuple[Org, bool]:
    """The organisation of that name, and whether it was made now. Superusers only.

    `/` and `:` are refused: `ORG/NAMESPACE` and `ORG:NAMESPACE` are read up to the first one.
    """
    _superusers_only(by)
    slug = identity("organisation", slug)
    if "/" in slug or ":" in slug:
        raise invalid("organisation", 'must not hold "/" or ":".')
    with transaction.atomic():
        org, made = Org.objects.get_or_create(slug=slug)
        if made:
            _record(by, [org], "org.create", AuditEntry(target=f"org:{slug}"))
    return org, made


def org_admin_set(*, by: User | None = None, org: Org, member: User | Group, is_admin: bool) -> None:
    """Let `member` administer every namespace of the organisation, or no longer. Superusers only."""
    _org_permission(by, org, member, ADMIN, is_admin, "org.set_admin")


def org_member_set(*, by: User | None = None, org: Org, member: User | Group, is_member: bool) -> None:
    """Let the organisation's admins find `member` and give it roles, or no longer. Superusers only.

    Roles that it holds stay until they are taken away.
    """
    _org_permission(by, org, member, MEMBER, is_member, "org.set_member")


def own_password_changed(*, account: User) -> None:
    """Note that a person changed their own password in the console; in the transaction that stores it."""
    entry = AuditEntry(target=_target(account), detail={"own": True})
    _record(account, _orgs(account), "account.change_password", entry)


def _org_permission(
    by: User | None, org: Org, member: User | Group, permission: str, held: bool, op_name: str
) -> None:
    _superusers_only(by)
    if permission == ADMIN and held and isinstance(member, User) and member.kind == User.Kind.SERVICE:
        raise invalid("account", "a service account never logs in, so it cannot administer.")
    with transaction.atomic():
        (assign_perm if held else remove_perm)(permission, member, org)
        _record(by, [org], op_name, AuditEntry(target=_target(member), detail={"held": held}))


def namespace_create(*, by: User | None = None, org: Org, slug: str) -> tuple[Namespace, bool]:
    """The namespace of that name, and whether it was made now. For admins of the organisation."""
    _org_admins_only(by, org)
    slug = identity("namespace", slug)
    with transaction.atomic():
        namespace, made = Namespace.objects.get_or_create(org=org, slug=slug)
        if made:
            _record(by, [org], "namespace.create", AuditEntry(target=f"namespace:{slug}"), namespace)
    return namespace, made


def member_named(*, by: User | None, org: Org, kind: str, name: str) -> User | Group | None:
    """The account (`kind` "user") or group of that name that `by` may give a role in the organisation."""
    name = unicodedata.normalize("NFC", name)
    if kind == "group":
        groups = Group.objects.all() if _is_platform(by) else groups_of([org.pk])
        return groups.filter(name=name).first()
    accounts = User.objects.all() if _is_platform(by) else accounts_of([org.pk])
    return accounts.filter(username=name).first()


def role_give(*, by: User | None = None, namespace: Namespace, member: User | Group, role: Role) -> None:
    """Give `member` exactly this role on the namespace; Role.NONE takes every role away.

    For admins of the namespace; superusers alone bring in who is new to the organisation.
    """
    if by is not None and sight_of(by).role_in(namespace) < Role.ADMIN:
        raise _forbidden("Only an admin of the namespace sets roles there.")
    kind, name = ("user", member.username) if isinstance(member, User) else ("group", member.name)
    if member_named(by=by, org=namespace.org, kind=kind, name=name) is None:
        raise OpError("NOT_FOUND", NOBODY)
    with transaction.atomic():
        services.member_set_role(namespace=namespace, member=member, role=role)
        entry = AuditEntry(target=_target(member), detail={"role": role.label})
        _record(by, [namespace.org], "member.set_role", entry, namespace)


def account_create(
    *,
    by: User | None = None,
    org: Org,
    name: str,
    service: bool = False,
    email: str = "",
    password: str | None = None,
) -> tuple[User, str | None]:
    """A person or a service account that belongs to `org`. Superusers only.

    The second value is the password that was made for a person who was given none, to be shown once.
    Raises OpError 400 for a name that is taken (in any case of its letters) or breaks the rule of names.
    """
    _superusers_only(by)
    name = identity("name", name)
    account = User(username=name, email=email, kind=User.Kind.SERVICE if service else User.Kind.PERSON)
    account.is_staff = not service
    made: str | None = None
    if service:
        if password is not None:
            raise invalid("password", "a service account has none; it uses tokens.")
        account.set_unusable_password()
    else:
        made = None if password else secrets.token_urlsafe(12)
        _check_password(password or made or "", account)
        account.set_password(password or made)
    try:
        account.clean_fields()
    except ValidationError as error:
        raise _invalid_fields(error) from error
    if name.casefold() in RESERVED:
        raise invalid("name", f"{name!r} stands for the server itself in the audit.")
    with transaction.atomic():
        _one_at_a_time()
        if User.objects.filter(username__iexact=name).exists():
            raise invalid("name", f"an account {name!r} exists already.")
        account.save()
        assign_perm(MEMBER, account, org)
        entry = AuditEntry(target=_target(account), detail={"kind": account.kind})
        _record(by, [org], "account.create", entry)
    return account, made


def account_set_active(*, by: User | None = None, account: User, is_active: bool) -> bool:
    """Deactivate or reactivate; False when that was its state. Superusers only.

    Deactivated: no login, its sessions end, its tokens are refused. None of that is forgotten, so
    reactivating brings the unexpired tokens back.
    """
    _superusers_only(by)
    with transaction.atomic():
        _one_at_a_time()
        fresh = User.objects.get(pk=account.pk)
        if fresh.is_active == is_active:
            return False
        if not is_active:
            _keep_a_superuser(by, fresh)
        fresh.is_active = is_active
        fresh.save(update_fields=["is_active"])
        _record(
            by, _orgs(fresh), "account.set_active", AuditEntry(_target(fresh), detail={"active": is_active})
        )
    return True


def account_set_superuser(*, by: User | None = None, account: User, is_superuser: bool) -> bool:
    """Make a platform admin, or no longer; False when that was its state. Superusers only."""
    _superusers_only(by)
    with transaction.atomic():
        _one_at_a_time()
        fresh = User.objects.get(pk=account.pk)
        if fresh.is_superuser == is_superuser:
            return False
        if is_superuser and fresh.kind == User.Kind.SERVICE:
            raise invalid("account", "a service account never logs in, so it cannot administer.")
        if not is_superuser:
            _keep_a_superuser(by, fresh)
        fresh.is_superuser = is_superuser
        fresh.save(update_fields=["is_superuser"])
        entry = AuditEntry(_target(fresh), detail={"superuser": is_superuser})
        _record(by, _orgs(fresh), "account.set_superuser", entry)
    return True


def account_reset_password(*, by: User | None = None, account: User) -> str:
    """A new password for a person, to be shown once; every session of it ends. Superusers only."""
    _superusers_only(by)
    if account.kind == User.Kind.SERVICE:
        raise invalid("account", "a service account has no password.")
    made = secrets.token_urlsafe(12)
    with transaction.atomic():
        account.set_password(made)
        account.save(update_fields=["password"])
        _record(by, _orgs(account), "account.reset_password", AuditEntry(_target(account)))
    return made


def group_create(*, by: User | None = None, org: Org, name: str) -> tuple[Group, bool]:
    """The group of that name, which then belongs to `org`; whether it was made now. Superusers only."""
    _superusers_only(by)
    name = identity("group", name)
    with transaction.atomic():
        group, made = Group.objects.get_or_create(name=name)
        assign_perm(MEMBER, group, org)
        _record(by, [org], "group.create" if made else "org.set_member", AuditEntry(_target(group)))
    return group, made


def group_member_set(*, by: User | None = None, group: Group, account: User, is_member: bool) -> None:
    """Put an account into a group, or take it out: it gains or loses the group's roles. Superusers only."""
    _superusers_only(by)
    with transaction.atomic():
        orgs = _or_oldest(orgs_of_group(group))
        (account.groups.add if is_member else account.groups.remove)(group)
        entry = AuditEntry(_target(group), detail={"account": account.username, "member": is_member})
        _record(by, orgs, "group.set_member", entry)


def token_issue(
    *,
    by: User | None = None,
    principal: User,
    org: Org,
    label: str = "",
    namespaces: Sequence[str] | None = None,
    default_namespace: str = "",
    role: Role = Role.WRITER,
    agent: str = "",
    user_id: str = "",
    source_class: str = "local_tool_output",
    acts_for: str = Token.ActsFor.AGENT,
    may_create_namespaces: bool = False,
    expires_at: datetime | None = None,
) -> tuple[Token, str]:
    """A token for an account of the organisation, and its text to show once. For admins of the organisation.

    Nobody but a superuser makes a token that speaks for a superuser.
    """
    _org_admins_only(by, org)
    if not _is_platform(by):
        if not (by == principal or accounts_of([org.pk]).filter(pk=principal.pk).exists()):
            raise OpError("NOT_FOUND", NOBODY)
        if principal.is_superuser:
            raise _forbidden("Only a superuser makes a token that speaks for a superuser.")
    if not principal.is_active:
        raise invalid("principal", "is deactivated; its tokens would be refused.")
    if acts_for not in Token.ActsFor.values:
        raise invalid("acts_for", f"must be one of {', '.join(Token.ActsFor.values)}.")
    if expires_at is not None and expires_at <= _now():
        raise invalid("expires_at", "must lie in the future.")
    with transaction.atomic():
        token, full = services.token_create(
            principal=principal,
            org=org,
            label=identity("label", label) if label else "",
            namespaces=_names(namespaces),
            default_namespace=_optional("default_namespace", default_namespace),
            role=role,
            agent=_optional("agent", agent),
            user_id=_optional("user_id", user_id),
            source_class=source_class,
            acts_for=acts_for,
            may_create_namespaces=may_create_namespaces,
            expires_at=expires_at,
            created_by=by,
        )
        entry = AuditEntry(
            target=f"token:{token.prefix}",
            detail={
                "principal": principal.username,
                "role": token.role,
                "namespaces": token.namespaces,
                "acts_for": token.acts_for,
                "may_create_namespaces": token.may_create_namespaces,
                "label": token.label,
            },
        )
        _record(by, [org], "token.create", entry)
    return token, full


def token_withdraw(*, by: User | None = None, token: Token) -> bool:
    """Revoke at once; False when it was revoked already. For admins of its organisation."""
    _org_admins_only(by, token.org)
    with transaction.atomic():
        changed = services.token_revoke(token=token)
        if changed:
            entry = AuditEntry(target=f"token:{token.prefix}", detail={"principal": token.principal.username})
            _record(by, [token.org], "token.revoke", entry)
    return changed


def _names(given: Sequence[str] | None) -> list[str] | None:
    """Each name once. None is no narrowing; an empty list covers no namespace at all."""
    if given is None:
        return None
    return list(dict.fromkeys(identity(f"namespaces.{i}", name) for i, name in enumerate(given)))


def _optional(path: str, value: str) -> str:
    """ "" is none; a blank one is refused, for it would look like none and mean something."""
    return identity(path, value) if value else ""


def _is_platform(by: User | None) -> bool:
    return by is None or (by.is_active and by.is_superuser)


def _superusers_only(by: User | None) -> None:
    if not _is_platform(by):
        raise _forbidden("Only a superuser does this.")


def _org_admins_only(by: User | None, org: Org) -> None:
    if by is not None and not (by.is_active and sight_of(by).administers_org(org.pk)):
        raise _forbidden("Only an admin of the organisation does this.")


def _forbidden(message: str) -> OpError:
    return OpError("FORBIDDEN", message)


def _keep_a_superuser(by: User | None, account: User) -> None:
    """Nobody locks himself or everybody out."""
    if by is not None and by.pk == account.pk:
        raise invalid("account", "is your own; another superuser does this.")
    others = User.objects.filter(is_superuser=True, is_active=True).exclude(pk=account.pk)
    if account.is_superuser and not others.exists():
        raise invalid("account", "is the last superuser; make another one first.")


def _one_at_a_time() -> None:
    """Changes to accounts wait for each other until the commit: of two names that differ only in case one
    is refused, and two superusers cannot remove each other."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('loom.accounts'))")


def _check_password(password: str, account: User) -> None:
    try:
        validate_password(password, account)
    except ValidationError as error:
        raise invalid("password", " ".join(error.messages)) from error


def _invalid_fields(error: ValidationError) -> OpError:
    path, messages = next(iter(error.message_dict.items()))
    return invalid("name" if path == "username" else path, " ".join(messages))


def _now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now


def _target(member: User | Group) -> str:
    return f"user:{member.username}" if isinstance(member, User) else f"group:{member.name}"


def _orgs(account: User) -> list[Org]:
    return _or_oldest(orgs_of(account))


def _or_oldest(orgs: Iterable[Org]) -> list[Org]:
    return list(orgs) or list(Org.objects.order_by("pk")[:1])


def _record(
    by: User | None, orgs: Iterable[Org], op_name: str, entry: AuditEntry, namespace: Namespace | None = None
) -> None:
    """The row at the end of each organisation's chain; always in the order of ids, so that nobody waits in a
    circle."""
    request_id = uuid.uuid4().hex
    for org in sorted(orgs, key=lambda org: org.pk):
        audit.append(_context(by, org, op_name, namespace, request_id), [entry])


def _context(
    by: User | None, org: Org, op_name: str, namespace: Namespace | None, request_id: str
) -> Context:
    name = OPERATOR if by is None else by.username
    ctx = services.system_context(org=org, namespace=namespace, op_name=op_name, principal=name)
    if by is not None:
        ctx.caller = replace(ctx.caller, principal_id=by.pk, door=Door.CONSOLE, acts_for="person")
    ctx.request_id = request_id
    return ctx
