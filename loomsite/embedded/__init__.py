"""PostgreSQL, Valkey and the process supervisor behind `make run`.

Nothing here imports a Django app or a model: the supervisor stays small and starts fast, and what needs
Django (`migrate`, `bootstrap`, the web server, the worker) runs in processes of its own.
"""
