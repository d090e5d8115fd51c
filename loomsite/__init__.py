"""The project package: ops kernel, doors, embedded services, settings."""

VERSION = "0.1.0"
