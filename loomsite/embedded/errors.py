"""What stops a start: one line for a person, never a traceback."""


class EmbeddedError(Exception):
    """A start or stop that cannot go on. The message is one line that names the cause and the way out."""


class StopRequested(Exception):
    """A signal asked the supervisor to stop while it waited for something."""
