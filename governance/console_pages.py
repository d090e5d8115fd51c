"""The frame of the console's pages: a model's own list and page, without Django's forms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from governance.console import sight
from governance.templatetags.console import revealed

if TYPE_CHECKING:
    BaseAdmin = admin.ModelAdmin[Any]
else:
    BaseAdmin = admin.ModelAdmin

SUGGESTIONS = 100


class PageAdmin(BaseAdmin):
    """A model's own list and page on the admin site, without Django's forms.

    `list_page` and `row_page` are the views behind the usual URL names (`..._changelist`, `..._change`).
    """

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Never: rows come from ops."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never: changes go through ops."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never: nothing governed is deleted by a form."""
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """The pages decide row by row."""
        return self.admin_site.has_permission(request)

    def has_module_permission(self, request: HttpRequest) -> bool:
        """As viewing."""
        return self.has_view_permission(request)

    def get_urls(self) -> list[URLPattern]:
        """The list and the page."""
        return [
            self.route("", self.list_page, "changelist"),
            self.route("<int:pk>/", self.row_page, "change"),
        ]

    def route(self, where: str, view: Any, name: str) -> URLPattern:
        """A URL of this model, for people who logged in; named like Django's own."""
        full = f"{self.opts.app_label}_{self.opts.model_name}_{name}"
        pattern: URLPattern = path(where, self.admin_site.admin_view(view), name=full)
        return pattern

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """The list."""
        raise NotImplementedError

    def row_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One row."""
        raise NotImplementedError

    def show(
        self, request: HttpRequest, template: str, title: str, status: int = 200, **context: Any
    ) -> HttpResponse:
        """The page in the site's frame."""
        request.current_app = self.admin_site.name
        frame = {
            **self.admin_site.each_context(request),
            "title": revealed(title),
            "section": self.opts.model_name,
        }
        return TemplateResponse(request, f"admin/loom/{template}", {**frame, **context}, status=status)


def cursor_of(request: HttpRequest) -> str:
    """Where the asked page of a list starts."""
    return request.GET.get("after", "")[:1500]


class AdminsOnly(PageAdmin):
    """Pages for superusers and admins of any organisation; `superusers` narrows one to the first."""

    superusers = False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """By what the reader administers."""
        if not super().has_view_permission(request, obj):
            return False
        seen = sight(request)
        return seen.is_superuser if self.superusers else seen.administers

    def route(self, where: str, view: Any, name: str) -> URLPattern:
        """As any page's, and 403 for everybody else."""

        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if not self.has_view_permission(request):
                raise PermissionDenied("This page is for those who administer.")
            response: HttpResponse = view(request, *args, **kwargs)
            return response

        return super().route(where, guarded, name)
