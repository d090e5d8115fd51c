"""The one settings module; LOOM_* variables decide, the README's table documents each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loomsite.settings import env
from loomsite.settings.database import broker_url_from_env, databases_from_env

BASE_DIR = Path(__file__).resolve().parent.parent.parent
LOOM_HOME = env.home(BASE_DIR)
LOOM_BIND = env.bind("LOOM_BIND", "127.0.0.1:8321")
LOOM_MCP_BIND = env.bind("LOOM_MCP_BIND", f"127.0.0.1:{min(LOOM_BIND[1] + 1, 65535)}")
LOOM_PUBLIC_HOSTS = [host.strip() for host in env.text("LOOM_PUBLIC_HOSTS").split(",") if host.strip()]
env.refuse_wildcard("LOOM_PUBLIC_HOSTS", LOOM_PUBLIC_HOSTS)
IS_LOOPBACK = LOOM_BIND[0] in env.LOOPBACK_HOSTS and LOOM_MCP_BIND[0] in env.LOOPBACK_HOSTS
# Single-user mode never holds when another machine can reach the server.
LOOM_SINGLE_USER = env.flag("LOOM_SINGLE_USER", IS_LOOPBACK) and IS_LOOPBACK

SECRET_KEY = env.secret_key(LOOM_HOME / "secret.key")
DEBUG = env.flag("LOOM_DEBUG", False)
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "[::1]", *LOOM_PUBLIC_HOSTS]

INSTALLED_APPS = [
    "loomsite.apps.LoomsiteConfig",
    "governance.apps.GovernanceConfig",
    "memories.apps.MemoriesConfig",
    "facts.apps.FactsConfig",
    "procedures.apps.ProceduresConfig",
    "django.contrib.auth",
    "django.contrib.postgres",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "loomsite.apps.LoomAdminConfig",
    "guardian",
    "rest_framework",
]
AUTH_USER_MODEL = "governance.User"
AUTHENTICATION_BACKENDS = [
    "django.contrib.auth.backends.ModelBackend",
    "guardian.backends.ObjectPermissionBackend",
]
ANONYMOUS_USER_NAME = None
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

# The API needs none of Django's session or CSRF machinery; the console's own middleware list is put
# around the console's URLs only (loomsite.doors.middleware), which keeps a small request small.
MIDDLEWARE = [
    "loomsite.doors.middleware.ApiFirst",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "loomsite.doors.middleware.ContentSecurityPolicy",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "loomsite.urls"
WSGI_APPLICATION = "loomsite.wsgi.application"
ASGI_APPLICATION = "loomsite.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASES: dict[str, dict[str, Any]] = databases_from_env(LOOM_HOME)
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LOOM_STATEMENT_TIMEOUT_MS = env.integer("LOOM_STATEMENT_TIMEOUT_MS", 30_000, 100, 3_600_000)

USE_TZ = True
TIME_ZONE = "UTC"
USE_I18N = False
LANGUAGE_CODE = "en-gb"
STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "templates" / "static"]
# Static files come from the packages themselves, found once at the start: no collectstatic step.
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = False

DATA_UPLOAD_MAX_MEMORY_SIZE = 4 * 1024 * 1024
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE = "Lax"
X_FRAME_OPTIONS = "DENY"
LOOM_HTTPS = env.flag("LOOM_HTTPS", False)
SESSION_COOKIE_SECURE = LOOM_HTTPS
CSRF_COOKIE_SECURE = LOOM_HTTPS
SECURE_SSL_REDIRECT = LOOM_HTTPS
SECURE_HSTS_SECONDS = 31_536_000 if LOOM_HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = LOOM_HTTPS
SECURE_HSTS_PRELOAD = LOOM_HTTPS
if LOOM_HTTPS:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_PERMISSION_CLASSES": [],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": [],
    "UNAUTHENTICATED_USER": None,
}

CELERY_BROKER_URL = broker_url_from_env(LOOM_HOME)
LOOM_WORKER_STALE_S = env.integer("LOOM_WORKER_STALE_S", 30, 2, 3600)
LOOM_JOB_STALE_S = env.integer("LOOM_JOB_STALE_S", 60, 2, 86_400)
LOOM_JOB_KEEP_DAYS = env.integer("LOOM_JOB_KEEP_DAYS", 30, 1, 3650)
LOOM_SWEEP_S = env.integer("LOOM_SWEEP_S", 15, 1, 3600)

LOOM_EVOLVE_QUIET_S = env.integer("LOOM_EVOLVE_QUIET_S", 60, 0, 86_400)
LOOM_PROCEDURE_STRIKE_LIMIT = env.integer("LOOM_PROCEDURE_STRIKE_LIMIT", 3, 0, 1000)

LOOM_EMBEDDER = env.choice(
    "LOOM_EMBEDDER", "wordllama", ("wordllama", "openai", "fastembed", "sentence-transformers", "none")
)
LOOM_EMBEDDER_PATH = env.text("LOOM_EMBEDDER_PATH")
if LOOM_EMBEDDER in ("fastembed", "sentence-transformers"):
    env.needed("LOOM_EMBEDDER_PATH", f"LOOM_EMBEDDER={LOOM_EMBEDDER} loads its model from this folder")
LOOM_EMBEDDER_URL = env.text("LOOM_EMBEDDER_URL")
if LOOM_EMBEDDER == "openai":
    env.needed("LOOM_EMBEDDER_URL", "LOOM_EMBEDDER=openai embeds there")
LOOM_EMBEDDER_MODEL = env.text("LOOM_EMBEDDER_MODEL")
LOOM_EMBEDDER_API_KEY = env.text("LOOM_EMBEDDER_API_KEY")
LOOM_RATE_READS = env.rate("LOOM_RATE_READS", "1200/min")
LOOM_RATE_WRITES = env.rate("LOOM_RATE_WRITES", "600/min")
LOOM_TOMBSTONE_DAYS = env.integer("LOOM_TOMBSTONE_DAYS", 14, 1, 3650)
LOOM_IDEMPOTENCY_HOURS = env.integer("LOOM_IDEMPOTENCY_HOURS", 24, 1, 24 * 30)
LOOM_AUDIT_ANCHOR = LOOM_HOME / "audit-anchor.jsonl"
LOOM_LOG_LEVEL = env.choice("LOOM_LOG_LEVEL", "INFO", ("DEBUG", "INFO", "WARNING", "ERROR"))

# Logs go to standard error: over stdio MCP, standard output belongs to the protocol.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "()": "loomsite.logs.WithoutData",
            "format": "%(asctime)s %(levelname)s %(name)s %(message)s",
        }
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": LOOM_LOG_LEVEL},
    "loggers": {
        # It says "Terminating session: None" for every request of a server without sessions.
        "mcp.server.streamable_http": {"level": "WARNING"},
        # A line for each call of an embedding endpoint.
        "httpx": {"level": "WARNING"},
    },
}

CELERY_BEAT_SCHEDULE = {
    "heartbeat": {"task": "governance.heartbeat", "schedule": 5.0},
    "sweep": {"task": "governance.sweep", "schedule": float(LOOM_SWEEP_S)},
    "expire": {"task": "memories.expire_due", "schedule": float(LOOM_SWEEP_S)},
    "purge": {"task": "memories.purge_due", "schedule": 60.0},
    "plans": {"task": "governance.expire_plans", "schedule": float(LOOM_SWEEP_S)},
    "evolve": {"task": "procedures.evolve_due", "schedule": float(LOOM_SWEEP_S)},
    "graft": {"task": "memories.graft", "schedule": float(LOOM_SWEEP_S)},
    "rescan": {"task": "memories.rescan", "schedule": float(LOOM_SWEEP_S)},
    "rescan_facts": {"task": "facts.rescan", "schedule": float(LOOM_SWEEP_S)},
}
