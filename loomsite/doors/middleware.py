"""Middleware: a short way for the API, and the console's content security policy."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.urls import resolve
from django.urls.exceptions import Resolver404

from loomsite.doors.rest import no_such_address

# The one page under /v1/ that is read in a browser.
DOCS = "/v1/docs"
Handler = Callable[[HttpRequest], HttpResponse]
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)


class ApiFirst:
    """Serve /v1/ before the console's middleware: no session, no CSRF cookie, no message store.

    The API authenticates by bearer token or by the guards of single-user mode, so none of these would
    protect anything; they cost about a third of a small request. The probes belong here too: a balancer
    calls them by address, and must be neither redirected to HTTPS nor refused for its Host.
    """

    def __init__(self, get_response: Handler) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if not request.path_info.startswith("/v1/") or request.path_info == DOCS:
            return self.get_response(request)
        try:
            match = resolve(request.path_info)
        except Resolver404:
            return no_such_address(request)
        request.resolver_match = match
        response: HttpResponse = match.func(request, *match.args, **match.kwargs)
        return response


class ContentSecurityPolicy:
    """No inline script or style, nothing from another host, no framing."""

    def __init__(self, get_response: Handler) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        response.headers.setdefault("Content-Security-Policy", POLICY)
        response.headers.setdefault("Referrer-Policy", "same-origin")
        return response
