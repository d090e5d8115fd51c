"""Every address of the server, on one screen."""

from django.contrib import admin
from django.urls import path
from django.views.generic import RedirectView

from loomsite.doors import docs, rest

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("v1/health", rest.health),
    path("v1/ready", rest.ready),
    path("v1/openapi.json", docs.openapi_json),
    path("v1/docs", docs.index),
    path("v1/<str:op>", rest.OpView.as_view()),
    path("console/", admin.site.urls),
]
