"""Limits on what a call may carry; docs and error messages read them from here."""

BODY_BYTES = 1024 * 1024
VALUE_BYTES = 256 * 1024
KEY_CHARS = 512
IDENTITY_CHARS = 128
TAGS = 64
TAG_CHARS = 128
NESTING = 32
PAGE = 200
REASON_CHARS = 2000
QUERY_CHARS = 16_000
TTL_SECONDS = 100 * 365 * 24 * 3600
