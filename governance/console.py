"""What the console's pages share: who sees what, keyset pages, and what apps add to common pages.

The rule of sight is the one of `governance.tenancy`: superusers see everything, org admins their
organisation, everybody else the namespaces on which they or a group of theirs hold a role.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.core.exceptions import EmptyResultSet, ValidationError
from django.db import connection, models
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from governance.models import Namespace, Org, User
from loomsite.ops import Role

PAGE = 50
COUNT_LIMIT = 1000

_SIGHT = """
SELECT 'org', x.content_object_id, 4
FROM governance_orguserpermission x JOIN auth_permission p ON p.id = x.permission_id
WHERE x.user_id = %(user)s AND p.codename = 'admin_org'
UNION ALL
SELECT 'org', x.content_object_id, 4
FROM governance_orggrouppermission x JOIN auth_permission p ON p.id = x.permission_id
JOIN governance_user_groups g ON g.group_id = x.group_id
WHERE g.user_id = %(user)s AND p.codename = 'admin_org'
UNION ALL
SELECT 'namespace', x.content_object_id, CASE p.codename
  WHEN 'admin' THEN 4 WHEN 'reviewer' THEN 3 WHEN 'writer' THEN 2 WHEN 'viewer' THEN 1 ELSE 0 END
FROM governance_namespaceuserpermission x JOIN auth_permission p ON p.id = x.permission_id
WHERE x.user_id = %(user)s
UNION ALL
SELECT 'namespace', x.content_object_id, CASE p.codename
  WHEN 'admin' THEN 4 WHEN 'reviewer' THEN 3 WHEN 'writer' THEN 2 WHEN 'viewer' THEN 1 ELSE 0 END
FROM governance_namespacegrouppermission x JOIN auth_permission p ON p.id = x.permission_id
JOIN governance_user_groups g ON g.group_id = x.group_id
WHERE g.user_id = %(user)s
"""


@dataclass(frozen=True)
class Sight:
    """What one user of the console may see, by ids."""

    user: User
    is_superuser: bool
    org_ids: frozenset[int]
    roles: Mapping[int, Role]

    @property
    def administers(self) -> bool:
        """True for a superuser and for an admin of any organisation."""
        return self.is_superuser or bool(self.org_ids)

    @property
    def administers_some(self) -> bool:
        """True for whoever is admin of any namespace."""
        return self.administers or any(role >= Role.ADMIN for role in self.roles.values())

    def administers_org(self, org_id: int) -> bool:
        """True when the user administers this organisation."""
        return self.is_superuser or org_id in self.org_ids

    def role_in(self, namespace: Namespace) -> Role:
        """The user's role in the namespace; Role.NONE for what it may not see."""
        if self.administers_org(namespace.org_id):
            return Role.ADMIN
        return self.roles.get(namespace.pk, Role.NONE)

    def where(self, namespace: str = "namespace", at_least: Role = Role.VIEWER) -> Q:
        """A condition for rows whose relation `namespace` the user sees with that role; "" for itself."""
        if self.is_superuser:
            return Q()
        held = [pk for pk, role in self.roles.items() if role >= at_least]
        org = f"{namespace}__org__in" if namespace else "org__in"
        own = f"{namespace}__in" if namespace else "pk__in"
        return Q(**{org: list(self.org_ids)}) | Q(**{own: held})

    def namespaces(self, at_least: Role = Role.VIEWER) -> QuerySet[Namespace]:
        """The namespaces that the user sees, by organisation and name."""
        found = Namespace.objects.filter(self.where("", at_least)).select_related("org")
        return found.order_by("org__slug", "slug")

    def orgs(self) -> QuerySet[Org]:
        """The organisations that the user administers."""
        found = Org.objects.order_by("slug")
        return found if self.is_superuser else found.filter(pk__in=self.org_ids)


def sight_of(user: User) -> Sight:
    """What this user may see, in one statement."""
    if user.is_superuser:
        return Sight(user, True, frozenset(), {})
    orgs: set[int] = set()
    roles: dict[int, Role] = {}
    with connection.cursor() as cursor:
        cursor.execute(_SIGHT, {"user": user.pk})
        for kind, pk, role in cursor.fetchall():
            if kind == "org":
                orgs.add(pk)
            elif role:
                roles[pk] = max(Role(role), roles.get(pk, Role.NONE))
    return Sight(user, False, frozenset(orgs), roles)


def sight(request: HttpRequest) -> Sight:
    """`sight_of` the request's user, asked once per request."""
    known: Sight | None = getattr(request, "_loom_sight", None)
    if known is None:
        if not isinstance(request.user, User):
            raise TypeError("The console's pages are for users who logged in.")
        known = sight_of(request.user)
        request._loom_sight = known  # type: ignore[attr-defined]
    return known


@dataclass(frozen=True)
class Count:
    """A number of rows, counted up to a limit so that no list waits for it."""

    number: int
    more: bool = False

    def __str__(self) -> str:
        return f"{self.number:,}{'+' if self.more else ''}"

    def __bool__(self) -> bool:
        return self.number > 0


def bounded_count(rows: QuerySet[Any], limit: int = COUNT_LIMIT) -> Count:
    """How many rows there are; stops at `limit`."""
    number = rows.order_by()[: limit + 1].count()
    return Count(min(number, limit), number > limit)


def bounded_counts(lists: Sequence[QuerySet[Any]], limit: int = COUNT_LIMIT) -> list[Count]:
    """`bounded_count` of each, in one statement for all."""
    parts: list[str] = []
    params: list[Any] = []
    for rows in lists:
        try:
            sql, given = rows.order_by().values("pk")[: limit + 1].query.sql_with_params()
        except EmptyResultSet:
            parts.append("0")
        else:
            parts.append(f"(SELECT count(*) FROM ({sql}) counted)")  # noqa: S608 - Django's own, with marks
            params.extend(given)
    if not parts:
        return []
    with connection.cursor() as cursor:
        cursor.execute("SELECT " + ", ".join(parts), params)
        numbers = cursor.fetchone()
    return [Count(min(number, limit), number > limit) for number in numbers]


@dataclass(frozen=True)
class Page:
    """One page of a list, and the cursor of the next one."""

    rows: Sequence[Any]
    after: str | None


def keyset(rows: QuerySet[Any], cursor: str, *fields: str, size: int = PAGE) -> Page:
    """The rows behind `cursor` in the order of `fields` ("-" for descending, all alike), a page of them.

    A cursor is the last row's values joined by "~"; one that does not parse starts at the first page.
    """
    names = [field.lstrip("-") for field in fields]
    descending = fields[0].startswith("-")
    if cursor:
        values = _parsed(rows.model, names, cursor)
        if values is not None:
            rows = rows.filter(_behind(names, values, "lt" if descending else "gt"))
    found = list(rows.order_by(*fields)[: size + 1])
    after = None
    if len(found) > size:
        last = found[size - 1]
        after = "~".join(_printed(getattr(last, name)) for name in names)
    return Page(found[:size], after)


def _printed(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _parsed(model: type[models.Model], names: Sequence[str], cursor: str) -> list[Any] | None:
    parts = cursor.split("~", len(names) - 1)
    if len(parts) != len(names) or "\x00" in cursor:
        return None
    try:
        values = [_field(model, name).to_python(part) for name, part in zip(names, parts, strict=True)]
    except ValidationError:
        return None
    return values if all(map(_fits, values)) else None


def _fits(value: Any) -> bool:
    """PostgreSQL would refuse what Python's integers allow; an instant without a zone is none."""
    if isinstance(value, datetime):
        return value.tzinfo is not None
    return not isinstance(value, int) or abs(value) < 2**63


def _field(model: type[models.Model], name: str) -> models.Field[Any, Any]:
    field = model._meta.pk if name == "pk" else model._meta.get_field(name)
    if not isinstance(field, models.Field):
        raise TypeError(f"{model.__name__}.{name} is no column to order by.")
    return field


def _behind(names: Sequence[str], values: Sequence[Any], than: str) -> Q:
    condition = Q()
    for index, (name, value) in enumerate(zip(names, values, strict=True)):
        equal = dict(zip(names[:index], values[:index], strict=True))
        condition |= Q(**equal, **{f"{name}__{than}": value})
    # The redundant bound on the first field lets the index start at the right place.
    return Q(**{f"{names[0]}__{than}e": values[0]}) & condition


@dataclass(frozen=True)
class Card:
    """A number on the home page that leads to its list; `one` and `many` are its words.

    Given rows instead of a number, they are counted with those of all other cards at once.
    """

    one: str
    many: str
    number: Count | QuerySet[Any]
    url: str
    hint: str = ""
    tone: str = ""

    @property
    def label(self) -> str:
        """The words that follow the number."""
        return self.one if self.number == Count(1) else self.many


HomeCards = Callable[[HttpRequest], list[Card]]
_attention: list[HomeCards] = []
_namespace_counts: dict[str, Callable[[Sequence[int]], dict[int, Count]]] = {}


def attention_cards(source: HomeCards) -> HomeCards:
    """Register what an app adds to "needs attention" on the home page."""
    _attention.append(source)
    return source


def all_attention(request: HttpRequest) -> list[Card]:
    """Every app's cards, those without a number left out."""
    cards = [card for source in _attention for card in source(request)]
    lists = [card.number for card in cards if isinstance(card.number, QuerySet)]
    counts = iter(bounded_counts(lists))
    counted = [
        replace(card, number=next(counts)) if isinstance(card.number, QuerySet) else card for card in cards
    ]
    return [card for card in counted if card.number]


def namespace_count(
    label: str,
) -> Callable[[Callable[[Sequence[int]], dict[int, Count]]], Callable[[Sequence[int]], dict[int, Count]]]:
    """Register a column of the namespace list: a function from namespace ids to bounded counts."""

    def register(
        source: Callable[[Sequence[int]], dict[int, Count]],
    ) -> Callable[[Sequence[int]], dict[int, Count]]:
        _namespace_counts[label] = source
        return source

    return register


def counts_by_namespace(ids: Sequence[int]) -> dict[str, dict[int, Count]]:
    """Every registered column over these namespaces, one statement each."""
    return {label: source(ids) for label, source in _namespace_counts.items()}
