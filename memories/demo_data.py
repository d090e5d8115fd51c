"""What `manage.py demo` stores when no file is given: the notes of a small made-up team.

Four people run Larkspur, a booking service for climbing gyms: Ines (lead), Tomasz (back end), Priya
(mobile), Oskar (support). Three questions show what the search does: one by its words, one by its meaning,
one that names a thing exactly.
"""

from __future__ import annotations

from typing import Any, Final

NAMESPACE: Final = "demo"

_PEOPLE: Final = (
    ("people/ines", "Ines leads the team, decides on priorities and is off on Fridays."),
    ("people/tomasz", "Tomasz owns the booking API and the database. He prefers written proposals to calls."),
    ("people/priya", "Priya builds the iOS and Android apps and signs every store release."),
    ("people/oskar", "Oskar answers support. He is the first to hear when payments fail."),
    ("people/on-call", "On-call changes every Monday at 10:00; the order is Tomasz, Priya, Ines."),
)
_DECISIONS: Final = (
    ("decision/database", "We stay on one PostgreSQL until a gym chain with more than 200 halls signs."),
    (
        "decision/payments",
        "Card payments go through Stripe; cash at the counter is only noted, never charged.",
    ),
    ("decision/refunds", "Refunds up to 40 euros need no approval. Anything above goes to Ines."),
    ("decision/api-versions", "An API version lives for eighteen months after its successor is out."),
    ("decision/no-sms", "No text messages for reminders: too expensive. Push first, e-mail as the fallback."),
    ("decision/language", "Customer-facing text is written in English first, then German and Polish."),
    (
        "decision/analytics",
        "We keep no third-party trackers in the apps. Usage is counted on our own server.",
    ),
)
_OPERATIONS: Final = (
    ("deploy/window", "Deploy on Tuesday or Thursday between 9:00 and 15:00, never on the eve of a holiday."),
    (
        "deploy/rollback",
        "To roll back, redeploy the previous tag; migrations are written so that it still runs.",
    ),
    ("deploy/freeze", "No deploys in the first week of January, when the gyms sell their yearly passes."),
    (
        "backup/schedule",
        "A full backup at 02:30 every night, kept for 35 days; restored into staging on Sundays.",
    ),
    ("secrets/place", "Passwords and keys live in the vault. Never paste one into a ticket or a memory."),
    ("staging/url", "Staging answers at staging.larkspur.example with data that is made up."),
    (
        "monitoring/alerts",
        "An alert wakes somebody only if a customer cannot book or pay. The rest can wait.",
    ),
    ("limits/requests", "A gym's key may send 20 requests a second; the answer above that is 429."),
)
_INCIDENTS: Final = (
    (
        "incident/0412",
        "On 12 April bookings failed for 48 minutes: the certificate of the payment webhook expired.",
    ),
    (
        "incident/0412/cause",
        "Nobody was reminded of the certificate: the address in the account was a former colleague's.",
    ),
    (
        "incident/0527",
        "On 27 May two people got the same slot. The check and the insert were not in one transaction.",
    ),
    ("incident/0527/fix", "A unique index on hall, lane and hour now makes a double booking impossible."),
    (
        "incident/0618",
        "On 18 June the Android app crashed at start when the phone was set to Turkish: a lower-case i.",
    ),
    ("incident/0703", "On 3 July the nightly backup was slow because the disk was 94 per cent full."),
)
_CUSTOMERS: Final = (
    ("customer/basalt", "Basalt Halls run nine gyms and pay yearly. They want invoices in one PDF a month."),
    (
        "customer/basalt/contact",
        "Write to Maren at Basalt; she reads mail in the morning and dislikes phone calls.",
    ),
    (
        "customer/overhang",
        "Overhang is a single hall in Gdynia. They need the schedule on a screen by the door.",
    ),
    ("customer/quarry", "Quarry asked for a waiting list when a course is full. Promised for the autumn."),
    (
        "customer/summit-kids",
        "Summit Kids teach children: a parent books, the child's name goes on the list.",
    ),
    (
        "customer/feedback",
        "What gyms ask for most: family accounts, a waiting list, and exporting to their bookkeeping.",
    ),
)
_HOW_WE_WORK: Final = (
    ("habit/reviews", "Every change is read by one other person before it is merged, small ones too."),
    ("habit/meetings", "One meeting a week, Wednesday at 11:00, forty minutes. Notes the same day."),
    ("habit/estimates", "We estimate in half days and multiply by two when the app stores are involved."),
    ("style/dates", "Dates in the interface are written like 4 March 2026, times in 24 hours."),
    ("style/errors", "An error message says what happened, what was not lost, and what to do next."),
    ("glossary/slot", "A slot is one hall, one lane and one hour. A course takes several slots in a row."),
    ("glossary/pass", "A pass is paid in advance for ten visits or a year; it belongs to one person."),
)
_GROUPS: Final = (
    ("people", _PEOPLE), ("decision", _DECISIONS), ("operations", _OPERATIONS), ("incident", _INCIDENTS),
    ("customer", _CUSTOMERS), ("team", _HOW_WE_WORK),
)  # fmt: skip

ITEMS: Final[tuple[dict[str, Any], ...]] = tuple(
    {"memory_key": key, "value": text, "tags": [tag]} for tag, notes in _GROUPS for key, text in notes
)
"""For `memory.set_many`."""

QUERIES: Final = (
    "when may we deploy?",
    "what broke the payments in April?",
    "who has to approve giving money back?",
)
