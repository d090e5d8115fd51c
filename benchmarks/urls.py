"""The product's addresses and the floor view, which production does not have.

The floor stands under `/v1/` because what is posted there takes the short way through the middleware that
ops take (`ApiFirst`); elsewhere it would pay for sessions and CSRF and look slower than it is.
"""

from django.urls import path

from benchmarks import floor
from loomsite.urls import urlpatterns as product

urlpatterns = [path("v1/bench/floor/<str:op>", floor.view), *product]
